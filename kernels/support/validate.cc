#include "kernels/support/validate.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/support/int8.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 31;
constexpr int64_t kMaxFeatures = int64_t{1} << 24;
constexpr int64_t kMaxInFeatures = int64_t{1} << 20;
constexpr int kMaxHeads = 1 << 16;
constexpr int kMaxBlockTokens = 1 << 12;

absl::Status InRange(const char* operation, const char* what, int64_t value, int64_t low,
                     int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s is %d, must be %d to %d", operation, what, value, low, high));
}

template <typename Pointer>
absl::Status NotNull(const char* operation, const char* what, Pointer pointer) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s is null", operation, what));
}

absl::Status Rows(const char* operation, int64_t num_rows) {
  return InRange(operation, "num_rows", num_rows, 0, kMaxRows);
}

absl::Status Features(const char* operation, int64_t features) {
  return InRange(operation, "features", features, 1, kMaxFeatures);
}

absl::Status Cap(const char* operation, const char* what, float cap) {
  if (cap >= 0.0f && cap <= std::numeric_limits<float>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s is %g, must be finite and not below 0", operation, what, cap));
}

bool Aligned(uintptr_t address) { return address % 64 == 0; }

absl::Status ValidateView(const char* operation, const KvLayerView& kv, size_t tile_bytes) {
  TANDEM_RETURN_IF_ERROR(Validate(kv.shape));
  TANDEM_RETURN_IF_ERROR(NotNull(operation, "kv.base", kv.base));
  TANDEM_RETURN_IF_ERROR(InRange(operation, "num_kv_heads", kv.num_kv_heads, 1, kMaxHeads));
  if (kv.tile_bytes != tile_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tile_bytes is %d, this backend's format has %d", operation,
                        kv.tile_bytes, tile_bytes));
  }
  const size_t layer_bytes = KvLayerBytes(tile_bytes, kv.num_kv_heads);
  if (kv.layer_offset_bytes % 64 != 0 || kv.block_stride_bytes % 64 != 0 ||
      kv.layer_offset_bytes + layer_bytes > kv.block_stride_bytes || !Aligned(kv.base.address())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: a layer of %d bytes at offset %d does not fit a block of %d bytes, or one of them or "
        "the base is not a multiple of 64",
        operation, layer_bytes, kv.layer_offset_bytes, kv.block_stride_bytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateHeads(const char* operation, int num_heads, const KvLayerView& kv) {
  TANDEM_RETURN_IF_ERROR(InRange(operation, "num_heads", num_heads, 1, kMaxHeads));
  if (num_heads % kv.num_kv_heads == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: %d KV heads do not divide %d query heads",
                                                    operation, kv.num_kv_heads, num_heads));
}

template <typename Args>
absl::Status ValidateNorm(const char* operation, const Args& args) {
  TANDEM_RETURN_IF_ERROR(Rows(operation, args.num_rows));
  TANDEM_RETURN_IF_ERROR(Features(operation, args.features));
  if (args.num_rows == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull(operation, "input", args.input));
  TANDEM_RETURN_IF_ERROR(NotNull(operation, "weight", args.weight));
  return NotNull(operation, "output", args.output);
}

template <typename NormArgs>
absl::Status ValidateNormed(const NormArgs& norm, const LinearArgs& layer) {
  TANDEM_RETURN_IF_ERROR(Validate(norm));
  TANDEM_RETURN_IF_ERROR(Validate(layer));
  const LinearSpec& spec = layer.op->spec();
  const bool fits = norm.num_rows == layer.num_rows && norm.features == spec.in_features &&
                    norm.output_dtype == spec.compute_dtype;
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "linear: a norm makes %d rows of %d numbers of type %s, the layer takes %d of %d of type "
        "%s",
        norm.num_rows, norm.features, NameOf(norm.output_dtype), layer.num_rows, spec.in_features,
        NameOf(spec.compute_dtype)));
  }
  if (norm.num_rows == 0 || norm.output.address() == layer.input.address()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("linear: a norm's output is at 0x%x, the layer's input at 0x%x",
                      norm.output.address(), layer.input.address()));
}

absl::Status CheckPacked(uintptr_t address, size_t size_bytes, size_t packed_bytes) {
  if (size_bytes >= packed_bytes && Aligned(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("linear: %d packed bytes at 0x%x, need %d, 64-byte aligned", size_bytes,
                      address, packed_bytes));
}

// What decode and prefill have in common.
template <typename Args>
absl::Status ValidateAttention(const char* operation, const Args& args, size_t tile_bytes) {
  TANDEM_RETURN_IF_ERROR(ValidateView(operation, args.kv, tile_bytes));
  TANDEM_RETURN_IF_ERROR(ValidateHeads(operation, args.num_heads, args.kv));
  TANDEM_RETURN_IF_ERROR(InRange(operation, "num_sequences", args.num_sequences, 0, kMaxRows));
  TANDEM_RETURN_IF_ERROR(InRange(operation, "window", args.window, 0, kMaxRows));
  TANDEM_RETURN_IF_ERROR(Cap(operation, "score_cap", args.score_cap));
  if (args.num_sequences == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(InRange(operation, "max_blocks", args.max_blocks, 1, kMaxRows));
  TANDEM_RETURN_IF_ERROR(NotNull(operation, "query", args.query));
  TANDEM_RETURN_IF_ERROR(NotNull(operation, "block_table", args.block_table));
  return NotNull(operation, "output", args.output);
}

// What operations on whole blocks have in common. `array`, called `what`, has the blocks' ids.
template <typename Args>
absl::Status ValidateBlocks(const char* operation, const Args& args, const char* what,
                            const int32_t* array) {
  TANDEM_RETURN_IF_ERROR(InRange(operation, "count", args.count, 0, kMaxRows));
  if (args.count == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull(operation, "base", args.base));
  return NotNull(operation, what, array);
}

}  // namespace

absl::Status Validate(const KvTileShape& shape) {
  TANDEM_RETURN_IF_ERROR(
      InRange("kv tile", "block_tokens", shape.block_tokens, kKvSubTileTokens, kMaxBlockTokens));
  TANDEM_RETURN_IF_ERROR(InRange("kv tile", "head_dim", shape.head_dim, 2, kMaxAttentionHeadDim));
  if (shape.block_tokens % kKvSubTileTokens == 0 && shape.head_dim % 2 == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("kv tile: block_tokens is %d, must be a multiple of %d; head_dim is %d, must "
                      "be even",
                      shape.block_tokens, kKvSubTileTokens, shape.head_dim));
}

namespace {
absl::Status ValidateFp8(const LinearSpec& spec) {
  TANDEM_RETURN_IF_ERROR(InRange("linear", "group", spec.group, 1, kMaxInFeatures));
  if (spec.compute_dtype != DType::kBF16) {
    return absl::FailedPreconditionError(
        absl::StrFormat("linear: weights of type fp8 are multiplied in bf16, not in %s",
                        NameOf(spec.compute_dtype)));
  }
  if (spec.scaled) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("linear: %d inputs and %d outputs come without scales, weights of type fp8 "
                      "are packed with them",
                      spec.in_features, spec.out_features));
}
}  // namespace

absl::Status Validate(const LinearSpec& spec) {
  const bool int8 = spec.weight_type == WeightType::kInt8;
  TANDEM_RETURN_IF_ERROR(InRange("linear", int8 ? "in_features of int8 weights" : "in_features",
                                 spec.in_features, 1, int8 ? kMaxInt8InFeatures : kMaxInFeatures));
  TANDEM_RETURN_IF_ERROR(InRange("linear", "out_features", spec.out_features, 1, kMaxFeatures));
  const bool int4 = spec.weight_type == WeightType::kInt4;
  const bool fp8 = spec.weight_type == WeightType::kFp8;
  if (fp8) TANDEM_RETURN_IF_ERROR(ValidateFp8(spec));
  if (int4 ? std::ranges::count(kInt4Groups, spec.group) == 0 : !fp8 && spec.group != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "linear: group of %s weights is %d, must be %s", NameOf(spec.weight_type), spec.group,
        int4 ? absl::StrCat("one of ", absl::StrJoin(kInt4Groups, ", ")) : "0"));
  }
  const float threshold = spec.outlier_threshold;
  const bool in_range = threshold >= kMinOutlierThreshold && threshold <= kMaxOutlierThreshold;
  if (threshold != 0 && !(int8 && in_range)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "linear: outlier_threshold of %s weights is %g, must be 0%s", NameOf(spec.weight_type),
        threshold,
        int8 ? absl::StrFormat(", or %g to %g", kMinOutlierThreshold, kMaxOutlierThreshold) : ""));
  }
  if (spec.scaled && (!(int4 || fp8) || spec.layout != WeightLayout::kOutIn)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "linear: %d inputs and %d outputs come with scales, weights of type %s are packed without",
        spec.in_features, spec.out_features, NameOf(spec.weight_type)));
  }
  if (spec.gated && (!spec.activation || spec.out_features % 2 != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("linear: %d outputs are gates and ups %s an activation, must be with one "
                        "and an even number",
                        spec.out_features, spec.activation ? "with" : "without"));
  }
  if (spec.output_dtype == DType::kF32 || spec.output_dtype == spec.compute_dtype) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat("linear: outputs are %s, must be f32 or %s",
                                                    NameOf(spec.output_dtype),
                                                    NameOf(spec.compute_dtype)));
}

absl::Status ValidatePacked(DevicePtr<const std::byte> packed, size_t size_bytes,
                            size_t packed_bytes) {
  return CheckPacked(packed.address(), size_bytes, packed_bytes);
}

absl::Status ValidatePacking(const LinearSpec& spec, std::span<const WeightPart> parts,
                             std::span<std::byte> packed, size_t packed_bytes) {
  int64_t out_features = 0;
  for (const WeightPart& part : parts) {
    TANDEM_RETURN_IF_ERROR(NotNull("linear", "weights", part.data));
    TANDEM_RETURN_IF_ERROR(
        InRange("linear", "out_features of a part", part.out_features, 1, kMaxFeatures));
    out_features += part.out_features;
    if (part.scales.empty() == spec.scaled) {
      return absl::InvalidArgumentError(
          absl::StrFormat("linear: a part has %d scales, the layer is %s", part.scales.size(),
                          spec.scaled ? "packed with scales" : "packed without"));
    }
    const auto groups = static_cast<size_t>(spec.scaled ? part.out_features * spec.groups() : 0);
    const size_t zeros = spec.weight_type == WeightType::kInt4 ? groups : 0;
    if (part.scales.size() != groups || part.zeros.size() != zeros) {
      return absl::InvalidArgumentError(
          absl::StrFormat("linear: a part has %d scales and %d zeros, must have %d and %d",
                          part.scales.size(), part.zeros.size(), groups, zeros));
    }
  }
  if (out_features != spec.out_features) {
    return absl::InvalidArgumentError(
        absl::StrFormat("linear: %d parts have %d out_features together, the layer has %d",
                        parts.size(), out_features, spec.out_features));
  }
  return CheckPacked(reinterpret_cast<uintptr_t>(packed.data()), packed.size(), packed_bytes);
}

absl::Status Validate(const EmbeddingArgs& args) {
  TANDEM_RETURN_IF_ERROR(Rows("embedding", args.num_rows));
  TANDEM_RETURN_IF_ERROR(Features("embedding", args.features));
  if (args.num_rows == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull("embedding", "ids", args.ids));
  TANDEM_RETURN_IF_ERROR(NotNull("embedding", "table", args.table));
  if (args.position_table != nullptr) {
    TANDEM_RETURN_IF_ERROR(NotNull("embedding", "positions", args.positions));
  }
  return NotNull("embedding", "output", args.output);
}

absl::Status Validate(const RmsNormArgs& args) { return ValidateNorm("rms norm", args); }

absl::Status Validate(const LayerNormArgs& args) {
  TANDEM_RETURN_IF_ERROR(ValidateNorm("layer norm", args));
  return args.num_rows == 0 ? absl::OkStatus() : NotNull("layer norm", "bias", args.bias);
}

absl::Status Validate(const LinearArgs& args) {
  TANDEM_RETURN_IF_ERROR(NotNull("linear", "op", args.op));
  const LinearSpec& spec = args.op->spec();
  if (args.adds_to_output && (spec.output_dtype != DType::kF32 || spec.activation)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("linear: outputs are %s%s, must be f32 to be added",
                        NameOf(spec.output_dtype), spec.activation ? " and activated" : ""));
  }
  TANDEM_RETURN_IF_ERROR(Rows("linear", args.num_rows));
  if (args.num_rows == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull("linear", "input", args.input));
  return NotNull("linear", "output", args.output);
}

absl::Status Validate(const RmsNormArgs& norm, const LinearArgs& layer) {
  return ValidateNormed(norm, layer);
}

absl::Status Validate(const LayerNormArgs& norm, const LinearArgs& layer) {
  return ValidateNormed(norm, layer);
}

absl::Status Validate(const AddArgs& args) {
  TANDEM_RETURN_IF_ERROR(InRange("add", "count", args.count, 0, int64_t{1} << 48));
  if (args.count == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull("add", "accumulator", args.accumulator));
  return NotNull("add", "addend", args.addend);
}

absl::Status Validate(const SoftCapArgs& args) {
  TANDEM_RETURN_IF_ERROR(Cap("soft cap", "cap", args.cap));
  if (args.cap == 0.0f) return absl::InvalidArgumentError("soft cap: cap is 0, must be above");
  TANDEM_RETURN_IF_ERROR(InRange("soft cap", "count", args.count, 0, int64_t{1} << 48));
  return args.count == 0 ? absl::OkStatus() : NotNull("soft cap", "values", args.values);
}

absl::Status Validate(const GatherRowsArgs& args) {
  TANDEM_RETURN_IF_ERROR(Rows("gather rows", args.num_rows));
  TANDEM_RETURN_IF_ERROR(Features("gather rows", args.features));
  if (args.num_rows == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(
      InRange("gather rows", "num_input_rows", args.num_input_rows, 1, kMaxRows));
  TANDEM_RETURN_IF_ERROR(NotNull("gather rows", "input", args.input));
  TANDEM_RETURN_IF_ERROR(NotNull("gather rows", "rows", args.rows));
  return NotNull("gather rows", "output", args.output);
}

absl::Status Validate(const SampleArgs& args) {
  TANDEM_RETURN_IF_ERROR(InRange("sample", "num_rows", args.num_rows, 0, kMaxRows));
  TANDEM_RETURN_IF_ERROR(InRange("sample", "vocabulary", args.vocabulary, 1, kMaxVocabulary));
  TANDEM_RETURN_IF_ERROR(InRange("sample", "count", args.count, 0, kMaxRows));
  if (args.count == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull("sample", "logits", args.logits));
  TANDEM_RETURN_IF_ERROR(NotNull("sample", "queries", args.queries));
  return NotNull("sample", "results", args.results);
}

absl::Status Validate(const RotaryTableArgs& args) {
  TANDEM_RETURN_IF_ERROR(Rows("rotary table", args.num_tokens));
  TANDEM_RETURN_IF_ERROR(
      InRange("rotary table", "head_dim", args.head_dim, 2, kMaxAttentionHeadDim));
  TANDEM_RETURN_IF_ERROR(InRange("rotary table", "head_dim % 2", args.head_dim % 2, 0, 0));
  if (args.num_tokens == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull("rotary table", "positions", args.positions));
  TANDEM_RETURN_IF_ERROR(NotNull("rotary table", "inv_freq", args.inv_freq));
  TANDEM_RETURN_IF_ERROR(NotNull("rotary table", "cos", args.cos));
  return NotNull("rotary table", "sin", args.sin);
}

absl::Status Validate(const RotaryKvWriteArgs& args, size_t tile_bytes) {
  constexpr const char* kName = "kv write";
  TANDEM_RETURN_IF_ERROR(ValidateView(kName, args.kv, tile_bytes));
  TANDEM_RETURN_IF_ERROR(ValidateHeads(kName, args.num_heads, args.kv));
  TANDEM_RETURN_IF_ERROR(Rows(kName, args.num_tokens));
  if (args.num_tokens == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(InRange(kName, "input_stride", args.input_stride,
                                 int64_t{args.num_heads} * args.kv.shape.head_dim,
                                 int64_t{4} * kMaxFeatures));
  TANDEM_RETURN_IF_ERROR(NotNull(kName, "query", args.query));
  TANDEM_RETURN_IF_ERROR(NotNull(kName, "key", args.key));
  TANDEM_RETURN_IF_ERROR(NotNull(kName, "value", args.value));
  TANDEM_RETURN_IF_ERROR(NotNull(kName, "slots", args.slots));
  if ((args.cos == nullptr) != (args.sin == nullptr)) {
    return absl::InvalidArgumentError("kv write: cos and sin must both be null or both be given");
  }
  if ((args.query_norm == nullptr) != (args.key_norm == nullptr)) {
    return absl::InvalidArgumentError(
        "kv write: query_norm and key_norm must both be null or both be given");
  }
  return NotNull(kName, "query_out", args.query_out);
}

absl::Status Validate(const DecodeAttentionArgs& args, size_t tile_bytes) {
  constexpr const char* kName = "decode attention";
  TANDEM_RETURN_IF_ERROR(ValidateAttention(kName, args, tile_bytes));
  if (args.num_sequences == 0) return absl::OkStatus();
  return NotNull(kName, "num_tokens", args.num_tokens);
}

absl::Status Validate(const PrefillAttentionArgs& args, size_t tile_bytes) {
  constexpr const char* kName = "prefill attention";
  TANDEM_RETURN_IF_ERROR(ValidateAttention(kName, args, tile_bytes));
  if (args.num_sequences == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(NotNull(kName, "query_start", args.query_start));
  return NotNull(kName, "num_cached", args.num_cached);
}

absl::Status Validate(const CopyBlocksArgs& args) {
  constexpr const char* kName = "copy blocks";
  TANDEM_RETURN_IF_ERROR(ValidateBlocks(kName, args, "sources", args.sources));
  return ValidateBlocks(kName, args, "destinations", args.destinations);
}

absl::Status Validate(const ChecksumBlocksArgs& args) {
  constexpr const char* kName = "checksum blocks";
  TANDEM_RETURN_IF_ERROR(ValidateBlocks(kName, args, "blocks", args.blocks));
  return args.count == 0 ? absl::OkStatus() : NotNull(kName, "checksums", args.checksums);
}

absl::Status Validate(const DiscardBlocksArgs& args) {
  return ValidateBlocks("discard blocks", args, "blocks", args.blocks);
}

absl::Status ValidatePool(const KvPoolMemory& memory, size_t pool_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory.base);
  if (memory.bytes >= pool_bytes && Aligned(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("KV memory of %d bytes at %p, want %d bytes aligned to 64", memory.bytes,
                      memory.base, pool_bytes));
}

}  // namespace tandem
