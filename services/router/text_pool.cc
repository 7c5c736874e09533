#include "services/router/text_pool.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"

namespace tandem {

TextPool::TextPool(int num_threads, size_t max_waiting, int64_t memory_limit_bytes)
    : max_waiting_(max_waiting),
      max_long_bytes_(static_cast<size_t>(memory_limit_bytes / 2)),
      max_long_(num_threads - 1) {
  TANDEM_CHECK(num_threads >= 2) << num_threads;
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

TextPool::~TextPool() { Stop(); }

void TextPool::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

absl::Status TextPool::Post(size_t bytes, std::function<void()> job) {
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::UnavailableError("the router is shutting down");
    if (jobs_.size() >= max_waiting_) {
      return absl::ResourceExhaustedError("too many requests wait to be tokenized");
    }
    const bool is_long = bytes >= kLongBytes;
    if (is_long && long_bytes_ + bytes > max_long_bytes_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "long requests of %d bytes wait to be tokenized; with this one of %d they would be more "
          "than %d",
          long_bytes_, bytes, max_long_bytes_));
    }
    if (is_long) long_bytes_ += bytes;
    jobs_.push_back({.is_long = is_long, .bytes = bytes, .run = std::move(job)});
  }
  changed_.Signal();
  return absl::OkStatus();
}

bool TextPool::TakeJob(Job* job) {
  const bool long_may_run = num_long_ < max_long_;
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& waiting) {
    return !waiting.is_long || long_may_run;
  });
  if (found == jobs_.end()) return false;
  *job = std::move(*found);
  jobs_.erase(found);
  if (job->is_long) {
    ++num_long_;
    long_bytes_ -= job->bytes;
  }
  return true;
}

void TextPool::Run() {
  pthread_setname_np(pthread_self(), "text");
  while (true) {
    Job job;
    {
      MutexLock lock(&mu_);
      while (!TakeJob(&job)) {
        if (stopping_ && jobs_.empty()) return;
        changed_.Wait(&mu_);
      }
    }
    job.run();
    if (!job.is_long) continue;
    {
      MutexLock lock(&mu_);
      --num_long_;
    }
    changed_.SignalAll();  // The next long one, or the end.
  }
}

}  // namespace tandem
