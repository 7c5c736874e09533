#include "services/router/text_pool.h"

#include <gtest/gtest.h>

#include <future>

namespace tandem {
namespace {

TEST(TextPoolTest, LongBodiesLeaveAThreadToTheShortOnes) {
  TextPool pool(2, 16);
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
  TextPool pool(2, 1);
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

}  // namespace
}  // namespace tandem
