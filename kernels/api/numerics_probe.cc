#include "kernels/api/numerics_probe.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// Sizes: no multiple of a vector where a tail matters; K above a linear segment; positions above
// an attention segment.
constexpr int64_t kRows = 5;
constexpr int64_t kFeatures = 331;
constexpr int64_t kOutputs = 75;
constexpr int64_t kVocabulary = 4096 + 523;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 48;
constexpr int kBlockTokens = 16;
constexpr int32_t kPositions = 1100;
constexpr int64_t kPrefillRows = 21;

// Runs operations in the backend's memory and hashes what they give. Fixed inputs: SplitMix64.
class Probe {
 public:
  explicit Probe(Backend& backend) : backend_(backend) {
    const int version = kNumericsVersion;
    hash_.Update(&version, sizeof(version));
  }

  absl::StatusOr<Sha256Digest> Run() {
    TANDEM_RETURN_IF_ERROR(Embeddings());
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      TANDEM_RETURN_IF_ERROR(Norms(dtype));
      TANDEM_RETURN_IF_ERROR(Activations(dtype));
      for (const bool segmented : {false, true}) {
        for (const DType output : {DType::kF32, dtype}) {
          TANDEM_RETURN_IF_ERROR(Linear(dtype, output, segmented));
        }
      }
      TANDEM_RETURN_IF_ERROR(Attention(dtype));
    }
    TANDEM_RETURN_IF_ERROR(LogSoftmax());
    return hash_.Finish();
  }

 private:
  absl::StatusOr<DeviceBuffer> Zeros(int64_t bytes) {
    return backend_.Allocate(static_cast<size_t>(bytes));
  }

  // Uniform in (−scale, scale).
  absl::StatusOr<DeviceBuffer> Numbers(DType dtype, int64_t count, float scale) {
    TANDEM_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                            Zeros(count * static_cast<int64_t>(SizeOf(dtype))));
    for (int64_t i = 0; i < count; ++i) {
      const float x = (static_cast<float>(random_.Next() >> 40) * 0x1p-23f - 1.0f) * scale;
      if (dtype == DType::kF32) {
        buffer.as<float>()[i] = x;
      } else {
        buffer.as<Bfloat16>()[i] = ToBfloat16(x);
      }
    }
    return buffer;
  }

  template <typename T>
  absl::StatusOr<DeviceBuffer> Copy(const std::vector<T>& values) {
    TANDEM_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                            Zeros(static_cast<int64_t>(values.size() * sizeof(T))));
    std::memcpy(buffer.data(), values.data(), values.size() * sizeof(T));
    return buffer;
  }

  absl::Status Hash(std::string_view operation, const DeviceBuffer& output) {
    TANDEM_RETURN_IF_ERROR(backend_.Synchronize());
    hash_.Update(operation);
    hash_.Update(output.data(), output.size_bytes());
    return absl::OkStatus();
  }

  absl::Status Embeddings() {
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer table, Numbers(DType::kBF16, 9 * kFeatures, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer positions,
                            Numbers(DType::kBF16, 9 * kFeatures, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer ids, Copy(std::vector<int32_t>{3, 0, 8, 3, 5}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer sum, Zeros(kRows * kFeatures * 4));
    TANDEM_RETURN_IF_ERROR(backend_.Embedding({.ids = ids.as<int32_t>(),
                                               .table = table.data(),
                                               .positions = ids.as<int32_t>(),
                                               .position_table = positions.data(),
                                               .output = sum.as<float>(),
                                               .num_rows = kRows,
                                               .features = kFeatures,
                                               .table_dtype = DType::kBF16}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer addend,
                            Numbers(DType::kF32, kRows * kFeatures, 1.0f));
    TANDEM_RETURN_IF_ERROR(backend_.Add({.accumulator = sum.as<float>(),
                                         .addend = addend.as<float>(),
                                         .count = kRows * kFeatures}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer rows, Copy(std::vector<int32_t>{4, 1}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer gathered, Zeros(2 * kFeatures * 4));
    TANDEM_RETURN_IF_ERROR(backend_.GatherRows({.input = sum.data(),
                                                .rows = rows.as<int32_t>(),
                                                .output = gathered.data(),
                                                .num_rows = 2,
                                                .num_input_rows = kRows,
                                                .features = kFeatures,
                                                .dtype = DType::kF32}));
    TANDEM_RETURN_IF_ERROR(Hash("embedding", sum));
    return Hash("gather", gathered);
  }

  absl::Status Norms(DType dtype) {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input,
                            Numbers(DType::kF32, kRows * kFeatures, 3.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer weight, Numbers(DType::kF32, kFeatures, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer bias, Numbers(DType::kF32, kFeatures, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(kRows * kFeatures * size));
    TANDEM_RETURN_IF_ERROR(backend_.RmsNorm({.input = input.as<float>(),
                                             .weight = weight.as<float>(),
                                             .output = output.data(),
                                             .num_rows = kRows,
                                             .features = kFeatures,
                                             .epsilon = 1e-5f,
                                             .output_dtype = dtype}));
    TANDEM_RETURN_IF_ERROR(Hash("rms_norm", output));
    TANDEM_RETURN_IF_ERROR(backend_.LayerNorm({.input = input.as<float>(),
                                               .weight = weight.as<float>(),
                                               .bias = bias.as<float>(),
                                               .output = output.data(),
                                               .num_rows = kRows,
                                               .features = kFeatures,
                                               .epsilon = 1e-5f,
                                               .output_dtype = dtype}));
    return Hash("layer_norm", output);
  }

  absl::Status Activations(DType dtype) {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, Numbers(dtype, kRows * 2 * kFeatures, 12.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(kRows * kFeatures * size));
    TANDEM_RETURN_IF_ERROR(backend_.SwiGlu({.gate = input.data(),
                                            .up = input.data() + kFeatures * size,
                                            .input_stride = 2 * kFeatures,
                                            .output = output.data(),
                                            .num_rows = kRows,
                                            .features = kFeatures,
                                            .input_dtype = dtype,
                                            .output_dtype = dtype}));
    TANDEM_RETURN_IF_ERROR(Hash("swiglu", output));
    TANDEM_RETURN_IF_ERROR(backend_.Gelu({.input = input.data(),
                                          .output = output.data(),
                                          .num_rows = kRows,
                                          .features = kFeatures,
                                          .input_dtype = dtype,
                                          .output_dtype = dtype}));
    return Hash("gelu", output);
  }

  absl::Status Linear(DType dtype, DType output_dtype, bool segmented) {
    const LinearSpec spec{.in_features = kFeatures,
                          .out_features = kOutputs,
                          .compute_dtype = dtype,
                          .output_dtype = output_dtype,
                          .segmented = segmented};
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer weights, Numbers(dtype, kFeatures * kOutputs, 0.1f));
    TANDEM_ASSIGN_OR_RETURN(const size_t packed_bytes, backend_.PackedLinearBytes(spec));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer packed, backend_.Allocate(packed_bytes));
    const WeightPart part{weights.data(), kOutputs, dtype};
    TANDEM_RETURN_IF_ERROR(
        backend_.PackLinear(spec, {&part, 1}, {packed.data(), packed.size_bytes()}));
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<LinearOp> op,
                            backend_.PrepareLinear(spec, {packed.data(), packed.size_bytes()}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, Numbers(dtype, kRows * kFeatures, 2.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer bias, Numbers(DType::kF32, kOutputs, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output,
                            Zeros(kRows * kOutputs * static_cast<int64_t>(SizeOf(output_dtype))));
    TANDEM_RETURN_IF_ERROR(backend_.Linear({.op = op.get(),
                                            .input = input.data(),
                                            .bias = bias.as<float>(),
                                            .output = output.data(),
                                            .num_rows = kRows}));
    return Hash("linear", output);
  }

  // Writes kPositions positions; prefill attention for the last rows, decode for the very last.
  absl::Status Attention(DType dtype) {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype));
    constexpr int64_t kRowFloats = int64_t{kHeads + 2 * kKvHeads} * kHeadDim;
    constexpr int32_t kBlocks = (kPositions + kBlockTokens - 1) / kBlockTokens;
    const KvTileShape tile{kBlockTokens, kHeadDim, dtype};
    TANDEM_ASSIGN_OR_RETURN(const KvTileFormat format, backend_.GetKvTileFormat(tile));
    const size_t block_bytes = KvLayerBytes(format.tile_bytes, kKvHeads);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer pool, backend_.Allocate(block_bytes * kBlocks));
    const KvPoolView kv{.base = pool.data(),
                        .block_stride_bytes = block_bytes,
                        .layer_offset_bytes = 0,
                        .tile_bytes = format.tile_bytes,
                        .num_kv_heads = kKvHeads,
                        .shape = tile};

    std::vector<int32_t> position_values(kPositions);
    std::iota(position_values.begin(), position_values.end(), 0);
    std::vector<int64_t> slot_values(position_values.begin(), position_values.end());
    std::vector<float> frequency_values;
    float frequency = 1.0f;
    for (int i = 0; i < kHeadDim / 2; ++i, frequency *= 0.7f) frequency_values.push_back(frequency);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer positions, Copy(position_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer slots, Copy(slot_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer frequencies, Copy(frequency_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer cos, Zeros(int64_t{kPositions} * kHeadDim * 2));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer sin, Zeros(int64_t{kPositions} * kHeadDim * 2));
    TANDEM_RETURN_IF_ERROR(backend_.RotaryTable({.positions = positions.as<int32_t>(),
                                                 .inv_freq = frequencies.as<float>(),
                                                 .cos = cos.as<float>(),
                                                 .sin = sin.as<float>(),
                                                 .num_tokens = kPositions,
                                                 .head_dim = kHeadDim}));
    TANDEM_RETURN_IF_ERROR(Hash("cos", cos));
    TANDEM_RETURN_IF_ERROR(Hash("sin", sin));

    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer qkv,
                            Numbers(DType::kF32, kPositions * kRowFloats, 2.0f));
    constexpr int64_t kQueryFloats = int64_t{kHeads} * kHeadDim;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer query, Zeros(kPositions * kQueryFloats * size));
    TANDEM_RETURN_IF_ERROR(
        backend_.RotaryKvWrite({.query = qkv.as<float>(),
                                .key = qkv.as<float>() + kQueryFloats,
                                .value = qkv.as<float>() + kQueryFloats + kKvHeads * kHeadDim,
                                .input_stride = kRowFloats,
                                .cos = cos.as<float>(),
                                .sin = sin.as<float>(),
                                .slots = slots.as<int64_t>(),
                                .kv = &kv,
                                .query_out = query.data(),
                                .num_tokens = kPositions,
                                .num_heads = kHeads}));
    TANDEM_RETURN_IF_ERROR(Hash("query", query));

    const std::byte* const last_queries =
        query.data() + (kPositions - kPrefillRows) * kQueryFloats * size;
    std::vector<int32_t> table_values(kBlocks);
    std::iota(table_values.begin(), table_values.end(), 0);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer table, Copy(table_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer query_start,
                            Copy(std::vector<int32_t>{0, static_cast<int32_t>(kPrefillRows)}));
    TANDEM_ASSIGN_OR_RETURN(
        const DeviceBuffer num_cached,
        Copy(std::vector<int32_t>{kPositions - static_cast<int32_t>(kPrefillRows)}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(kPrefillRows * kQueryFloats * size));
    TANDEM_RETURN_IF_ERROR(backend_.PrefillAttention({.query = last_queries,
                                                      .kv = &kv,
                                                      .block_table = table.as<int32_t>(),
                                                      .query_start = query_start.as<int32_t>(),
                                                      .num_cached = num_cached.as<int32_t>(),
                                                      .output = output.data(),
                                                      .num_sequences = 1,
                                                      .max_blocks = kBlocks,
                                                      .num_heads = kHeads,
                                                      .softmax_scale = 0.15f}));
    TANDEM_RETURN_IF_ERROR(Hash("prefill_attention", output));

    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer num_tokens, Copy(std::vector<int32_t>{kPositions}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer row, Zeros(kQueryFloats * size));
    TANDEM_RETURN_IF_ERROR(
        backend_.DecodeAttention({.query = last_queries + (kPrefillRows - 1) * kQueryFloats * size,
                                  .kv = &kv,
                                  .block_table = table.as<int32_t>(),
                                  .num_tokens = num_tokens.as<int32_t>(),
                                  .output = row.data(),
                                  .num_sequences = 1,
                                  .max_blocks = kBlocks,
                                  .num_heads = kHeads,
                                  .softmax_scale = 0.15f}));
    return Hash("decode_attention", row);
  }

  absl::Status LogSoftmax() {
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer logits, Numbers(DType::kF32, 2 * kVocabulary, 9.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer stats, Zeros(4 * 4));
    TANDEM_RETURN_IF_ERROR(backend_.LogSoftmax({.logits = logits.as<float>(),
                                                .max = stats.as<float>(),
                                                .log_sum = stats.as<float>() + 2,
                                                .log_probabilities = logits.as<float>(),
                                                .num_rows = 2,
                                                .vocabulary = kVocabulary}));
    TANDEM_RETURN_IF_ERROR(Hash("log_softmax", logits));
    return Hash("log_softmax_stats", stats);
  }

  Backend& backend_;
  Random random_{0x7461'6e64'656dULL};
  Sha256 hash_;
};

}  // namespace

absl::StatusOr<Sha256Digest> ProbeNumerics(Backend& backend) { return Probe(backend).Run(); }

}  // namespace tandem
