// A model's weights, packed for a backend and ready to run.

#ifndef TANDEM_RUNTIME_MODEL_WEIGHTS_H_
#define TANDEM_RUNTIME_MODEL_WEIGHTS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/base/sha256.h"
#include "runtime/config/tensor_type.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/model_types.h"
#include "runtime/model/packed_image.h"
#include "runtime/model/weight_source.h"

namespace tandem {

struct WeightsOptions {
  ModelTypes types;
  std::string cache_dir;                         // Empty: no cache on disk.
  std::function<void(absl::Status)> on_corrupt;  // As in PackedImageOptions.
};

// Pointers into the packed image, as the backend has it.
struct NormWeights {
  DevicePtr<const float> weight;
  DevicePtr<const float> bias;  // Null for RMS norms.
};

struct LinearWeights {
  std::unique_ptr<LinearOp> op;
  DevicePtr<const float> bias;  // Null: none.
};

// As a ModelSpec declares them: null, or without an operation, where that has none.
using WeightParts = ModelParts<DevicePtr<const void>, NormWeights, LinearWeights>;
using LayerWeights = WeightParts::Layer;

struct WeightSizes {
  size_t packed_bytes = 0;
  size_t row_scratch_bytes = 0;  // PackedFormat: of the layer that takes most
  size_t converted_bytes = 0;    // While a layer is packed, if its numbers are converted before.
};

// Immutable.
class ModelWeights {
 public:
  // Reads no weights, which are of `stored_type`.
  static absl::StatusOr<WeightSizes> Sizes(const ModelSpec& spec, const Backend& backend,
                                           const ModelTypes& types, TensorType stored_type);

  // Maps the packing from the cache, or packs `source`. `backend` outlives the result.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Load(const ModelSpec& spec,
                                                            WeightSource* source, Backend* backend,
                                                            const WeightsOptions& options);

  const WeightParts& parts() const { return parts_; }

  // The digest of the checkpoint's tensors, not of their packing: equal on every machine.
  const Sha256Digest& digest() const { return image_->digest(); }

  // How many layers are kept in 8-bit floats (WeightType::kFp8).
  int64_t fp8_layers() const { return fp8_layers_; }

 private:
  ModelWeights() = default;

  std::unique_ptr<PackedImage> image_;  // Outlives what is below.
  DeviceBuffer placed_;                 // The image where operations read it; outlives those.
  WeightParts parts_;
  int64_t fp8_layers_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_WEIGHTS_H_
