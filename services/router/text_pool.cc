#include "services/router/text_pool.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {

TextPool::TextPool(int num_threads, size_t max_waiting, int64_t memory_limit_bytes)
    : max_waiting_(max_waiting),
      max_waiting_of_client_(std::max<size_t>(1, max_waiting / 2)),
      max_long_bytes_(static_cast<size_t>(memory_limit_bytes / 4)),
      max_long_bytes_of_client_(max_long_bytes_ / 2),
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

absl::Status TextPool::CheckRoom(const std::string& client, size_t bytes) const {
  const ClientTurns<Job>::Queue* const its = jobs_.Of(client);
  const size_t num_its = its == nullptr ? 0 : its->size();
  if (num_waiting_ >= max_waiting_ || num_its >= max_waiting_of_client_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("too many requests wait to be tokenized: %d, %d of this client's; at most "
                        "%d may, %d of one client's",
                        num_waiting_, num_its, max_waiting_, max_waiting_of_client_));
  }
  if (bytes < kLongTextBytes) return absl::OkStatus();
  size_t its_bytes = 0;
  for (size_t i = 0; i < num_its; ++i) its_bytes += (*its)[i].is_long ? (*its)[i].bytes : 0;
  if (long_bytes_ + bytes > max_long_bytes_ || its_bytes + bytes > max_long_bytes_of_client_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "long requests of %d bytes wait to be tokenized, %d of them this client's; with this one "
        "of %d they would be more than %d, or than %d of one client's",
        long_bytes_, its_bytes, bytes, max_long_bytes_, max_long_bytes_of_client_));
  }
  return absl::OkStatus();
}

absl::Status TextPool::Post(const std::string& client, size_t bytes, std::function<void()> job) {
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::UnavailableError("the router is shutting down");
    TANDEM_RETURN_IF_ERROR(CheckRoom(client, bytes));
    const bool is_long = bytes >= kLongTextBytes;
    if (is_long) long_bytes_ += bytes;
    ++num_waiting_;
    jobs_.Add(client, {.is_long = is_long, .bytes = bytes, .run = std::move(job)});
  }
  changed_.Signal();
  return absl::OkStatus();
}

bool TextPool::TakeJob(Job* job) {
  const bool long_may_run = num_long_ < max_long_;
  std::optional<Job> next =
      jobs_.Next([&](const std::string&, const ClientTurns<Job>::Queue& queue) -> size_t {
        const auto found = std::find_if(queue.begin(), queue.end(), [&](const Job& waiting) {
          return !waiting.is_long || long_may_run;
        });
        return found - queue.begin();
      });
  if (!next.has_value()) return false;
  *job = *std::move(next);
  --num_waiting_;
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
