#include "runtime/model/model.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dummy_weights.h"
#include "runtime/model/kv_layout.h"
#include "runtime/model/unread_tensors.h"

namespace tandem {
namespace {

// A folder before anything is packed.
struct OpenedModel {
  ModelConfig config;
  std::unique_ptr<WeightSource> source;
  ModelSpec spec;
  TensorType stored_type = TensorType::kF32;
  ModelTypes types;
};

// The narrowest type that holds every matrix. Vectors and scales are computed in f32 in any case.
TensorType StoredType(const ModelSpec& spec, const WeightSource& source) {
  std::optional<TensorType> common;
  for (const TensorDecl& matrix : spec.Matrices()) {
    const std::optional<TensorType> type = source.TypeOf(matrix.name);
    if (!type) continue;  // Loading will say what is wrong with it.
    if (common && *common != *type) return TensorType::kF32;
    common = type;
  }
  return common.value_or(TensorType::kF32);
}

absl::Status CheckTotal(const ModelConfig& config, const ModelSpec& spec) {
  const int64_t parameters = spec.NumParameters();
  const int64_t bytes_each = SizeBytes(config.checkpoint_type);
  if (parameters <= kMaxWeightsBytes / bytes_each) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "config.json: describes %d parameters of %d bytes, at most %d bytes are loaded", parameters,
      bytes_each, kMaxWeightsBytes));
}

absl::StatusOr<DType> ComputeDType(const std::string& dtype, TensorType stored_type) {
  if (dtype == "f32") return DType::kF32;
  if (dtype == "bf16") return DType::kBF16;
  if (dtype == "auto") return stored_type == TensorType::kBF16 ? DType::kBF16 : DType::kF32;
  return absl::InvalidArgumentError(
      absl::StrFormat("--dtype is \"%s\", want auto, f32 or bf16", dtype));
}

absl::StatusOr<KvType> KvTypeNamed(const std::string& name, KvType automatic) {
  if (name == "auto") return automatic;
  std::string known = "auto";
  for (const KvType type : kAllKvTypes) {
    if (name == NameOf(type)) return type;
    absl::StrAppend(&known, ", ", NameOf(type));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--kv-dtype is \"%s\", want one of %s", name, known));
}

absl::Status CheckOutputWeights(const ModelOptions& options) {
  if (options.output_weights == "auto") return absl::OkStatus();
  if (options.output_weights != "dtype") {
    return absl::InvalidArgumentError(
        absl::StrFormat("--output-weights is \"%s\", want auto or dtype", options.output_weights));
  }
  if (options.weights != "auto") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--output-weights is \"dtype\", which the output projection has anyway with --weights auto: "
      "want int8 or int4 there, or auto here");
}

absl::StatusOr<float> OutlierThreshold(const ModelOptions& options) {
  const double threshold = options.int8_outliers;
  if (threshold == 0) return 0.0f;
  if (!(threshold >= kMinOutlierThreshold && threshold <= kMaxOutlierThreshold)) {
    return absl::InvalidArgumentError(absl::StrFormat("--int8-outliers is %g, want 0, or %g to %g",
                                                      threshold, kMinOutlierThreshold,
                                                      kMaxOutlierThreshold));
  }
  if (options.weights == "int8") return static_cast<float>(threshold);
  return absl::InvalidArgumentError(absl::StrFormat(
      "--int8-outliers is %g, which only weights of \"int8\" have: want these instead "
      "of \"%s\", or 0 here",
      threshold, options.weights));
}

absl::StatusOr<ModelTypes> TypesOf(const ModelOptions& options, bool comes_in_int4,
                                   TensorType stored_type) {
  TANDEM_ASSIGN_OR_RETURN(const DType compute, ComputeDType(options.dtype, stored_type));
  ModelTypes types = ModelTypes::Of(compute);
  TANDEM_ASSIGN_OR_RETURN(types.kv, KvTypeNamed(options.kv, types.kv));
  TANDEM_RETURN_IF_ERROR(CheckOutputWeights(options));
  types.output_is_plain = options.output_weights == "dtype";
  TANDEM_ASSIGN_OR_RETURN(types.int8_outliers, OutlierThreshold(options));
  if (comes_in_int4) types.weights = WeightType::kInt4;
  if (options.weights == "auto") return types;
  if (comes_in_int4) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--weights is \"%s\", but the checkpoint's are in 4 bits already "
                        "(quantization_config): want auto",
                        options.weights));
  }
  for (const WeightType quantised : {WeightType::kInt8, WeightType::kInt4}) {
    types.weights = quantised;
    if (options.weights == NameOf(quantised)) return types;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--weights is \"%s\", want auto, int8 or int4", options.weights));
}

absl::StatusOr<OpenedModel> OpenModel(const ModelOptions& options) {
  OpenedModel opened;
  TANDEM_ASSIGN_OR_RETURN(opened.config, ModelConfig::Load(options.folder));
  if (options.load_format == LoadFormat::kDummy) {
    if (opened.config.int4_format.present()) {
      return absl::FailedPreconditionError(
          "config.json: quantization_config is set, and dummy weights are not in 4 bits");
    }
    opened.source = MakeDummyWeights(opened.config);
  } else {
    TANDEM_ASSIGN_OR_RETURN(opened.source, OpenCheckpoint(options.folder));
  }
  opened.spec = MakeModelSpec(opened.config, *opened.source);
  TANDEM_RETURN_IF_ERROR(CheckTotal(opened.config, opened.spec));
  opened.stored_type = StoredType(opened.spec, *opened.source);
  TANDEM_ASSIGN_OR_RETURN(opened.types,
                          TypesOf(options, opened.spec.comes_in_int4(), opened.stored_type));
  return opened;
}

absl::Status CheckTensors(const ModelOptions& options, const OpenedModel& opened) {
  if (options.dtype == "auto" && opened.stored_type != opened.config.checkpoint_type) {
    LogInfo("the weights decide the type, not config.json",
            {{"weights", Name(opened.stored_type)},
             {"config", Name(opened.config.checkpoint_type)},
             {"computed_in", NameOf(opened.types.compute)}});
  }
  if (options.dtype == "auto" && opened.stored_type == TensorType::kF16) {
    LogInfo(
        "F16 is computed in f32; --dtype bf16 takes half of the memory for KV, and for weights "
        "that are not quantised",
        {{"folder", options.folder}});
  }
  // A type that is not supported comes first: what stands beside such a tensor is not read either.
  for (const TensorDecl& tensor : opened.spec.Tensors()) {
    if (!opened.source->Contains(tensor.name) || opened.source->TypeOf(tensor.name)) continue;
    return opened.source->Tensor(tensor.name, tensor.shape).status();
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> unread,
                          UnreadTensors(opened.spec, *opened.source));
  if (!unread.empty()) {
    LogWarning(
        "tensors of the checkpoint are not read",
        {{"folder", options.folder}, {"count", unread.size()}, {"names", ShortList(unread)}});
  }
  if (options.load_format == LoadFormat::kDummy) return absl::OkStatus();
  // All have their shapes before any is packed.
  for (const TensorDecl& tensor : opened.spec.Tensors()) {
    TANDEM_RETURN_IF_ERROR(opened.source->Tensor(tensor.name, tensor.shape).status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const ModelOptions& options, Backend* backend) {
  TANDEM_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(options));
  // A head size that no kernel has must not be found out after gigabytes were packed.
  TANDEM_RETURN_IF_ERROR(
      KvLayout::Make(opened.config, *backend, opened.types, kKvSubTileTokens).status());
  TANDEM_RETURN_IF_ERROR(CheckTensors(options, opened));
  std::unique_ptr<Model> model(new Model());
  TANDEM_ASSIGN_OR_RETURN(model->weights_,
                          ModelWeights::Load(opened.spec, opened.source.get(), backend,
                                             {.types = opened.types,
                                              .cache_dir = options.cache_dir,
                                              .on_corrupt = options.on_corrupt}));
  if (opened.config.float8.present && options.load_format != LoadFormat::kDummy) {
    LogInfo("matrices come in 8-bit floats; their scales of inputs are not used",
            {{"kept_so", model->weights_->fp8_layers()},
             {"others_kept_in", NameOf(opened.types.weights)}});
  }
  model->config_ = std::move(opened.config);
  model->spec_ = std::move(opened.spec);
  model->types_ = opened.types;
  return model;
}

absl::StatusOr<ModelPlan> Model::Plan(const ModelOptions& options, const Backend& backend) {
  TANDEM_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(options));
  TANDEM_ASSIGN_OR_RETURN(
      const WeightSizes sizes,
      ModelWeights::Sizes(opened.spec, backend, opened.types, opened.stored_type));
  return ModelPlan{.config = std::move(opened.config), .types = opened.types, .weights = sizes};
}

std::string Model::Digest() const {
  const ModelConfig& c = config_;
  Sha256 digest;
  digest.Update(absl::StrFormat(
      "%s %d %d %d %d %d %d %d %d eps=%a act=%d tied=%d\n", c.architecture, c.hidden_size,
      c.ffn_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size,
      c.max_positions, c.norm_epsilon, static_cast<int>(c.activation), c.tied_embeddings));
  const std::vector<float> frequencies = RopeFrequencies(c);
  digest.Update(frequencies.data(), frequencies.size() * sizeof(float));
  for (size_t i = 0; i < c.windows.size(); ++i) {
    if (c.windows[i] != 0) digest.Update(absl::StrFormat("window %d %d\n", i, c.windows[i]));
  }
  const float head_dim = static_cast<float>(c.head_dim);
  if (c.query_scalar != head_dim || c.score_cap != 0 || c.logit_cap != 0) {
    digest.Update(
        absl::StrFormat("query scalar %a caps %a %a\n", c.query_scalar, c.score_cap, c.logit_cap));
  }
  if (c.int4_format.present()) {
    digest.Update(absl::StrFormat("4 bits %d group %d zeros less %d\n",
                                  static_cast<int>(c.int4_format.method), c.int4_format.group,
                                  c.int4_format.zero_less));
  }
  if (c.float8.present) {
    digest.Update(
        absl::StrFormat("8-bit floats each %d by %d\n", c.float8.outputs, c.float8.inputs));
  }
  digest.Update(weights_->digest().data(), weights_->digest().size());
  const Sha256Digest result = digest.Finish();
  return HexOf(result.data(), result.size());
}

}  // namespace tandem
