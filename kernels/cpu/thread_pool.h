// Threads that share the items of one operation at a time.
//
// Items are claimed one by one from an atomic counter, so a thread that is descheduled delays one
// item only. Waiting threads, the caller too, spin for about 20 µs, then yield, and sleep after
// 100: whoever else has work on these cores gets them whole, and an idle worker costs nothing.
// Pools of several processes may each have a thread for every core (kernels/README.md, "Two workers
// on the same cores"). Which thread computes an item never shows in the bits.

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
  // Claims and runs items of the current operation until none is left. False if there was none.
  bool RunItems(int thread);
  void Park() EXCLUDES(mu_);

  const int num_threads_;
  const bool caller_computes_;
  // Operation number in the upper half, items not yet claimed in the lower.
  std::atomic<uint64_t> cursor_{0};
  // The current operation's: written before cursor_, read only by holders of an item of it.
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
