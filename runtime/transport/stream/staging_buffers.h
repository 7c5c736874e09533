// Memory of the host that blocks pass between a device's pool and a stream: some buffers of a block
// each that copies reach without a detour, made at the start, as pinning memory may wait for the
// device.

#ifndef TANDEM_RUNTIME_TRANSPORT_STREAM_STAGING_BUFFERS_H_
#define TANDEM_RUNTIME_TRANSPORT_STREAM_STAGING_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"

namespace tandem {

// Any thread. Outlives the buffers that it gives.
class StagingBuffers {
 public:
  // A link holds one while its peer reads, so that one that stands still holds one; more links than
  // these take the detour.
  static constexpr int kNumPinned = 8;
  static constexpr int64_t PinnedBytes(int64_t block_bytes) { return kNumPinned * block_bytes; }

  // Each has `bytes`. `copier` outlives this. ResourceExhausted if so much memory cannot be pinned.
  static absl::StatusOr<std::unique_ptr<StagingBuffers>> Create(DeviceCopier* copier,
                                                                size_t bytes) {
    std::unique_ptr<StagingBuffers> buffers(new StagingBuffers(copier, bytes));
    MutexLock lock(&buffers->mu_);
    for (int i = 0; i < kNumPinned; ++i) {
      TANDEM_ASSIGN_OR_RETURN(std::byte* const memory, copier->AllocatePinned(bytes));
      buffers->free_.push_back(memory);
    }
    return buffers;
  }
  ~StagingBuffers() {
    MutexLock lock(&mu_);
    for (std::byte* const memory : free_) copier_->FreePinned(memory);
  }
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  // Gives itself back.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          data_(std::exchange(other.data_, nullptr)) {}
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(data_, other.data_);
      return *this;
    }
    ~Buffer() {
      if (owner_ != nullptr) {
        owner_->GiveBack(data_);
      } else {
        delete[] data_;
      }
    }
    std::byte* data() const { return data_; }
    bool pinned() const { return owner_ != nullptr; }

   private:
    friend class StagingBuffers;
    Buffer(StagingBuffers* owner, std::byte* data) : owner_(owner), data_(data) {}

    StagingBuffers* owner_ = nullptr;  // Null: not pinned.
    std::byte* data_ = nullptr;
  };

  // Waits for nobody: while all are taken, other memory does.
  Buffer Take() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (!free_.empty()) {
        std::byte* const memory = free_.back();
        free_.pop_back();
        return {this, memory};
      }
    }
    return {nullptr, new std::byte[bytes_]};
  }

 private:
  StagingBuffers(DeviceCopier* copier, size_t bytes) : copier_(copier), bytes_(bytes) {}
  void GiveBack(std::byte* memory) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    free_.push_back(memory);
  }

  DeviceCopier* const copier_;
  const size_t bytes_;
  Mutex mu_;
  std::vector<std::byte*> free_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_STREAM_STAGING_BUFFERS_H_
