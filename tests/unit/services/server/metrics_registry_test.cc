#include "services/server/metrics_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "runtime/base/guard.h"
#include "services/server/build_info.h"
#include "services/server/limits.h"
#include "tests/support/metric_value.h"

namespace tandem {
namespace {

using testing::HasSubstr;

std::vector<prometheus::MetricFamily> ThroughProto(
    const std::vector<prometheus::MetricFamily>& families) {
  v1::MetricsSnapshot snapshot;
  MetricsToProto(families, &snapshot);
  auto read = MetricsFromProto(snapshot);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? *std::move(read) : std::vector<prometheus::MetricFamily>();
}

TEST(MetricsRegistryTest, SameNameAndLabelsAreOneMetric) {
  MetricsRegistry registry;
  registry.Counter("tandem_test_total", "Help.", {{"state", "a"}}).Increment(2);
  registry.Counter("tandem_test_total", "Help.", {{"state", "a"}}).Increment(3);
  registry.Counter("tandem_test_total", "Help.", {{"state", "b"}}).Increment(1);
  const std::string text = MetricsToText(registry.Collect());
  EXPECT_THAT(text, HasSubstr("tandem_test_total{state=\"a\"} 5"));
  EXPECT_THAT(text, HasSubstr("tandem_test_total{state=\"b\"} 1"));
}

TEST(MetricsRegistryTest, TextIsTheSameOnTheOtherSideOfTheWire) {
  MetricsRegistry registry;
  registry.Counter("tandem_c_total", "A counter.").Increment(7);
  registry.Gauge("tandem_g", "A gauge.", {{"x", "quote\" and \\"}}).Set(-1.5);
  auto& histogram = registry.Histogram("tandem_h_seconds", "A histogram.", {0.1, 1});
  for (const double value : {0.05, 0.5, 5.0}) histogram.Observe(value);
  const auto families = registry.Collect();
  EXPECT_EQ(MetricsToText(ThroughProto(families)), MetricsToText(families));
  EXPECT_THAT(MetricsToText(families), HasSubstr("tandem_h_seconds_bucket{le=\"1\"} 2"));
}

TEST(MetricsRegistryTest, WorkersAreMergedUnderTheirLabel) {
  MetricsRegistry ours, theirs;
  ours.Counter("tandem_a_total", "Help.").Increment(1);
  theirs.Counter("tandem_a_total", "Help.").Increment(2);
  theirs.Gauge("tandem_b", "Help.", {{"worker", "kept"}}).Set(3);
  auto all = ours.Collect();
  auto labelled = ThroughProto(theirs.Collect());
  AddLabel("worker", "decode-0", &labelled);
  MergeFamilies(std::move(labelled), &all);
  const std::string text = MetricsToText(all);
  EXPECT_THAT(text, HasSubstr("tandem_a_total 1\n"));
  EXPECT_THAT(text, HasSubstr("tandem_a_total{worker=\"decode-0\"} 2"));
  EXPECT_THAT(text, HasSubstr("tandem_b{worker=\"kept\"} 3"));
  size_t types = 0;
  for (size_t at = text.find("# TYPE tandem_a_total"); at != std::string::npos;
       at = text.find("# TYPE tandem_a_total", at + 1)) {
    ++types;
  }
  EXPECT_EQ(types, 1u);
}

TEST(MetricsRegistryTest, OneNameOfTwoTypesIsTwoFamilies) {
  MetricsRegistry ours, theirs;
  ours.Counter("tandem_a", "Help.").Increment(1);
  theirs.Gauge("tandem_a", "Help.").Set(2);
  auto all = ours.Collect();
  const size_t before = all.size();
  MergeFamilies(theirs.Collect(), &all);
  EXPECT_EQ(all.size(), before + 1) << "the others are of both";
  const std::string text = MetricsToText(all);
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_a counter\ntandem_a 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_a gauge\ntandem_a 2\n"));
}

TEST(MetricsRegistryTest, EveryProcessSaysWhatItIsAndSinceWhen) {
  const auto before = static_cast<double>(std::time(nullptr));
  MetricsRegistry registry;
  const std::string text = MetricsToText(registry.Collect());
  const BuildInfo& build = ThisBuild();
  EXPECT_THAT(text, HasSubstr("tandem_build_info{commit=\"\",cuda=\"" + build.cuda + "\",nccl=\"" +
                              build.nccl + "\",ucx=\"" + build.ucx +
                              "\",ucx_loaded=\"\",version=\"" TANDEM_VERSION "\"} 1\n"));
  EXPECT_GE(MetricValue(text, "tandem_start_time_seconds"), before);
  EXPECT_LE(MetricValue(text, "tandem_start_time_seconds"), before + 3600);
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_log_lines_dropped_total counter\n"
                              "tandem_log_lines_dropped_total 0\n"));
}

TEST(MetricsRegistryTest, BucketsRiseFromThousandthsOfASecondToItsMultiples) {
  for (const auto* buckets : {&SecondsBuckets(), &ShortSecondsBuckets()}) {
    EXPECT_TRUE(std::is_sorted(buckets->begin(), buckets->end()));
  }
  EXPECT_EQ(SecondsBuckets().front(), 1e-3);
  EXPECT_EQ(SecondsBuckets().back(), 60);
  EXPECT_EQ(ShortSecondsBuckets().front(), 1e-4);
  EXPECT_EQ(ShortSecondsBuckets().back(), 10);
}

TEST(MetricsRegistryTest, GuardRejectionsAreExported) {
  EXPECT_FALSE(TANDEM_GUARD("metrics_registry_test", false));
  MetricsRegistry registry;
  EXPECT_THAT(MetricsToText(registry.Collect()),
              HasSubstr("tandem_guard_rejections_total{guard=\"metrics_registry_test\"} 1"));
}

TEST(MetricsRegistryTest, RefreshRunsBeforeEveryCollect) {
  MetricsRegistry registry;
  auto& gauge = registry.Gauge("tandem_now", "Help.");
  int calls = 0;
  registry.AddRefresh([&] { gauge.Set(++calls); });
  registry.Collect();
  EXPECT_THAT(MetricsToText(registry.Collect()), HasSubstr("tandem_now 2"));
}

TEST(MetricsRegistryTest, HostileSnapshotsAreRefused) {
  const auto code = [](const v1::MetricsSnapshot& snapshot) {
    return MetricsFromProto(snapshot).status().code();
  };
  v1::MetricsSnapshot bad_name;
  bad_name.add_families()->set_name("a{b=\"c\"} 1\nx");
  EXPECT_EQ(code(bad_name), absl::StatusCode::kInvalidArgument);

  v1::MetricsSnapshot bad_label;
  bad_label.add_families()->set_name("ok");
  bad_label.mutable_families(0)->add_samples()->add_labels()->set_name("1\"");
  EXPECT_EQ(code(bad_label), absl::StatusCode::kInvalidArgument);

  v1::MetricsSnapshot bad_buckets;
  bad_buckets.add_families()->set_name("ok");
  bad_buckets.mutable_families(0)->set_type(v1::MetricFamily::TYPE_HISTOGRAM);
  bad_buckets.mutable_families(0)->add_samples()->mutable_histogram()->add_upper_bounds(1);
  EXPECT_EQ(code(bad_buckets), absl::StatusCode::kInvalidArgument);

  v1::MetricsSnapshot bad_type;
  bad_type.add_families()->set_name("ok");
  bad_type.mutable_families(0)->set_type(static_cast<v1::MetricFamily::Type>(9));
  EXPECT_EQ(code(bad_type), absl::StatusCode::kInvalidArgument);
}

TEST(MetricsRegistryTest, SnapshotsAreBounded) {
  v1::MetricsSnapshot good;
  v1::MetricFamily* const family = good.add_families();
  family->set_name("ok");
  family->set_type(v1::MetricFamily::TYPE_HISTOGRAM);
  v1::MetricHistogram* const histogram = family->add_samples()->mutable_histogram();
  for (int i = 0; i < kMaxHistogramBuckets; ++i) {
    histogram->add_upper_bounds(i);
    histogram->add_cumulative_counts(i);
  }
  for (int i = 0; i < 32; ++i) {
    v1::MetricLabel* const label = family->mutable_samples(0)->add_labels();
    label->set_name(std::string(kMaxNameBytes, 'l'));
    label->set_value(std::string(kMaxTextBytes, 'v'));
  }
  EXPECT_TRUE(MetricsFromProto(good).ok());
  const auto refused = [&good](const auto& spoil) {
    v1::MetricsSnapshot snapshot = good;
    spoil(&snapshot);
    return absl::IsInvalidArgument(MetricsFromProto(snapshot).status());
  };
  EXPECT_TRUE(refused([](v1::MetricsSnapshot* s) {
    v1::MetricHistogram* const more =
        s->mutable_families(0)->mutable_samples(0)->mutable_histogram();
    more->add_upper_bounds(1e6);
    more->add_cumulative_counts(1);
  }));
  EXPECT_TRUE(refused([](v1::MetricsSnapshot* s) {
    const v1::MetricFamily empty = [] {
      v1::MetricFamily made;
      made.set_name("ok");
      made.set_type(v1::MetricFamily::TYPE_GAUGE);
      return made;
    }();
    while (s->families_size() <= kMaxMetricFamilies) *s->add_families() = empty;
  }));
  EXPECT_TRUE(refused([](v1::MetricsSnapshot* s) {
    while (s->families(0).samples_size() <= kMaxMetricSamples) {
      s->mutable_families(0)->add_samples();
    }
  }));
  EXPECT_TRUE(refused([](v1::MetricsSnapshot* s) {
    s->mutable_families(0)->mutable_samples(0)->add_labels()->set_name("l");
  }));
  const auto label_refused = [&refused](void (*spoil)(v1::MetricLabel*)) {
    return refused([spoil](v1::MetricsSnapshot* s) {
      spoil(s->mutable_families(0)->mutable_samples(0)->mutable_labels(0));
    });
  };
  EXPECT_TRUE(label_refused([](v1::MetricLabel* l) { l->mutable_value()->push_back('v'); }));
  EXPECT_TRUE(label_refused([](v1::MetricLabel* l) { l->mutable_name()->push_back('l'); }));
  EXPECT_TRUE(refused([](v1::MetricsSnapshot* s) {
    s->mutable_families(0)->set_name(std::string(kMaxNameBytes + 1, 'n'));
  }));
  EXPECT_TRUE(refused([](v1::MetricsSnapshot* s) {
    s->mutable_families(0)->set_help(std::string(kMaxTextBytes + 1, 'h'));
  }));
}

TEST(MetricsRegistryTest, AFullSnapshotIsTaken) {
  v1::MetricsSnapshot full;
  for (int i = 0; i < kMaxMetricFamilies; ++i) {
    v1::MetricFamily* const family = full.add_families();
    family->set_name(std::string(kMaxNameBytes, 'n'));
    family->set_help(std::string(kMaxTextBytes, 'h'));
    family->set_type(v1::MetricFamily::TYPE_GAUGE);
  }
  for (int i = 0; i < kMaxMetricSamples; ++i) full.mutable_families(0)->add_samples();
  EXPECT_TRUE(MetricsFromProto(full).ok());
}

}  // namespace
}  // namespace tandem
