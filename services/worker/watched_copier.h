// The copies of blocks to, from and within a device, seen from beside them: whether one has no end,
// or the device is lost, as one has said, or as they fail again and again.

#ifndef TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_
#define TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/mutex.h"
#include "runtime/engine/engine.h"
#include "services/worker/worker_metrics.h"

namespace tandem {

class WatchedCopier final : public DeviceCopier {
 public:
  // Both outlive this.
  WatchedCopier(DeviceCopier* copier, WorkerMetrics* metrics)
      : copier_(copier), metrics_(metrics) {}

  // Any thread. What waits for its turn is under way, too.
  int64_t under_way() const { return under_way_; }
  int64_t done() const { return done_; }
  // One thread. Some are under way, and none has ended since it looked last.
  bool Stands() {
    const int64_t done = done_;
    return std::exchange(done_seen_, done) == done && under_way_ > 0;
  }

  // Any thread. Why the device is lost: DataLoss, as the first copy said that did; or the last
  // kMaxFailedSteps copies have failed, not counting those begun before it was known that the one
  // before had. OK: it is not.
  absl::Status lost() const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return lost_;
  }

  absl::Status Download(void* to, const void* device, size_t size_bytes) override {
    const UnderWay copy(this);
    const absl::Status status = copier_->Download(to, device, size_bytes);
    Note(copy, status);
    return status;
  }
  absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) override {
    const UnderWay copy(this);
    const absl::StatusOr<uint32_t> crc32c = copier_->Upload(device, from, size_bytes);
    Note(copy, crc32c.status());
    return crc32c;
  }
  absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from, size_t size_bytes) override {
    const UnderWay copy(this);
    const absl::StatusOr<uint32_t> crc32c = copier_->CopyWithin(device, from, size_bytes);
    Note(copy, crc32c.status());
    return crc32c;
  }
  absl::StatusOr<std::byte*> AllocatePinned(size_t size_bytes) override {
    return copier_->AllocatePinned(size_bytes);
  }
  void FreePinned(std::byte* memory) override { copier_->FreePinned(memory); }

 private:
  class UnderWay {
   public:
    explicit UnderWay(WatchedCopier* copier)
        : copier_(copier), failures_before_(copier->failures_) {
      ++copier_->under_way_;
    }
    ~UnderWay() {
      ++copier_->done_;
      --copier_->under_way_;
    }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
    int64_t failures_before() const { return failures_before_; }

   private:
    WatchedCopier* const copier_;
    const int64_t failures_before_;
  };

  void Note(const UnderWay& copy, const absl::Status& status) EXCLUDES(mu_) {
    if (!status.ok()) metrics_->OnFailedCopy();
    MutexLock lock(&mu_);
    if (status.ok()) {
      in_a_row_ = 0;
    } else if (absl::IsDataLoss(status)) {
      lost_.Update(status);
    } else if (copy.failures_before() == failures_) {  // Else it is the failure that was counted.
      ++failures_;
      if (++in_a_row_ >= kMaxFailedSteps) {
        lost_.Update(absl::Status(
            status.code(), absl::StrFormat("%d copies of KV blocks failed, one after the other: %s",
                                           in_a_row_, status.message())));
      }
    }
  }

  DeviceCopier* const copier_;
  WorkerMetrics* const metrics_;
  std::atomic<int64_t> under_way_{0}, done_{0};
  int64_t done_seen_ = 0;
  mutable Mutex mu_;
  std::atomic<int64_t> failures_{0};  // Changed under the lock.
  int32_t in_a_row_ GUARDED_BY(mu_) = 0;
  absl::Status lost_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WATCHED_COPIER_H_
