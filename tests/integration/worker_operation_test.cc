// What an operator, a probe and a peer that comes back find of a worker.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "services/worker/worker.h"
#include "tests/integration/worker_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/health.h"
#include "tests/support/raw_http.h"

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(WorkerOperationTest, AnOperatorsDrainIsTheProgramsAndTakesItOutOfReadiness) {
  std::atomic<int> asked{0};
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.on_drain = [&] { ++asked; };
  auto worker = StartTestWorker(config);
  Watcher watch(*worker);
  worker->worker->Drain();
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.draining; });
  EXPECT_EQ(asked, 0) << "the program began this one itself";
  EXPECT_TRUE(Eventually([&] { return HealthOf(worker->address, "") == "NOT_SERVING"; }));
  EXPECT_EQ(HealthOf(worker->address, "liveness"), "SERVING") << "it has streams to end";
  grpc::ClientContext context;
  proto::ControlRequest request;
  proto::ControlResponse response;
  request.mutable_drain();
  ASSERT_TRUE(Router(*worker).stub()->Control(&context, request, &response).ok());
  EXPECT_EQ(asked, 1);
}

// A step may take long, and whoever restarts the process ends all of its streams.
TEST(WorkerOperationTest, OnlyAnEngineThatHasStoodForManyStallsFailsItsProbe) {
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.liveness_scale = 0.06;
  config.admin = ListenAddress{.ip = "127.0.0.1"};
  auto worker = StartTestWorker(config);
  const auto get = [&](const std::string& path) {
    return RawHttp(worker->worker->admin_port()).Exchange(path);
  };
  const int64_t hung_ms =
      30 * LivenessTimes::Scaled(config.liveness_scale).engine_stalled_us / 1000;
  const auto healthy = [&] {
    const RawAnswer answer = get("/health");
    const size_t at = answer.body.find("_ms\":");
    const int64_t since_ms = at == std::string::npos ? -1 : std::stoll(answer.body.substr(at + 5));
    EXPECT_EQ(answer.status, since_ms < hung_ms ? 200 : 503) << answer.body;
    return answer.status == 200;
  };
  EXPECT_TRUE(Eventually([&] { return get("/ready").status == 200; }));
  EXPECT_THAT(get("/metrics").body, HasSubstr("tandem_running_sequences{worker=\"hybrid\"} 0"));
  worker->gate.Close();
  Router router(*worker);
  router.Send(MakeSubmit(1, RandomTokens(30, 12), 5));
  EXPECT_TRUE(Eventually([&] { return !healthy(); }));
  EXPECT_EQ(get("/ready").status, 503);
  worker->gate.Open();
  EXPECT_TRUE(Eventually(healthy));
  EXPECT_TRUE(Eventually([&] { return get("/ready").status == 200; }));
}

// What cuts two hosts off from each other for a while ends neither worker.
TEST(WorkerOperationTest, APrefillWorkerThatWasLostIsDialledAgain) {
  TestWorkerOptions options;
  options.transport = "grpc";
  options.liveness_scale = 0.2;  // It is done without for 0.2 s at first.
  auto decode = StartWorker("decode", options);
  WorkerConfig config = SmallWorker({.name = "prefill", .incarnation = 7});
  config.transport = "grpc";
  auto prefill = StartTestWorker(config);
  config.listen = prefill->address;
  const PrefillPeer peer = prefill->peer();
  Router router(*decode);
  uint64_t counter = 0;
  const auto ask = [&] {
    ++counter;
    Submit submit = MakeSubmit(counter, RandomTokens(100, counter), 2);
    submit.prefill = peer;
    router.Send(submit);
    return router.Listen();
  };
  EXPECT_TRUE(ask().prompt.by_prefill);
  prefill.reset();
  EXPECT_TRUE(Eventually([&] { return !ask().prompt.by_prefill; }));
  prefill = StartTestWorker(config);
  EXPECT_TRUE(Eventually([&] { return ask().prompt.by_prefill; }, std::chrono::seconds(20)))
      << "it is done without for ever";
}

}  // namespace
}  // namespace tandem
