#include "services/router/metrics_collector.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "services/server/limits.h"
#include "services/server/status_proto.h"
#include "services/server/wire_message.h"

namespace tandem {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

bool IsMonotonic(MetricType type) {
  return type == MetricType::Counter || type == MetricType::Histogram;
}

void AddMetric(const ClientMetric& from, MetricType type, ClientMetric* into) {
  if (type == MetricType::Counter) {
    into->counter.value += from.counter.value;
    return;
  }
  into->histogram.sample_count += from.histogram.sample_count;
  into->histogram.sample_sum += from.histogram.sample_sum;
  // Bounds are the program's constants; a life with others keeps only count and sum comparable.
  const size_t count = std::min(from.histogram.bucket.size(), into->histogram.bucket.size());
  for (size_t i = 0; i < count; ++i) {
    into->histogram.bucket[i].cumulative_count += from.histogram.bucket[i].cumulative_count;
  }
}

size_t NumBytes(const ClientMetric& metric) {
  size_t bytes = sizeof(metric) + metric.histogram.bucket.size() * sizeof(ClientMetric::Bucket);
  for (const auto& label : metric.label) {
    bytes += sizeof(label) + label.name.size() + label.value.size();
  }
  return bytes;
}

size_t NumBytes(const WorkerMetricsHistory::Families& families) {
  size_t bytes = 0;
  for (const MetricFamily& family : families) {
    bytes += sizeof(family) + family.name.size() + family.help.size();
    for (const ClientMetric& metric : family.metric) bytes += NumBytes(metric);
  }
  return bytes;
}

// Adds the counters and histograms of `from` to those in `into` of the same name and labels. What
// is new there is added as long as it then takes at most `max_bytes`.
void AddFamilies(const WorkerMetricsHistory::Families& from, size_t max_bytes,
                 WorkerMetricsHistory::Families* into) {
  size_t bytes = NumBytes(*into);
  for (const MetricFamily& family : from) {
    if (!IsMonotonic(family.type)) continue;
    auto same = std::find_if(into->begin(), into->end(), [&](const MetricFamily& other) {
      return other.name == family.name && other.type == family.type;
    });
    for (const ClientMetric& metric : family.metric) {
      if (same == into->end()) {
        bytes += sizeof(family) + family.name.size() + family.help.size();
        if (bytes > max_bytes) return;
        same = into->insert(into->end(), MetricFamily{family.name, family.help, family.type, {}});
      }
      const auto twin =
          std::find_if(same->metric.begin(), same->metric.end(),
                       [&](const ClientMetric& other) { return other.label == metric.label; });
      if (twin != same->metric.end()) {
        AddMetric(metric, family.type, &*twin);
      } else if ((bytes += NumBytes(metric)) <= max_bytes) {
        same->metric.push_back(metric);
      }
    }
  }
}

}  // namespace

void WorkerMetricsHistory::Report(uint64_t incarnation, Families families) {
  if (incarnation != incarnation_) {
    AddFamilies(current_, kMaxFinishedBytes, &finished_);
    incarnation_ = incarnation;
  }
  current_ = std::move(families);
}

WorkerMetricsHistory::Families WorkerMetricsHistory::Sum(bool alive) const {
  Families sum;
  for (const MetricFamily& family : current_) {
    if (alive || IsMonotonic(family.type)) sum.push_back(family);
  }
  AddFamilies(finished_, SIZE_MAX, &sum);
  return sum;
}

// One page under way: an answer of every worker, then the text.
class MetricsCollector::Scrape : public std::enable_shared_from_this<Scrape> {
 public:
  Scrape(MetricsCollector* collector, std::vector<Done> done)
      : collector_(collector), done_(std::move(done)) {}

  void Start(const std::vector<std::shared_ptr<WorkerChannel>>& channels) {
    calls_ = std::vector<Call>(channels.size());
    waiting_ = static_cast<int>(channels.size()) + 1;
    for (size_t i = 0; i < channels.size(); ++i) {
      Call* call = &calls_[i];
      call->channel = channels[i];
      call->worker = channels[i]->worker();
      if (!channels[i]->connected()) {
        OnAnswer();
        continue;
      }
      call->request.mutable_metrics();
      call->context.set_deadline(std::chrono::system_clock::now() + kScrapeTimeout);
      call->proof.reset(new FleetCall(channels[i]->Prove(kControlMethod, &call->context)));
      call->proof->Start([self = shared_from_this(), call] {
        const auto done = [self, call](const grpc::Status& status) {
          if (call->proof->Proven(status.ok())) self->OnMetrics(call);
          self->OnAnswer();
        };
        call->channel->Control(&call->context, &call->request, &call->answer, done);
      });
    }
    OnAnswer();
  }

 private:
  struct Call {
    std::shared_ptr<WorkerChannel> channel;
    WorkerId worker;
    grpc::ClientContext context;
    std::unique_ptr<FleetCall> proof;
    v1::ControlRequest request;
    grpc::ByteBuffer answer;
  };

  void OnMetrics(Call* call) {
    // Another life may have answered than the one that was asked.
    if (call->channel->worker() != call->worker) return;
    v1::ControlResponse response;
    const bool small = call->answer.Length() <= kMaxMetricsBytes;
    if (!small || !ReadMessage(&call->answer, &response, kMaxWorkerExpansion).ok()) return;
    absl::StatusOr<WorkerMetricsHistory::Families> families = MetricsFromProto(response.metrics());
    if (!families.ok()) return;
    collector_->OnReport(call->channel->address(), call->worker, *std::move(families));
  }

  void OnAnswer() {
    if (waiting_.fetch_sub(1) == 1) collector_->OnScraped(std::move(done_));
  }

  MetricsCollector* const collector_;
  std::vector<Done> done_;  // Gone before the collector is idle.
  std::vector<Call> calls_;
  std::atomic<int> waiting_{0};
};

MetricsCollector::MetricsCollector(MetricsRegistry* registry, RouterCore* core, WorkerPool* pool)
    : registry_(registry),
      core_(core),
      pool_(pool),
      refresher_("metrics", kRefreshPeriod, [this] { Collect([](const auto&) {}); }) {}

MetricsCollector::~MetricsCollector() {
  StopRefreshing();
  MutexLock lock(&mu_);
  while (scraping_) idle_.Wait(&mu_);
}

void MetricsCollector::Collect(Done done) {
  {
    MutexLock lock(&mu_);
    next_.push_back(std::move(done));
    if (std::exchange(scraping_, true)) return;
  }
  BeginScrape();
}

void MetricsCollector::BeginScrape() {
  std::vector<Done> done;
  {
    MutexLock lock(&mu_);
    done.swap(next_);
  }
  const auto scrape = std::make_shared<Scrape>(this, std::move(done));
  core_->PublishThen([this, scrape] { scrape->Start(pool_->channels()); });
}

void MetricsCollector::OnScraped(std::vector<Done> done) {
  const auto page = std::make_shared<const std::string>(Render());
  for (const Done& tell : done) tell(page);
  done.clear();
  {
    MutexLock lock(&mu_);
    if (next_.empty()) {
      scraping_ = false;
      idle_.SignalAll();
      return;
    }
  }
  BeginScrape();
}

void MetricsCollector::OnReport(const std::string& address, const WorkerId& worker,
                                WorkerMetricsHistory::Families families) {
  MutexLock lock(&mu_);
  std::erase_if(workers_, [&](const auto& entry) {
    return entry.second.address == address && entry.first != worker.name;
  });
  Reported& reported = workers_[worker.name];
  reported.address = address;
  reported.metrics.Report(worker.incarnation, std::move(families));
}

std::string MetricsCollector::Render() {
  std::set<std::string> alive;
  for (const auto& channel : pool_->channels()) {
    if (channel->connected()) alive.insert(channel->worker().name);
  }
  std::vector<MetricFamily> all = registry_->Collect();
  MutexLock lock(&mu_);
  for (const auto& [name, reported] : workers_) {
    std::vector<MetricFamily> theirs = reported.metrics.Sum(alive.count(name) > 0);
    AddLabel("worker", name, &theirs);
    MergeFamilies(std::move(theirs), &all);
  }
  return MetricsToText(all);
}

}  // namespace tandem
