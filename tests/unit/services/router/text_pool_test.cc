#include "services/router/text_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

namespace tandem {
namespace {

constexpr int64_t kAmple = int64_t{64} << 20;

TEST(TextPoolTest, LongBodiesLeaveAThreadToTheShortOnes) {
  TextPool pool(2, 16, kAmple);
  std::promise<void> release, short_ran;
  const std::shared_future<void> released = release.get_future().share();
  int num_long = 0;  // Never two at a time: there are two threads.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pool.Post(TextPool::kLongBytes,
                          [&, released] {
                            released.wait();
                            ++num_long;
                          })
                    .ok());
  }
  ASSERT_TRUE(pool.Post(1, [&] { short_ran.set_value(); }).ok());
  short_ran.get_future().wait();  // Would hang behind the long ones.
  EXPECT_EQ(num_long, 0);
  release.set_value();
  pool.Stop();
  EXPECT_EQ(num_long, 2);
}

TEST(TextPoolTest, RefusesWhenTooManyWaitAndOnceItHasStopped) {
  TextPool pool(2, 1, kAmple);
  std::promise<void> release, running;
  ASSERT_TRUE(pool.Post(TextPool::kLongBytes,
                        [&] {
                          running.set_value();
                          release.get_future().wait();
                        })
                  .ok());
  running.get_future().wait();
  bool waited = false, refused = true;
  EXPECT_TRUE(pool.Post(TextPool::kLongBytes, [&] { waited = true; }).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Post(1, [&] { refused = false; })));
  release.set_value();
  pool.Stop();
  EXPECT_TRUE(waited) << "what waits at the end still runs";
  EXPECT_TRUE(absl::IsUnavailable(pool.Post(1, [&] { refused = false; })));
  EXPECT_TRUE(refused);
}

TEST(TextPoolTest, LongBodiesThatWaitAreBoundedAndLeaveRoomForShortOnes) {
  constexpr size_t kLong = TextPool::kLongBytes;
  TextPool pool(2, 16, /*memory_limit_bytes=*/4 * kLong);
  std::promise<void> go_on;
  const std::shared_future<void> gate = go_on.get_future().share();
  std::promise<void> first_runs, second_runs;
  ASSERT_TRUE(pool.Post(kLong,
                        [&] {
                          first_runs.set_value();
                          gate.wait();
                        })
                  .ok());
  first_runs.get_future().wait();
  ASSERT_TRUE(pool.Post(1,
                        [&] {
                          second_runs.set_value();
                          gate.wait();
                        })
                  .ok());
  second_runs.get_future().wait();
  std::atomic<int> ran{0};
  const auto count = [&] { ++ran; };
  EXPECT_TRUE(pool.Post(kLong, count).ok());
  EXPECT_TRUE(pool.Post(kLong, count).ok());
  const absl::Status refused = pool.Post(kLong, count);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_NE(refused.ToString().find(std::to_string(2 * kLong)), std::string::npos) << refused;
  EXPECT_TRUE(pool.Post(1, count).ok());
  go_on.set_value();
  pool.Stop();
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace tandem
