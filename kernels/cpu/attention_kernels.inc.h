// KV writes and attention over any way to keep KV (kernels/api/attention.h, kv_tiles.h). Included
// once per instruction set.

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kv_tiles.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/micro_kernel.h"
#include "kernels/cpu/rms_norm.h"

namespace tandem {
namespace {

// A sub-tile of V, of any type.
alignas(64) constexpr float kZeros[kKvSubTileTokens * kMaxAttentionHeadDim] = {};

// Each number of rows is code of its own. With sanitizers that takes minutes to compile: they see
// fewer, of which the last is summed in two halves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMostRows = 7;
#else
constexpr int kMostRows = kMaxAttentionTaskRows;
#endif

// kRowsThatPay rows share what is read of K and V; kSums sums fit the registers.
template <typename Tile, DType kDType, int kRowsThatPay, int kSums>
struct Attention {
  static constexpr int kMaxRows = kRowsThatPay < kMostRows ? kRowsThatPay : kMostRows;
  using Key = Tile::Key;
  using Value = Tile::Value;
  using Element = std::conditional_t<kDType == DType::kF32, float, uint16_t>;  // of queries
  static constexpr int kSub = kKvSubTileTokens;
  static constexpr int kSubTiles = kAttentionTileTokens / kSub;
  static constexpr int kP = Tile::kP;  // Inputs a unit, of both products.
  static constexpr int kRowUnitBytes = Key::kRowUnitBytes;
  static constexpr bool kHasNarrowRows = kRowUnitBytes == 2 * kP;
  // Rows summed at a time: all, or first one half and then the other, over what the first cache has
  // of K and V by then.
  template <int kRows>
  static constexpr int kRowsAtOnce = kRows <= kSums ? kRows : (kRows + 1) / 2;
  template <int kRows, int kFirst>
  static constexpr int kRowsFrom =
      kRows - kFirst < kRowsAtOnce<kRows> ? kRows - kFirst : kRowsAtOnce<kRows>;
  // Vectors of outputs summed at a time.
  template <int kRows>
  static constexpr int kVectorsOf = SumsFit(kSums, kRowsAtOnce<kRows>, kSubTiles) ? kSubTiles
                                    : SumsFit(kSums, kRowsAtOnce<kRows>, 2)       ? 2
                                                                                  : 1;
  // The second-level cache: on Zen 4 decode attention reads a quarter more by it than by the first
  // (kernels/measurements.md).
  static constexpr int kFetchedInto = 2;
  template <int kRows>
  static constexpr int kMostTaskRows = kMaxAttentionTaskRows - kMaxAttentionTaskRows % kRows;
  static_assert(kMaxRows <= kMaxAttentionTaskRows && kRowsAtOnce<kMaxRows> <= kSums);
  static constexpr int kMaxUnitBytes =
      kMaxAttentionHeadDim / kLanes * Value::kWeightVectorBytes;  // A unit of V.
  static constexpr int kWeightRowBytes = kAttentionTileTokens / kP * kRowUnitBytes;

  static size_t TileBytes(const KvTileShape& shape) {
    return Tile::SubTileBytes(shape.head_dim) * (shape.block_tokens / kSub);
  }

  static std::byte* SubTile(const HostKvLayerView& kv, int64_t block, int64_t offset, int tile) {
    return kv.base + static_cast<size_t>(block) * kv.block_stride_bytes + kv.layer_offset_bytes +
           static_cast<size_t>(tile) * kv.tile_bytes +
           static_cast<size_t>(offset / kSub) * Tile::SubTileBytes(kv.shape.head_dim);
  }

  // ---- writing ----

  static void Rotate(const float* x, const float* cos, const float* sin, int head_dim, float* y) {
    if (cos == nullptr) {
      std::memcpy(y, x, sizeof(float) * head_dim);
      return;
    }
    const int half = head_dim / 2;
    for (int i = 0; i < half; ++i) {
      y[i] = x[i] * cos[i] - x[i + half] * sin[i];
      y[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
    }
  }

  static void RotaryKvWrite(const HostRotaryKvWriteArgs& args, int64_t begin, int64_t end) {
    const HostKvLayerView& kv = args.kv;
    const int head_dim = kv.shape.head_dim;
    float normed[kMaxAttentionHeadDim];
    float rotated[kMaxAttentionHeadDim];
    const auto norm = [&](const float* head, const float* weight) {
      if (weight == nullptr) return head;
      RmsNormRow(head, weight, args.norm_epsilon, head_dim, DType::kF32, normed, 0);
      return static_cast<const float*>(normed);
    };
    for (int64_t t = begin; t < end; ++t) {
      const float* cos = args.cos == nullptr ? nullptr : args.cos + t * (head_dim / 2);
      const float* sin = args.sin == nullptr ? nullptr : args.sin + t * (head_dim / 2);
      for (int h = 0; h < args.num_heads; ++h) {
        const float* head = args.query + t * args.input_stride + int64_t{h} * head_dim;
        Rotate(norm(head, args.query_norm), cos, sin, head_dim, rotated);
        Element* out = static_cast<Element*>(args.query_out) + (t * args.num_heads + h) * head_dim;
        for (int d = 0; d < head_dim; ++d) out[d] = Narrow<Element>(rotated[d]);
      }
      const int64_t block = args.slots[t] / kv.shape.block_tokens;
      const int64_t offset = args.slots[t] % kv.shape.block_tokens;
      const int token = static_cast<int>(offset % kSub);
      for (int g = 0; g < kv.num_kv_heads; ++g) {
        const int64_t from = t * args.input_stride + int64_t{g} * head_dim;
        Rotate(norm(args.key + from, args.key_norm), cos, sin, head_dim, rotated);
        Tile::WriteKey(rotated, head_dim, token, SubTile(kv, block, offset, g));
        Tile::WriteValue(args.value + from, head_dim, token,
                         SubTile(kv, block, offset, kv.num_kv_heads + g));
      }
    }
  }

  // ---- reading ----

  struct Tiles {
    const std::byte* k[kSubTiles];
    const std::byte* v[kSubTiles];
  };

  // Sub-tiles without a position in [first_visible, num_visible) point at the nearest one with
  // some: their scores are masked, and V is added not at all behind it. Before it V is added times
  // zero, and is zeros: the nearest one may have slots that were never written.
  static Tiles FindTiles(const AttentionTask& task, int kv_head, int64_t tile_begin,
                         int64_t first_visible, int64_t num_visible) {
    const int64_t first = first_visible > tile_begin ? first_visible / kSub * kSub : tile_begin;
    const int64_t last = (num_visible - 1) / kSub * kSub;
    Tiles tiles;
    for (int i = 0; i < kSubTiles; ++i) {
      const int64_t begin = tile_begin + i * kSub;
      const int64_t position = begin < first ? first : begin > last ? last : begin;
      const auto block_tokens = static_cast<uint32_t>(task.kv->shape.block_tokens);
      const int64_t block = task.blocks[static_cast<uint32_t>(position) / block_tokens];
      const int64_t offset = static_cast<uint32_t>(position) % block_tokens;
      tiles.k[i] = SubTile(*task.kv, block, offset, kv_head);
      tiles.v[i] = begin < first
                       ? reinterpret_cast<const std::byte*>(kZeros)
                       : SubTile(*task.kv, block, offset, task.kv->num_kv_heads + kv_head);
    }
    return tiles;
  }

  // Rows of one KV head.
  template <int kRows>
  struct RowState {
    AttentionPartial* partials;
    float* accumulators;
    const std::byte* queries;
    alignas(64) float scores[kRows][kAttentionTileTokens];
    alignas(64) std::byte weights[kRows * kWeightRowBytes];
    float rescale[kRows];
  };

  // Scores of rows [kFirst, ..) with kVectors sub-tiles from `first`. Meanwhile V of the same tile
  // is fetched, and in AddValues K of the next one.
  template <int kRows, int kVectors, int kFirst>
  [[gnu::always_inline]] static void ScoresOfRows(const Tiles& tiles, int head_dim, int first,
                                                  RowState<kRows>* state) {
    constexpr int kHere = kRowsFrom<kRows, kFirst>;
    F32x16 acc[kHere][kVectors] = {};
    const std::byte* w[kVectors];
    const std::byte* prefetch[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      w[v] = tiles.k[first + v];
      prefetch[v] = tiles.v[first + v];
    }
    AccumulateUnits<Key, kHere, kVectors, kFetchedInto>(
        state->queries + kFirst * kRowUnitBytes, kRows * kRowUnitBytes, kRowUnitBytes, w,
        Key::kWeightVectorBytes, prefetch, Key::kWeightVectorBytes, (head_dim + kP - 1) / kP, acc);
#pragma GCC unroll 16
    for (int r = 0; r < kHere; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (Tile::kHasTokenScales) {
          acc[r][v] = acc[r][v] * TokenScales(tiles.k[first + v], head_dim);
        }
        StoreF32(state->scores[kFirst + r] + (first + v) * kLanes, acc[r][v]);
      }
    }
    if constexpr (kFirst + kHere < kRows) {
      ScoresOfRows<kRows, kVectors, kFirst + kHere>(tiles, head_dim, first, state);
    }
  }

  template <int kRows>
  static void Scores(const Tiles& tiles, int head_dim, RowState<kRows>* state) {
    constexpr int kVectors = kVectorsOf<kRows>;
    for (int first = 0; first < kSubTiles; first += kVectors) {
      ScoresOfRows<kRows, kVectors, 0>(tiles, head_dim, first, state);
    }
  }

  static F32x16 TokenScales(const std::byte* sub_tile, int head_dim) {
    return LoadF32(Tile::TokenScales(sub_tile, AttentionAccumulatorStride(head_dim)));
  }

  // Rounds a row's 16 softmax weights to the compute type and stores them as the micro kernel reads
  // rows. What multiplies V is what is summed, but for tokens with scales: those are in what
  // multiplies V, unless a weight is zero. Then a slot may hold anything.
  static F32x16 StoreWeights(F32x16 x, const std::byte* values, int head_dim, std::byte* to) {
    F32x16 summed = x;
    if constexpr (Tile::kHasTokenScales) {
      const I32x16 is_used = SignedOf(BitsOf(x) & 0x7FFFFFFFu) > 0;
      x = Select(is_used, x * TokenScales(values, head_dim), Splat(0.0f));
    }
    if constexpr (kDType == DType::kBF16) {
      const U16x16 narrow = NarrowNormalBf16(x);
      x = WidenBf16(narrow);
      if constexpr (!Tile::kHasTokenScales) summed = x;
      if constexpr (kHasNarrowRows) StoreU16(reinterpret_cast<uint16_t*>(to), narrow);
    }
    if constexpr (!kHasNarrowRows) {
      StoreF32(reinterpret_cast<float*>(to), Value::InputOf(0) == 1 ? SwapPairs(x) : x);
    }
    return summed;
  }

  // Scaled and capped scores of `num_rows` rows. It is apart, so that layers without a cap have a
  // branch for each tile and no more.
  [[gnu::noinline]] static void CapScores(const AttentionTask& task, int num_rows, float* scores) {
    for (int i = 0; i < num_rows * kAttentionTileTokens; i += kLanes) {
      const F32x16 score = LoadF32(scores + i) * task.softmax_scale;
      StoreF32(scores + i, SoftCapOf(score, task.score_cap));
    }
  }

  // From scores to weights exp(score − max), the new maximum and sum; positions [hidden, visible)
  // of the tile are seen.
  static void Softmax(float* scores, float softmax_scale, int64_t hidden, int64_t visible,
                      const Tiles& tiles, int head_dim, AttentionPartial* partial, float* rescale,
                      std::byte* weights) {
    constexpr int kWeightVector = kLanes / kP * kRowUnitBytes;
    const F32x16 minus_infinity = Splat(-__builtin_inff());
    const I32x16 lane = LaneNumbers();
    F32x16 s[kSubTiles];
    F32x16 maxima = Splat(partial->max);
    for (int i = 0; i < kSubTiles; ++i) {
      s[i] = LoadF32(scores + i * kLanes) * softmax_scale;
      if (visible < (i + 1) * kLanes) {
        const int seen = visible > i * kLanes ? static_cast<int>(visible) - i * kLanes : 0;
        s[i] = Select(lane < seen, s[i], minus_infinity);
      }
      if (hidden > i * kLanes) {
        const int before =
            hidden < (i + 1) * kLanes ? static_cast<int>(hidden) - i * kLanes : kLanes;
        s[i] = Select(lane < before, minus_infinity, s[i]);
      }
      maxima = MaxOf(s[i], maxima);
    }
    const float max = MaxOfLanes(maxima);
    if (visible <= 0 || max == -__builtin_inff()) {
      *rescale = 1.0f;
      std::memset(weights, 0, kWeightRowBytes);
      return;
    }
    *rescale = Exp(partial->max - max);
    F32x16 sums = {};
    for (int i = 0; i < kSubTiles; ++i) {
      sums =
          sums + StoreWeights(ExpOf(s[i] - max), tiles.v[i], head_dim, weights + i * kWeightVector);
    }
    partial->max = max;
    partial->sum = partial->sum * *rescale + SumOf(sums);
  }

  // accumulators[kFirst, ..][kCount vectors from `first`] = rescaled + weights · V.
  template <int kRows, int kCount, int kFirst = 0>
  static void AddValues(const Tiles& tiles, const Tiles& next, int tokens,
                        const std::byte* last_unit, int first, int padded, RowState<kRows>* state) {
    constexpr int kHere = kRowsFrom<kRows, kFirst>;
    float* const accumulators = state->accumulators + kFirst * padded;
    F32x16 acc[kHere][kCount];
#pragma GCC unroll 16
    for (int r = 0; r < kHere; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        acc[r][v] =
            LoadF32(accumulators + r * padded + (first + v) * kLanes) * state->rescale[kFirst + r];
      }
    }
    const int64_t unit_stride = int64_t{padded} / kLanes * Value::kWeightVectorBytes;
    const std::byte* w[kCount];
    const std::byte* prefetch[kCount];
    const auto add = [&](const std::byte* v_units, const std::byte* next_units, int first_unit,
                         int units) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        w[v] = v_units + (first + v) * Value::kWeightVectorBytes;
        prefetch[v] = next_units + (first + v) * Value::kWeightVectorBytes;
      }
      AccumulateUnits<Value, kHere, kCount, kFetchedInto>(
          state->weights + kFirst * kWeightRowBytes + first_unit * kRowUnitBytes, kRowUnitBytes,
          kWeightRowBytes, w, unit_stride, prefetch, unit_stride, units, acc);
    };
    for (int i = 0; i * kSub < tokens; ++i) {
      const int here = tokens - i * kSub < kSub ? tokens - i * kSub : kSub;
      const int units = last_unit == nullptr ? (here + kP - 1) / kP : here / kP;
      add(tiles.v[i], next.k[i], i * (kSub / kP), units);
    }
    if (last_unit != nullptr) add(last_unit, last_unit, tokens / kP, 1);
#pragma GCC unroll 16
    for (int r = 0; r < kHere; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        StoreF32(accumulators + r * padded + (first + v) * kLanes, acc[r][v]);
      }
    }
    if constexpr (kFirst + kHere < kRows) {
      AddValues<kRows, kCount, kFirst + kHere>(tiles, next, tokens, last_unit, first, padded,
                                               state);
    }
  }

  template <int kRows, int kCount>
  static void AddAllValues(const Tiles& tiles, const Tiles& next, int tokens,
                           const std::byte* last_unit, int first, int padded,
                           RowState<kRows>* state) {
    for (; first + kCount <= padded / kLanes; first += kCount) {
      AddValues<kRows, kCount>(tiles, next, tokens, last_unit, first, padded, state);
    }
    if constexpr (kCount > 1) {
      AddAllValues<kRows, kCount / 2>(tiles, next, tokens, last_unit, first, padded, state);
    }
  }

  // Adds a tile of one KV head; meanwhile `next` is fetched.
  template <int kRows>
  static void AddTile(const AttentionTask& task, int64_t tile, const Tiles& tiles,
                      const Tiles& next, RowState<kRows>* state) {
    const int head_dim = task.kv->shape.head_dim;
    const int padded = AttentionAccumulatorStride(head_dim);
    const bool has_cap = task.score_cap != 0.0f;
    Scores<kRows>(tiles, head_dim, state);
    if (has_cap) CapScores(task, kRows, state->scores[0]);
    for (int r = 0; r < kRows; ++r) {
      Softmax(state->scores[r], has_cap ? 1.0f : task.softmax_scale,  // CapScores scales, too.
              FirstVisible(task.num_visible[r], task.window) - tile, task.num_visible[r] - tile,
              tiles, head_dim, &state->partials[r], &state->rescale[r],
              state->weights + r * kWeightRowBytes);
    }
    const int64_t left = task.num_visible[kRows - 1] - tile;
    const int tokens = left < kAttentionTileTokens ? static_cast<int>(left) : kAttentionTileTokens;
    alignas(64) std::byte unit[Tile::kClearsLastUnit ? kMaxUnitBytes : 1];
    const std::byte* last_unit = nullptr;
    if constexpr (Tile::kClearsLastUnit) {
      if (tokens % kP != 0) {
        const int unit_bytes = padded / kLanes * Value::kWeightVectorBytes;
        std::memcpy(unit, tiles.v[tokens / kSub] + tokens % kSub / kP * unit_bytes, unit_bytes);
        Tile::ClearUnit(tokens % kP, padded, unit);
        last_unit = unit;
      }
    }
    AddAllValues<kRows, kVectorsOf<kRows>>(tiles, next, tokens, last_unit, 0, padded, state);
  }

  // Tile by tile, and of each the KV heads one after the other, as they lie in memory: pieces of a
  // few KiB, each of them from another place, are read at half of the speed.
  template <int kRows>
  static void SegmentOfRows(const AttentionTask& task, int64_t segment_begin,
                            AttentionPartial* partials, float* accumulators) {
    const int head_dim = task.kv->shape.head_dim;
    const int padded = AttentionAccumulatorStride(head_dim);
    const int num_heads = task.num_kv_heads;
    alignas(64) std::byte queries[kMaxAttentionHeadDim / kP * kRowUnitBytes * kMostTaskRows<kRows>];
    const int query_bytes = (head_dim + kP - 1) / kP * kRows * kRowUnitBytes;
    for (int h = 0; h < num_heads; ++h) {
      PackUnits<Key, Element>(
          kRows, head_dim,
          [&](int r) { return static_cast<const Element*>(task.queries[h * kRows + r]); },
          queries + h * query_bytes);
    }
    for (int r = 0; r < num_heads * kRows; ++r) partials[r] = {-__builtin_inff(), 0.0f};
    std::memset(accumulators, 0, sizeof(float) * num_heads * kRows * padded);
    const int64_t first_visible = FirstVisible(task.num_visible[0], task.window);  // the least
    const int64_t num_visible = task.num_visible[kRows - 1];                       // the most
    const int64_t segment_end = segment_begin + kAttentionSegmentTokens < num_visible
                                    ? segment_begin + kAttentionSegmentTokens
                                    : num_visible;
    const int64_t first_tile = first_visible > segment_begin
                                   ? first_visible / kAttentionTileTokens * kAttentionTileTokens
                                   : segment_begin;
    RowState<kRows> state;
    Tiles next = FindTiles(task, task.first_kv_head, first_tile, first_visible, num_visible);
    for (int64_t tile = first_tile; tile < segment_end; tile += kAttentionTileTokens) {
      for (int h = 0; h < num_heads; ++h) {
        const Tiles tiles = next;
        if (h + 1 < num_heads) {
          next = FindTiles(task, task.first_kv_head + h + 1, tile, first_visible, num_visible);
        } else if (tile + kAttentionTileTokens < segment_end) {
          next = FindTiles(task, task.first_kv_head, tile + kAttentionTileTokens, first_visible,
                           num_visible);
        }
        state.partials = partials + h * kRows;
        state.accumulators = accumulators + h * kRows * padded;
        state.queries = queries + h * query_bytes;
        AddTile<kRows>(task, tile, tiles, next, &state);
      }
    }
  }

  template <int kRows>
  static void SegmentBy(const AttentionTask& task, int64_t segment_begin,
                        AttentionPartial* partials, float* accumulators) {
    if (task.num_rows == kRows) {
      SegmentOfRows<kRows>(task, segment_begin, partials, accumulators);
    } else if constexpr (kRows < kMaxRows) {
      SegmentBy<kRows + 1>(task, segment_begin, partials, accumulators);
    }
  }

  static void Merge(int head_dim, AttentionPartial right, const float* right_accumulator,
                    AttentionPartial* left, float* left_accumulator) {
    const float max = right.max > left->max ? right.max : left->max;
    if (max == -__builtin_inff()) return;
    const float left_scale = Exp(left->max - max);
    const float right_scale = Exp(right.max - max);
    left->max = max;
    left->sum = left->sum * left_scale + right.sum * right_scale;
    for (int d = 0; d < AttentionAccumulatorStride(head_dim); d += kLanes) {
      StoreF32(left_accumulator + d, LoadF32(left_accumulator + d) * left_scale +
                                         LoadF32(right_accumulator + d) * right_scale);
    }
  }

  static void Finish(int head_dim, AttentionPartial partial, const float* accumulator,
                     void* output) {
    for (int d = 0; d < head_dim; d += kLanes) {
      // Adding 0 makes a zero positive: how it underflowed may depend on masked positions.
      const F32x16 y = LoadF32(accumulator + d) / partial.sum + 0.0f;
      StoreLanes(kDType, output, d, y, LanesAt(d, head_dim));
    }
  }

  static constexpr AttentionKernels Kernels() {
    return AttentionKernels{.kv_type = Tile::kType,
                            .max_rows = kMaxRows,
                            .tile_format = Tile::kFormat,
                            .tile_bytes = TileBytes,
                            .rotary_kv_write = RotaryKvWrite,
                            .segment = SegmentBy<1>,
                            .merge = Merge,
                            .finish = Finish};
  }
};

template <DType kDType, typename Policies, int kMaxRows, int kSums>
constexpr AttentionKernels Int8Kernels() {
  return Attention<Int8Tile<typename Policies::Int8>, kDType, kMaxRows, kSums>::Kernels();
}
template <DType kDType, typename Policies, int kMaxRows, int kSums>
constexpr AttentionKernels Fp8Kernels() {
  return Attention<Fp8Tile<typename Policies::Fp8>, kDType, kMaxRows, kSums>::Kernels();
}
template <DType kDType, typename Policies, int kMaxRows, int kSums>
constexpr AttentionKernels GroupedKernels() {
  using Tile = GroupedTile<typename Policies::GroupedKey, typename Policies::GroupedValue>;
  return Attention<Tile, kDType, kMaxRows, kSums>::Kernels();
}

// All types of KV that f32 is computed with.
template <int kMaxRows, int kGroupedRows, int kSums>
constexpr F32AttentionTable MakeF32AttentionTable() {
  constexpr DType kF32 = DType::kF32;
  using Policies = MulAddPolicies</*kOddFirst=*/false>;
  return {Attention<PlainTile<F32Policy>, kF32, kMaxRows, kSums>::Kernels(),
          Attention<PlainTile<Policies::Bf16>, kF32, kMaxRows, kSums>::Kernels(),
          Int8Kernels<kF32, Policies, kMaxRows, kSums>(),
          GroupedKernels<kF32, Policies, kGroupedRows, kSums>(),
          Fp8Kernels<kF32, Policies, kGroupedRows, kSums>()};
}

// And bf16.
template <typename Policies, int kMaxRows, int kGroupedRows, int kSums>
constexpr Bf16AttentionTable MakeBf16AttentionTable() {
  constexpr DType kBF16 = DType::kBF16;
  return {Attention<PlainTile<typename Policies::Bf16>, kBF16, kMaxRows, kSums>::Kernels(),
          Int8Kernels<kBF16, Policies, kMaxRows, kSums>(),
          GroupedKernels<kBF16, Policies, kGroupedRows, kSums>(),
          Fp8Kernels<kBF16, Policies, kGroupedRows, kSums>()};
}

}  // namespace
}  // namespace tandem
