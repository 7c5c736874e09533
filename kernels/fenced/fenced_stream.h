// What a fenced backend has enqueued: work that a thread of its own does in order, up to the last
// point that was released. After an error nothing is done, as by a GPU after a sticky one: work may
// read addresses from what the work before has not written.

#ifndef TANDEM_KERNELS_FENCED_FENCED_STREAM_H_
#define TANDEM_KERNELS_FENCED_FENCED_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "runtime/base/mutex.h"

namespace tandem {

class FencedStream {
 public:
  using Work = std::function<absl::Status()>;

  FencedStream();
  ~FencedStream();  // Does what is left.
  FencedStream(const FencedStream&) = delete;
  FencedStream& operator=(const FencedStream&) = delete;

  void Push(Work work) EXCLUDES(mu_);
  // Lets everything pushed so far run; the point after it.
  uint64_t Release() EXCLUDES(mu_);
  // Until all before `point`, which is released, is done. The first error of any work, for ever.
  absl::Status Wait(uint64_t point) EXCLUDES(mu_);

 private:
  void Run() EXCLUDES(mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<Work> work_ GUARDED_BY(mu_);
  uint64_t num_pushed_ GUARDED_BY(mu_) = 0;
  uint64_t num_released_ GUARDED_BY(mu_) = 0;
  uint64_t num_done_ GUARDED_BY(mu_) = 0;
  absl::Status status_ GUARDED_BY(mu_);
  bool stop_ GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_FENCED_FENCED_STREAM_H_
