#include "services/server/followed_files.h"

#include <pthread.h>
#include <signal.h>

#include "runtime/base/small_file.h"

namespace tandem {

FollowedFiles::~FollowedFiles() {
  {
    const MutexLock lock(&mu_);
    stopping_ = true;
    stop_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void FollowedFiles::Follow(std::chrono::milliseconds period) {
  // Signals are for those who wait for them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, period] { Run(period); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void FollowedFiles::Run(std::chrono::milliseconds period) {
  pthread_setname_np(pthread_self(), "files");
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (stop_.WaitFor(&mu_, period) || stopping_) continue;  // Stopped, or spurious.
    mu_.Unlock();
    Look();
    mu_.Lock();
  }
}

void FollowedFiles::Look() {
  absl::StatusOr<Texts> texts{Texts{}};
  for (const std::string& path : paths_) {
    absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFollowedBytes);
    if (!text.ok()) {
      texts = text.status();
      break;
    }
    texts->push_back(*std::move(text));
  }
  if (settled_.has_value() && *settled_ == texts) return;
  settled_.reset();
  if (on_change_(texts)) settled_ = std::move(texts);
}

}  // namespace tandem
