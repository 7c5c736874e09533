#include "services/worker/engine_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/create_backend.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/mutex.h"
#include "runtime/simulation/simulated_executor.h"
#include "services/server/fleet_auth.h"
#include "services/worker/hang_watch.h"
#include "services/worker/liveness_timer.h"
#include "services/worker/watched_copier.h"
#include "tests/support/decode_peer.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/metric_value.h"
#include "tests/unit/services/worker/fake_kv_transport.h"
#include "tests/unit/services/worker/stream_server.h"

namespace tandem {
namespace {

// What each copy comes to.
class FailingCopier final : public DeviceCopier {
 public:
  absl::Status Download(void*, const void*, size_t) override { return status; }
  absl::StatusOr<uint32_t> Upload(void*, const void*, size_t) override { return status; }
  absl::StatusOr<uint32_t> CopyWithin(void*, const void*, size_t) override { return status; }
  absl::StatusOr<std::byte*> AllocatePinned(size_t) override { return status; }
  void FreePinned(std::byte*) override {}

  absl::Status status;
};

// Serves decode workers with an engine of twelve blocks over a transport that gives no block back.
class StuckWorker {
 public:
  explicit StuckWorker(int64_t quarantine_us, const Backend* backend = nullptr,
                       int64_t measure_memory_us = 0) {
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
                                          .metrics = &metrics_,
                                          .backend = backend,
                                          .measure_memory_us = measure_memory_us,
                                          .copier = &copier_,
                                          .on_broken = [this] { ++times_broken_; }});
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
  SimulatedExecutor& executor() { return executor_; }
  DeviceCopier& copier() { return copier_; }
  FailingCopier& device() { return device_; }
  int times_broken() const { return times_broken_; }
  // Its device's memory in that state, as the metrics have it.
  double MemoryBytes(const std::string& state) {
    return MetricValue(MetricsToText(registry_.Collect()),
                       "tandem_device_memory_bytes{state=\"" + state + "\"}");
  }
  double FailedCopies() {
    return MetricValue(MetricsToText(registry_.Collect()),
                       "tandem_device_failures_total{what=\"copy\"}");
  }
  LivenessParts liveness_parts() {
    return {.engine = loop_.get(),
            .prefills = &prefills_,
            .decodes = &decodes_,
            .watches = &watches_,
            .ready = &ready_};
  }

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
  WorkerMetrics metrics_{{}, nullptr, &registry_};
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
  FailingCopier device_;
  WatchedCopier copier_{&device_, &metrics_};
  std::atomic<int> times_broken_{0};
  std::unique_ptr<EngineLoop> loop_;
  std::atomic<bool> ready_{true};
  TestWorker peer_;
};

class MeasuredGpu final : public ForwardingBackend {
 public:
  MeasuredGpu() : ForwardingBackend(nullptr) {}
  std::optional<GpuIdentity> gpu() const override { return GpuIdentity{.uuid = "GPU-1"}; }
  absl::StatusOr<std::optional<DeviceMemory>> MeasureMemory() const override {
    ++measured;
    if (losses > 0) {
      --losses;
      return absl::DataLossError("the device is lost");
    }
    if (failures > 0) {
      --failures;
      return absl::InternalError("the device fails");
    }
    return DeviceMemory{.total_bytes = 100, .free_bytes = free_bytes};
  }

  mutable std::atomic<int> measured{0};
  mutable std::atomic<int> failures{0}, losses{0};  // So many are next.
  std::atomic<int64_t> free_bytes{40};
};

TEST(EngineLoopTest, TheDevicesMemoryIsShownAndMeasuredAgain) {
  MeasuredGpu gpu;
  StuckWorker worker(/*quarantine_us=*/3'600'000'000, &gpu, /*measure_memory_us=*/0);
  EXPECT_EQ(worker.MemoryBytes("free"), 40);
  EXPECT_EQ(worker.MemoryBytes("taken"), 60);
  gpu.free_bytes = 30;
  ASSERT_TRUE(Eventually([&] { return worker.MemoryBytes("free") == 30; }));
  ASSERT_TRUE(Eventually([&] { return worker.MemoryBytes("taken") == 70; }));
  gpu.failures = std::numeric_limits<int>::max();
  const int before = gpu.measured;
  EXPECT_TRUE(Eventually([&] { return gpu.measured > before + 1; }));
  EXPECT_EQ(worker.MemoryBytes("free"), 30) << "as it was known last";
}

TEST(EngineLoopTest, ADeviceThatIsLostWhileNothingRunsIsToldOnce) {
  MeasuredGpu gpu;
  StuckWorker worker(/*quarantine_us=*/3'600'000'000, &gpu, /*measure_memory_us=*/0);
  for (int i = 0; i < 2; ++i) {
    gpu.losses = 1;
    ASSERT_TRUE(Eventually([&] { return gpu.losses == 0; }));
    const int before = gpu.measured;
    ASSERT_TRUE(Eventually([&] { return gpu.measured > before; }));
    EXPECT_EQ(worker.times_broken(), 1);
  }
}

TEST(EngineLoopTest, ADeviceWhoseMemoryCannotBeMeasuredForLongIsLost) {
  MeasuredGpu gpu;
  StuckWorker worker(/*quarantine_us=*/3'600'000'000, &gpu, /*measure_memory_us=*/0);
  for (int64_t free_bytes = 30; free_bytes < 32; ++free_bytes) {
    gpu.failures = kMaxFailedSteps - 1;
    gpu.free_bytes = free_bytes;
    ASSERT_TRUE(
        Eventually([&] { return worker.MemoryBytes("free") == static_cast<double>(free_bytes); }));
    EXPECT_EQ(gpu.failures, 0);
    EXPECT_EQ(worker.times_broken(), 0) << "that has passed";
  }
  gpu.failures = kMaxFailedSteps;
  ASSERT_TRUE(Eventually([&] { return worker.times_broken() == 1; }));
}

// However it is copied.
TEST(EngineLoopTest, ADeviceThatIsLostAsACopySaysIsToldOnce) {
  const std::function<absl::Status(DeviceCopier*)> kCopies[] = {
      [](DeviceCopier* copier) { return copier->Download(nullptr, nullptr, 0); },
      [](DeviceCopier* copier) { return copier->Upload(nullptr, nullptr, 0).status(); },
      [](DeviceCopier* copier) { return copier->CopyWithin(nullptr, nullptr, 0).status(); }};
  for (const auto& copy : kCopies) {
    MeasuredGpu gpu;  // Shows that the loop turns.
    StuckWorker worker(/*quarantine_us=*/3'600'000'000, &gpu, /*measure_memory_us=*/0);
    const auto turns = [&](const absl::Status& status) {
      worker.device().status = status;
      EXPECT_EQ(copy(&worker.copier()), status);
      const int before = gpu.measured;
      return Eventually([&] { return gpu.measured > before + 2; });
    };
    ASSERT_TRUE(turns(absl::InternalError("a copy failed")));
    EXPECT_EQ(worker.times_broken(), 0) << "that may pass";
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(turns(absl::DataLossError("the device is lost")));
      EXPECT_EQ(worker.times_broken(), 1);
    }
  }
}

TEST(EngineLoopTest, ADeviceWhoseCopiesFailAgainAndAgainIsLost) {
  MeasuredGpu gpu;  // Shows that the loop turns.
  StuckWorker worker(/*quarantine_us=*/3'600'000'000, &gpu, /*measure_memory_us=*/0);
  const auto copy = [&](int times, const absl::Status& status) {
    worker.device().status = status;
    for (int i = 0; i < times; ++i) {
      EXPECT_EQ(worker.copier().Download(nullptr, nullptr, 0), status);
    }
    const int before = gpu.measured;
    return Eventually([&] { return gpu.measured > before + 2; });
  };
  const absl::Status failed = absl::InternalError("a copy failed");
  ASSERT_TRUE(copy(kMaxFailedSteps - 1, failed));
  ASSERT_TRUE(copy(1, absl::OkStatus()));
  ASSERT_TRUE(copy(kMaxFailedSteps - 1, failed));
  EXPECT_EQ(worker.times_broken(), 0) << "one has worked";
  ASSERT_TRUE(copy(1, failed));
  EXPECT_EQ(worker.times_broken(), 1);
  EXPECT_EQ(worker.FailedCopies(), 2 * kMaxFailedSteps - 1);
}

// Drivers take their time for it, and steps come by the thousand.
TEST(EngineLoopTest, TheDevicesMemoryIsNotMeasuredAtEveryStep) {
  MeasuredGpu gpu;
  StuckWorker worker(/*quarantine_us=*/3'600'000'000, &gpu, /*measure_memory_us=*/3'600'000'000);
  DecodePeer peer(worker.peer(), worker.Dial());
  ASSERT_TRUE(worker.SendsTenTo(&peer));
  EXPECT_EQ(gpu.measured, 1);
}

TEST(EngineLoopTest, AHostsMemoryIsNoDevices) {
  const auto cpu = CreateBackend({.device = "cpu", .isa = "generic"});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  StuckWorker worker(/*quarantine_us=*/3'600'000'000, cpu->get(), /*measure_memory_us=*/0);
  EXPECT_EQ(worker.MemoryBytes("free"), -1);
}

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

TEST(EngineLoopTest, ADeviceThatIsLostIsToldOnce) {
  StuckWorker worker(/*quarantine_us=*/3'600'000'000);
  worker.executor().FailNextStep(absl::DataLossError("an error that stays"));
  DecodePeer peer(worker.peer(), worker.Dial());
  for (uint64_t job = 1; job <= 3; ++job) {
    PrefillSubmit prompt = PrefillSubmitOf(MakeSubmit(job, RandomTokens(150, 1), 5));
    prompt.job = job;
    peer.Send(prompt);
    EXPECT_EQ(peer.Refusal().status, absl::AbortedError("a step failed: an error that stays"));
    EXPECT_TRUE(Eventually([&] { return worker.times_broken() > 0; }));
  }
  // A turn of the loop after that of the second failure has refused the third.
  EXPECT_EQ(worker.times_broken(), 1);
}

// A device whose copies take until they are let go.
class HeldCopier final : public DeviceCopier {
 public:
  absl::Status Download(void*, const void*, size_t) override {
    MutexLock lock(&mu_);
    ++begun_;
    changed_.SignalAll();
    while (begun_ > let_go_) changed_.Wait(&mu_);
    return status;
  }
  absl::StatusOr<uint32_t> Upload(void*, const void*, size_t) override { return 0; }
  absl::StatusOr<uint32_t> CopyWithin(void*, const void*, size_t) override { return 0; }

  absl::Status status;

  // Lets all up to this one go, once it has begun.
  void LetGo(int64_t copy) {
    MutexLock lock(&mu_);
    while (begun_ < copy) changed_.Wait(&mu_);
    let_go_ = copy;
    changed_.SignalAll();
  }
  void WaitFor(int64_t copy) {
    MutexLock lock(&mu_);
    while (begun_ < copy) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t begun_ GUARDED_BY(mu_) = 0, let_go_ GUARDED_BY(mu_) = 0;
};

// As a step, though the engine has nothing to do.
TEST(EngineLoopTest, ACopyThatHasNoEndIsSeenFromBesideIt) {
  StuckWorker worker(/*quarantine_us=*/3'600'000'000);
  HeldCopier held;
  MetricsRegistry registry;
  WorkerMetrics metrics({}, nullptr, &registry);
  WatchedCopier copier(&held, &metrics);
  std::atomic<bool> hung{false};
  LivenessParts parts = worker.liveness_parts();
  parts.copier = &copier;
  parts.on_hung = [&] { hung = true; };
  const LivenessTimer timer(LivenessTimes::Scaled(0.01), parts);
  std::thread transport([&] { EXPECT_TRUE(copier.Download(nullptr, nullptr, 0).ok()); });
  EXPECT_TRUE(Eventually([&] { return hung.load(); }));
  held.LetGo(1);
  transport.join();
}

TEST(WatchedCopierTest, CopiesStandWhileNoneOfThemEnds) {
  HeldCopier held;
  MetricsRegistry registry;
  WorkerMetrics metrics({}, nullptr, &registry);
  WatchedCopier copier(&held, &metrics);
  EXPECT_FALSE(copier.Stands());
  std::thread transport([&] {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(copier.Download(nullptr, nullptr, 0).ok());
  });
  held.WaitFor(1);
  EXPECT_TRUE(copier.Stands());
  EXPECT_TRUE(copier.Stands());
  held.LetGo(1);
  held.WaitFor(2);
  EXPECT_EQ(copier.under_way(), 1);
  EXPECT_FALSE(copier.Stands()) << "the first has ended";
  EXPECT_TRUE(copier.Stands());
  held.LetGo(2);
  transport.join();
  EXPECT_EQ(copier.done(), 2);
  EXPECT_FALSE(copier.Stands());
  EXPECT_FALSE(copier.Stands());
}

// One jolt may meet the copies of all links at once.
TEST(WatchedCopierTest, CopiesThatFailTogetherAreOneFailure) {
  HeldCopier held;
  held.status = absl::InternalError("a jolt");
  MetricsRegistry registry;
  WorkerMetrics metrics({}, nullptr, &registry);
  WatchedCopier copier(&held, &metrics);
  int64_t begun = 0;
  const auto fail = [&](int together) {
    std::vector<std::thread> links;
    for (int i = 0; i < together; ++i) {
      links.emplace_back([&] { EXPECT_FALSE(copier.Download(nullptr, nullptr, 0).ok()); });
    }
    held.LetGo(begun += together);
    for (std::thread& link : links) link.join();
  };
  fail(kMaxFailedSteps);
  for (int i = 1; i < kMaxFailedSteps; ++i) {
    EXPECT_TRUE(copier.lost().ok()) << i;
    fail(1);
  }
  EXPECT_EQ(copier.lost(),
            absl::InternalError("8 copies of KV blocks failed, one after the other: a jolt"));
}

TEST(HangWatchTest, OnlyWhatStoodAtEveryLookHangs) {
  const LivenessTimes times;
  const int64_t looks = kHungStalls * times.engine_stalled_us / times.heartbeat_us;
  HangWatch watch(times);
  for (int64_t i = 1; i < looks; ++i) ASSERT_FALSE(watch.Look(true)) << i;
  EXPECT_FALSE(watch.Look(false));
  for (int64_t i = 1; i < looks; ++i) ASSERT_FALSE(watch.Look(true)) << i;
  EXPECT_TRUE(watch.Look(true));
  EXPECT_EQ(watch.stood_us(), kHungStalls * times.engine_stalled_us);
}

}  // namespace
}  // namespace tandem
