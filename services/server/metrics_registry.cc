#include "services/server/metrics_registry.h"

#include <prometheus/check_names.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/guard.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/server/build_info.h"
#include "services/server/limits.h"

namespace tandem {

namespace {

void AddGuardRejections(std::vector<prometheus::MetricFamily>* families) {
  prometheus::MetricFamily family;
  family.name = "tandem_guard_rejections_total";
  family.help = "Times that a named check kept a message or a block out.";
  family.type = prometheus::MetricType::Counter;
  for (const Guard* guard : ListGuards()) {
    prometheus::ClientMetric metric;
    metric.label.push_back({.name = "guard", .value = std::string(guard->name())});
    metric.counter.value = static_cast<double>(guard->rejections());
    family.metric.push_back(std::move(metric));
  }
  if (!family.metric.empty()) families->push_back(std::move(family));
}

void AddDroppedLogLines(std::vector<prometheus::MetricFamily>* families) {
  prometheus::MetricFamily family;
  family.name = "tandem_log_lines_dropped_total";
  family.help = "Log lines that nobody read in time.";
  family.type = prometheus::MetricType::Counter;
  family.metric.emplace_back().counter.value = static_cast<double>(NumDroppedLogLines());
  families->push_back(std::move(family));
}

absl::StatusOr<prometheus::ClientMetric> ReadSample(const v1::MetricSample& in,
                                                    prometheus::MetricType type) {
  prometheus::ClientMetric out;
  if (in.labels_size() > 32) {
    return absl::InvalidArgumentError(
        absl::StrFormat("metric: %d labels, at most 32", in.labels_size()));
  }
  for (const v1::MetricLabel& label : in.labels()) {
    if (label.name().size() > kMaxNameBytes || label.value().size() > kMaxTextBytes ||
        !prometheus::CheckLabelName(label.name())) {
      return absl::InvalidArgumentError("metric: a label's name or value is not usable");
    }
    out.label.push_back({.name = label.name(), .value = label.value()});
  }
  switch (type) {
    case prometheus::MetricType::Counter:
      out.counter.value = in.value();
      break;
    case prometheus::MetricType::Gauge:
      out.gauge.value = in.value();
      break;
    default: {
      const v1::MetricHistogram& histogram = in.histogram();
      if (histogram.upper_bounds_size() != histogram.cumulative_counts_size() ||
          histogram.upper_bounds_size() > kMaxHistogramBuckets) {
        return absl::InvalidArgumentError(
            absl::StrFormat("metric: %d bucket bounds and %d counts, at most %d of each",
                            histogram.upper_bounds_size(), histogram.cumulative_counts_size(),
                            kMaxHistogramBuckets));
      }
      out.histogram.sample_count = histogram.count();
      out.histogram.sample_sum = histogram.sum();
      for (int i = 0; i < histogram.upper_bounds_size(); ++i) {
        out.histogram.bucket.push_back({.cumulative_count = histogram.cumulative_counts(i),
                                        .upper_bound = histogram.upper_bounds(i)});
      }
    }
  }
  return out;
}

}  // namespace

MetricsRegistry::MetricsRegistry() {
  const BuildInfo& build = ThisBuild();
  Gauge("tandem_build_info",
        "1; the version and the commit of this program, and what it was built with; empty: without "
        "it. ucx_loaded is empty where it is ucx.",
        {{"version", TANDEM_VERSION},
         {"commit", build.commit},
         {"cuda", build.cuda},
         {"nccl", build.nccl},
         {"ucx", build.ucx},
         {"ucx_loaded", build.ucx_loaded}})
      .Set(1);
  Gauge("tandem_start_time_seconds", "When this process began: Unix time.")
      .Set(static_cast<double>(std::time(nullptr)));
}

prometheus::Counter& MetricsRegistry::Counter(const std::string& name, const std::string& help,
                                              const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels);
}

prometheus::Gauge& MetricsRegistry::Gauge(const std::string& name, const std::string& help,
                                          const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels);
}

void MetricsRegistry::Remove(const std::string& name, const std::string& help,
                             prometheus::Gauge* gauge) {
  prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Remove(gauge);
}

prometheus::Histogram& MetricsRegistry::Histogram(const std::string& name, const std::string& help,
                                                  const std::vector<double>& upper_bounds,
                                                  const MetricLabels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels,
                                                                                    upper_bounds);
}

void MetricsRegistry::AddRefresh(std::function<void()> refresh) {
  MutexLock lock(&mu_);
  refreshes_.push_back(std::move(refresh));
}

std::vector<prometheus::MetricFamily> MetricsRegistry::Collect() {
  std::vector<std::function<void()>> refreshes;
  {
    MutexLock lock(&mu_);
    refreshes = refreshes_;
  }
  for (const std::function<void()>& refresh : refreshes) refresh();
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  AddGuardRejections(&families);
  AddDroppedLogLines(&families);
  return families;
}

const std::vector<double>& SecondsBuckets() {
  static const std::vector<double>* buckets = new std::vector<double>{
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
  return *buckets;
}

const std::vector<double>& ShortSecondsBuckets() {
  static const std::vector<double>* buckets =
      new std::vector<double>{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                              0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
  return *buckets;
}

void MetricsToProto(const std::vector<prometheus::MetricFamily>& families,
                    v1::MetricsSnapshot* out) {
  for (const prometheus::MetricFamily& family : families) {
    v1::MetricFamily* target = out->add_families();
    target->set_name(family.name);
    target->set_help(family.help);
    target->set_type(family.type == prometheus::MetricType::Counter ? v1::MetricFamily::TYPE_COUNTER
                     : family.type == prometheus::MetricType::Histogram
                         ? v1::MetricFamily::TYPE_HISTOGRAM
                         : v1::MetricFamily::TYPE_GAUGE);
    for (const prometheus::ClientMetric& metric : family.metric) {
      v1::MetricSample* sample = target->add_samples();
      for (const prometheus::ClientMetric::Label& label : metric.label) {
        v1::MetricLabel* copy = sample->add_labels();
        copy->set_name(label.name);
        copy->set_value(label.value);
      }
      if (family.type == prometheus::MetricType::Counter) {
        sample->set_value(metric.counter.value);
      } else if (family.type == prometheus::MetricType::Histogram) {
        v1::MetricHistogram* histogram = sample->mutable_histogram();
        histogram->set_count(metric.histogram.sample_count);
        histogram->set_sum(metric.histogram.sample_sum);
        for (const prometheus::ClientMetric::Bucket& bucket : metric.histogram.bucket) {
          histogram->add_upper_bounds(bucket.upper_bound);
          histogram->add_cumulative_counts(bucket.cumulative_count);
        }
      } else {
        sample->set_value(metric.gauge.value);
      }
    }
  }
}

absl::StatusOr<std::vector<prometheus::MetricFamily>> MetricsFromProto(
    const v1::MetricsSnapshot& in) {
  if (in.families_size() > kMaxMetricFamilies) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d metric families, at most %d", in.families_size(), kMaxMetricFamilies));
  }
  std::vector<prometheus::MetricFamily> out;
  out.reserve(in.families_size());
  for (const v1::MetricFamily& family : in.families()) {
    if (family.name().size() > kMaxNameBytes || family.help().size() > kMaxTextBytes ||
        !prometheus::CheckMetricName(family.name())) {
      return absl::InvalidArgumentError("metric family: its name or help is not usable");
    }
    if (family.samples_size() > kMaxMetricSamples) {
      return absl::InvalidArgumentError(absl::StrFormat("metric %s: %d samples, at most %d",
                                                        family.name(), family.samples_size(),
                                                        kMaxMetricSamples));
    }
    prometheus::MetricFamily& read = out.emplace_back();
    read.name = family.name();
    read.help = family.help();
    switch (family.type()) {
      case v1::MetricFamily::TYPE_COUNTER:
        read.type = prometheus::MetricType::Counter;
        break;
      case v1::MetricFamily::TYPE_GAUGE:
        read.type = prometheus::MetricType::Gauge;
        break;
      case v1::MetricFamily::TYPE_HISTOGRAM:
        read.type = prometheus::MetricType::Histogram;
        break;
      default:
        return absl::InvalidArgumentError(absl::StrFormat("metric %s: %d is no type", family.name(),
                                                          static_cast<int>(family.type())));
    }
    for (const v1::MetricSample& sample : family.samples()) {
      TANDEM_ASSIGN_OR_RETURN(prometheus::ClientMetric metric, ReadSample(sample, read.type));
      read.metric.push_back(std::move(metric));
    }
  }
  return out;
}

void AddLabel(std::string_view name, std::string_view value,
              std::vector<prometheus::MetricFamily>* families) {
  for (prometheus::MetricFamily& family : *families) {
    for (prometheus::ClientMetric& metric : family.metric) {
      const bool present = std::any_of(metric.label.begin(), metric.label.end(),
                                       [name](const auto& label) { return label.name == name; });
      if (!present) {
        metric.label.push_back({.name = std::string(name), .value = std::string(value)});
      }
    }
  }
}

void MergeFamilies(std::vector<prometheus::MetricFamily> from,
                   std::vector<prometheus::MetricFamily>* into) {
  for (prometheus::MetricFamily& family : from) {
    const auto same = std::find_if(into->begin(), into->end(), [&family](const auto& other) {
      return other.name == family.name && other.type == family.type;
    });
    if (same == into->end()) {
      into->push_back(std::move(family));
    } else {
      std::move(family.metric.begin(), family.metric.end(), std::back_inserter(same->metric));
    }
  }
}

std::string MetricsToText(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace tandem
