#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kernels/support/float_environment.h"

namespace tandem {
namespace {

TEST(ThreadPoolTest, RunsEveryItemOnceForAnyCount) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      std::atomic<bool> thread_in_range{true};
      pool.ParallelFor(count, [&](int64_t item, int thread) {
        ++runs[item];
        if (thread < 0 || thread >= threads) thread_in_range = false;
      });
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(runs[i], 1) << i << " of " << count;
      EXPECT_TRUE(thread_in_range);
    }
  }
}

TEST(ThreadPoolTest, WorkShowsWhileAnOperationRuns) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    uint64_t seen = 0;
    int of_caller = 0;
    bool grows = true;
    pool.ParallelFor(50, [&](int64_t, int thread) {
      if (thread != 0) return;
      grows = grows && (of_caller == 0 || pool.items_done() > seen);
      seen = pool.items_done();
      ++of_caller;
    });
    EXPECT_TRUE(grows);
    EXPECT_EQ(pool.items_done(), static_cast<uint64_t>(of_caller));
  }
}

// Thread 1 sleeps until the operation is whole (awake it may come before its own items are there),
// and holds its first item until thread 0 has done all the others.
TEST(ThreadPoolTest, AThreadWalksThroughItsOwnItemsAndThenThroughThoseOfOthers) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    while (pool.num_sleeping() < 1) std::this_thread::yield();
    std::vector<int64_t> items[2];
    std::atomic<int> begun{0};
    std::atomic<int> done{0};
    pool.ParallelFor(9, [&](int64_t item, int thread) {
      if (items[thread].empty()) ++begun;
      items[thread].push_back(item);
      while (begun < 2 || (thread == 1 && done < 8)) std::this_thread::yield();
      ++done;
    });
    ASSERT_EQ(items[0], std::vector<int64_t>({0, 1, 2, 3, 5, 6, 7, 8}));
    ASSERT_EQ(items[1], std::vector<int64_t>({4}));
  }
}

TEST(ThreadPoolTest, OperationsBackToBackNeverMixTheirItems) {
  ThreadPool pool(4);
  for (int64_t operation = 0; operation < 20000; ++operation) {
    const int64_t count = operation % 5 + 2;
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(count, [&](int64_t item, int) { sum += operation * 1000 + item; });
    ASSERT_EQ(sum, count * operation * 1000 + count * (count - 1) / 2);
  }
}

TEST(ThreadPoolTest, ParkedThreadsComeBack) {
  ThreadPool pool(3);
  for (int round = 0; round < 3; ++round) {
    // All three threads must take part: each item waits until three have begun.
    std::atomic<int> begun{0};
    pool.ParallelFor(3, [&](int64_t, int) {
      ++begun;
      while (begun < 3) std::this_thread::yield();
    });
    EXPECT_EQ(begun, 3);
    while (pool.num_sleeping() < 2) std::this_thread::yield();
  }
}

TEST(ThreadPoolTest, TheCallerSleepsWhileOthersFinish) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> begun{0};
    pool.ParallelFor(2, [&](int64_t, int thread) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
      while (thread == 1 && pool.num_sleeping() < 1) std::this_thread::yield();
    });
    EXPECT_EQ(begun, 2);
  }
}

TEST(ThreadPoolTest, ThreadsMayBeNicerThanTheCallerWhichOnlyWaits) {
  const int before = getpriority(PRIO_PROCESS, 0);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads, /*niceness=*/3);
    EXPECT_EQ(pool.num_threads(), threads);
    std::atomic<int> begun{0};
    std::vector<std::atomic<int>> niceness(threads);
    const uint64_t items = pool.items_done();
    pool.ParallelFor(threads, [&](int64_t, int thread) {
      ++begun;
      while (begun < threads) std::this_thread::yield();
      niceness[thread] = getpriority(PRIO_PROCESS, 0);
    });
    // A single item is not worth another thread.
    const int expected = threads == 1 ? before : std::min(before + 3, 19);
    for (const auto& each : niceness) EXPECT_EQ(each, expected) << threads;
    EXPECT_EQ(pool.items_done(), items + 1);
  }
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

TEST(ThreadPoolTest, ThreadsHaveTheKernelsFloatEnvironment) {
  ThreadPool pool(2);
  std::atomic<int> begun{0};
  std::atomic<uint32_t> other{0};
  pool.ParallelFor(2, [&](int64_t, int thread) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
    if (thread == 1) other = FloatEnvironment();
  });
  const uint32_t before = FloatEnvironment();
  uint32_t expected = 0;
  {
    const KernelFloatScope scope;
    expected = FloatEnvironment();
  }
  EXPECT_EQ(FloatEnvironment(), before);
  EXPECT_EQ(other, expected);
}

}  // namespace
}  // namespace tandem
