// Memory that operations of one backend use one after the other; grows to the most ever asked for.

#ifndef TANDEM_KERNELS_CPU_SCRATCH_H_
#define TANDEM_KERNELS_CPU_SCRATCH_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/support/host_memory.h"
#include "runtime/base/status_macros.h"

namespace tandem {

class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { FreeHostMemory(data_, size_bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // 64-byte aligned, contents undefined; valid until the next call. Engine thread only.
  absl::StatusOr<std::byte*> Get(size_t size_bytes) {
    if (size_bytes > size_bytes_) {
      FreeHostMemory(data_, size_bytes_);
      data_ = nullptr;
      size_bytes_ = 0;
      TANDEM_ASSIGN_OR_RETURN(data_, AllocateHostMemory(size_bytes));
      size_bytes_ = size_bytes;
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_SCRATCH_H_
