#include "services/worker/worker_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tandem {
namespace {

TEST(WorkerMetricsTest, ALoadIsShownUnderBothSpellings) {
  MetricsRegistry registry;
  WorkerMetrics metrics({}, &registry);
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
}

TEST(WorkerMetricsTest, ASpeedIsShownForAsLongAsItsLinkIsOpen) {
  MetricsRegistry registry;
  WorkerMetrics metrics({}, &registry);
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
