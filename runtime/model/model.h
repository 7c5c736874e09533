// A model folder, loaded: config, declaration and packed weights for one backend.

#ifndef TANDEM_RUNTIME_MODEL_MODEL_H_
#define TANDEM_RUNTIME_MODEL_MODEL_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/config/model_config.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/model_types.h"
#include "runtime/model/weights.h"

namespace tandem {

// Limits what a config may describe, in the type that it names.
inline constexpr int64_t kMaxWeightsBytes = int64_t{4} << 40;

enum class LoadFormat : uint8_t { kSafetensors, kDummy };

struct ModelOptions {
  std::string folder;
  LoadFormat load_format = LoadFormat::kSafetensors;
  // "f32", "bf16", or "auto": the type that the weights have, never a narrower one. F16, and a mix
  // of F16 and BF16, are computed in f32. Matrices in 4 bits or in 8-bit floats have no say.
  std::string dtype = "auto";
  // What matrices are kept in. "auto": what is computed in, or the checkpoint's own 4 bits. "int8",
  // "int4": quantised when they are packed.
  std::string weights = "auto";
  // What the output projection is kept in. "auto": as `weights`. "dtype": what is computed in, of
  // weights that would otherwise be quantised here.
  std::string output_weights = "auto";
  // With weights of "int8": inputs of at least this magnitude are not made 8 bits (LinearSpec), 6
  // where others have it by default. 0: all are.
  double int8_outliers = 0;
  // What KV is kept in. "auto": what is computed in. "f32", "bf16", "int8", "int8g8" and
  // "fp8" are KvTypes.
  std::string kv = "auto";
  std::string cache_dir;                         // Empty: weights are packed into memory.
  std::function<void(absl::Status)> on_corrupt;  // As in PackedImageOptions.
};

// What loading takes, as config.json and the headers of the checkpoint's files say.
struct ModelPlan {
  ModelConfig config;
  ModelTypes types;
  WeightSizes weights;
};

// Immutable.
class Model {
 public:
  // `backend` outlives the model. Errors as of ModelConfig::Load, OpenCheckpoint, UnreadTensors and
  // ModelWeights; InvalidArgument for an unknown dtype, weights, output_weights or kv, and for
  // int8_outliers out of range or of other weights.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const ModelOptions& options, Backend* backend);

  // Reads no weights. Errors as of Load.
  static absl::StatusOr<ModelPlan> Plan(const ModelOptions& options, const Backend& backend);

  const ModelConfig& config() const { return config_; }
  const ModelSpec& spec() const { return spec_; }
  const ModelWeights& weights() const { return *weights_; }
  const ModelTypes& types() const { return types_; }

  // The digest of what decides a token's KV and logits before any rounding: architecture, sizes,
  // rope, windows and every weight, as stored in the checkpoint. Hex.
  std::string Digest() const;

 private:
  Model() = default;

  ModelConfig config_;
  ModelSpec spec_;
  ModelTypes types_;
  std::unique_ptr<ModelWeights> weights_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_MODEL_H_
