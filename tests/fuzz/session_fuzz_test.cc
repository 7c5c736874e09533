// A slice of what tools/dev/fuzz_sessions does for longer, with a worker and a router in this
// process.

#include <gtest/gtest.h>

#include <thread>

#include "services/worker/worker.h"
#include "tests/fuzz/session_peers.h"
#include "tests/integration/router_fixture.h"
#include "tests/support/engine_cases.h"
#include "tests/support/pooled_executor.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 20261122;
constexpr int64_t kMessages = 30'000;

TEST(SessionFuzzTest, AWorkerOutlivesItsPeersAndHasItsBlocksBack) {
  constexpr int64_t kBlockBytes = 16 * 8;
  StepGate gate;
  WorkerConfig config;
  config.engine = SmallEngine(64);
  config.engine.self = {.name = "fuzzed", .incarnation = 7};
  config.engine.model = "simulated";
  config.engine.block_bytes = kBlockBytes;
  config.registration = {.worker = config.engine.self,
                         .model = "simulated",
                         .kv_class = "class",
                         .numerics_id = "numerics",
                         .block_tokens = config.engine.block_tokens,
                         .max_model_tokens = config.engine.max_model_tokens,
                         .max_sequences = config.engine.max_sequences,
                         .num_blocks = config.engine.num_blocks,
                         .block_bytes = kBlockBytes};
  config.vocab_size = 1000;
  config.transport = "grpc";
  auto worker =
      Worker::Create(config, [&](const KvPool& pool) -> absl::StatusOr<std::unique_ptr<Executor>> {
        return std::make_unique<PooledExecutor>(
            SimulatedExecutorOptions{.num_blocks = 64, .vocabulary = 1000}, pool, &gate);
      });
  ASSERT_TRUE(worker.ok()) << worker.status();
  MessageBudget budget(kMessages);
  EXPECT_EQ(FuzzWorker("127.0.0.1:" + std::to_string((*worker)->port()), kSeed, &budget), "");
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
