#include "kernels/probe/numerics_probe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/api/e4m3.h"
#include "kernels/probe/hostile_numbers.h"
#include "kernels/probe/sampling_probe.h"
#include "runtime/base/random.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr uint64_t kProbeSeed = 0x7461'6e64'656d;

constexpr float kSoftmaxScale = 0.15f;

constexpr std::pair<const char*, ActivationFunction> kActivations[] = {
    {"silu", ActivationFunction::kSilu}, {"gelu", ActivationFunction::kGeluTanh}};

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
        TANDEM_RETURN_IF_ERROR(Linears({"linear", WeightTypeOf(dtype)}));
        TANDEM_RETURN_IF_ERROR(Attention({}));
      }
    }
    TANDEM_RETURN_IF_ERROR(Options());
    return std::move(operations_);
  }

 private:
  static constexpr int64_t kFp8Group = 64;  // As backends that keep them may want it.

  // How a layer keeps its weights, and what operations on it are called.
  struct LinearKind {
    std::string name;
    WeightType weight_type;
    int64_t group = 0;
    float outlier_threshold = 0.0f;
  };

  // A layer in the backend's memory.
  struct Layer {
    PinnedBuffer packed;
    DeviceBuffer placed;
    std::unique_ptr<LinearOp> op;
  };

  struct LinearNumbers {
    std::vector<std::byte> weights;  // Layers of fewer outputs leave the last one out.
    DeviceBuffer few;                // Rows of inputs.
    DeviceBuffer many;
    DeviceBuffer bias;
  };

  struct AttentionOptions {
    int64_t window = 0;
    bool head_norms = false;
    float cap = 0.0f;
    std::optional<KvType> kv_type = {};
  };

  // All positions' queries, and their keys and values in blocks.
  struct WrittenTokens {
    KvLayerView kv;
    DeviceBuffer pool;
    DeviceBuffer table;
    int32_t num_blocks;
    DeviceBuffer query;
  };

  // After all else, so that what a model has none of changes nothing before.
  absl::Status Options() {
    const ProbeShape& s = shape_;
    const AttentionOptions attention{s.window, s.head_norms, s.score_cap};
    const bool has_attention = attention.window != 0 || attention.head_norms || attention.cap != 0;
    if (has_attention) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return Attention(attention); }));
    }
    if (s.logit_cap != 0.0f) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return CappedLogits(); }));
    }
    for (const LinearKind& kind : LinearOptions()) {
      TANDEM_RETURN_IF_ERROR(ForAll([&] { return Linears(kind); }));
    }
    if (!s.kv_type) return absl::OkStatus();
    return ForAll([&] {
      AttentionOptions options = attention;
      options.kv_type = shape_.kv_type;
      return shape_.kv_type == KvTypeOf(dtype_) ? absl::OkStatus() : Attention(options);
    });
  }

  std::vector<LinearKind> LinearOptions() const {
    std::vector<LinearKind> kinds;
    if (shape_.int8_weights) kinds.push_back({"int8 linear", WeightType::kInt8});
    if (shape_.int8_outliers != 0.0f) {
      kinds.push_back({.name = "int8 linear with outliers",
                       .weight_type = WeightType::kInt8,
                       .outlier_threshold = shape_.int8_outliers});
    }
    for (const int64_t group : kInt4Groups) {
      if (!shape_.int4_weights) break;
      kinds.push_back({absl::StrCat("int4 linear of ", group), WeightType::kInt4, group});
    }
    if (shape_.fp8_weights) kinds.push_back({"fp8 linear", WeightType::kFp8, kFp8Group});
    return kinds;
  }

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
    constexpr float kWeight = 0x1.fffffcp-64f;
    TANDEM_ASSIGN_OR_RETURN(const Layer layer, MakeLayer(spec, &kWeight));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer input, Copy(std::vector<float>{0x1.000002p-63f}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(sizeof(float)));
    TANDEM_RETURN_IF_ERROR(backend_.Linear(
        {.op = layer.op.get(), .input = input.data(), .output = output.data(), .num_rows = 1}));
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

  // Every form in which models have a layer, all of the same numbers.
  absl::Status Linears(const LinearKind& kind) {
    if (kind.weight_type == WeightType::kFp8 && dtype_ != DType::kBF16) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const LinearNumbers numbers, NumbersOfLinears());
    const LinearSpec plain = PlainSpec(kind);
    LinearSpec segmented = plain;
    segmented.segmented = true;
    TANDEM_RETURN_IF_ERROR(Linear(kind.name, plain, numbers));
    TANDEM_RETURN_IF_ERROR(Linear(absl::StrCat(kind.name, " in segments"), segmented, numbers));
    for (const auto& [name, function] : kActivations) {
      for (const bool gated : {false, true}) {
        TANDEM_RETURN_IF_ERROR(
            Linear(absl::StrCat(kind.name, gated ? " with gated " : " with ", name),
                   ActivatedSpec(plain, function, gated), numbers));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LinearNumbers> NumbersOfLinears() {
    const ProbeShape& s = shape_;
    const int64_t outputs = EvenOutputs();
    LinearNumbers numbers;
    numbers.weights = HostNumbers(dtype_, outputs, s.features, 0.1f);
    TANDEM_ASSIGN_OR_RETURN(numbers.few, Numbers(dtype_, s.rows, s.features, 2.0f));
    TANDEM_ASSIGN_OR_RETURN(numbers.many, Numbers(dtype_, s.many_rows, s.features, 2.0f));
    // So large that activations see more than what is near zero.
    TANDEM_ASSIGN_OR_RETURN(numbers.bias, Numbers(DType::kF32, 1, outputs, 12.0f));
    return numbers;
  }

  // Gates and ups are as many.
  int64_t EvenOutputs() const { return shape_.outputs + shape_.outputs % 2; }

  LinearSpec PlainSpec(const LinearKind& kind) const {
    return {.in_features = shape_.features,
            .out_features = shape_.outputs,
            .weight_type = kind.weight_type,
            .compute_dtype = dtype_,
            .output_dtype = DType::kF32,
            .scaled = kind.weight_type == WeightType::kFp8,
            .group = kind.group,
            .outlier_threshold = kind.outlier_threshold};
  }

  LinearSpec ActivatedSpec(const LinearSpec& plain, ActivationFunction function, bool gated) const {
    LinearSpec spec = plain;
    spec.output_dtype = plain.compute_dtype;
    spec.activation = function;
    spec.gated = gated;
    if (gated) spec.out_features = EvenOutputs();
    return spec;
  }

  // Layers in segments once more with outputs that are added, as models add them.
  absl::Status Linear(absl::string_view name, const LinearSpec& spec,
                      const LinearNumbers& numbers) {
    TANDEM_ASSIGN_OR_RETURN(const Layer layer, MakeLayer(spec, numbers.weights.data()));
    const DevicePtr<const float> bias = numbers.bias.as<float>();
    for (const bool adds : {false, true}) {
      if (adds && !spec.segmented) break;
      LinearArgs args{.op = layer.op.get(),
                      .input = numbers.few.data(),
                      .bias = bias,
                      .num_rows = shape_.rows,
                      .adds_to_output = adds};
      const std::string named = absl::StrCat(name, adds ? ", added" : "");
      TANDEM_RETURN_IF_ERROR(Multiply(named, args));
      args.bias = nullptr;
      TANDEM_RETURN_IF_ERROR(Multiply(absl::StrCat(named, ", without bias"), args));
      args.bias = bias;
      args.input = numbers.many.data();
      args.num_rows = shape_.many_rows;
      TANDEM_RETURN_IF_ERROR(Multiply(absl::StrCat(named, ", many rows"), args));
    }
    return absl::OkStatus();
  }

  absl::Status Multiply(absl::string_view name, LinearArgs args) {
    const LinearSpec& spec = args.op->spec();
    const int64_t count = args.num_rows * spec.columns();
    std::vector<std::byte> before(static_cast<size_t>(count) * SizeOf(spec.output_dtype));
    if (args.adds_to_output) before = HostNumbers(DType::kF32, args.num_rows, spec.columns(), 1.0f);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Copy(before));
    args.output = output.data();
    TANDEM_RETURN_IF_ERROR(backend_.Linear(args));
    return Hash(name, spec.output_dtype, output);
  }

  // `weights` are in the type that is computed in.
  absl::StatusOr<Layer> MakeLayer(const LinearSpec& spec, const void* weights) {
    Layer layer;
    TANDEM_ASSIGN_OR_RETURN(const PackedFormat format, backend_.GetPackedFormat(spec));
    TANDEM_ASSIGN_OR_RETURN(layer.packed, backend_.AllocatePinned(format.size_bytes));
    WeightPart part{weights, spec.out_features, spec.compute_dtype};
    std::vector<E4m3> numbers;
    std::vector<float> scales;
    if (spec.weight_type == WeightType::kFp8) {
      // Products that round, and, where numbers are hostile, denormal ones.
      const bool hostile = inputs_ == Inputs::kHostile;
      const auto* const wide = static_cast<const Bfloat16*>(weights);
      for (int64_t i = 0; i < spec.out_features * spec.in_features; ++i) {
        numbers.push_back(ToE4m3(ToFloat(wide[i]) * 90));
      }
      for (int64_t i = 0; i < spec.out_features * spec.groups(); ++i) {
        const float scale = 0.011f + 0.0013f * static_cast<float>(i % 7);
        scales.push_back(hostile && i % 3 == 0 ? scale * 0x1p-120f : scale);
      }
      part.data = numbers.data();
      part.scales = scales;
    }
    const std::span<std::byte> packed(layer.packed.data(), layer.packed.size_bytes());
    TANDEM_RETURN_IF_ERROR(backend_.PackLinear(spec, {&part, 1}, packed));
    TANDEM_ASSIGN_OR_RETURN(layer.placed, backend_.PlaceWeights(packed));
    TANDEM_ASSIGN_OR_RETURN(
        layer.op, backend_.PrepareLinear(spec, layer.placed.data(), layer.placed.size_bytes()));
    return layer;
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
    const std::string kv_name =
        options.kv_type ? absl::StrCat(NameOf(*options.kv_type), " kv: ") : "";
    TANDEM_ASSIGN_OR_RETURN(const WrittenTokens tokens, WriteTokens(options, kv_name));
    TANDEM_RETURN_IF_ERROR(Prefill(options, kv_name, tokens));
    return Decode(options, kv_name, tokens);
  }

  absl::StatusOr<WrittenTokens> WriteTokens(const AttentionOptions& options,
                                            const std::string& kv_name) {
    const ProbeShape& s = shape_;
    DeviceBuffer norms;
    if (options.head_norms) {
      TANDEM_ASSIGN_OR_RETURN(norms, Numbers(DType::kF32, 2, s.head_dim, 1.0f));
    }
    TANDEM_ASSIGN_OR_RETURN(WrittenTokens tokens, EmptyBlocks(options));
    std::vector<int64_t> slot_values(s.positions);
    std::iota(slot_values.begin(), slot_values.end(), 0);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer slots, Copy(slot_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer cos, Zeros(int64_t{s.positions} * s.head_dim * 2));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer sin, Zeros(int64_t{s.positions} * s.head_dim * 2));
    TANDEM_RETURN_IF_ERROR(Rotary(cos.as<float>(), sin.as<float>()));
    TANDEM_RETURN_IF_ERROR(Hash("cos", DType::kF32, cos));
    TANDEM_RETURN_IF_ERROR(Hash("sin", DType::kF32, sin));

    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer qkv, Copy(QueriesKeysValues()));
    const int64_t query_floats = int64_t{s.heads} * s.head_dim;
    TANDEM_ASSIGN_OR_RETURN(tokens.query, Zeros(s.positions * QueryBytes()));
    TANDEM_RETURN_IF_ERROR(backend_.RotaryKvWrite(
        {.query = qkv.as<float>(),
         .key = qkv.as<float>() + query_floats,
         .value = qkv.as<float>() + query_floats + s.kv_heads * s.head_dim,
         .input_stride = int64_t{s.heads + 2 * s.kv_heads} * s.head_dim,
         .cos = cos.as<float>(),
         .sin = sin.as<float>(),
         .query_norm = norms.as<float>(),
         .key_norm = options.head_norms ? norms.as<float>() + s.head_dim : DevicePtr<float>(),
         .norm_epsilon = 1e-5f,
         .slots = slots.as<int64_t>(),
         .kv = tokens.kv,
         .query_out = tokens.query.data(),
         .num_tokens = s.positions,
         .num_heads = s.heads,
         .compute_dtype = dtype_}));
    TANDEM_RETURN_IF_ERROR(Hash(absl::StrCat(kv_name, "query"), dtype_, tokens.query));
    TANDEM_RETURN_IF_ERROR(
        Hash(absl::StrCat(kv_name, "kv blocks"), NumbersOf(tokens.kv.shape.type), tokens.pool));
    return tokens;
  }

  // A pool of as many blocks as the positions take, in the order of its table.
  absl::StatusOr<WrittenTokens> EmptyBlocks(const AttentionOptions& options) {
    const ProbeShape& s = shape_;
    const KvTileShape tile{s.block_tokens, s.head_dim, options.kv_type.value_or(KvTypeOf(dtype_))};
    TANDEM_ASSIGN_OR_RETURN(const KvTileFormat format, backend_.GetKvTileFormat(tile, dtype_));
    const size_t block_bytes = KvLayerBytes(format.tile_bytes, s.kv_heads);
    WrittenTokens tokens;
    tokens.num_blocks = (s.positions + s.block_tokens - 1) / s.block_tokens;
    TANDEM_ASSIGN_OR_RETURN(tokens.pool,
                            Zeros(static_cast<int64_t>(block_bytes) * tokens.num_blocks));
    tokens.kv = {.base = tokens.pool.data(),
                 .block_stride_bytes = block_bytes,
                 .layer_offset_bytes = 0,
                 .tile_bytes = format.tile_bytes,
                 .num_kv_heads = s.kv_heads,
                 .shape = tile};
    std::vector<int32_t> table_values(tokens.num_blocks);
    std::iota(table_values.begin(), table_values.end(), 0);
    TANDEM_ASSIGN_OR_RETURN(tokens.table, Copy(table_values));
    return tokens;
  }

  absl::Status Rotary(DevicePtr<float> cos, DevicePtr<float> sin) {
    const ProbeShape& s = shape_;
    std::vector<int32_t> position_values(s.positions);
    std::iota(position_values.begin(), position_values.end(), 0);
    std::vector<float> frequency_values;
    float frequency = 1.0f;
    for (int i = 0; i < s.head_dim / 2; ++i, frequency *= 0.7f)
      frequency_values.push_back(frequency);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer positions, Copy(position_values));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer frequencies, Copy(frequency_values));
    return backend_.RotaryTable({.positions = positions.as<int32_t>(),
                                 .inv_freq = frequencies.as<float>(),
                                 .cos = cos,
                                 .sin = sin,
                                 .num_tokens = s.positions,
                                 .head_dim = s.head_dim});
  }

  absl::Status Prefill(const AttentionOptions& options, const std::string& kv_name,
                       const WrittenTokens& tokens) {
    const ProbeShape& s = shape_;
    const auto rows = static_cast<int32_t>(s.prefill_rows);
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer query_start, Copy(std::vector<int32_t>{0, rows}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer num_cached,
                            Copy(std::vector<int32_t>{s.positions - rows}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(rows * QueryBytes()));
    TANDEM_RETURN_IF_ERROR(backend_.PrefillAttention({.query = QueryOf(tokens, s.positions - rows),
                                                      .kv = tokens.kv,
                                                      .block_table = tokens.table.as<int32_t>(),
                                                      .query_start = query_start.as<int32_t>(),
                                                      .num_cached = num_cached.as<int32_t>(),
                                                      .output = output.data(),
                                                      .num_sequences = 1,
                                                      .max_blocks = tokens.num_blocks,
                                                      .num_heads = s.heads,
                                                      .compute_dtype = dtype_,
                                                      .softmax_scale = kSoftmaxScale,
                                                      .score_cap = options.cap,
                                                      .window = options.window}));
    return Hash(absl::StrCat(kv_name, "prefill_attention"), dtype_, output);
  }

  absl::Status Decode(const AttentionOptions& options, const std::string& kv_name,
                      const WrittenTokens& tokens) {
    const ProbeShape& s = shape_;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer num_tokens, Copy(std::vector<int32_t>{s.positions}));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer output, Zeros(QueryBytes()));
    TANDEM_RETURN_IF_ERROR(backend_.DecodeAttention({.query = QueryOf(tokens, s.positions - 1),
                                                     .kv = tokens.kv,
                                                     .block_table = tokens.table.as<int32_t>(),
                                                     .num_tokens = num_tokens.as<int32_t>(),
                                                     .output = output.data(),
                                                     .num_sequences = 1,
                                                     .max_blocks = tokens.num_blocks,
                                                     .num_heads = s.heads,
                                                     .compute_dtype = dtype_,
                                                     .softmax_scale = kSoftmaxScale,
                                                     .score_cap = options.cap,
                                                     .window = options.window}));
    return Hash(absl::StrCat(kv_name, "decode_attention"), dtype_, output);
  }

  // What a position's queries take.
  int64_t QueryBytes() const {
    return int64_t{shape_.heads} * shape_.head_dim * static_cast<int64_t>(SizeOf(dtype_));
  }

  DevicePtr<std::byte> QueryOf(const WrittenTokens& tokens, int64_t position) const {
    return tokens.query.data() + position * QueryBytes();
  }

  absl::Status CappedLogits() {
    const int64_t count = shape_.rows * shape_.vocabulary;
    TANDEM_ASSIGN_OR_RETURN(const DeviceBuffer logits,
                            Numbers(DType::kF32, shape_.rows, shape_.vocabulary, 40.0f));
    TANDEM_RETURN_IF_ERROR(
        backend_.SoftCap({.values = logits.as<float>(), .count = count, .cap = shape_.logit_cap}));
    return Hash("soft_cap", DType::kF32, logits);
  }

  Backend& backend_;
  const ProbeShape shape_;
  Random random_;
  Inputs inputs_ = Inputs::kOrdinary;
  DType dtype_ = DType::kF32;
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
                         .logit_cap = options.logit_cap ? 30.0f : 0.0f,
                         .int8_weights = options.int8_weights,
                         .int8_outliers = options.int8_outliers ? 1.5f : 0.0f,
                         .int4_weights = options.int4_weights,
                         .fp8_weights = options.fp8_weights,
                         .kv_type = options.kv_type};
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ProbedOperation> operations,
                          ProbeOperations(backend, shape, kProbeSeed));
  Sha256 hash;
  hash.Update(&kNumericsVersion, sizeof(kNumericsVersion));
  for (const ProbedOperation& operation : operations) {
    hash.Update(operation.name);
    hash.Update(operation.digest.data(), operation.digest.size());
  }
  TANDEM_ASSIGN_OR_RETURN(const Sha256Digest draws, ProbeSampling(backend));
  hash.Update(draws.data(), draws.size());
  return hash.Finish();
}

}  // namespace tandem
