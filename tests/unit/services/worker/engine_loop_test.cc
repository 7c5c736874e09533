#include "services/worker/engine_loop.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "runtime/simulation/simulated_executor.h"
#include "services/server/fleet_auth.h"
#include "tests/support/decode_peer.h"
#include "tests/unit/services/worker/fake_kv_transport.h"
#include "tests/unit/services/worker/stream_server.h"

namespace tandem {
namespace {

// Serves decode workers with an engine of twelve blocks over a transport that gives no block back.
class StuckWorker {
 public:
  explicit StuckWorker(int64_t quarantine_us) {
    EngineOptions options = SmallEngine(/*num_blocks=*/12);
    options.self = self_.worker;
    options.kv.block_bytes = kTestBlockBytes;
    options.vocab_size = kTestVocabulary;
    options.max_model_tokens = 12 * options.kv.block_tokens;
    options.times.quarantine_us = quarantine_us;
    loop_ = *EngineLoop::Create(options, {.commands = &parts_.commands,
                                          .executor = &executor_,
                                          .receiver = &receiver_,
                                          .leases = &leases_,
                                          .routers = &routers_,
                                          .decodes = &decodes_,
                                          .prefills = &prefills_,
                                          .watches = &watches_,
                                          .metrics = &metrics_});
    loop_->Start();
    peer_.id = self_.worker;
    peer_.address = server_.address();
  }

  const TestWorker& peer() const { return peer_; }
  std::shared_ptr<grpc::Channel> Dial() const { return server_.Dial(); }
  // Computes a prompt of ten blocks for `peer`, and sends them.
  bool SendsTenTo(DecodePeer* peer) {
    peer->Send(PrefillSubmitOf(MakeSubmit(1, RandomTokens(150, 1), 5)));
    if (!peer->Started()) return false;
    peer->Send(Grant{.job = 1, .reservation = {.index = 1, .generation = 1}});
    return Eventually([&] { return transport_.sent().size() == 10; });
  }
  FakeKvTransport& transport() { return transport_; }

 private:
  // As a DecodePeer takes it.
  const PrefillHello self_{
      .terms = {.kv_class = "class", .numerics_id = "numerics", .transport = "grpc"},
      .worker = {.name = "prefill", .incarnation = 2}};
  StreamParts parts_;
  FakeKvTransport transport_;
  MetricsRegistry registry_;
  const FleetSecret no_secret_;
  SimulatedExecutor executor_{{.num_blocks = 12, .vocabulary = kTestVocabulary}};
  KvReceiver receiver_{kTestBlockBytes};
  LeaseKeeper leases_;
  WorkerMetrics metrics_{{}, &registry_};
  RouterSessions routers_{2, &parts_.calls, &parts_.prompts, &parts_.commands};
  DecodeSessions decodes_{self_, &parts_.calls, &parts_.prompts, &transport_, &parts_.commands};
  PrefillPeers prefills_{self_,
                         &no_secret_,
                         nullptr,
                         kTestVocabulary,
                         /*liveness_scale=*/1,
                         &parts_.budget,
                         &transport_,
                         &parts_.commands};
  WatchHub watches_{{}, &parts_.calls, &parts_.commands};
  StreamServer<proto::ToDecode> server_{kPrefillSessionMethod, &parts_,
                                        [this](auto* context) { return decodes_.Open(context); }};
  std::unique_ptr<EngineLoop> loop_;
  TestWorker peer_;
};

constexpr PrefillCancel kCancel{.job = 1, .time_left_us = 1'000'000};

TEST(EngineLoopTest, WhatNobodyWaitsForAnyMoreIsWithdrawnFromTheLink) {
  StuckWorker worker(/*quarantine_us=*/3'600'000'000);
  DecodePeer peer(worker.peer(), worker.Dial());
  ASSERT_TRUE(worker.SendsTenTo(&peer));
  EXPECT_TRUE(worker.transport().withdrawn().empty());
  peer.Send(kCancel);
  EXPECT_TRUE(Eventually([&] { return worker.transport().withdrawn().size() == 10; }));
}

// Blocks that somebody may still read cannot be given to others.
TEST(EngineLoopTest, AWorkerWhoseBlocksDoNotComeBackExitsToBeReplaced) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [] {
    StuckWorker worker(/*quarantine_us=*/1000);
    DecodePeer peer(worker.peer(), worker.Dial());
    if (!worker.SendsTenTo(&peer)) return;
    peer.Send(kCancel);
    peer.Refusal();  // Until the process ends.
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(kExitToBeReplaced),
              "does not give its blocks back.*\"quarantined\":10,\"blocks\":12");
}

}  // namespace
}  // namespace tandem
