#include "runtime/model/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dummy_weights.h"
#include "runtime/model/kv_layout.h"

namespace tandem {
namespace {

absl::StatusOr<std::unique_ptr<WeightSource>> OpenSource(const ModelOptions& options,
                                                         const ModelConfig& config) {
  if (options.load_format == LoadFormat::kDummy) return MakeDummyWeights(config);
  return OpenCheckpoint(options.folder);
}

}  // namespace

absl::StatusOr<DType> Model::ComputeDType(const std::string& dtype, TensorType checkpoint_type) {
  if (dtype == "f32") return DType::kF32;
  if (dtype == "bf16") return DType::kBF16;
  if (dtype == "auto") {
    return checkpoint_type == TensorType::kBF16 ? DType::kBF16 : DType::kF32;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("dtype is \"%s\", want auto, f32 or bf16", dtype));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const ModelOptions& options, Backend* backend) {
  std::unique_ptr<Model> model(new Model());
  TANDEM_ASSIGN_OR_RETURN(model->config_, ModelConfig::Load(options.folder));
  TANDEM_ASSIGN_OR_RETURN(model->compute_dtype_,
                          ComputeDType(options.dtype, model->config_.checkpoint_type));
  // A head size that no kernel has must not be found out after gigabytes were packed.
  TANDEM_RETURN_IF_ERROR(
      KvLayout::Make(model->config_, *backend, model->compute_dtype_, kKvSubTileTokens).status());
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                          OpenSource(options, model->config_));
  model->spec_ = MakeModelSpec(model->config_, *source);
  TANDEM_ASSIGN_OR_RETURN(model->weights_,
                          ModelWeights::Load(model->config_, model->spec_, source.get(), backend,
                                             {.compute_dtype = model->compute_dtype_,
                                              .cache_dir = options.cache_dir,
                                              .on_corrupt = options.on_corrupt}));
  return model;
}

absl::StatusOr<size_t> Model::WeightsBytes(const ModelOptions& options, const Backend& backend) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(options.folder));
  TANDEM_ASSIGN_OR_RETURN(const DType dtype, ComputeDType(options.dtype, config.checkpoint_type));
  // Sizes do not depend on how a checkpoint names its tensors.
  const std::unique_ptr<WeightSource> names = MakeDummyWeights(config);
  return ModelWeights::PackedBytes(config, MakeModelSpec(config, *names), backend, dtype);
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
  digest.Update(weights_->digest().data(), weights_->digest().size());
  const Sha256Digest result = digest.Finish();
  return HexOf(result.data(), result.size());
}

}  // namespace tandem
