#include "services/router/text_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"

namespace tandem {
namespace {

constexpr int64_t kAmple = int64_t{64} << 20;
constexpr size_t kLong = kLongTextBytes;

TEST(TextPoolTest, LongBodiesLeaveAThreadToTheShortOnes) {
  TextPool pool(2, 16, kAmple);
  std::promise<void> release, short_ran;
  const std::shared_future<void> released = release.get_future().share();
  int num_long = 0;  // Never two at a time: there are two threads.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pool.Post("a", kLong,
                          [&, released] {
                            released.wait();
                            ++num_long;
                          })
                    .ok());
  }
  ASSERT_TRUE(pool.Post("a", 1, [&] { short_ran.set_value(); }).ok());
  short_ran.get_future().wait();  // Would hang behind the long ones.
  EXPECT_EQ(num_long, 0);
  release.set_value();
  pool.Stop();
  EXPECT_EQ(num_long, 2);
}

TEST(TextPoolTest, RefusesWhenTooManyWaitAndOnceItHasStopped) {
  TextPool pool(2, 1, kAmple);
  std::promise<void> release, running;
  ASSERT_TRUE(pool.Post("a", kLong,
                        [&] {
                          running.set_value();
                          release.get_future().wait();
                        })
                  .ok());
  running.get_future().wait();
  bool waited = false, refused = true;
  EXPECT_TRUE(pool.Post("a", kLong, [&] { waited = true; }).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Post("b", 1, [&] { refused = false; })));
  release.set_value();
  pool.Stop();
  EXPECT_TRUE(waited) << "what waits at the end still runs";
  EXPECT_TRUE(absl::IsUnavailable(pool.Post("a", 1, [&] { refused = false; })));
  EXPECT_TRUE(refused);
}

TEST(TextPoolTest, LongBodiesThatWaitAreBoundedAndLeaveRoomForShortOnes) {
  TextPool pool(2, 16, /*memory_limit_bytes=*/8 * kLong);
  std::promise<void> go_on;
  const std::shared_future<void> gate = go_on.get_future().share();
  std::promise<void> first_runs, second_runs;
  ASSERT_TRUE(pool.Post("a", kLong,
                        [&] {
                          first_runs.set_value();
                          gate.wait();
                        })
                  .ok());
  first_runs.get_future().wait();
  ASSERT_TRUE(pool.Post("a", 1,
                        [&] {
                          second_runs.set_value();
                          gate.wait();
                        })
                  .ok());
  second_runs.get_future().wait();
  std::atomic<int> ran{0};
  const auto count = [&] { ++ran; };
  EXPECT_TRUE(pool.Post("a", kLong, count).ok());
  EXPECT_TRUE(pool.Post("b", kLong, count).ok());
  const absl::Status refused = pool.Post("c", kLong, count);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_NE(refused.ToString().find(std::to_string(2 * kLong)), std::string::npos) << refused;
  EXPECT_TRUE(pool.Post("a", 1, count).ok());
  go_on.set_value();
  pool.Stop();
  EXPECT_EQ(ran, 3);
}

TEST(TextPoolTest, TheThreadThatIsLeftToShortOnesEndsWithThePool) {
  TextPool pool(2, 16, kAmple);
  std::promise<void> runs, go_on;
  ASSERT_TRUE(pool.Post("a", kLong,
                        [&] {
                          runs.set_value();
                          go_on.get_future().wait();
                        })
                  .ok());
  runs.get_future().wait();
  bool ran = false;
  ASSERT_TRUE(pool.Post("a", kLong, [&] { ran = true; }).ok());
  std::thread stopper([&] { pool.Stop(); });
  while (!absl::IsUnavailable(pool.Post("b", 1, [] {}))) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // It looks, and finds a long one.
  go_on.set_value();
  stopper.join();
  EXPECT_TRUE(ran);
}

// Two threads that wait for `go_on`, one of them with a long body.
struct Busy {
  explicit Busy(TextPool* pool) {
    const size_t bytes[] = {kLong, 1};
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(pool->Post("busy", bytes[i],
                             [this, i] {
                               run[i].set_value();
                               gate.wait();
                             })
                      .ok());
      run[i].get_future().wait();
    }
  }

  std::promise<void> run[2];
  std::promise<void> go_on;
  const std::shared_future<void> gate = go_on.get_future().share();
};

// Which jobs ran, in their order.
struct Ran {
  std::function<void()> Add(int job) {
    return [this, job] {
      MutexLock lock(&mu);
      jobs.push_back(job);
    };
  }

  Mutex mu;
  std::vector<int> jobs;
};

TEST(TextPoolTest, LongTextsOfOneClientDoNotWaitBehindAllOfAnother) {
  TextPool pool(2, 64, kAmple);
  Busy busy(&pool);
  Ran ran;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pool.Post("many", kLong, ran.Add(i)).ok());
  ASSERT_TRUE(pool.Post("one", kLong, ran.Add(100)).ok());
  busy.go_on.set_value();
  pool.Stop();
  ASSERT_EQ(ran.jobs.size(), 11u);
  // Long ones run one at a time here.
  EXPECT_LE(std::find(ran.jobs.begin(), ran.jobs.end(), 100) - ran.jobs.begin(), 1);
}

TEST(TextPoolTest, ShortTextsOfOneClientDoNotWaitBehindAllOfAnother) {
  TextPool pool(2, 64, kAmple);
  Busy busy(&pool);
  std::promise<void> one_ran;
  const std::shared_future<void> gate = one_ran.get_future().share();
  std::atomic<int> ran{0};
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(pool.Post("many", 1,
                          [&, gate] {
                            gate.wait();  // Until the other client's has run, on the other thread.
                            ++ran;
                          })
                    .ok());
  }
  ASSERT_TRUE(pool.Post("one", 1, [&] { one_ran.set_value(); }).ok());
  busy.go_on.set_value();
  pool.Stop();  // Would hang: both threads would run what waits.
  EXPECT_EQ(ran, 10);
}

TEST(TextPoolTest, ShortTextsOfAClientTakeNoRoomFromItsLongOnes) {
  TextPool pool(2, 64, /*memory_limit_bytes=*/16 * kLong);
  Busy busy(&pool);
  const auto nothing = [] {};
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(pool.Post("a", kLong - 1, nothing).ok());
  EXPECT_TRUE(pool.Post("a", 2 * kLong, nothing).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Post("a", kLong, nothing)));
  busy.go_on.set_value();
}

TEST(TextPoolTest, OneClientLeavesRoomForOthers) {
  TextPool pool(2, 8, /*memory_limit_bytes=*/16 * kLong);
  Busy busy(&pool);
  const auto nothing = [] {};
  EXPECT_TRUE(pool.Post("a", kLong, nothing).ok());
  EXPECT_TRUE(pool.Post("a", kLong, nothing).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Post("a", kLong, nothing))) << "half of what may wait";
  EXPECT_TRUE(pool.Post("b", kLong, nothing).ok());
  EXPECT_TRUE(pool.Post("a", 1, nothing).ok());
  EXPECT_TRUE(pool.Post("a", 1, nothing).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Post("a", 1, nothing))) << "half of how many may";
  EXPECT_TRUE(pool.Post("b", 1, nothing).ok());
  busy.go_on.set_value();
}

}  // namespace
}  // namespace tandem
