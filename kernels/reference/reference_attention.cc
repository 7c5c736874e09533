#include "kernels/reference/reference_attention.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/api/e4m3.h"
#include "kernels/reference/numbers.h"
#include "kernels/reference/reference_rows.h"
#include "kernels/support/int8.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Numbers that share a scale.
int64_t RunOf(const KvTileShape& shape) { return shape.type == KvType::kInt8 ? shape.head_dim : 8; }

// K or V of one head in a block: plain arrays [B, D] of numbers, and behind them, of whole numbers
// of 8 bits, [B, runs] scales: f32 ones of a token, a byte of a group.
struct Tile {
  Tile(const HostKvLayerView& kv, int64_t block, bool is_value, int kv_head)
      : shape(kv.shape),
        base(kv.base + static_cast<size_t>(block) * kv.block_stride_bytes + kv.layer_offset_bytes +
             static_cast<size_t>((is_value ? kv.num_kv_heads : 0) + kv_head) * kv.tile_bytes) {}

  std::byte* scales() const { return base + int64_t{shape.block_tokens} * shape.head_dim; }
  std::byte& GroupScale(int64_t offset, int d) const {
    return scales()[offset * CeilDiv<int64_t>(shape.head_dim, RunOf(shape)) + d / RunOf(shape)];
  }
  float Scale(int64_t offset, int d) const {
    if (shape.type == KvType::kInt8) return Load(DType::kF32, scales(), offset);
    return Int8GroupScaleToFloat(std::to_integer<uint8_t>(GroupScale(offset, d)));
  }
  void WriteScale(int64_t offset, int d, float absmax) const {
    if (shape.type == KvType::kInt8) {
      Store(DType::kF32, scales(), offset, Int8Scale(absmax));
    } else {
      GroupScale(offset, d) = std::byte{Int8GroupScale(absmax)};
    }
  }

  // What enters a product: a scale of a group is in it, the one of a token is not.
  float Read(int64_t offset, int d) const {
    const int64_t index = offset * shape.head_dim + d;
    if (shape.type == KvType::kFp8) return ToFloat(E4m3{std::to_integer<uint8_t>(base[index])});
    if (!HasScales(shape.type)) return Load(ElementType(shape.type), base, index);
    const float number = static_cast<float>(std::to_integer<int8_t>(base[index]));
    if (shape.type == KvType::kInt8) return number;
    return number * Scale(offset, d);
  }

  // The scale of a token; 1 where there is none.
  float TokenScale(int64_t offset) const {
    return shape.type == KvType::kInt8 ? Scale(offset, 0) : 1.0f;
  }

  void Write(int64_t offset, const std::vector<float>& values) const {
    for (int d = 0; d < shape.head_dim; ++d) {
      const int64_t index = offset * shape.head_dim + d;
      if (shape.type == KvType::kFp8) {
        base[index] = std::byte{ToE4m3(values[d]).bits};
        continue;
      }
      if (!HasScales(shape.type)) {
        Store(ElementType(shape.type), base, index, values[d]);
        continue;
      }
      if (d % RunOf(shape) == 0) {
        uint32_t absmax = 0;
        for (int64_t i = d; i < std::min<int64_t>(d + RunOf(shape), shape.head_dim); ++i) {
          absmax = std::max(absmax, MagnitudeBits(values[i]));
        }
        WriteScale(offset, d, std::bit_cast<float>(absmax));
      }
      const int32_t number =
          shape.type == KvType::kInt8
              ? ToInt8(values[d], Scale(offset, d))
              : ToInt8OfGroup(values[d], std::to_integer<uint8_t>(GroupScale(offset, d)));
      base[index] = static_cast<std::byte>(static_cast<int8_t>(number));
    }
  }

  const KvTileShape& shape;
  std::byte* const base;
};

// Running softmax: the sum is Σ exp(score − max), the accumulator Σ exp(score − max) · V.
struct Partial {
  float max = kMinusInfinity;
  float sum = 0.0f;
  std::vector<float> accumulator;  // [D]
};

// One query row of one head.
struct Row {
  const HostKvLayerView* kv;
  const int32_t* blocks;
  const void* query;  // at query_begin: [D]
  int64_t query_begin;
  int kv_head;
  DType compute_dtype;
  float softmax_scale;
  float score_cap;
  int64_t first_visible;  // positions [first_visible, num_visible) are seen
  int64_t num_visible;

  bool sees(int64_t position) const { return position >= first_visible && position < num_visible; }
};

float Score(const Row& row, int64_t position) {
  const KvTileShape& shape = row.kv->shape;
  const Tile keys(*row.kv, row.blocks[position / shape.block_tokens], false, row.kv_head);
  const int64_t offset = position % shape.block_tokens;
  float sum = 0.0f;
  for (int d = 0; d < shape.head_dim; ++d) {
    sum = sum + Load(row.compute_dtype, row.query, row.query_begin + d) * keys.Read(offset, d);
  }
  const float score = (sum * keys.TokenScale(offset)) * row.softmax_scale;
  return row.score_cap == 0.0f ? score : SoftCap(score, row.score_cap);
}

Tile Values(const Row& row, int64_t position) {
  return Tile(*row.kv, row.blocks[position / row.kv->shape.block_tokens], true, row.kv_head);
}

void AddTile(const Row& row, int64_t tile_begin, Partial* partial) {
  const KvTileShape& shape = row.kv->shape;
  float weights[kAttentionTileTokens];
  float max = partial->max;
  for (int i = 0; i < kAttentionTileTokens; ++i) {
    const int64_t position = tile_begin + i;
    weights[i] = row.sees(position) ? Score(row, position) : kMinusInfinity;
    max = weights[i] > max ? weights[i] : max;
  }
  if (max == kMinusInfinity) return;
  const float rescale = Exp(partial->max - max);
  float lanes[kLanes] = {};
  struct Seen {
    int token;  // of the tile
    int64_t offset;
    Tile values;
  };
  std::vector<Seen> seen;
  for (int i = 0; i < kAttentionTileTokens; ++i) {
    const int64_t position = tile_begin + i;
    const int64_t offset = position % shape.block_tokens;
    if (row.sees(position)) seen.push_back({i, offset, Values(row, position)});
    const float weight = Exp(weights[i] - max);
    weights[i] = Round(row.compute_dtype, weight);
    float summed = weights[i];  // What multiplies V, unless that has a scale of its own.
    if (shape.type == KvType::kInt8) {
      summed = weight;
      const bool is_used = row.sees(position) && weight != 0.0f;
      weights[i] =
          is_used ? Round(row.compute_dtype, weight * seen.back().values.TokenScale(offset)) : 0.0f;
    }
    lanes[i % kLanes] = lanes[i % kLanes] + summed;
  }
  partial->max = max;
  partial->sum = partial->sum * rescale + SumLanes(lanes);
  for (int d = 0; d < shape.head_dim; ++d) {
    float accumulator = partial->accumulator[d] * rescale;
    for (const Seen& s : seen) {
      accumulator = accumulator + weights[s.token] * s.values.Read(s.offset, d);
    }
    partial->accumulator[d] = accumulator;
  }
}

Partial SegmentPartial(const Row& row, int64_t segment_begin) {
  Partial partial;
  partial.accumulator.assign(row.kv->shape.head_dim, 0.0f);
  const int64_t segment_end = std::min(segment_begin + kAttentionSegmentTokens, row.num_visible);
  for (int64_t tile = segment_begin; tile < segment_end; tile += kAttentionTileTokens) {
    if (tile + kAttentionTileTokens > row.first_visible) AddTile(row, tile, &partial);
  }
  return partial;
}

void Merge(const Partial& right, Partial* left) {
  const float max = right.max > left->max ? right.max : left->max;
  if (max == kMinusInfinity) return;
  const float left_scale = Exp(left->max - max);
  const float right_scale = Exp(right.max - max);
  left->max = max;
  left->sum = left->sum * left_scale + right.sum * right_scale;
  for (size_t d = 0; d < left->accumulator.size(); ++d) {
    left->accumulator[d] = left->accumulator[d] * left_scale + right.accumulator[d] * right_scale;
  }
}

void Attend(const Row& row, void* output, int64_t output_begin) {
  const int64_t first = row.first_visible / kAttentionSegmentTokens * kAttentionSegmentTokens;
  Partial total = SegmentPartial(row, first);
  for (int64_t begin = first + kAttentionSegmentTokens; begin < row.num_visible;
       begin += kAttentionSegmentTokens) {
    Merge(SegmentPartial(row, begin), &total);
  }
  for (int d = 0; d < row.kv->shape.head_dim; ++d) {
    // Adding 0 makes a zero positive: how it underflowed may depend on masked positions.
    Store(row.compute_dtype, output, output_begin + d, total.accumulator[d] / total.sum + 0.0f);
  }
}

// Query token `token` of `sequence`, with arguments of decode or prefill attention.
template <typename Args>
void AttendAllHeads(const Args& args, int64_t sequence, int64_t token, int64_t num_visible) {
  const int group = args.num_heads / args.kv.num_kv_heads;
  for (int h = 0; h < args.num_heads; ++h) {
    const int64_t begin = (token * args.num_heads + h) * args.kv.shape.head_dim;
    const Row row{.kv = &args.kv,
                  .blocks = args.block_table + sequence * args.max_blocks,
                  .query = args.query,
                  .query_begin = begin,
                  .kv_head = h / group,
                  .compute_dtype = args.compute_dtype,
                  .softmax_scale = args.softmax_scale,
                  .score_cap = args.score_cap,
                  .first_visible = FirstVisible(num_visible, args.window),
                  .num_visible = num_visible};
    Attend(row, args.output, begin);
  }
}

}  // namespace

KvTileFormat ReferenceTileFormat(const KvTileShape& shape) {
  const size_t tokens = shape.block_tokens, head_dim = shape.head_dim;
  size_t token_bytes = head_dim * SizeOf(ElementType(shape.type));
  if (shape.type == KvType::kFp8) token_bytes = head_dim;
  if (shape.type == KvType::kInt8) token_bytes = head_dim + sizeof(float);
  if (shape.type == KvType::kInt8G8) {
    token_bytes = head_dim + CeilDiv<size_t>(head_dim, 8);
  }
  return KvTileFormat{.id = std::string("reference.1.") + NameOf(shape.type),
                      .tile_bytes = tokens * token_bytes};
}

void ReferenceRotaryTable(const HostRotaryTableArgs& args) {
  const int64_t half = args.head_dim / 2;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const SinCosResult result = SinCos(static_cast<float>(args.positions[t]) * args.inv_freq[i]);
      args.cos[t * half + i] = result.cos * args.scale;
      args.sin[t * half + i] = result.sin * args.scale;
    }
  }
}

void ReferenceRotaryKvWrite(const HostRotaryKvWriteArgs& args) {
  const HostKvLayerView& kv = args.kv;
  const int head_dim = kv.shape.head_dim;
  const int half = head_dim / 2;
  // `head`, or its norm.
  const auto normed = [&](const float* head, const float* weight) {
    if (weight == nullptr) return std::vector<float>(head, head + head_dim);
    return ReferenceNormRow(head, weight, args.norm_epsilon, head_dim);
  };
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const auto rotated = [&](const std::vector<float>& head, int d) {
      if (args.cos == nullptr) return head[d];
      const int i = d % half;
      const float c = args.cos[t * half + i];
      const float s = args.sin[t * half + i];
      return d < half ? head[d] * c - head[d + half] * s : head[d] * c + head[d - half] * s;
    };
    for (int h = 0; h < args.num_heads; ++h) {
      const std::vector<float> head =
          normed(args.query + t * args.input_stride + int64_t{h} * head_dim, args.query_norm);
      for (int d = 0; d < head_dim; ++d) {
        Store(args.compute_dtype, args.query_out, (t * args.num_heads + h) * head_dim + d,
              rotated(head, d));
      }
    }
    const int64_t block = args.slots[t] / kv.shape.block_tokens;
    const int64_t offset = args.slots[t] % kv.shape.block_tokens;
    for (int g = 0; g < kv.num_kv_heads; ++g) {
      const std::vector<float> head =
          normed(args.key + t * args.input_stride + int64_t{g} * head_dim, args.key_norm);
      std::vector<float> key;
      for (int d = 0; d < head_dim; ++d) key.push_back(rotated(head, d));
      const float* value = args.value + t * args.input_stride + int64_t{g} * head_dim;
      Tile(kv, block, false, g).Write(offset, key);
      Tile(kv, block, true, g).Write(offset, {value, value + head_dim});
    }
  }
}

void ReferenceDecodeAttention(const HostDecodeAttentionArgs& args) {
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    AttendAllHeads(args, s, s, args.num_tokens[s]);
  }
}

void ReferencePrefillAttention(const HostPrefillAttentionArgs& args) {
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t first = args.query_start[s];
    for (int64_t t = first; t < args.query_start[s + 1]; ++t) {
      AttendAllHeads(args, s, t, args.num_cached[s] + (t - first) + 1);
    }
  }
}

void ReferenceCopyBlocks(const HostCopyBlocksArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    std::memcpy(args.base + static_cast<size_t>(args.destinations[i]) * args.block_stride_bytes,
                args.base + static_cast<size_t>(args.sources[i]) * args.block_stride_bytes,
                args.block_stride_bytes);
  }
}

void ReferenceChecksumBlocks(const HostChecksumBlocksArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    args.checksums[i] =
        Crc32c(args.base + static_cast<size_t>(args.blocks[i]) * args.block_stride_bytes,
               args.block_stride_bytes);
  }
}

}  // namespace tandem
