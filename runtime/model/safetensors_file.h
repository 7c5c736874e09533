// One *.safetensors file, memory-mapped and checked when opened: after Open, every tensor lies
// inside the file, none overlaps another, and its size is what its shape and dtype say.
//
// Format: 8 bytes of little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}}, then the data, which the tensors must cover without holes.

#ifndef TANDEM_RUNTIME_MODEL_SAFETENSORS_FILE_H_
#define TANDEM_RUNTIME_MODEL_SAFETENSORS_FILE_H_

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
#include "runtime/config/tensor_type.h"

namespace tandem {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxSafetensorsTensors = 100'000;
inline constexpr size_t kMaxTensorDimensions = 8;

// A tensor as it lies in the file. `bytes` need not be aligned.
struct TensorView {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
};

// Where a header says a tensor lies, relative to the data. `dtype` is any name, also one that is
// not known (of such a tensor only the place is checked); only those of TensorType can be viewed.
struct TensorEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Parses and checks the header of a file of `file` bytes (all of it, or at least its header; the
// data is not touched). `what` names the file in messages.
struct SafetensorsHeader {
  std::map<std::string, TensorEntry, std::less<>> tensors;
  uint64_t data_start = 0;

  // `prefix` holds the file's beginning up to the end of the header at least.
  static absl::StatusOr<SafetensorsHeader> Parse(std::span<const uint8_t> prefix,
                                                 uint64_t file_bytes, const std::string& what);
};

// Immutable; any thread. A file that is cut while mapped raises SIGBUS on access: checkpoints must
// be replaced by rename, never in place.
class SafetensorsFile {
 public:
  // NotFound, or InvalidArgument naming the file, the tensor and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  bool Contains(std::string_view name) const { return header_.tensors.contains(name); }
  // Nothing if the tensor is missing or cannot be viewed.
  std::optional<TensorType> TypeOf(std::string_view name) const;
  // NotFound, or FailedPrecondition for a dtype that TensorType lacks.
  absl::StatusOr<TensorView> Tensor(std::string_view name) const;
  const SafetensorsHeader& header() const { return header_; }

 private:
  SafetensorsFile(std::string path, const uint8_t* base, uint64_t size_bytes,
                  SafetensorsHeader header)
      : path_(std::move(path)), base_(base), size_bytes_(size_bytes), header_(std::move(header)) {}

  const std::string path_;
  const uint8_t* const base_;
  const uint64_t size_bytes_;
  const SafetensorsHeader header_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_SAFETENSORS_FILE_H_
