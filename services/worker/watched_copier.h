// The copies of blocks to, from and within a device, seen from beside them: whether one has no end.

#ifndef TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_
#define TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/device_copier.h"

namespace tandem {

class WatchedCopier final : public DeviceCopier {
 public:
  // `copier` outlives this.
  explicit WatchedCopier(DeviceCopier* copier) : copier_(copier) {}

  // Any thread. What waits for its turn is under way, too.
  int64_t under_way() const { return under_way_; }
  int64_t done() const { return done_; }
  // One thread. Some are under way, and none has ended since it looked last.
  bool Stands() {
    const int64_t done = done_;
    return std::exchange(done_seen_, done) == done && under_way_ > 0;
  }

  absl::Status Download(void* to, const void* device, size_t size_bytes) override {
    const UnderWay copy(this);
    return copier_->Download(to, device, size_bytes);
  }
  absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) override {
    const UnderWay copy(this);
    return copier_->Upload(device, from, size_bytes);
  }
  absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from, size_t size_bytes) override {
    const UnderWay copy(this);
    return copier_->CopyWithin(device, from, size_bytes);
  }
  absl::StatusOr<std::byte*> AllocatePinned(size_t size_bytes) override {
    return copier_->AllocatePinned(size_bytes);
  }
  void FreePinned(std::byte* memory) override { copier_->FreePinned(memory); }

 private:
  class UnderWay {
   public:
    explicit UnderWay(WatchedCopier* copier) : copier_(copier) { ++copier_->under_way_; }
    ~UnderWay() {
      ++copier_->done_;
      --copier_->under_way_;
    }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    WatchedCopier* const copier_;
  };

  DeviceCopier* const copier_;
  std::atomic<int64_t> under_way_{0}, done_{0};
  int64_t done_seen_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_
