#include "services/worker/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "kernels/create_backend.h"
#include "tests/support/forwarding_backend.h"

namespace tandem {
namespace {

TEST(WorkerMetricsTest, ALoadIsShownUnderBothSpellings) {
  MetricsRegistry registry;
  WorkerMetrics metrics({}, nullptr, &registry);
  WorkerLoad load;
  load.running_sequences = 3;
  load.waiting_sequences = 5;
  load.waiting_prompt_tokens = 700;
  load.blocks.total = 100;
  load.blocks.free = 20;
  load.blocks.cached = 30;
  metrics.OnLoad(load);
  std::map<std::string, double> shown;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.metric.size() == 1) shown[family.name] = family.metric.front().gauge.value;
  }
  EXPECT_EQ(shown["tandem_running_sequences"], 3);
  EXPECT_EQ(shown["tandem_waiting_sequences"], 5);
  EXPECT_EQ(shown["tandem_waiting_prompt_tokens"], 700);
  EXPECT_EQ(shown["vllm:num_requests_running"], 3);
  EXPECT_EQ(shown["vllm:num_requests_waiting"], 5);
  EXPECT_EQ(shown["vllm:kv_cache_usage_perc"], .5);
  metrics.OnLoad({});
  EXPECT_THAT(MetricsToText(registry.Collect()), testing::HasSubstr("vllm:kv_cache_usage_perc 0\n"))
      << "of no blocks none are used";
}

class NamedGpu final : public ForwardingBackend {
 public:
  NamedGpu() : ForwardingBackend(nullptr) {}
  std::string name() const override { return "cuda"; }
  std::string isa() const override { return "sm_90"; }
  std::optional<GpuIdentity> gpu() const override { return GpuIdentity{.uuid = "GPU-1"}; }
};

TEST(WorkerMetricsTest, AWorkerSaysWhatItIs) {
  const NamedGpu gpu;
  MetricsRegistry registry;
  const WorkerMetrics metrics(
      {.role = WorkerRole::kDecode,
       .model = "m",
       .terms = {.kv_class = "class", .numerics_id = "numerics", .transport = "grpc"},
       .kv = {.block_tokens = 16, .num_blocks = 100, .block_bytes = 4096},
       .max_sequences = 7},
      &gpu, &registry);
  const std::string shown = MetricsToText(registry.Collect());
  for (const char* const line :
       {"tandem_worker_info{device=\"cuda\",gpu_uuid=\"GPU-1\",isa=\"sm_90\",kv_class=\"class\","
        "model=\"m\",numerics_id=\"numerics\",role=\"decode\",transport=\"grpc\"} 1",
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1",
        "tandem_kv_block_bytes 4096", "tandem_max_sequences 7"}) {
    EXPECT_THAT(shown, testing::HasSubstr(std::string(line) + "\n"));
  }
}

TEST(WorkerMetricsTest, ACpuIsNoGpu) {
  for (const char* const device : {"cpu", "fenced"}) {
    MetricsRegistry registry;
    const auto backend = CreateBackend({.device = device, .isa = "generic"});
    ASSERT_TRUE(backend.ok()) << backend.status();
    const WorkerMetrics metrics({}, backend->get(), &registry);
    EXPECT_THAT(MetricsToText(registry.Collect()),
                testing::HasSubstr("tandem_worker_info{device=\"" + std::string(device) +
                                   "\",gpu_uuid=\"\",isa=\"generic\","));
  }
}

// Alerts and dashboards tell them apart by their labels alone.
TEST(WorkerMetricsTest, WhatHappensIsCountedAsWhatItIs) {
  MetricsRegistry registry;
  WorkerMetrics metrics({.role = WorkerRole::kPrefill, .terms = {.transport = "grpc"}}, nullptr,
                        &registry);
  int64_t bytes = 1;
  for (const auto& [outcome, times] :
       {std::pair(FrameOutcome::kVerified, 1), std::pair(FrameOutcome::kCorrupt, 2),
        std::pair(FrameOutcome::kFailed, 3), std::pair(FrameOutcome::kOrphaned, 4)}) {
    for (int i = 0; i < times; ++i) metrics.OnFrame(outcome, bytes);
    bytes *= 10;
  }
  metrics.OnPeerPaused(PauseReason::kLost);
  metrics.OnPrompt({.cached_tokens = 5});
  metrics.OnPrompt({.cached_tokens = 6, .by_prefill = true});
  metrics.OnPromptComputed(/*waited_seconds=*/7, /*computed_seconds=*/8);
  metrics.OnStep(3, {.finished_sequences = 2, .preempted = 9});
  metrics.OnStep(1, {.failure = absl::InternalError("no device")});
  metrics.OnFailedCopy();
  for (int i = 0; i < 2; ++i) metrics.OnFailedLook();
  metrics.OnSubmit(/*prompt_tokens=*/21);
  for (int i = 0; i < 22; ++i) metrics.OnToken();
  metrics.OnTransferSeconds(23);
  metrics.OnLoad(
      {.blocks = {
           .free = 11, .held = 12, .cached = 13, .in_flight = 14, .quarantined = 15, .total = 65}});
  const std::string shown = MetricsToText(registry.Collect());
  for (const char* const line : {"tandem_kv_frames_total{outcome=\"verified\"} 1",
                                 "tandem_kv_frames_total{outcome=\"corrupt\"} 2",
                                 "tandem_kv_frames_total{outcome=\"failed\"} 3",
                                 "tandem_kv_frames_total{outcome=\"orphaned\"} 4",
                                 "tandem_kv_transfer_bytes_total{transport=\"grpc\"} 1",
                                 "tandem_prefill_pauses_total{reason=\"lost\"} 1",
                                 "tandem_prefill_pauses_total{reason=\"slow\"} 0",
                                 "tandem_prefix_hit_tokens_total{source=\"own\"} 5",
                                 "tandem_prefix_hit_tokens_total{source=\"prefill_worker\"} 6",
                                 "tandem_prompt_wait_seconds_sum 7",
                                 "tandem_prompt_compute_seconds_sum 8",
                                 "tandem_step_seconds_sum 3",
                                 "tandem_step_seconds_count 1",
                                 "tandem_batch_sequences_sum 2",
                                 "tandem_worker_prompt_tokens_total 21",
                                 "tandem_worker_generated_tokens_total 22",
                                 "tandem_kv_transfer_seconds_sum 23",
                                 "tandem_preemptions_total 9",
                                 "tandem_failed_steps_total 1",
                                 "tandem_device_failures_total{what=\"copy\"} 1",
                                 "tandem_device_failures_total{what=\"memory\"} 2",
                                 "tandem_kv_blocks{state=\"free\"} 11",
                                 "tandem_kv_blocks{state=\"held\"} 12",
                                 "tandem_kv_blocks{state=\"cached\"} 13",
                                 "tandem_kv_blocks{state=\"in_flight\"} 14",
                                 "tandem_kv_blocks{state=\"quarantined\"} 15"}) {
    EXPECT_THAT(shown, testing::HasSubstr(std::string(line) + "\n"));
  }
  EXPECT_THAT(shown, testing::HasSubstr("role=\"prefill\""));
}

TEST(WorkerMetricsTest, ASpeedIsShownForAsLongAsItsLinkIsOpen) {
  MetricsRegistry registry;
  WorkerMetrics metrics({}, nullptr, &registry);
  const auto speeds = [&] {
    std::map<std::string, double> by_peer;
    for (const prometheus::MetricFamily& family : registry.Collect()) {
      if (family.name != "tandem_kv_link_bytes_per_second") continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        for (const auto& label : metric.label) {
          if (label.name == "peer") by_peer[label.value] = metric.gauge.value;
        }
      }
    }
    return by_peer;
  };
  using Speeds = std::map<std::string, double>;
  metrics.OnLinkProbed({.peer = "a", .path = "grpc", .bytes_per_second = 1});
  metrics.OnLinkProbed({.peer = "b", .path = "grpc", .bytes_per_second = 2});
  metrics.OnLinkClosed("b", "grpc");
  EXPECT_EQ(speeds(), (Speeds{{"a", 1}}));
  metrics.OnLinkProbed({.peer = "a", .path = "grpc", .bytes_per_second = 3});
  metrics.OnLinkClosed("a", "grpc");
  EXPECT_EQ(speeds(), (Speeds{{"a", 3}})) << "the next one had opened before";
  metrics.OnLinkClosed("a", "grpc");
  metrics.OnLinkClosed("a", "grpc");
  EXPECT_EQ(speeds(), Speeds());
}

}  // namespace
}  // namespace tandem
