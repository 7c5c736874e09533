// A slice of what tools/dev/fuzz_sessions does for longer, with a worker and a router in this
// process.

#include <gtest/gtest.h>

#include <thread>

#include "tests/fuzz/session_peers.h"
#include "tests/integration/router_fixture.h"
#include "tests/support/test_worker.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 20261122;
constexpr int64_t kMessages = 30'000;

TEST(SessionFuzzTest, AWorkerOutlivesItsPeersAndHasItsBlocksBack) {
  WorkerConfig config = SmallWorker({.name = "fuzzed", .incarnation = 7}, "simulated");
  config.transport = "grpc";
  const auto worker = StartTestWorker(config);
  ASSERT_NE(worker, nullptr);
  MessageBudget budget(kMessages);
  EXPECT_EQ(FuzzWorker(worker->address, kSeed, &budget), "");
  EXPECT_EQ(budget.sent(), kMessages);
}

class RouterFuzzTest : public RouterFixture {};

TEST_F(RouterFuzzTest, ARouterOutlivesAWorkerThatLies) {
  FakeWorker good(FakeWorkerOptions{.name = "good"});
  const auto like = RegistrationOf(good.address());
  ASSERT_TRUE(like.ok()) << like.status();
  MessageBudget budget(kMessages);
  auto hostile = std::make_unique<HostileWorker>(0, *like, kSeed, &budget);
  RouterOptions options{.model = Folder(),
                        .workers = {good.address(), "127.0.0.1:" + std::to_string(hostile->port())},
                        .http = {.ip = "127.0.0.1"},
                        .grpc = {.ip = "127.0.0.1"}};
  auto router = RouterApp::Create(options);
  ASSERT_TRUE(router.ok()) << router.status();
  router_ = *std::move(router);
  ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  std::thread client([&] { ActAsClient(http(), kSeed, &budget); });
  client.join();
  EXPECT_EQ(budget.sent(), kMessages);
  hostile.reset();
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_requests_in_flight") == 0; }));
  EXPECT_EQ(
      Post("/v1/completions", R"({"model":"default","prompt":[5,6,7],"max_tokens":4})").status,
      200);
}

}  // namespace
}  // namespace tandem
