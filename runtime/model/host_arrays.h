// Small arrays of a step on their way to the device: gathered in one piece of memory that both
// sides have, so that one copy carries all of them.
//
//   arrays.Add(token_ids, &device_token_ids);
//   arrays.Add(positions, &device_positions);
//   arrays.Upload();

#ifndef TANDEM_RUNTIME_MODEL_HOST_ARRAYS_H_
#define TANDEM_RUNTIME_MODEL_HOST_ARRAYS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/backend.h"

namespace tandem {

// Engine thread only.
class HostArrays {
 public:
  explicit HostArrays(Backend* backend) : backend_(backend) {}

  // `array` is read, and `*device` known, once Upload returns; both live until then.
  template <typename T>
  void Add(std::span<const T> array, DevicePtr<const T>* device) {
    pending_.push_back({.host = array.data(),
                        .bytes = array.size_bytes(),
                        .offset = bytes_,
                        .set = &Set<T>,
                        .device = device});
    bytes_ += (array.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Carries all that was added since the last call; what that one gave is over, and waited for
  // where it is still read. ResourceExhausted without memory. What was added is forgotten even if
  // this fails.
  absl::Status Upload();

 private:
  absl::Status UploadPending();

  static constexpr size_t kAlignment = 64;

  struct Array {
    const void* host;
    size_t bytes;
    size_t offset;
    void (*set)(DevicePtr<std::byte> address, void* device);
    void* device;  // DevicePtr<const T>*.
  };

  template <typename T>
  static void Set(DevicePtr<std::byte> address, void* device) {
    *static_cast<DevicePtr<const T>*>(device) = address.as<const T>();
  }

  Backend* backend_;
  MirrorBuffer memory_;
  DeviceEvent uploaded_;  // When the host's side may be written again.
  std::vector<Array> pending_;
  size_t bytes_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_HOST_ARRAYS_H_
