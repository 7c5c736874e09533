// Where a model's tensors come from: a checkpoint's files, or a seed.

#ifndef TANDEM_RUNTIME_MODEL_WEIGHT_SOURCE_H_
#define TANDEM_RUNTIME_MODEL_WEIGHT_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/model/safetensors_file.h"

namespace tandem {

// One thread at a time.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual bool Contains(std::string_view name) const = 0;

  // The type of a tensor that Tensor() can give; nothing if it is missing or of an unsupported
  // dtype.
  virtual std::optional<TensorType> TypeOf(std::string_view name) const = 0;

  // Its shape. Nothing if it is missing, and of dummy weights, whose tensors have any shape that is
  // asked for.
  virtual std::optional<std::vector<int64_t>> ShapeOf(std::string_view name) const = 0;

  // Every tensor of a checkpoint; none of dummy weights, which have what is asked for.
  virtual std::vector<std::string> Names() const = 0;

  // The tensor, which must have `shape`. Valid until Release() or the source's end.
  // NotFound if it is missing; InvalidArgument naming both shapes if they differ;
  // FailedPrecondition for a dtype that is not supported.
  virtual absl::StatusOr<TensorView> Tensor(std::string_view name,
                                            std::span<const int64_t> shape) = 0;

  // Gives back what Tensor() had to make; views are invalid afterwards.
  virtual void Release() = 0;

  // Changes whenever the tensors may have changed: for a checkpoint, path, size, modification time
  // and inode of every file, a line each; of dummy weights, what they are made by: version,
  // architecture and type (their shapes are the plan's).
  virtual std::string Identity() const = 0;
};

// Opens model.safetensors, or the shards that model.safetensors.index.json lists; the index decides
// which file a tensor is read from. InvalidArgument for a broken index or file: shards must lie in
// the folder itself and hold what the index says.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenCheckpoint(const std::string& folder);

// Which file of the folder holds which tensor, from an index's text. Exposed for tests and fuzzing.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                         const std::string& what);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_WEIGHT_SOURCE_H_
