// Whole workers behind their gRPC services, over both transports; the model is simulated, so what
// every token should be is known.

#include "services/worker/worker.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>

#include "absl/strings/str_format.h"
#include "runtime/protocol/peer_terms.h"
#include "services/server/channel.h"
#include "services/server/convert.h"
#include "services/server/limits.h"
#include "services/server/open_calls.h"
#include "services/worker/worker_process.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/integration/worker_fixture.h"
#include "tests/support/decode_peer.h"
#include "tests/support/eventually.h"
#include "tests/support/health.h"
#include "tests/support/kv_side.h"
#include "tests/support/metric_value.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class WorkerTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<TestWorker> Start(const std::string& name, WorkerRole role) {
    TestWorkerOptions options;
    options.transport = GetParam();
    options.role = role;
    return StartWorker(name, options);
  }
};

TEST_P(WorkerTest, OneWorkerStreamsTheFaultFreeTokens) {
  auto worker = Start("hybrid", WorkerRole::kHybrid);
  Router router(*worker);
  const Submit submit = MakeSubmit(1, RandomTokens(70, 3), 20, /*num_choices=*/3);
  router.Send(submit);
  const Heard heard = router.Listen(3);
  for (int32_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(heard.tokens.at(choice), Expected(submit, choice)) << "choice " << choice;
  }
}

TEST_P(WorkerTest, WhatAStepComputesIsSaidBeforeItDoes) {
  auto worker = Start("hybrid", WorkerRole::kHybrid);
  Router router(*worker), other(*worker);
  worker->gate.Close();
  const Submit submit = MakeSubmit(1, RandomTokens(70, 3), 4);
  router.Send(submit);
  EXPECT_THAT(router.NextChunks(),
              testing::ElementsAre(ChunkBegun{.attempt = submit.attempt, .end_position = 64}));
  worker->gate.Open();
  EXPECT_THAT(router.NextChunks(),
              testing::ElementsAre(
                  ChunkBegun{.attempt = submit.attempt, .first_position = 64, .end_position = 70}));
  ExpectAnswer(&router, submit);
  other.Send(MakeSubmit(2, RandomTokens(10, 4), 1));
  EXPECT_THAT(other.NextChunks(), testing::SizeIs(1)) << "and nothing of the first, which is not "
                                                         "of this router";
}

TEST_P(WorkerTest, APrefillWorkerTellsEveryRouterWhatItComputes) {
  auto prefill = Start("prefill", WorkerRole::kPrefill);
  auto decode = Start("decode", WorkerRole::kDecode);
  Router router(*decode), first(*prefill), second(*prefill);
  prefill->gate.Close();
  Submit submit = MakeSubmit(1, RandomTokens(50, 3), 4);
  submit.prefill = prefill->peer();
  router.Send(submit);
  for (Router* told : {&first, &second}) {
    EXPECT_THAT(told->NextChunks(),
                testing::ElementsAre(ChunkBegun{.attempt = submit.attempt, .end_position = 50}));
  }
  prefill->gate.Open();
  ExpectAnswer(&router, submit);
}

TEST_P(WorkerTest, DisaggregatedTokensAreTheSameAndEveryBlockIsCountedOnce) {
  auto prefill = Start("prefill", WorkerRole::kPrefill);
  auto decode = Start("decode", WorkerRole::kDecode);
  Router router(*decode);
  constexpr int kRequests = 10;
  constexpr int32_t kPromptTokens = 100;
  for (uint64_t i = 0; i < kRequests; ++i) {
    Submit submit = MakeSubmit(i, RandomTokens(kPromptTokens, 100 + i), 20);
    submit.prefill = prefill->peer();
    router.Send(submit);
    SCOPED_TRACE(testing::Message() << "request " << i);
    ExpectAnswer(&router, submit);
  }
  const int64_t blocks = (kPromptTokens + 15) / 16;
  const std::string metrics = Metrics(&router);
  EXPECT_THAT(metrics, HasSubstr("tandem_kv_transfer_bytes_total{transport=\"" + GetParam() +
                                 "\"} " + std::to_string(kRequests * blocks * kTestBlockBytes)));
  EXPECT_THAT(metrics, HasSubstr("tandem_kv_transfer_seconds_count 10"));
  Router of_prefill(*prefill);
  for (const char* const measured : {"wait", "compute"}) {
    EXPECT_EQ(MetricValue(Metrics(&of_prefill),
                          absl::StrFormat("tandem_prompt_%s_seconds_count", measured)),
              kRequests);
  }
  EXPECT_THAT(metrics, HasSubstr("tandem_kv_link_bytes_per_second{path=\""));
  Watcher decode_watch(*decode), prefill_watch(*prefill);
  decode_watch.HeartbeatUntil(Idle);
  prefill_watch.HeartbeatUntil(Idle);
}

TEST_P(WorkerTest, LostPrefillWorkerEndsItsAttemptsAndFreesTheirBlocks) {
  auto prefill = Start("prefill", WorkerRole::kPrefill);
  auto decode = Start("decode", WorkerRole::kDecode);
  Router router(*decode);
  Submit before = MakeSubmit(9, RandomTokens(100, 8), 2);
  before.prefill = prefill->peer();
  router.Send(before);
  ExpectAnswer(&router, before);
  const auto shows_link = [](const std::string& metrics) {
    return metrics.find("tandem_kv_link_bytes_per_second{") != std::string::npos;
  };
  ExpectMetrics(&router, shows_link);
  prefill->gate.Close();  // It accepts the prompt and gets no further.
  Submit submit = MakeSubmit(1, RandomTokens(100, 7), 20);
  submit.prefill = prefill->peer();
  router.Send(submit);
  Watcher prefill_watch(*prefill);
  prefill_watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.load.has_work; });
  prefill->gate.Open();
  prefill->worker.reset();
  const Heard heard = router.Listen();
  if (heard.finished == 0) {  // The worker may have been faster than its end.
    EXPECT_EQ(heard.ended.code(), absl::StatusCode::kUnavailable) << heard.ended;
  }
  Watcher watch(*decode);
  watch.HeartbeatUntil(Idle);
  ExpectMetrics(&router, [&](const std::string& metrics) { return !shows_link(metrics); });
  submit.attempt.attempt = 2;
  submit.prefill = {};
  router.Send(submit);
  EXPECT_EQ(router.Listen().tokens.at(0), Expected(submit, 0));
}

TEST_P(WorkerTest, DeadlineDuringPrefillEndsThatAttemptAlone) {
  auto prefill = Start("prefill", WorkerRole::kPrefill);
  auto decode = Start("decode", WorkerRole::kDecode);
  Router router(*decode);
  prefill->gate.Close();
  Submit late = MakeSubmit(1, RandomTokens(100, 7), 20);
  late.prefill = prefill->peer();
  late.spec.time_left_us = 200'000;
  Submit other = MakeSubmit(2, RandomTokens(100, 8), 20);
  other.prefill = prefill->peer();
  router.Send(late);
  router.Send(other);
  EXPECT_EQ(router.Listen().ended.code(), absl::StatusCode::kDeadlineExceeded);
  prefill->gate.Open();
  ExpectAnswer(&router, other);
}

// Which lasts 3 s, as a reservation does.
void OutlastALease(Watcher* watch) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  watch->HeartbeatUntil([&](const Heartbeat&) { return std::chrono::steady_clock::now() > end; });
}

TEST_P(WorkerTest, PrefillStepLongerThanAReservationIsWaitedFor) {
  TestWorkerOptions options;
  options.transport = GetParam();
  auto prefill = StartWorker("prefill", options);
  auto decode = StartWorker("decode", options);
  Router router(*decode);
  Watcher watch(*prefill);
  prefill->gate.Close(/*slow=*/true);
  Submit submit = MakeSubmit(1, RandomTokens(100, 7), 20);
  submit.prefill = prefill->peer();
  router.Send(submit);
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.load.has_work; });
  OutlastALease(&watch);
  prefill->gate.Open();
  ExpectAnswer(&router, submit);
}

TEST_P(WorkerTest, WhatWasPrefilledIsKeptForADecodeWorkerInALongStep) {
  TestWorkerOptions options;
  options.transport = GetParam();
  auto prefill = StartWorker("prefill", options);
  auto decode = StartWorker("decode", options);
  Router router(*decode), first(*prefill);
  Watcher watch(*decode);
  // Both engines are in the middle of a step before the one hears what the other will promise.
  prefill->gate.Close(/*slow=*/true);
  first.Send(MakeSubmit(3, RandomTokens(20, 9), 1));
  EXPECT_EQ(first.NextChunks().size(), 1u);
  Submit submit = MakeSubmit(1, RandomTokens(100, 7), 20);
  submit.prefill = prefill->peer();
  router.Send(submit);
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.load.waiting_sequences == 1; });
  decode->gate.Close(/*slow=*/true);
  const Submit own = MakeSubmit(2, RandomTokens(30, 8), 1);
  router.Send(own);
  EXPECT_EQ(router.NextChunks().size(), 1u);
  prefill->gate.Open();
  OutlastALease(&watch);
  decode->gate.Open();
  ExpectAnswer(&router, own);
  const Heard heard = router.Listen();
  EXPECT_TRUE(heard.prompt.by_prefill) << heard.ended;
  EXPECT_EQ(heard.tokens.at(0), Expected(submit, 0));
}

TEST_P(WorkerTest, PeerOfAnotherKvClassOrIncarnationIsNotUsed) {
  TestWorkerOptions other;
  other.transport = GetParam();
  other.kv_class = "another";
  auto stranger = StartWorker("stranger", other);
  auto decode = Start("decode", WorkerRole::kDecode);
  auto restarted = Start("restarted", WorkerRole::kPrefill);
  Router router(*decode);

  Submit submit = MakeSubmit(1, RandomTokens(100, 8), 20);
  submit.prefill = stranger->peer();
  router.Send(submit);
  const Heard heard = router.Listen();
  EXPECT_FALSE(heard.ended.ok());
  EXPECT_THAT(heard.ended.ToString(), HasSubstr("kv_class"));

  submit.attempt.attempt = 2;
  submit.prefill = restarted->peer();
  submit.prefill.worker.incarnation += 1;
  router.Send(submit);
  EXPECT_EQ(router.Listen().ended.code(), absl::StatusCode::kUnavailable);

  submit.attempt.attempt = 3;
  submit.prefill = {.worker = {.name = "nobody", .incarnation = 1}, .address = "127.0.0.1:1"};
  router.Send(submit);
  EXPECT_EQ(router.Listen().ended.code(), absl::StatusCode::kUnavailable);
}

TEST_P(WorkerTest, DrainEndsWhatRunsRefusesWhatComesAndReportsItself) {
  auto worker = Start("hybrid", WorkerRole::kHybrid);
  Router router(*worker);
  worker->gate.Close();
  router.Send(MakeSubmit(1, RandomTokens(30, 9), 400));
  Watcher watch(*worker);
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.load.has_work; });
  router.Drain();
  worker->gate.Open();
  EXPECT_EQ(router.Listen().ended.code(), absl::StatusCode::kUnavailable);
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.draining; });
  router.Send(MakeSubmit(2, RandomTokens(30, 10), 4));
  EXPECT_EQ(router.Listen().refused.code(), absl::StatusCode::kUnavailable);
  const auto end = std::chrono::steady_clock::now() + kRouterPatience;
  while (!worker->worker->Drained() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(worker->worker->Drained());
}

// Else a router would take it for lost.
TEST_P(WorkerTest, AnIdleWorkerHasNotDrainedBeforeItHasSaidSo) {
  TestWorkerOptions options;
  options.transport = GetParam();
  options.liveness_scale = 300;  // It says so before its next heartbeat is due.
  auto worker = StartWorker("hybrid", options);
  Watcher watch(*worker);
  watch.Next();  // Its registration: the Watch stands.
  worker->worker->Drain();
  const auto end = std::chrono::steady_clock::now() + kRouterPatience;
  while (!worker->worker->Drained() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(worker->worker->Drained());
  worker.reset();
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.draining; });
}

TEST_P(WorkerTest, LostRouterEndsItsAttempts) {
  auto worker = Start("hybrid", WorkerRole::kHybrid);
  Watcher watch(*worker);
  {
    Router router(*worker);
    router.Send(MakeSubmit(1, RandomTokens(30, 11), 480));
    proto::StepBatch batch;
    ASSERT_TRUE(router.ReadBatch(&batch));
  }
  watch.HeartbeatUntil(
      [](const Heartbeat& beat) { return Idle(beat) && beat.load.running_sequences == 0; });
}

// The worker is at rest, long before what was asked of it is generated, and holds nothing that
// would keep it from ending.
void ExpectCutOff(TestWorker* worker, int num_attempts) {
  Watcher watch(*worker);
  watch.HeartbeatUntil([](const Heartbeat& beat) {
    return Idle(beat) && beat.load.running_sequences == 0 && beat.load.waiting_sequences == 0;
  });
  Router other(*worker);
  EXPECT_LT(GeneratedTokens(&other), num_attempts * kUnreadTokens);
  worker->worker->Drain();
  const auto end = std::chrono::steady_clock::now() + kRouterPatience;
  while (!worker->worker->Drained() && std::chrono::steady_clock::now() < end) watch.Next();
  EXPECT_TRUE(worker->worker->Drained()) << "a write that nobody takes is still in flight";
}

TEST_P(WorkerTest, ARouterThatDoesNotReadIsCutOffWithAllThatItRan) {
  TestWorkerOptions options;
  options.transport = GetParam();
  options.memory_limit_bytes = int64_t{4} << 20;  // What is said of 19,200 tokens takes more.
  auto worker = StartWorker("hybrid", options);
  Router router(*worker, DialWithSmallWindow(worker->address));
  constexpr int kAttempts = 40;
  SubmitUnread(&router, kAttempts);
  AwaitTokens(*worker, 1024);
  ExpectCutOff(worker.get(), kAttempts);
}

TEST_P(WorkerTest, ARouterThatHalfClosesWithoutReadingIsCutOffWithAllThatItRan) {
  auto worker = Start("hybrid", WorkerRole::kHybrid);
  Router router(*worker, DialWithSmallWindow(worker->address));
  constexpr int kAttempts = 100;  // What is said of them has room, unread, and ends nothing.
  SubmitUnread(&router, kAttempts);
  AwaitTokens(*worker, 3000);  // More than flow control lets pass unread.
  router.HalfClose();
  ExpectCutOff(worker.get(), kAttempts);
}

TEST(WorkerServicesTest, ADecodeWorkerThatHalfClosesWithoutReadingGivesItsBlocksBack) {
  TestWorkerOptions options;
  options.transport = "grpc";
  options.role = WorkerRole::kPrefill;
  options.liveness_scale = 100;  // No lease ends by itself.
  auto worker = StartWorker("prefill", options);
  DecodePeer peer(*worker, DialWithSmallWindow(worker->address));
  // Its first token brings more log-probabilities than flow control lets pass unread.
  PrefillSubmit submit = PrefillSubmitOf(MakeSubmit(1, RandomTokens(400, 3), 50));
  submit.spec.sampling.num_prompt_logprobs = 20;
  peer.Send(submit);
  Router other(*worker);
  const auto held = [&](const std::string& metrics) {
    return MetricValue(metrics, "tandem_kv_blocks{state=\"held\"}");
  };
  ExpectMetrics(&other, [&](const std::string& metrics) {
    return held(metrics) == submit.num_blocks &&
           MetricValue(metrics, "tandem_running_sequences") == 0;
  });
  peer.HalfClose();
  ExpectMetrics(&other, [&](const std::string& metrics) { return held(metrics) == 0; });
}

INSTANTIATE_TEST_SUITE_P(Transports, WorkerTest, testing::Values("ucx", "grpc"));

TEST(WorkerServicesTest, StepThatHangsSilencesNoHeartbeatAndIsNotReady) {
  auto worker = StartWorker("hybrid", {});
  EXPECT_EQ(HealthOf(worker->address, ""), "SERVING");
  Router router(*worker);
  Watcher watch(*worker);
  worker->gate.Close();
  router.Send(MakeSubmit(1, RandomTokens(30, 12), 5));
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.load.since_progress_us > 500'000; });
  while (HealthOf(worker->address, "") == "SERVING" && !testing::Test::HasFailure()) {
    watch.Next();
  }
  EXPECT_EQ(HealthOf(worker->address, ""), "NOT_SERVING");
  EXPECT_EQ(HealthOf(worker->address, "liveness"), "SERVING");
  worker->gate.Open();
  EXPECT_EQ(router.Listen().finished, 1u);
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.load.since_progress_us == 0; });
  while (HealthOf(worker->address, "") != "SERVING" && !testing::Test::HasFailure()) watch.Next();
}

class BrokenExecutor final : public SynchronousExecutor {
 public:
  absl::Status Execute(const StepInput&, StepOutput*) override {
    return absl::InternalError("the device is gone");
  }
  absl::Status BlockChecksums(std::span<const BlockId>, uint32_t*) override {
    return absl::OkStatus();
  }
  void Discard(BlockId) override {}
  uint64_t work_done() const override { return 0; }
};

TEST(WorkerServicesTest, AWorkerWhoseStepsKeepFailingIsToEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [] {
    TestWorker broken;
    broken.id = {.name = "broken", .incarnation = 7};
    WorkerConfig config = SmallWorker(broken.id);
    config.transport = "grpc";
    config.on_drain = [] { std::_Exit(kExitToBeReplaced); };
    broken.worker =
        *Worker::Create(config, [](const KvPool&) -> absl::StatusOr<std::unique_ptr<Executor>> {
          return std::make_unique<BrokenExecutor>();
        });
    broken.address = "127.0.0.1:" + std::to_string(broken.worker->port());
    Router router(broken);
    for (uint64_t i = 1; i <= kMaxFailedSteps; ++i) {
      router.Send(MakeSubmit(i, RandomTokens(30, i), 5));
      if (!absl::IsAborted(router.Listen().ended)) break;
    }
    router.Listen();  // Until the process ends.
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(kExitToBeReplaced), "no step succeeds");
}

TEST(WorkerServicesTest, ATransportThatCannotMoveADevicesMemorySaysSoAtStart) {
  WorkerConfig config = SmallWorker({.name = "device", .incarnation = 8});
  config.transport = "ucx";
  config.device_pool = DevicePtr<std::byte>::At(uintptr_t{1} << 62);  // Whoever looks faults.
  FarMemory copier;
  config.device_copier = &copier;
  const auto worker = Worker::Create(
      config, [](const KvPool&) -> absl::StatusOr<std::unique_ptr<Executor>> { return nullptr; });
  EXPECT_TRUE(absl::IsFailedPrecondition(worker.status())) << worker.status();
  EXPECT_THAT(std::string(worker.status().message()), testing::HasSubstr("--ucx-devices"));
}

TEST(WorkerServicesTest, ADevicesPoolIsRefusedToUcxBeforeWeightsAreLoaded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [&] {
    std::exit(RunWorkerProcess(
        {"--model=" TANDEM_TEST_DATA "/demo_model", "--name=device", "--listen=127.0.0.1:0",
         "--kv-memory=64MiB", "--threads=1", "--transport=ucx", "--ucx-devices=lo"},
        [](BackendOptions options) {
          options.device = "fenced_pool";
          return CreateBackend(options);
        }));
  };
  if (access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "there is a GPU, which UCX may reach";
  EXPECT_EXIT(serve(), testing::ExitedWithCode(2),
              testing::AllOf(testing::ContainsRegex("UCX [0-9.]+ reaches memory of: host"),
                             testing::Not(testing::HasSubstr("loading the model"))));
}

// By a build without it as by one that has it and no GPU here.
TEST(WorkerServicesTest, NcclIsRefusedByNameBeforeWeightsAreLoaded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [] {
    std::exit(RunWorkerProcess({"--model=" TANDEM_TEST_DATA "/demo_model", "--name=device",
                                "--listen=127.0.0.1:0", "--threads=1", "--transport=nccl"},
                               CreateBackend));
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(2),
              "--transport: nccl (is not in this build|moves a GPU's memory)");
}

TEST(WorkerServicesTest, WatchBringsRegistrationSnapshotAndThenEveryChange) {
  auto worker = StartWorker("hybrid", {});
  Router router(*worker);
  router.Send(MakeSubmit(1, RandomTokens(64, 13), 5));
  EXPECT_EQ(router.Listen().finished, 1u);
  Watcher watch(*worker);
  const WatchUpdate first = watch.Next();
  ASSERT_TRUE(std::holds_alternative<WorkerRegistration>(first));
  const auto& registration = std::get<WorkerRegistration>(first);
  EXPECT_EQ(registration.worker, worker->id);
  EXPECT_EQ(registration.terms.transport, "ucx");
  const EngineOptions engine = SmallEngine();
  EXPECT_EQ(registration.kv.num_blocks, kTestBlocks);
  EXPECT_EQ(registration.max_model_tokens, engine.max_model_tokens);
  EXPECT_EQ(registration.max_sequences, engine.max_sequences);
  EXPECT_EQ(registration.sequence_blocks, engine.max_model_tokens / 16);
  const auto next_events = [&] {
    while (!testing::Test::HasFailure()) {
      const WatchUpdate update = watch.Next();
      if (std::holds_alternative<KvEvents>(update)) return std::get<KvEvents>(update);
    }
    return KvEvents();
  };
  const KvEvents snapshot = next_events();
  EXPECT_TRUE(snapshot.snapshot);
  EXPECT_GE(snapshot.stored.size(), 4u);  // The prompt's four blocks.
  router.Send(MakeSubmit(2, RandomTokens(64, 14), 5));
  EXPECT_EQ(router.Listen().finished, 1u);
  uint64_t next = snapshot.first_sequence;
  size_t stored = 0;
  while (stored < 4 && !testing::Test::HasFailure()) {
    const KvEvents events = next_events();
    EXPECT_FALSE(events.snapshot);
    EXPECT_EQ(events.first_sequence, next);
    next += events.stored.size() + events.removed.size();
    stored += events.stored.size();
  }
}

TEST(WorkerServicesTest, HostileSubmitsAreRefusedAndTheSessionGoesOn) {
  auto worker = StartWorker("hybrid", {});
  Router router(*worker);
  Submit submit = MakeSubmit(1, {1, kTestVocabulary, 2}, 5);
  router.Send(submit);
  EXPECT_EQ(router.Listen().refused.code(), absl::StatusCode::kInvalidArgument);
  submit = MakeSubmit(2, {1, 2}, 5);
  submit.spec.choices = {3, 1};
  router.Send(submit);
  const Heard heard = router.Listen();
  EXPECT_EQ(heard.refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(heard.retry_after_us, 0) << "it would be refused again";
  submit = MakeSubmit(3, {1, 2}, 5);
  router.Send(submit);
  EXPECT_EQ(router.Listen().tokens.at(0), Expected(submit, 0));
}

TEST(WorkerServicesTest, SubmitsThatWaitForTheEngineAreChargedAndRefusedWithoutRoom) {
  auto worker = StartWorker("hybrid", {.memory_limit_bytes = int64_t{16} << 20});
  worker->gate.Close();
  Router router(*worker);
  router.Send(MakeSubmit(1, RandomTokens(40, 1), 5));
  EXPECT_EQ(router.NextChunks().size(), 1u);  // The engine is in the middle of a step.
  const std::vector<int32_t> tokens = RandomTokens(100'000, 2);
  for (uint64_t i = 2; i < 50; ++i) router.Send(MakeSubmit(i, tokens, 5));
  const Heard heard = router.Listen();
  EXPECT_EQ(heard.refused.code(), absl::StatusCode::kResourceExhausted) << heard.refused;
  EXPECT_THAT(std::string(heard.refused.message()), HasSubstr("--memory-limit"));
  EXPECT_GT(heard.retry_after_us, 0) << "who comes again at once is refused again";
  worker->gate.Open();
}

TEST(WorkerServicesTest, SoArePromptsOfDecodeWorkersAndTheirSessions) {
  TestWorkerOptions options;
  options.transport = "grpc";
  options.memory_limit_bytes = int64_t{16} << 20;
  auto worker = StartWorker("hybrid", options);
  Router router(*worker);
  const auto held = [&] { return MetricValue(Metrics(&router), "tandem_memory_held_bytes"); };
  const double before = held();
  DecodePeer peer(*worker, DialControl(worker->address, 1));
  EXPECT_GE(held() - before, static_cast<double>(kCallBytes));
  worker->gate.Close();
  router.Send(MakeSubmit(1, RandomTokens(40, 1), 5));
  EXPECT_EQ(router.NextChunks().size(), 1u);  // The engine is in the middle of a step.
  const std::vector<int32_t> tokens = RandomTokens(100'000, 2);
  for (uint64_t i = 2; i < 50; ++i) peer.Send(PrefillSubmitOf(MakeSubmit(i, tokens, 5)));
  const PrefillRefused refused = peer.Refusal();
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted) << refused.status;
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("--memory-limit"));
  EXPECT_GT(refused.retry_after_us, 0);
  worker->gate.Open();
}

// Nothing that the engine never refuses piles up: a stream waits for its own commands, and no
// other one does.
class CommandsTest : public testing::Test {
 protected:
  // The engine is in the middle of a step, and `send` says more than the worker takes meanwhile.
  template <typename Send>
  void ExpectHeldUp(const Send& send) {
    worker_->gate.Close();
    router_.Send(MakeSubmit(1, RandomTokens(40, 1), 5));
    EXPECT_EQ(router_.NextChunks().size(), 1u);
    std::atomic<bool> taken{false};
    std::thread sender([&] {
      send();
      taken = true;
    });
    // Many times as long as reading it all would take.
    for (int i = 0; i < 1000 && !taken; ++i) Metrics(&router_);
    EXPECT_FALSE(taken) << "the worker reads on";
    worker_->gate.Open();
    sender.join();
    EXPECT_EQ(router_.Listen().finished, 1u);
    const Submit next = MakeSubmit(2, RandomTokens(30, 2), 5);
    router_.Send(next);
    ExpectAnswer(&router_, next);
  }

  TestWorkerOptions Options() {
    TestWorkerOptions options;
    options.transport = "grpc";
    options.liveness_scale = 100;
    return options;
  }
  const std::unique_ptr<TestWorker> worker_ = StartWorker("hybrid", Options());
  Router router_{*worker_};
};

TEST_F(CommandsTest, ARoutersCancellationsWaitForTheEngineAtTheirRouter) {
  Router flooding(*worker_);
  std::thread reader([&] {
    proto::StepBatch batch;
    while (flooding.ReadBatch(&batch)) {
    }
  });
  ExpectHeldUp([&] {
    for (uint64_t i = 0; i < 20'000; ++i) {
      flooding.Send(
          Cancel{.attempt = {.request = {.router_incarnation = 7, .counter = i}, .attempt = 1},
                 .time_left_us = 1'000'000});
    }
  });
  flooding.HalfClose();
  reader.join();
}

TEST_F(CommandsTest, ADecodeWorkersRenewalsWaitForTheEngineAtTheDecodeWorker) {
  DecodePeer flooding(*worker_, DialControl(worker_->address, 100));
  tandem::Renew renew;
  for (uint64_t i = 0; i < 1000; ++i) {
    renew.jobs.push_back(1 + i);
  }
  ExpectHeldUp([&] {
    for (int i = 0; i < 400; ++i) flooding.Send(renew);
  });
}

TEST(WorkerServicesTest, AWatchIsRefusedForItsProtocolOrItsName) {
  auto worker = StartWorker("hybrid", {});
  auto stub = proto::Worker::NewStub(DialControl(worker->address, 1));
  const auto refusal = [&](const std::string& router, int32_t protocol) {
    grpc::ClientContext context;
    proto::WatchRequest request;
    request.set_router(router);
    request.set_protocol_min(protocol);
    request.set_protocol_max(protocol + 1);
    auto reader = stub->Watch(&context, request);
    proto::WatchEvent event;
    EXPECT_FALSE(reader->Read(&event));
    return reader->Finish().error_code();
  };
  EXPECT_EQ(refusal("router", kProtocolMax + 1), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(refusal(std::string(kMaxNameBytes + 1, 'r'), kProtocolMin),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refusal(std::string(2 << 20, 'r'), kProtocolMin), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "it is not even parsed";
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--worker") {
    return tandem::RunWorkerProcess(std::vector<std::string>(argv + 2, argv + argc),
                                    tandem::CreateBackend);
  }
  grpc_init();  // Held: gRPC's global shutdown between tests takes up to 10 s.
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
