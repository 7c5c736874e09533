#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <chrono>
#include <string>

#include "kernels/support/float_environment.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr auto kYieldBeforeSleep = std::chrono::microseconds(100);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

// Between two looks at what is waited for: pauses at first, then gives the core away.
class Waiter {
 public:
  void Wait() {
    const auto waited = SteadyClock::now() - since_;
    if (waited < kSpin) {
      for (int i = 0; i < 16; ++i) Pause();
      return;
    }
    sched_yield();
    should_sleep_ = waited > kYieldBeforeSleep;
  }
  bool should_sleep() const { return should_sleep_; }

 private:
  const SteadyClock::time_point since_ = SteadyClock::now();
  bool should_sleep_ = false;
};

}  // namespace

ThreadPool::ThreadPool(int num_threads, int niceness)
    : num_threads_(num_threads), caller_computes_(niceness == 0), unclaimed_(num_threads) {
  TANDEM_CHECK(num_threads >= 1) << num_threads;
  threads_.reserve(num_threads);
  for (int thread = caller_computes_ ? 1 : 0; thread < num_threads; ++thread) {
    threads_.emplace_back([this, thread, niceness] {
      // The thread's own on Linux.
      setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + niceness);
      ThreadMain(thread);
    });
    pthread_setname_np(threads_.back().native_handle(),
                       ("kernel-" + std::to_string(threads_.size())).c_str());
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mu_);
    stopping_.store(true);
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t num_items, Function function, const void* context) {
  TANDEM_CHECK(num_items < (int64_t{1} << 31)) << num_items;
  function_ = function;
  context_ = context;
  num_items_ = num_items;
  finished_.store(0, std::memory_order_relaxed);
  for (int thread = 0; thread < num_threads_; ++thread) {
    const uint64_t begin = num_items * thread / num_threads_;
    const uint64_t end = num_items * (thread + 1) / num_threads_;
    unclaimed_[thread].range.store(end << 32 | begin, std::memory_order_release);
  }
  // Sequentially consistent with Park(): either this sees the parked thread, or it sees this.
  operation_.store(operation_.load(std::memory_order_relaxed) + 1);
  if (num_parked_.load() > 0) {
    MutexLock lock(&mu_);
    wake_.SignalAll();
  }
  if (caller_computes_) RunItems(0);
  WaitUntilFinished(num_items);
}

// Who holds the last item may wait for a core that another process has.
void ThreadPool::WaitUntilFinished(int64_t num_items) {
  Waiter waiter;
  while (finished_.load(std::memory_order_acquire) != num_items) {
    waiter.Wait();
    if (!waiter.should_sleep()) continue;
    MutexLock lock(&mu_);
    // Sequentially consistent with RunItems(): either this sees the last item, or it sees this.
    caller_sleeps_.store(true);
    while (finished_.load() != num_items) all_finished_.Wait(&mu_);
    caller_sleeps_.store(false);
  }
}

// Who read a range of an older operation and finds the same numbers in a newer one has claimed an
// item of the newer: what it is, is read only then.
void ThreadPool::RunItems(int thread) {
  for (int i = 0; i < num_threads_; ++i) {
    const int owner = (thread + i) % num_threads_;
    std::atomic<uint64_t>& unclaimed = unclaimed_[owner].range;
    uint64_t range = unclaimed.load(std::memory_order_acquire);
    for (uint64_t first = range & 0xFFFFFFFFu; first != range >> 32; first = range & 0xFFFFFFFFu) {
      if (!unclaimed.compare_exchange_weak(range, range + 1, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
        continue;
      }
      RunItem(static_cast<int64_t>(first), thread);
      range = unclaimed.load(std::memory_order_acquire);
    }
  }
}

// The item keeps its operation from finishing, so the fields are of the same operation.
void ThreadPool::RunItem(int64_t item, int thread) {
  const int64_t num_items = num_items_;
  function_(context_, item, thread);
  if (thread == 0) CountItem();
  if (finished_.fetch_add(1) + 1 == num_items && caller_sleeps_.load()) {
    MutexLock lock(&mu_);
    all_finished_.Signal();
  }
}

void ThreadPool::ThreadMain(int thread) {
  SetKernelFloatEnvironment();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint64_t operation = operation_.load(std::memory_order_acquire);
    RunItems(thread);
    Waiter waiter;
    while (!stopping_.load(std::memory_order_relaxed) &&
           operation_.load(std::memory_order_relaxed) == operation) {
      waiter.Wait();
      if (waiter.should_sleep()) {
        Park(operation);
        break;
      }
    }
  }
}

void ThreadPool::Park(uint64_t operation) {
  MutexLock lock(&mu_);
  num_parked_.fetch_add(1);
  while (!stopping_.load() && operation_.load() == operation) wake_.Wait(&mu_);
  num_parked_.fetch_sub(1);
}

}  // namespace tandem
