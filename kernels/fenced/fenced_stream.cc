#include "kernels/fenced/fenced_stream.h"

#include <pthread.h>

#include <utility>

#include "runtime/base/check.h"

namespace tandem {
namespace {

// More than a step of any test's model; whoever pushes more waits.
constexpr uint64_t kMaxUnreleased = 1 << 14;

}  // namespace

FencedStream::FencedStream() : thread_([this] { Run(); }) {}

FencedStream::~FencedStream() {
  Release();
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void FencedStream::Push(Work work) {
  uint64_t pushed;
  bool full;
  {
    MutexLock lock(&mu_);
    work_.push_back(std::move(work));
    pushed = ++num_pushed_;
    full = pushed - num_released_ > kMaxUnreleased;
  }
  if (!full) return;
  Release();
  static_cast<void>(Wait(pushed));  // An error stays for whoever asks for results.
}

uint64_t FencedStream::Release() {
  MutexLock lock(&mu_);
  num_released_ = num_pushed_;
  changed_.SignalAll();
  return num_released_;
}

absl::Status FencedStream::Wait(uint64_t point) {
  MutexLock lock(&mu_);
  TANDEM_CHECK(point <= num_released_) << point << " of " << num_released_;
  while (num_done_ < point) changed_.Wait(&mu_);
  return status_;
}

void FencedStream::Run() {
  ::pthread_setname_np(::pthread_self(), "fenced-stream");
  while (true) {
    Work work;
    bool has_failed;
    {
      MutexLock lock(&mu_);
      while (num_done_ == num_released_ && !stop_) changed_.Wait(&mu_);
      if (num_done_ == num_released_) return;
      work = std::move(work_.front());
      work_.pop_front();
      has_failed = !status_.ok();
    }
    const absl::Status status = has_failed ? absl::OkStatus() : work();
    MutexLock lock(&mu_);
    status_.Update(status);
    ++num_done_;
    changed_.SignalAll();
  }
}

}  // namespace tandem
