// Every kernel on fixed inputs. Sizes cross the borders at which an order of sums could differ:
// lanes of 16, K segments, tiles of 64 and segments of 1,024 positions, vocabulary pieces of 4,096.

#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "runtime/base/math.h"
#include "runtime/base/random.h"
#include "runtime/base/status_macros.h"
#include "runtime/execution/fingerprints.h"

namespace tandem {
namespace {

constexpr int64_t kRows = 5;
constexpr int64_t kFeatures = 75;
constexpr int64_t kInputs = 1'100;  // Eight segments with tails.
constexpr int64_t kOutputs = 45;
constexpr int64_t kVocabulary = 4'500;
constexpr int kHeads = 2;
constexpr int kHeadDim = 16;
constexpr int kBlockTokens = 16;
constexpr int64_t kContext = 1'060;
constexpr int64_t kPrefillTokens = 5;

class Probe {
 public:
  Probe(Backend* backend, DType compute) : backend_(*backend), compute_(compute) {}

  absl::StatusOr<Sha256Digest> Run() {
    TANDEM_RETURN_IF_ERROR(Rows());
    TANDEM_RETURN_IF_ERROR(Linear(false));
    TANDEM_RETURN_IF_ERROR(Linear(true));
    TANDEM_RETURN_IF_ERROR(Attention());
    TANDEM_RETURN_IF_ERROR(Vocabulary());
    return digest_.Finish();
  }

 private:
  // Floats in (-2, 2) of many magnitudes, the same on every machine.
  float NextFloat() {
    const int64_t mantissa = random_.Between(-(1 << 20), 1 << 20);
    return static_cast<float>(mantissa) * (random_.Chance(0.1) ? 0x1p-30f : 0x1p-19f);
  }

  absl::StatusOr<DeviceBuffer> Floats(int64_t count) {
    TANDEM_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                            backend_.Allocate(static_cast<size_t>(count) * sizeof(float)));
    for (int64_t i = 0; i < count; ++i) buffer.as<float>()[i] = NextFloat();
    return buffer;
  }

  absl::StatusOr<DeviceBuffer> Compute(int64_t count) {
    if (compute_ == DType::kF32) return Floats(count);
    TANDEM_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                            backend_.Allocate(static_cast<size_t>(count) * sizeof(Bfloat16)));
    for (int64_t i = 0; i < count; ++i) buffer.as<Bfloat16>()[i] = ToBfloat16(NextFloat());
    return buffer;
  }

  absl::StatusOr<DeviceBuffer> Output(int64_t count) {
    return backend_.Allocate(static_cast<size_t>(count) * sizeof(float));
  }

  absl::Status Hash(const DeviceBuffer& buffer) {
    TANDEM_RETURN_IF_ERROR(backend_.Synchronize());
    digest_.Update(buffer.data(), buffer.size_bytes());
    return absl::OkStatus();
  }

  absl::Status Rows() {
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer table, Compute(7 * kFeatures));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer hidden, Output(kRows * kFeatures));
    const std::vector<int32_t> ids = {3, 0, 6, 3, 1};
    TANDEM_RETURN_IF_ERROR(backend_.Embedding({.ids = ids.data(),
                                               .table = table.data(),
                                               .positions = ids.data(),
                                               .position_table = table.data(),
                                               .output = hidden.as<float>(),
                                               .num_rows = kRows,
                                               .features = kFeatures,
                                               .table_dtype = compute_}));
    TANDEM_RETURN_IF_ERROR(Hash(hidden));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer weight, Floats(kFeatures));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer out, Output(kRows * kFeatures));
    TANDEM_RETURN_IF_ERROR(backend_.RmsNorm({.input = hidden.as<float>(),
                                             .weight = weight.as<float>(),
                                             .output = out.data(),
                                             .num_rows = kRows,
                                             .features = kFeatures,
                                             .epsilon = 1e-5f,
                                             .output_dtype = compute_}));
    TANDEM_RETURN_IF_ERROR(Hash(out));
    TANDEM_RETURN_IF_ERROR(backend_.LayerNorm({.input = hidden.as<float>(),
                                               .weight = weight.as<float>(),
                                               .bias = weight.as<float>(),
                                               .output = out.data(),
                                               .num_rows = kRows,
                                               .features = kFeatures,
                                               .epsilon = 1e-5f,
                                               .output_dtype = compute_}));
    TANDEM_RETURN_IF_ERROR(Hash(out));
    TANDEM_RETURN_IF_ERROR(backend_.SwiGlu({.gate = hidden.as<float>(),
                                            .up = hidden.as<float>(),
                                            .input_stride = kFeatures,
                                            .output = out.data(),
                                            .num_rows = kRows,
                                            .features = kFeatures,
                                            .input_dtype = DType::kF32,
                                            .output_dtype = compute_}));
    TANDEM_RETURN_IF_ERROR(Hash(out));
    TANDEM_RETURN_IF_ERROR(backend_.Gelu({.input = hidden.as<float>(),
                                          .output = out.data(),
                                          .num_rows = kRows,
                                          .features = kFeatures,
                                          .input_dtype = DType::kF32,
                                          .output_dtype = compute_}));
    return Hash(out);
  }

  absl::Status Linear(bool segmented) {
    const LinearSpec spec{.in_features = kInputs,
                          .out_features = kOutputs,
                          .compute_dtype = compute_,
                          .output_dtype = DType::kF32,
                          .segmented = segmented};
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer weight, Compute(kInputs * kOutputs));
    TANDEM_ASSIGN_OR_RETURN(const size_t packed_bytes, backend_.PackedLinearBytes(spec));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer packed, backend_.Allocate(packed_bytes));
    const std::span<std::byte> packed_span(packed.data(), packed_bytes);
    const WeightPart part{.data = weight.data(), .out_features = kOutputs, .dtype = compute_};
    TANDEM_RETURN_IF_ERROR(backend_.PackLinear(spec, {&part, 1}, packed_span));
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<LinearOp> op,
                            backend_.PrepareLinear(spec, packed_span));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, Compute(kRows * kInputs));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer bias, Floats(kOutputs));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer out, Output(kRows * kOutputs));
    TANDEM_RETURN_IF_ERROR(backend_.Linear({.op = op.get(),
                                            .input = input.data(),
                                            .bias = bias.as<float>(),
                                            .output = out.data(),
                                            .num_rows = kRows}));
    return Hash(out);
  }

  absl::Status Attention() {
    const KvTileShape shape{.block_tokens = kBlockTokens, .head_dim = kHeadDim, .dtype = compute_};
    TANDEM_ASSIGN_OR_RETURN(const KvTileFormat format, backend_.GetKvTileFormat(shape));
    const int64_t blocks = CeilDiv<int64_t>(kContext, kBlockTokens);
    const size_t block_bytes = KvLayerBytes(format.tile_bytes, 1);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer pool,
                            backend_.Allocate(block_bytes * static_cast<size_t>(blocks)));
    const KvPoolView kv{.base = pool.data(),
                        .block_stride_bytes = block_bytes,
                        .tile_bytes = format.tile_bytes,
                        .num_kv_heads = 1,
                        .shape = shape};
    std::vector<int32_t> positions(kContext);
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int64_t> slots(positions.begin(), positions.end());
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer query, Compute(kContext * kHeads * kHeadDim));
    TANDEM_RETURN_IF_ERROR(WriteKv(positions, slots, kv, query));

    std::vector<int32_t> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    const float scale = 0.25f;
    const int32_t num_tokens = kContext;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer out, Output(kPrefillTokens * kHeads * kHeadDim));
    TANDEM_RETURN_IF_ERROR(backend_.DecodeAttention({.query = query.data(),
                                                     .kv = &kv,
                                                     .block_table = table.data(),
                                                     .num_tokens = &num_tokens,
                                                     .output = out.data(),
                                                     .num_sequences = 1,
                                                     .max_blocks = blocks,
                                                     .num_heads = kHeads,
                                                     .softmax_scale = scale}));
    TANDEM_RETURN_IF_ERROR(Hash(out));
    const std::vector<int32_t> query_start = {0, kPrefillTokens};
    const int32_t num_cached = kContext - kPrefillTokens;
    TANDEM_RETURN_IF_ERROR(backend_.PrefillAttention({.query = query.data(),
                                                      .kv = &kv,
                                                      .block_table = table.data(),
                                                      .query_start = query_start.data(),
                                                      .num_cached = &num_cached,
                                                      .output = out.data(),
                                                      .num_sequences = 1,
                                                      .max_blocks = blocks,
                                                      .num_heads = kHeads,
                                                      .softmax_scale = scale}));
    return Hash(out);
  }

  absl::Status WriteKv(const std::vector<int32_t>& positions, const std::vector<int64_t>& slots,
                       const KvPoolView& kv, const DeviceBuffer& query) {
    constexpr int64_t kHalf = kHeadDim / 2;
    constexpr int64_t kStride = (kHeads + 2) * kHeadDim;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer frequencies, Floats(kHalf));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer cos, Output(kContext * kHalf));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer sin, Output(kContext * kHalf));
    TANDEM_RETURN_IF_ERROR(backend_.RotaryTable({.positions = positions.data(),
                                                 .inv_freq = frequencies.as<float>(),
                                                 .cos = cos.as<float>(),
                                                 .sin = sin.as<float>(),
                                                 .num_tokens = kContext,
                                                 .head_dim = kHeadDim}));
    TANDEM_RETURN_IF_ERROR(Hash(cos));
    TANDEM_RETURN_IF_ERROR(Hash(sin));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer qkv, Floats(kContext * kStride));
    TANDEM_RETURN_IF_ERROR(
        backend_.RotaryKvWrite({.query = qkv.as<float>(),
                                .key = qkv.as<float>() + kHeads * kHeadDim,
                                .value = qkv.as<float>() + (kHeads + 1) * kHeadDim,
                                .input_stride = kStride,
                                .cos = cos.as<float>(),
                                .sin = sin.as<float>(),
                                .slots = slots.data(),
                                .kv = &kv,
                                .query_out = query.data(),
                                .num_tokens = kContext,
                                .num_heads = kHeads}));
    return Hash(query);
  }

  absl::Status Vocabulary() {
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer logits, Floats(2 * kVocabulary));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer max, Output(2));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer log_sum, Output(2));
    TANDEM_RETURN_IF_ERROR(backend_.LogSoftmax({.logits = logits.as<float>(),
                                                .max = max.as<float>(),
                                                .log_sum = log_sum.as<float>(),
                                                .log_probabilities = logits.as<float>(),
                                                .num_rows = 2,
                                                .vocabulary = kVocabulary}));
    TANDEM_RETURN_IF_ERROR(Hash(max));
    TANDEM_RETURN_IF_ERROR(Hash(log_sum));
    return Hash(logits);
  }

  Backend& backend_;
  const DType compute_;
  Random random_{0x7A4D};
  Sha256 digest_;
};

}  // namespace

absl::StatusOr<Sha256Digest> ProbeNumerics(Backend* backend, DType compute_dtype) {
  return Probe(backend, compute_dtype).Run();
}

}  // namespace tandem
