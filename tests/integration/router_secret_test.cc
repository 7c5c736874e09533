// A router and workers that share a secret, and workers that do not know it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/integration/router_fixture.h"

namespace tandem {
namespace {

using RouterSecretTest = RouterFixture;

TEST_F(RouterSecretTest, AFleetWithASecretServes) {
  const std::string old_text(32, 'o'), new_text(32, 'n');
  secret_ = *FleetSecret::Parse(old_text + " " + new_text);
  // In the middle of a rotation.
  Start({{.secret = *FleetSecret::Parse(new_text + " " + old_text)},
         {.secret = *FleetSecret::Parse(old_text)}});
  const std::string body = R"({"prompt":[5,6,7],"max_tokens":4})";
  PostOk("/v1/completions", body);
  PostOk("/v1/completions", body);
  EXPECT_TRUE(Eventually([&] {
    return Metric("tandem_fake_submits_total{worker=\"fake-0\"}") +
               Metric("tandem_fake_submits_total{worker=\"fake-1\"}") ==
           2;
  }));
}

// Who has taken the port of a dead worker is told no prompt.
TEST_F(RouterSecretTest, AWorkerThatProvesNothingIsNoWorker) {
  secret_ = *FleetSecret::Parse(std::string(32, 's'));
  Start({FakeWorkerOptions()}, Folder(), /*await_ready=*/false);
  // It says what a worker says, on one Watch after the other.
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_heartbeats() >= 5; }));
  EXPECT_FALSE(router_->Ready());
  EXPECT_EQ(RawHttp(http()).Exchange("/ready").status, 503);
  EXPECT_EQ(workers_[0]->num_sessions(), 0);
  EXPECT_LE(Metric("tandem_workers{role=\"hybrid\",state=\"healthy\"}"), 0) << "0, or never any";
}

// Every call has its own proof: the port may have been taken since the Watch began.
TEST_F(RouterSecretTest, AWorkerThatProvesOnlyItsWatchIsToldNoPromptAndNotBelieved) {
  secret_ = *FleetSecret::Parse(std::string(32, 's'));
  Start({{.secret = secret_, .proves_watch_only = true}}, Folder(), /*await_ready=*/false);
  RawHttp client(http());
  client.SendRequest("/v1/completions", R"({"prompt":[5,6,7],"max_tokens":4})");
  // One after the other: none is held to be one.
  ASSERT_TRUE(Eventually([&] { return workers_[0]->num_sessions() >= 3; }));
  EXPECT_EQ(workers_[0]->num_submits(), 0);
  EXPECT_EQ(Metric("tandem_fake_submits_total{worker=\"fake-0\"}"), -1);
}

}  // namespace
}  // namespace tandem
