// Workers that their router watches and has no session with.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "services/router/worker_channel.h"
#include "tests/support/core_worker.h"
#include "tests/support/count_of.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_worker.h"
#include "tests/unit/services/router/router_core_fixture.h"

namespace tandem {
namespace {

class WorkerWithoutSessionTest : public RouterCoreFixture {
 protected:
  WorkerWithoutSessionTest() { MakeCore(); }

  std::atomic<SessionId> next_session_{1};
};

// However long it stands: its streams are elsewhere, and each session would be refused.
TEST_F(WorkerWithoutSessionTest, WhoMakesNoProgressIsNotDialledUntilItDoes) {
  FakeWorker worker({.stalled = true});
  const auto channel = Channel(worker.address(), &next_session_);
  int64_t ahead_us = 0;  // However long the channel would pause.
  const auto tend = [&] { channel->Tend(clock_.NowUs() + (ahead_us += 1'000'000)); };
  tend();
  ASSERT_TRUE(Eventually([&] { return worker.num_heartbeats() > 2; }));
  Flush(*core_);
  const int heard = worker.num_heartbeats();
  ASSERT_TRUE(Eventually([&] {
    tend();
    return worker.num_heartbeats() > heard + 30;
  }));
  EXPECT_EQ(worker.num_sessions(), 0);
  EXPECT_EQ(next_session_, 1);
  EXPECT_TRUE(channel->connected());
  worker.EndStall();
  EXPECT_TRUE(Eventually([&] {
    tend();
    return Connected();
  }));
  EXPECT_EQ(worker.num_sessions(), 1);
  EXPECT_EQ(worker.num_watches(), 1);
  channel->Close();
}

// Its end is none that an operator could want to know of, and may come again and again.
TEST_F(WorkerWithoutSessionTest, ASessionThatWasNeverTakenEndsWithoutAWord) {
  const FakeWorker worker(FakeWorkerOptions{});
  const auto channel = Channel(worker.address(), &next_session_);
  channel->Tend(clock_.NowUs());
  ASSERT_TRUE(Eventually([&] { return worker.num_heartbeats() > 2; }));
  Flush(*core_);
  testing::internal::CaptureStderr();
  std::promise<void> go_on;
  core_->PublishThen([&go_on] { go_on.get_future().wait(); });
  // Another worker is where it was, once the core goes on.
  WorkerRegistration other = core_->View().workers.at(0).registration;
  other.worker = {.name = "other", .incarnation = 99};
  core_->OnWatchUpdate(worker.address(), other.worker, other, std::make_shared<CountingWatch>());
  channel->Tend(clock_.NowUs() + 1'000'000);
  EXPECT_TRUE(Eventually([&] { return worker.num_sessions() == 1; }));
  const int heard = worker.num_heartbeats();
  EXPECT_TRUE(Eventually([&] { return worker.num_heartbeats() > heard + 5; }));
  go_on.set_value();
  Flush(*core_);
  channel->Close();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf("a session is not wanted", said), 1) << said;
  EXPECT_EQ(CountOf("session ended", said), 0) << said;
}

}  // namespace
}  // namespace tandem
