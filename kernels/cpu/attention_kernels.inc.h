// KV writes and attention over any policy (kernels/api/attention.h). Included once per instruction
// set.
//
// A tile of B tokens is B / 16 sub-tiles, each a small weight panel of the micro kernel:
//   K: [D / P][16 tokens][P]   scores: outputs are tokens, units run over D
//   V: [16 / P][D'][P]         outputs: outputs are the D numbers, units run over tokens
// P inputs a unit, D' = D rounded up to 16 (lanes past D hold zeros; K uses D' for its size too).

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/micro_kernel.h"

namespace tandem {
namespace {

// A sub-tile of V, of any type.
alignas(64) constexpr float kZeros[kKvSubTileTokens * kMaxAttentionHeadDim] = {};

// kMaxRows rows share the loads of K and V; kSums sums fit the registers.
template <typename Policy, typename Element, DType kDType, int kMaxRows, int kSums>
struct Attention {
  static constexpr int kSub = kKvSubTileTokens;
  static constexpr int kSubTiles = kAttentionTileTokens / kSub;
  static constexpr int kP = Policy::kPerUnit;
  // Vectors of outputs summed at a time.
  template <int kRows>
  static constexpr int kVectorsOf = kSums / kRows >= kSubTiles ? kSubTiles
                                    : kSums / kRows >= 2       ? 2
                                                               : 1;
  // The second-level cache: on Zen 4 decode attention reads a quarter more by it than by the first
  // (kernels/README.md).
  static constexpr int kFetchedInto = 2;
  static constexpr int kWeightRowBytes = kAttentionTileTokens / kP * Policy::kRowUnitBytes;

  static size_t SubTileBytes(int head_dim) {
    return static_cast<size_t>(kSub) * AttentionAccumulatorStride(head_dim) * sizeof(Element);
  }
  static size_t TileBytes(const KvTileShape& shape) {
    return SubTileBytes(shape.head_dim) * (shape.block_tokens / kSub);
  }

  static std::byte* SubTile(const HostKvLayerView& kv, int64_t block, int64_t offset, int tile) {
    return kv.base + static_cast<size_t>(block) * kv.block_stride_bytes + kv.layer_offset_bytes +
           static_cast<size_t>(tile) * kv.tile_bytes +
           static_cast<size_t>(offset / kSub) * SubTileBytes(kv.shape.head_dim);
  }

  // ---- writing ----

  static Element Narrow(float x) {
    if constexpr (sizeof(Element) == 4) {
      return x;
    } else {
      return ToBfloat16(x).bits;
    }
  }

  // RmsNormRows's row, of one head.
  static void NormHead(const float* x, const float* weight, float epsilon, int head_dim, float* y) {
    const auto lanes_at = [head_dim](int d) {
      return head_dim - d < kLanes ? head_dim - d : kLanes;
    };
    F32x16 sums = {};
    for (int d = 0; d < head_dim; d += kLanes) {
      const F32x16 v = LoadLanes(DType::kF32, x, d, lanes_at(d));
      sums = sums + v * v;
    }
    const float mean = SumOf(sums) / static_cast<float>(head_dim);
    const float scale = 1.0f / __builtin_sqrtf(mean + epsilon);
    for (int d = 0; d < head_dim; d += kLanes) {
      const F32x16 w = LoadLanes(DType::kF32, weight, d, lanes_at(d));
      const F32x16 v = (LoadLanes(DType::kF32, x, d, lanes_at(d)) * scale) * w;
      StoreLanes(DType::kF32, y, d, v, lanes_at(d));
    }
  }

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
    const int padded = AttentionAccumulatorStride(head_dim);
    float normed[kMaxAttentionHeadDim];
    float rotated[kMaxAttentionHeadDim];
    const auto norm = [&](const float* head, const float* weight) {
      if (weight == nullptr) return head;
      NormHead(head, weight, args.norm_epsilon, head_dim, normed);
      return static_cast<const float*>(normed);
    };
    for (int64_t t = begin; t < end; ++t) {
      const float* cos = args.cos == nullptr ? nullptr : args.cos + t * (head_dim / 2);
      const float* sin = args.sin == nullptr ? nullptr : args.sin + t * (head_dim / 2);
      for (int h = 0; h < args.num_heads; ++h) {
        const float* head = args.query + t * args.input_stride + int64_t{h} * head_dim;
        Rotate(norm(head, args.query_norm), cos, sin, head_dim, rotated);
        Element* out = static_cast<Element*>(args.query_out) + (t * args.num_heads + h) * head_dim;
        for (int d = 0; d < head_dim; ++d) out[d] = Narrow(rotated[d]);
      }
      const int64_t block = args.slots[t] / kv.shape.block_tokens;
      const int64_t offset = args.slots[t] % kv.shape.block_tokens;
      const int token = static_cast<int>(offset % kSub);
      for (int g = 0; g < kv.num_kv_heads; ++g) {
        const int64_t from = t * args.input_stride + int64_t{g} * head_dim;
        Rotate(norm(args.key + from, args.key_norm), cos, sin, head_dim, rotated);
        Element* k = reinterpret_cast<Element*>(SubTile(kv, block, offset, g));
        for (int d = 0; d < head_dim; ++d) {
          k[(d / kP * kSub + token) * kP + d % kP] = Narrow(rotated[d]);
        }
        Element* v = reinterpret_cast<Element*>(SubTile(kv, block, offset, kv.num_kv_heads + g));
        for (int d = 0; d < padded; ++d) {
          v[(token / kP * padded + d) * kP + token % kP] =
              Narrow(d < head_dim ? args.value[from + d] : 0.0f);
        }
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
  static Tiles FindTiles(const AttentionTask& task, int64_t tile_begin, int64_t first_visible,
                         int64_t num_visible) {
    const int64_t first = first_visible > tile_begin ? first_visible / kSub * kSub : tile_begin;
    const int64_t last = (num_visible - 1) / kSub * kSub;
    Tiles tiles;
    for (int i = 0; i < kSubTiles; ++i) {
      const int64_t begin = tile_begin + i * kSub;
      const int64_t position = begin < first ? first : begin > last ? last : begin;
      const int64_t block = task.blocks[position / task.kv->shape.block_tokens];
      const int64_t offset = position % task.kv->shape.block_tokens;
      tiles.k[i] = SubTile(*task.kv, block, offset, task.kv_head);
      tiles.v[i] = begin < first
                       ? reinterpret_cast<const std::byte*>(kZeros)
                       : SubTile(*task.kv, block, offset, task.kv->num_kv_heads + task.kv_head);
    }
    return tiles;
  }

  template <int kRows>
  struct RowState {
    AttentionPartial* partials;
    float* accumulators;
    alignas(64) std::byte queries[kMaxAttentionHeadDim / kP * kRows * Policy::kRowUnitBytes];
    alignas(64) float scores[kRows][kAttentionTileTokens];
    alignas(64) std::byte weights[kRows * kWeightRowBytes];
    float rescale[kRows];
  };

  // Meanwhile V of the same tile is fetched, and in AddValues K of the next one.
  template <int kRows>
  static void Scores(const Tiles& tiles, int head_dim, RowState<kRows>* state) {
    constexpr int kVectors = kVectorsOf<kRows>;
    for (int first = 0; first < kSubTiles; first += kVectors) {
      F32x16 acc[kRows][kVectors] = {};
      const std::byte* w[kVectors];
      const std::byte* prefetch[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        w[v] = tiles.k[first + v];
        prefetch[v] = tiles.v[first + v];
      }
      AccumulateUnits<Policy, kRows, kVectors, kFetchedInto>(
          state->queries, kRows * Policy::kRowUnitBytes, Policy::kRowUnitBytes, w,
          Policy::kWeightVectorBytes, prefetch, Policy::kWeightVectorBytes, head_dim / kP, acc);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          StoreF32(state->scores[r] + (first + v) * kLanes, acc[r][v]);
        }
      }
    }
  }

  // Rounds a row's 16 softmax weights to the compute type and stores them as the micro kernel reads
  // rows. What multiplies V is what is summed.
  static F32x16 StoreWeights(F32x16 x, std::byte* to) {
    if constexpr (kDType == DType::kBF16) {
      const U16x16 narrow = NarrowNormalBf16(x);
      x = WidenBf16(narrow);
      if constexpr (Policy::kRowUnitBytes / kP == 2) {
        StoreU16(reinterpret_cast<uint16_t*>(to), narrow);
        return x;
      }
    }
    StoreF32(reinterpret_cast<float*>(to), Policy::kPhases == 2 ? SwapPairs(x) : x);
    return x;
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
                      AttentionPartial* partial, float* rescale, std::byte* weights) {
    constexpr int kWeightVector = kLanes / kP * Policy::kRowUnitBytes;
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
      sums = sums + StoreWeights(ExpOf(s[i] - max), weights + i * kWeightVector);
    }
    partial->max = max;
    partial->sum = partial->sum * *rescale + SumOf(sums);
  }

  // accumulators[.., kCount vectors from `first`] = rescaled + weights · V.
  template <int kRows, int kCount>
  static void AddValues(const Tiles& tiles, const Tiles& next, int tokens,
                        const std::byte* last_pair, int first, int padded, RowState<kRows>* state) {
    F32x16 acc[kRows][kCount];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        acc[r][v] =
            LoadF32(state->accumulators + r * padded + (first + v) * kLanes) * state->rescale[r];
      }
    }
    const int64_t unit_stride = int64_t{padded} / kLanes * Policy::kWeightVectorBytes;
    const std::byte* w[kCount];
    const std::byte* prefetch[kCount];
    const auto add = [&](const std::byte* v_units, const std::byte* next_units, int first_unit,
                         int units) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        w[v] = v_units + (first + v) * Policy::kWeightVectorBytes;
        prefetch[v] = next_units + (first + v) * Policy::kWeightVectorBytes;
      }
      AccumulateUnits<Policy, kRows, kCount, kFetchedInto>(
          state->weights + first_unit * Policy::kRowUnitBytes, Policy::kRowUnitBytes,
          kWeightRowBytes, w, unit_stride, prefetch, unit_stride, units, acc);
    };
    for (int i = 0; i * kSub < tokens; ++i) {
      const int here = tokens - i * kSub < kSub ? tokens - i * kSub : kSub;
      add(tiles.v[i], next.k[i], i * (kSub / kP), here / kP);
    }
    if (last_pair != nullptr) add(last_pair, last_pair, tokens / kP, 1);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        StoreF32(state->accumulators + r * padded + (first + v) * kLanes, acc[r][v]);
      }
    }
  }

  template <int kRows, int kCount>
  static void AddAllValues(const Tiles& tiles, const Tiles& next, int tokens,
                           const std::byte* last_pair, int first, int padded,
                           RowState<kRows>* state) {
    for (; first + kCount <= padded / kLanes; first += kCount) {
      AddValues<kRows, kCount>(tiles, next, tokens, last_pair, first, padded, state);
    }
    if constexpr (kCount > 1) {
      AddAllValues<kRows, kCount / 2>(tiles, next, tokens, last_pair, first, padded, state);
    }
  }

  template <int kRows>
  static void SegmentOfRows(const AttentionTask& task, int64_t segment_begin,
                            AttentionPartial* partials, float* accumulators) {
    const int head_dim = task.kv->shape.head_dim;
    const int padded = AttentionAccumulatorStride(head_dim);
    RowState<kRows> state;
    state.partials = partials;
    state.accumulators = accumulators;
    PackUnits<Policy, Element>(
        kRows, head_dim, [&](int r) { return static_cast<const Element*>(task.queries[r]); },
        state.queries);
    for (int r = 0; r < kRows; ++r) partials[r] = {-__builtin_inff(), 0.0f};
    std::memset(accumulators, 0, sizeof(float) * kRows * padded);
    const float scale =
        task.score_cap == 0.0f ? task.softmax_scale : 1.0f;  // CapScores scales, too
    const int64_t first_visible = FirstVisible(task.num_visible[0], task.window);  // the least
    const int64_t num_visible = task.num_visible[kRows - 1];                       // the most
    const int64_t segment_end = segment_begin + kAttentionSegmentTokens < num_visible
                                    ? segment_begin + kAttentionSegmentTokens
                                    : num_visible;
    const int64_t first_tile = first_visible > segment_begin
                                   ? first_visible / kAttentionTileTokens * kAttentionTileTokens
                                   : segment_begin;
    Tiles next = FindTiles(task, first_tile, first_visible, num_visible);
    for (int64_t tile = first_tile; tile < segment_end; tile += kAttentionTileTokens) {
      const Tiles tiles = next;
      if (tile + kAttentionTileTokens < segment_end) {
        next = FindTiles(task, tile + kAttentionTileTokens, first_visible, num_visible);
      }
      Scores<kRows>(tiles, head_dim, &state);
      if (task.score_cap != 0.0f) CapScores(task, kRows, state.scores[0]);
      for (int r = 0; r < kRows; ++r) {
        Softmax(state.scores[r], scale, FirstVisible(task.num_visible[r], task.window) - tile,
                task.num_visible[r] - tile, &partials[r], &state.rescale[r],
                state.weights + r * kWeightRowBytes);
      }
      const int tokens = num_visible - tile < kAttentionTileTokens
                             ? static_cast<int>(num_visible - tile)
                             : kAttentionTileTokens;
      // An odd last token shares its units with a slot that was never written, or is stale: even
      // times zero it could make a NaN, so it is replaced by zeros.
      alignas(64) uint16_t pairs[kP == 2 ? 2 * kMaxAttentionHeadDim : 1];
      const std::byte* last_pair = nullptr;
      if (kP == 2 && tokens % 2 == 1) {
        const int last = tokens - 1;
        const std::byte* units = tiles.v[last / kSub] + last % kSub / 2 * padded * 4;
        std::memcpy(pairs, units, padded * 4);
        for (int d = 0; d < padded; ++d) pairs[2 * d + 1] = 0;
        last_pair = reinterpret_cast<const std::byte*>(pairs);
      }
      AddAllValues<kRows, kVectorsOf<kRows>>(tiles, next, tokens, last_pair, 0, padded, &state);
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
      StoreLanes(kDType, output, d, y, head_dim - d < kLanes ? head_dim - d : kLanes);
    }
  }

  static constexpr AttentionKernels Table() {
    static_assert(kP == (kDType == DType::kBF16 ? 2 : 1));
    return AttentionKernels{.kv_type = KvTypeOf(kDType),
                            .compute_dtype = kDType,
                            .max_rows = kMaxRows,
                            .tile_format = kP == 2 ? "cpu.1.p2.bf16" : "cpu.1.p1.f32",
                            .tile_bytes = TileBytes,
                            .rotary_kv_write = RotaryKvWrite,
                            .segment = SegmentBy<1>,
                            .merge = Merge,
                            .finish = Finish};
  }
};

}  // namespace
}  // namespace tandem
