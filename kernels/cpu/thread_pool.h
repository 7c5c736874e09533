// Threads that share the items of one operation at a time.
//
// Each thread has a run of neighbouring items and claims them one by one, ascending; when it has
// none left it claims those of others, ascending as well. So what lies side by side in memory stays
// with one thread, which fetches the next item's while it computes, and a thread that is
// descheduled delays one item only. Waiting threads, the caller too, spin for about 20 µs, then
// yield, and sleep after 100: whoever else has work on these cores gets them whole, and an idle
// worker costs nothing. Pools of several processes may each have a thread for every core
// (kernels/README.md, "Two workers on the same cores"). Which thread computes an item never shows
// in the bits.

#ifndef TANDEM_KERNELS_CPU_THREAD_POOL_H_
#define TANDEM_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"

namespace tandem {

class ThreadPool {
 public:
  // `num_threads` counts the caller, and num_threads − 1 are started. With a niceness, so many
  // levels (nice(2)) above the calling thread's, all are started and callers only wait: what else
  // they do, and threads that they start, is as it was. They are named "kernel-1", ….
  explicit ThreadPool(int num_threads, int niceness = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  // Threads that sleep because no work has come for a while, the caller among them that waits for
  // others to finish.
  int num_sleeping() const { return num_parked_.load() + (caller_sleeps_.load() ? 1 : 0); }
  // Items that one of the threads has computed, ever. Any thread.
  uint64_t items_done() const { return items_done_.load(std::memory_order_relaxed); }

  // Calls body(item, thread) for every item in [0, num_items), thread below num_threads(), and
  // returns when all have returned. One caller at a time. num_items below 2^31.
  template <typename Body>
  void ParallelFor(int64_t num_items, const Body& body) {
    if (num_items <= 1 || threads_.empty()) {
      for (int64_t item = 0; item < num_items; ++item) {
        body(item, 0);
        CountItem();
      }
      return;
    }
    Run(
        num_items,
        [](const void* context, int64_t item, int thread) {
          (*static_cast<const Body*>(context))(item, thread);
        },
        &body);
  }

 private:
  void CountItem() { items_done_.store(items_done() + 1, std::memory_order_relaxed); }
  using Function = void (*)(const void* context, int64_t item, int thread);

  void Run(int64_t num_items, Function function, const void* context) EXCLUDES(mu_);
  void ThreadMain(int thread) EXCLUDES(mu_);
  void WaitUntilFinished(int64_t num_items) EXCLUDES(mu_);
  // Claims and runs items of the current operation until none is left.
  void RunItems(int thread);
  void RunItem(int64_t item, int thread);
  // Until there is an operation after `operation`.
  void Park(uint64_t operation) EXCLUDES(mu_);

  const int num_threads_;
  const bool caller_computes_;
  // Items of the current operation that nobody has claimed: the first in the lower half, the one
  // past the last in the upper. Equal: none.
  struct alignas(64) Unclaimed {
    std::atomic<uint64_t> range{0};
  };
  std::vector<Unclaimed> unclaimed_;                // By thread.
  alignas(64) std::atomic<uint64_t> operation_{0};  // Its number, written last.
  // The current operation's: written before its items, read only by holders of one.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  int64_t num_items_ = 0;
  alignas(64) std::atomic<int64_t> finished_{0};
  alignas(64) std::atomic<uint64_t> items_done_{0};  // Written by thread 0.

  alignas(64) std::atomic<int> num_parked_{0};
  std::atomic<bool> stopping_{false};
  Mutex mu_;
  CondVar wake_;
  std::atomic<bool> caller_sleeps_{false};
  CondVar all_finished_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_THREAD_POOL_H_
