// The copies of blocks to, from and within a device, seen from beside them: whether one has no end,
// or has said that the device is lost.

#ifndef TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_
#define TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/mutex.h"

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

  // Any thread. DataLoss, as the first copy said that did; OK: none has.
  absl::Status lost() const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return lost_;
  }

  absl::Status Download(void* to, const void* device, size_t size_bytes) override {
    const UnderWay copy(this);
    const absl::Status status = copier_->Download(to, device, size_bytes);
    Note(status);
    return status;
  }
  absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) override {
    const UnderWay copy(this);
    const absl::StatusOr<uint32_t> crc32c = copier_->Upload(device, from, size_bytes);
    Note(crc32c.status());
    return crc32c;
  }
  absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from, size_t size_bytes) override {
    const UnderWay copy(this);
    const absl::StatusOr<uint32_t> crc32c = copier_->CopyWithin(device, from, size_bytes);
    Note(crc32c.status());
    return crc32c;
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

  void Note(const absl::Status& status) EXCLUDES(mu_) {
    if (!absl::IsDataLoss(status)) return;
    MutexLock lock(&mu_);
    lost_.Update(status);
  }

  DeviceCopier* const copier_;
  std::atomic<int64_t> under_way_{0}, done_{0};
  int64_t done_seen_ = 0;
  mutable Mutex mu_;
  absl::Status lost_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_
