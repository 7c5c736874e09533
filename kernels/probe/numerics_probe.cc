#include "kernels/probe/numerics_probe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/probe/hostile_numbers.h"
#include "runtime/base/random.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr uint64_t kProbeSeed = 0x7461'6e64'656d;

enum class Inputs : uint8_t { kOrdinary, kHostile };

// Runs operations in the backend's memory and hashes what they give.
class Probe {
 public:
  Probe(Backend& backend, const ProbeShape& shape, uint64_t seed)
      : backend_(backend), shape_(shape), random_(seed) {}

  absl::StatusOr<std::vector<ProbedOperation>> Run() {
    TANDEM_RETURN_IF_ERROR(RoundingToNormal());
    for (const Inputs inputs : {Inputs::kOrdinary, Inputs::kHostile}) {
      inputs_ = inputs;
      TANDEM_RETURN_IF_ERROR(Embeddings());
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        dtype_ = dtype;
        TANDEM_RETURN_IF_ERROR(Norms());
        TANDEM_RETURN_IF_ERROR(Activations());
        TANDEM_RETURN_IF_ERROR(Linears("linear", WeightTypeOf(dtype)));
        TANDEM_RETURN_IF_ERROR(Attention({}));
      }
      TANDEM_RETURN_IF_ERROR(LogSoftmax());
    }
    const AttentionOptions attention{shape_.window, shape_.head_norms, shape_.score_cap};
    const bool has_attention = attention.window != 0 || attention.head_norms || attention.cap != 0;
    if (has_attention) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return Attention(attention); }));
    }
    if (shape_.gated_gelu) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return Gated("geglu", ActivationFunction::kGeluTanh); }));
    }
    if (shape_.logit_cap != 0.0f) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return CappedLogits(); }));
    }
    if (shape_.int8_weights) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return Linears("int8 linear", WeightType::kInt8); }));
    }
    if (shape_.int8_outliers != 0.0f) {
      outlier_threshold_ = shape_.int8_outliers;
      TANDEM_RETURN_IF_ERROR(
          ForAll([&] { return Linears("int8 linear with outliers", WeightType::kInt8); }));
      outlier_threshold_ = 0.0f;
    }
    for (const int64_t group : {32, 64, 128}) {
      if (!shape_.int4_weights) break;
      const std::string name = absl::StrCat("int4 linear of ", group);
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return Linears(name, WeightType::kInt4, group); }));
    }
    if (shape_.kv_type) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] {
        AttentionOptions options = attention;
        options.kv_type = shape_.kv_type;
        return shape_.kv_type == KvTypeOf(dtype_) ? absl::OkStatus() : Attention(options);
      }));
    }
    return std::move(operations_);
  }

 private:
  struct AttentionOptions {
    int64_t window = 0;
    bool head_norms = false;
    float cap = 0.0f;
    std::optional<KvType> kv_type = {};
  };

  // Numbers of a block as far as one of them may be a NaN.
  static DType NumbersOf(KvType type) {
    return type == KvType::kF32 || type == KvType::kInt8 ? DType::kF32 : DType::kBF16;
  }

  // Over both kinds of inputs and both types.
  template <typename Operation>
  absl::Status ForAll(const Operation& operation) {
    for (const Inputs inputs : {Inputs::kOrdinary, Inputs::kHostile}) {
      inputs_ = inputs;
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        dtype_ = dtype;
        TANDEM_RETURN_IF_ERROR(operation());
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DeviceBuffer> Zeros(int64_t bytes) {
    return Copy(std::vector<std::byte>(static_cast<size_t>(bytes)));
  }

  // Uniform in (−scale, scale).
  float Ordinary(float scale) {
    return (static_cast<float>(random_.Next() >> 40) * 0x1p-23f - 1.0f) * scale;
  }

  // Ordinary ones within `scale`; or hostile ones, the exponents of each row near another place,
  // the last row of five with some that are not finite.
  std::vector<float> Matrix(int64_t rows, int64_t columns, float scale) {
    std::vector<float> values;
    values.reserve(static_cast<size_t>(rows * columns));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        if (inputs_ == Inputs::kOrdinary) {
          values.push_back(Ordinary(scale));
        } else if (r % 5 == 4 && random_.Below(256) == 0) {
          values.push_back(NonFiniteNumber(&random_));
        } else {
          values.push_back(HostileNumber(static_cast<int>(255 * r / rows), &random_));
        }
      }
    }
    return values;
  }

  std::vector<std::byte> HostNumbers(DType dtype, int64_t rows, int64_t columns, float scale) {
    const std::vector<float> values = Matrix(rows, columns, scale);
    std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
      return bytes;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const Bfloat16 narrow = ToBfloat16(values[i]);
      std::memcpy(&bytes[i * sizeof(narrow)], &narrow, sizeof(narrow));
    }
    return bytes;
  }

  absl::StatusOr<DeviceBuffer> Numbers(DType dtype, int64_t rows, int64_t columns, float scale) {
    return Copy(HostNumbers(dtype, rows, columns, scale));
  }

  template <typename T>
  absl::StatusOr<DeviceBuffer> Copy(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    TANDEM_ASSIGN_OR_RETURN(DeviceBuffer buffer, backend_.Allocate(bytes));
    TANDEM_RETURN_IF_ERROR(backend_.Upload(buffer.data(), values.data(), bytes));
    TANDEM_RETURN_IF_ERROR(backend_.Synchronize());
    return buffer;
  }

  template <typename T>
  static void Rewrite(std::byte* at) {
    T x;
    std::memcpy(&x, at, sizeof(x));
    x = OneNan(x);
    std::memcpy(at, &x, sizeof(x));
  }

  // `output` holds numbers of `dtype`.
  absl::Status Hash(absl::string_view operation, DType dtype, const DeviceBuffer& output) {
    std::vector<std::byte> bytes(output.size_bytes());
    TANDEM_RETURN_IF_ERROR(backend_.Download(bytes.data(), output.data(), bytes.size()));
    TANDEM_RETURN_IF_ERROR(backend_.Synchronize());
    for (size_t i = 0; i < bytes.size(); i += SizeOf(dtype)) {
      if (dtype == DType::kF32) {
        Rewrite<uint32_t>(&bytes[i]);
      } else {
        Rewrite<Bfloat16>(&bytes[i]);
      }
    }
    Sha256 hash;
    hash.Update(bytes.data(), bytes.size());
    operations_.push_back(
        {.name = absl::StrCat(operation, " ", NameOf(dtype_),
                              inputs_ == Inputs::kHostile ? ", hostile numbers" : ""),
         .digest = hash.Finish()});
    return absl::OkStatus();
  }

  // A product just below 2^-126 that rounds to it, which random numbers hardly ever have. Who
  // flushes what was a denormal before it was rounded has zero, and an operation for it; all others
  // have none, as they had none before this was asked.
  absl::Status RoundingToNormal() {
    const LinearSpec spec{.in_features = 1,
                          .out_features = 1,
                          .weight_type = WeightType::kF32,
                          .compute_dtype = DType::kF32,
                          .output_dtype = DType::kF32};
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, backend_.GetPackedFormat(spec));
    TANDEM_ASSIGN_OR_RETURN(const PinnedBuffer packed, backend_.AllocatePinned(format.size_bytes));
    constexpr float kWeight = 0x1.fffffcp-64f;
    const WeightPart part{&kWeight, 1, DType::kF32};
    const std::span<std::byte> packed_span(packed.data(), packed.size_bytes());
    TANDEM_RETURN_IF_ERROR(backend_.PackLinear(spec, {&part, 1}, packed_span));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer placed, backend_.PlaceWeights(packed_span));
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<LinearOp> op,
                            backend_.PrepareLinear(spec, placed.data(), placed.size_bytes()));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, Copy(std::vector<float>{0x1.000002p-63f}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(sizeof(float)));
    TANDEM_RETURN_IF_ERROR(backend_.Linear(
        {.op = op.get(), .input = input.data(), .output = output.data(), .num_rows = 1}));
    float product = 0.0f;
    TANDEM_RETURN_IF_ERROR(backend_.Download(&product, output.data(), sizeof(product)));
    TANDEM_RETURN_IF_ERROR(backend_.Synchronize());
    if (product != 0.0f) return absl::OkStatus();
    return Hash(kFlushesBeforeRounding, DType::kF32, output);
  }

  absl::Status Embeddings() {
    const ProbeShape& s = shape_;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer table, Numbers(DType::kBF16, 9, s.features, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer positions,
                            Numbers(DType::kBF16, 9, s.features, 1.0f));
    std::vector<int32_t> id_values;
    for (int64_t r = 0; r < s.rows; ++r) id_values.push_back(static_cast<int32_t>((7 * r + 3) % 9));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer ids, Copy(id_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer sum, Zeros(s.rows * s.features * 4));
    TANDEM_RETURN_IF_ERROR(backend_.Embedding({.ids = ids.as<int32_t>(),
                                               .table = table.data(),
                                               .positions = ids.as<int32_t>(),
                                               .position_table = positions.data(),
                                               .output = sum.as<float>(),
                                               .num_rows = s.rows,
                                               .features = s.features,
                                               .table_dtype = DType::kBF16}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer addend,
                            Numbers(DType::kF32, s.rows, s.features, 1.0f));
    TANDEM_RETURN_IF_ERROR(backend_.Add({.accumulator = sum.as<float>(),
                                         .addend = addend.as<float>(),
                                         .count = s.rows * s.features}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer rows,
                            Copy(std::vector<int32_t>{static_cast<int32_t>(s.rows) - 1, 0}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer gathered, Zeros(2 * s.features * 4));
    TANDEM_RETURN_IF_ERROR(backend_.GatherRows({.input = sum.data(),
                                                .rows = rows.as<int32_t>(),
                                                .output = gathered.data(),
                                                .num_rows = 2,
                                                .num_input_rows = s.rows,
                                                .features = s.features,
                                                .dtype = DType::kF32}));
    TANDEM_RETURN_IF_ERROR(Hash("embedding", DType::kF32, sum));
    return Hash("gather", DType::kF32, gathered);
  }

  absl::Status Norms() {
    const ProbeShape& s = shape_;
    const int64_t size = static_cast<int64_t>(SizeOf(dtype_));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input,
                            Numbers(DType::kF32, s.rows, s.features, 3.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer weight, Numbers(DType::kF32, 1, s.features, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer bias, Numbers(DType::kF32, 1, s.features, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(s.rows * s.features * size));
    TANDEM_RETURN_IF_ERROR(backend_.RmsNorm({.input = input.as<float>(),
                                             .weight = weight.as<float>(),
                                             .output = output.data(),
                                             .num_rows = s.rows,
                                             .features = s.features,
                                             .epsilon = 1e-5f,
                                             .output_dtype = dtype_}));
    TANDEM_RETURN_IF_ERROR(Hash("rms_norm", dtype_, output));
    TANDEM_RETURN_IF_ERROR(backend_.LayerNorm({.input = input.as<float>(),
                                               .weight = weight.as<float>(),
                                               .bias = bias.as<float>(),
                                               .output = output.data(),
                                               .num_rows = s.rows,
                                               .features = s.features,
                                               .epsilon = 1e-5f,
                                               .output_dtype = dtype_}));
    return Hash("layer_norm", dtype_, output);
  }

  absl::Status Activate(const char* name, ActivationFunction function, const DeviceBuffer& input,
                        DType input_dtype, bool gated) {
    const ProbeShape& s = shape_;
    const int64_t half = s.features * static_cast<int64_t>(SizeOf(input_dtype));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output,
                            Zeros(s.rows * s.features * static_cast<int64_t>(SizeOf(dtype_))));
    TANDEM_RETURN_IF_ERROR(
        backend_.Activate({.gate = input.data(),
                           .up = gated ? input.data() + half : DevicePtr<std::byte>(),
                           .input_stride = gated ? 2 * s.features : s.features,
                           .output = output.data(),
                           .num_rows = s.rows,
                           .features = s.features,
                           .function = function,
                           .input_dtype = input_dtype,
                           .output_dtype = dtype_}));
    return Hash(name, dtype_, output);
  }

  absl::StatusOr<DeviceBuffer> GateAndUp() {
    return Numbers(dtype_, shape_.rows, 2 * shape_.features, 12.0f);
  }

  absl::Status Gated(const char* name, ActivationFunction function) {
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, GateAndUp());
    return Activate(name, function, input, dtype_, /*gated=*/true);
  }

  absl::Status Activations() {
    constexpr ActivationFunction kGelu = ActivationFunction::kGeluTanh;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, GateAndUp());
    TANDEM_RETURN_IF_ERROR(Activate("swiglu", ActivationFunction::kSilu, input, dtype_, true));
    TANDEM_RETURN_IF_ERROR(Activate("gelu", kGelu, input, dtype_, false));
    // Large numbers are their own gelu: rounded to bf16 here, past its range among them.
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer wide,
                            Numbers(DType::kF32, shape_.rows, shape_.features, 12.0f));
    return Activate("gelu of f32", kGelu, wide, DType::kF32, false);
  }

  absl::Status Linears(absl::string_view name, WeightType weight_type, int64_t group = 0) {
    for (const bool segmented : {false, true}) {
      for (const DType output : {DType::kF32, DType::kBF16}) {
        if (output == DType::kF32 || output == dtype_) {
          TANDEM_RETURN_IF_ERROR(Linear(name, weight_type, group, output, segmented));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Linear(absl::string_view name, WeightType weight_type, int64_t group,
                      DType output_dtype, bool segmented) {
    const ProbeShape& s = shape_;
    const LinearSpec spec{.in_features = s.features,
                          .out_features = s.outputs,
                          .weight_type = weight_type,
                          .compute_dtype = dtype_,
                          .output_dtype = output_dtype,
                          .segmented = segmented,
                          .group = group,
                          .outlier_threshold = outlier_threshold_};
    const std::vector<std::byte> weights = HostNumbers(dtype_, s.outputs, s.features, 0.1f);
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, backend_.GetPackedFormat(spec));
    TANDEM_ASSIGN_OR_RETURN(const PinnedBuffer packed, backend_.AllocatePinned(format.size_bytes));
    const WeightPart part{weights.data(), s.outputs, dtype_};
    const std::span<std::byte> packed_span(packed.data(), packed.size_bytes());
    TANDEM_RETURN_IF_ERROR(backend_.PackLinear(spec, {&part, 1}, packed_span));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer placed, backend_.PlaceWeights(packed_span));
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<LinearOp> op,
                            backend_.PrepareLinear(spec, placed.data(), placed.size_bytes()));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, Numbers(dtype_, s.rows, s.features, 2.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer bias, Numbers(DType::kF32, 1, s.outputs, 1.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output,
                            Zeros(s.rows * s.outputs * static_cast<int64_t>(SizeOf(output_dtype))));
    TANDEM_RETURN_IF_ERROR(backend_.Linear({.op = op.get(),
                                            .input = input.data(),
                                            .bias = bias.as<float>(),
                                            .output = output.data(),
                                            .num_rows = s.rows}));
    return Hash(absl::StrCat(name, segmented ? " in segments" : ""), output_dtype, output);
  }

  // [positions, heads + 2 · kv_heads, head_dim]. Hostile ones leave queries and most keys ordinary,
  // as the weights would else be zeros and ones: some keys are tiny, the last ones anything; values
  // have all exponents but stay finite (docs/numerics.md, What may not matter).
  std::vector<float> QueriesKeysValues() {
    const ProbeShape& s = shape_;
    std::vector<float> values;
    for (int32_t t = 0; t < s.positions; ++t) {
      for (int head = 0; head < s.heads + 2 * s.kv_heads; ++head) {
        const bool is_key = head >= s.heads && head < s.heads + s.kv_heads;
        const bool is_value = head >= s.heads + s.kv_heads;
        for (int d = 0; d < s.head_dim; ++d) {
          float x = Ordinary(2.0f);
          if (inputs_ == Inputs::kHostile) {
            if (is_value) x = HostileNumber(240 * t / s.positions, &random_);
            if (is_key && t % 7 == 3) x = HostileNumber(8, &random_);
            if (is_key && t > s.positions - 6 && d % 8 == 0) x = HostileNumber(250, &random_);
            if (is_key && t > s.positions - 3 && d == 1) x = NonFiniteNumber(&random_);
          }
          values.push_back(x);
        }
      }
    }
    return values;
  }

  // Writes all positions; prefill attention for the last rows, decode for the very last.
  absl::Status Attention(const AttentionOptions& options) {
    const ProbeShape& s = shape_;
    DeviceBuffer norms;
    if (options.head_norms) {
      TANDEM_ASSIGN_OR_RETURN(norms, Numbers(DType::kF32, 2, s.head_dim, 1.0f));
    }
    const int64_t size = static_cast<int64_t>(SizeOf(dtype_));
    const int64_t row_floats = int64_t{s.heads + 2 * s.kv_heads} * s.head_dim;
    const int32_t num_blocks = (s.positions + s.block_tokens - 1) / s.block_tokens;
    const std::string kv_name =
        options.kv_type ? absl::StrCat(NameOf(*options.kv_type), " kv: ") : "";
    const KvTileShape tile{s.block_tokens, s.head_dim, options.kv_type.value_or(KvTypeOf(dtype_))};
    TANDEM_ASSIGN_OR_RETURN(const KvTileFormat format, backend_.GetKvTileFormat(tile, dtype_));
    const size_t block_bytes = KvLayerBytes(format.tile_bytes, s.kv_heads);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer pool,
                            Zeros(static_cast<int64_t>(block_bytes) * num_blocks));
    const KvLayerView kv{.base = pool.data(),
                         .block_stride_bytes = block_bytes,
                         .layer_offset_bytes = 0,
                         .tile_bytes = format.tile_bytes,
                         .num_kv_heads = s.kv_heads,
                         .shape = tile};

    std::vector<int32_t> position_values(s.positions);
    std::iota(position_values.begin(), position_values.end(), 0);
    std::vector<int64_t> slot_values(position_values.begin(), position_values.end());
    std::vector<float> frequency_values;
    float frequency = 1.0f;
    for (int i = 0; i < s.head_dim / 2; ++i, frequency *= 0.7f)
      frequency_values.push_back(frequency);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer positions, Copy(position_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer slots, Copy(slot_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer frequencies, Copy(frequency_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer cos, Zeros(int64_t{s.positions} * s.head_dim * 2));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer sin, Zeros(int64_t{s.positions} * s.head_dim * 2));
    TANDEM_RETURN_IF_ERROR(backend_.RotaryTable({.positions = positions.as<int32_t>(),
                                                 .inv_freq = frequencies.as<float>(),
                                                 .cos = cos.as<float>(),
                                                 .sin = sin.as<float>(),
                                                 .num_tokens = s.positions,
                                                 .head_dim = s.head_dim}));
    TANDEM_RETURN_IF_ERROR(Hash("cos", DType::kF32, cos));
    TANDEM_RETURN_IF_ERROR(Hash("sin", DType::kF32, sin));

    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer qkv, Copy(QueriesKeysValues()));
    const int64_t query_floats = int64_t{s.heads} * s.head_dim;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer query, Zeros(s.positions * query_floats * size));
    TANDEM_RETURN_IF_ERROR(backend_.RotaryKvWrite(
        {.query = qkv.as<float>(),
         .key = qkv.as<float>() + query_floats,
         .value = qkv.as<float>() + query_floats + s.kv_heads * s.head_dim,
         .input_stride = row_floats,
         .cos = cos.as<float>(),
         .sin = sin.as<float>(),
         .query_norm = norms.as<float>(),
         .key_norm = options.head_norms ? norms.as<float>() + s.head_dim : DevicePtr<float>(),
         .norm_epsilon = 1e-5f,
         .slots = slots.as<int64_t>(),
         .kv = kv,
         .query_out = query.data(),
         .num_tokens = s.positions,
         .num_heads = s.heads,
         .compute_dtype = dtype_}));
    TANDEM_RETURN_IF_ERROR(Hash(absl::StrCat(kv_name, "query"), dtype_, query));
    TANDEM_RETURN_IF_ERROR(Hash(absl::StrCat(kv_name, "kv blocks"), NumbersOf(tile.type), pool));

    const DevicePtr<std::byte> last_queries =
        query.data() + (s.positions - s.prefill_rows) * query_floats * size;
    std::vector<int32_t> table_values(num_blocks);
    std::iota(table_values.begin(), table_values.end(), 0);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer table, Copy(table_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer query_start,
                            Copy(std::vector<int32_t>{0, static_cast<int32_t>(s.prefill_rows)}));
    TANDEM_ASSIGN_OR_RETURN(
        const DeviceBuffer num_cached,
        Copy(std::vector<int32_t>{s.positions - static_cast<int32_t>(s.prefill_rows)}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(s.prefill_rows * query_floats * size));
    TANDEM_RETURN_IF_ERROR(backend_.PrefillAttention({.query = last_queries,
                                                      .kv = kv,
                                                      .block_table = table.as<int32_t>(),
                                                      .query_start = query_start.as<int32_t>(),
                                                      .num_cached = num_cached.as<int32_t>(),
                                                      .output = output.data(),
                                                      .num_sequences = 1,
                                                      .max_blocks = num_blocks,
                                                      .num_heads = s.heads,
                                                      .compute_dtype = dtype_,
                                                      .softmax_scale = 0.15f,
                                                      .score_cap = options.cap,
                                                      .window = options.window}));
    TANDEM_RETURN_IF_ERROR(Hash(absl::StrCat(kv_name, "prefill_attention"), dtype_, output));

    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer num_tokens, Copy(std::vector<int32_t>{s.positions}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer row, Zeros(query_floats * size));
    TANDEM_RETURN_IF_ERROR(backend_.DecodeAttention(
        {.query = last_queries + (s.prefill_rows - 1) * query_floats * size,
         .kv = kv,
         .block_table = table.as<int32_t>(),
         .num_tokens = num_tokens.as<int32_t>(),
         .output = row.data(),
         .num_sequences = 1,
         .max_blocks = num_blocks,
         .num_heads = s.heads,
         .compute_dtype = dtype_,
         .softmax_scale = 0.15f,
         .score_cap = options.cap,
         .window = options.window}));
    return Hash(absl::StrCat(kv_name, "decode_attention"), dtype_, row);
  }

  absl::Status CappedLogits() {
    const int64_t count = shape_.rows * shape_.vocabulary;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer logits,
                            Numbers(DType::kF32, shape_.rows, shape_.vocabulary, 40.0f));
    TANDEM_RETURN_IF_ERROR(
        backend_.SoftCap({.values = logits.as<float>(), .count = count, .cap = shape_.logit_cap}));
    return Hash("soft_cap", DType::kF32, logits);
  }

  absl::Status LogSoftmax() {
    const ProbeShape& s = shape_;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer logits,
                            Numbers(DType::kF32, s.rows, s.vocabulary, 9.0f));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer stats, Zeros(2 * s.rows * 4));
    TANDEM_RETURN_IF_ERROR(backend_.LogSoftmax({.logits = logits.as<float>(),
                                                .max = stats.as<float>(),
                                                .log_sum = stats.as<float>() + s.rows,
                                                .log_probabilities = logits.as<float>(),
                                                .num_rows = s.rows,
                                                .vocabulary = s.vocabulary}));
    TANDEM_RETURN_IF_ERROR(Hash("log_softmax", DType::kF32, logits));
    return Hash("log_softmax_stats", DType::kF32, stats);
  }

  Backend& backend_;
  const ProbeShape shape_;
  Random random_;
  Inputs inputs_ = Inputs::kOrdinary;
  DType dtype_ = DType::kF32;
  float outlier_threshold_ = 0.0f;
  std::vector<ProbedOperation> operations_;
};

}  // namespace

absl::StatusOr<std::vector<ProbedOperation>> ProbeOperations(Backend& backend,
                                                             const ProbeShape& shape,
                                                             uint64_t seed) {
  return Probe(backend, shape, seed).Run();
}

absl::StatusOr<Sha256Digest> ProbeNumerics(Backend& backend, const ProbedOptions& options) {
  // A window that begins in the segment before the last one's, in the middle of a sub-tile.
  const ProbeShape shape{.head_dim = options.head_dim.value_or(ProbeShape().head_dim),
                         .window = options.window ? 299 : 0,
                         .head_norms = options.head_norms,
                         .score_cap = options.score_cap ? 5.0f : 0.0f,
                         .gated_gelu = options.gated_gelu,
                         .logit_cap = options.logit_cap ? 30.0f : 0.0f,
                         .int8_weights = options.int8_weights,
                         .int8_outliers = options.int8_outliers ? 1.5f : 0.0f,
                         .int4_weights = options.int4_weights,
                         .kv_type = options.kv_type};
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ProbedOperation> operations,
                          ProbeOperations(backend, shape, kProbeSeed));
  Sha256 hash;
  hash.Update(&kNumericsVersion, sizeof(kNumericsVersion));
  for (const ProbedOperation& operation : operations) {
    hash.Update(operation.name);
    hash.Update(operation.digest.data(), operation.digest.size());
  }
  return hash.Finish();
}

}  // namespace tandem
