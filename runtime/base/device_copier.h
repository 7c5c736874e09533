// Copies to, from and within a device's memory, beside what the device computes: how a transport
// gets at a pool that no address of the host reaches (memory_kind.h).

#ifndef TANDEM_RUNTIME_BASE_DEVICE_COPIER_H_
#define TANDEM_RUNTIME_BASE_DEVICE_COPIER_H_

#include <cstddef>
#include <cstdint>
#include <new>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Any thread, several at a time. Each call returns when its bytes are where they belong or, not OK,
// when the device has failed and moves none of them any more. It waits for nothing else that the
// device was given: what is read has been waited for before. `device` is an address of the device,
// which the host does not follow.
class DeviceCopier {
 public:
  virtual ~DeviceCopier() = default;
  virtual absl::Status Download(void* to, const void* device, size_t size_bytes) = 0;
  // Gives the CRC-32C of the bytes as they lie there. Address and size are multiples of 64.
  virtual absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) = 0;
  // As Upload, of bytes that are on the device already; they do not overlap.
  virtual absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from,
                                              size_t size_bytes) = 0;

  // Memory of the host that copies reach without a detour (pinned, for a device that has one),
  // 64-byte aligned, of any content. May wait for the device: for a process's start and end.
  virtual absl::StatusOr<std::byte*> AllocatePinned(size_t size_bytes) {
    return static_cast<std::byte*>(::operator new(size_bytes, kPinnedAlignment));
  }
  virtual void FreePinned(std::byte* memory) { ::operator delete(memory, kPinnedAlignment); }

 private:
  static constexpr std::align_val_t kPinnedAlignment{64};
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_DEVICE_COPIER_H_
