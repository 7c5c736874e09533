#include "services/router/app/router_app.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/entropy.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/server/machine_limits.h"
#include "services/server/tls_metrics.h"

namespace tandem {
namespace {

constexpr int kMinTextThreads = 2, kMaxTextThreads = 8;
constexpr size_t kMaxWaitingTexts = 1024;
// What is known of workers' prefix caches takes such a part of the memory limit, beside it.
constexpr int64_t kIndexShare = 4;

// While it answers at all.
ProbeAnswer Alive() { return {.ok = true, .json = "{\"status\":\"ok\"}"}; }

// What an address that the flag names came to.
template <typename Server>
absl::StatusOr<Server> Of(const char* flag, absl::StatusOr<Server> server) {
  if (server.ok()) return server;
  return absl::Status(server.status().code(), absl::StrCat(flag, ": ", server.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterApp>> RouterApp::Create(const RouterOptions& options) {
  TANDEM_RETURN_IF_ERROR(
      CheckMemoryLimitOn(ReadMachineLimits(), ByteSize{options.memory_limit_bytes}));
  auto app = std::unique_ptr<RouterApp>(new RouterApp(options));
  TANDEM_RETURN_IF_ERROR(app->Start());
  return app;
}

RouterApp::RouterApp(const RouterOptions& options)
    : options_(options),
      started_us_(clock_.NowUs()),
      memory_(options.memory_limit_bytes > 0 ? options.memory_limit_bytes
                                             : DefaultMemoryLimit(ReadMachineLimits()),
              &registry_),
      metrics_(&registry_) {}

absl::Status RouterApp::Start() {
  if (!options_.api_key_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(keys_, Of("--api-key-file", ApiKeys::Open(options_.api_key_file)));
  }
  TANDEM_RETURN_IF_ERROR(OpenTls());
  TANDEM_RETURN_IF_ERROR(LoadModel());
  TANDEM_RETURN_IF_ERROR(StartCore());
  const CallStarterOptions starter_options{.isolate_cache = options_.isolate_cache,
                                           .seed = RandomIdentity()};
  starter_ = std::make_unique<CallStarter>(starter_options, &model_, &text_, core_.get(), &metrics_,
                                           memory_.budget(), &clock_);
  pool_ = std::make_unique<TextPool>(
      std::clamp(ReadMachineLimits().cpus, kMinTextThreads, kMaxTextThreads), kMaxWaitingTexts,
      memory_.budget()->limit_bytes());
  TANDEM_RETURN_IF_ERROR(StartHttp());
  TANDEM_RETURN_IF_ERROR(StartGrpc());
  return options_.admin.has_value() ? StartAdmin() : absl::OkStatus();
}

absl::Status RouterApp::LoadModel() {
  TANDEM_ASSIGN_OR_RETURN(model_, ReadModelInfo(options_.model, options_.served_model_name));
  TANDEM_ASSIGN_OR_RETURN(text_, LoadModelText(model_));
  if (text_.tokenizer == nullptr) {
    LogWarning("no tokenizer.json: token ids in and out only", {{"folder", model_.folder}});
  }
  return absl::OkStatus();
}

absl::Status RouterApp::StartCore() {
  RouterCoreOptions core_options;
  core_options.owner.router_incarnation = RandomIdentity();
  core_options.owner.times = LivenessTimes::Scaled(options_.liveness_scale);
  core_options.owner.disaggregate = options_.disaggregate;
  core_options.owner.max_waiting_requests = options_.max_queued_requests;
  core_options.owner.max_index_entries =
      memory_.budget()->limit_bytes() / kIndexShare / PrefixIndex::kEntryBytes;
  core_options.model = model_.served_name;
  core_options.max_model_tokens =
      static_cast<int32_t>(std::min<int64_t>(model_.max_model_tokens, INT32_MAX));
  core_options.expected_workers = options_.workers;
  TANDEM_ASSIGN_OR_RETURN(core_, RouterCore::Create(core_options, &clock_, &metrics_));

  WorkerPoolOptions pool_options{.addresses = options_.workers,
                                 .dns_name = options_.workers_dns,
                                 .channel = {.router_name = options_.name,
                                             .liveness_scale = options_.liveness_scale,
                                             .secret = options_.secret,
                                             .tls = fleet_tls_.get(),
                                             .budget = memory_.budget()}};
  workers_ = std::make_unique<WorkerPool>(pool_options, core_.get(), &clock_);
  collector_ = std::make_unique<MetricsCollector>(&registry_, core_.get(), workers_.get());
  return absl::OkStatus();
}

absl::Status RouterApp::StartHttp() {
  HttpApiParts parts{.starter = starter_.get(),
                     .pool = pool_.get(),
                     .guard = {.address = options_.http,
                               .allowed_hosts = options_.allowed_hosts,
                               .cors_origins = options_.cors_origins},
                     .keys = keys_.get(),
                     .health = Alive,
                     .ready = [this] { return ReadyAnswer(); },
                     .metrics = nullptr};
  if (!options_.admin.has_value()) {
    parts.metrics = [this](MetricsCollector::Done done) { collector_->Collect(std::move(done)); };
  }
  api_ = std::make_unique<HttpApi>(std::move(parts));
  HttpServerOptions http_options{.address = options_.http,
                                 .tls = {.identity = tls_.get()},
                                 .budget = memory_.budget(),
                                 .max_connections = std::min(kMaxConnections, MaxConnections(1)),
                                 .on_connections =
                                     [this](int open) {
                                       num_connections_ = open;
                                       metrics_.http_connections.Set(open);
                                     },
                                 .on_slow_reader = [this] { metrics_.slow_readers.Increment(); }};
  TANDEM_ASSIGN_OR_RETURN(http_, Of("--http", HttpServer::Create(http_options, api_.get())));
  return absl::OkStatus();
}

absl::Status RouterApp::StartGrpc() {
  GrpcServerOptions grpc_options{.address = options_.grpc,
                                 .tls = {.identity = tls_.get()},
                                 .budget = memory_.budget(),
                                 .instance_id = options_.name,
                                 .keys = keys_.get(),
                                 .ready = [this] { return Ready(); }};
  TANDEM_ASSIGN_OR_RETURN(
      grpc_, Of("--grpc", GrpcServer::Create(grpc_options, starter_.get(), pool_.get())));
  return absl::OkStatus();
}

absl::Status RouterApp::OpenTls() {
  TANDEM_ASSIGN_OR_RETURN(fleet_tls_, FleetTls::Open(options_.fleet_tls));
  if (fleet_tls_ != nullptr) ShowInMetrics("fleet", fleet_tls_->identity(), &registry_);
  if (options_.tls.certificate.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(tls_, TlsIdentity::Open(options_.tls));
  ShowInMetrics("clients", tls_.get(), &registry_);
  return absl::OkStatus();
}

absl::Status RouterApp::StartAdmin() {
  admin_pages_ = std::make_unique<AdminPages>(AdminPagesParts{
      .address = *options_.admin,
      .health = Alive,
      .ready = [this] { return ReadyAnswer(); },
      .metrics =
          [this](const MetricsCollector::Done& done) {
            core_->PublishThen([this, done] {
              done(std::make_shared<const std::string>(MetricsToText(registry_.Collect())));
            });
          },
      .fleet_metrics =
          [this](MetricsCollector::Done done) { collector_->Collect(std::move(done)); }});
  const HttpServerOptions options{.address = *options_.admin,
                                  .tls = {.identity = tls_.get(), .any_client = true},
                                  .budget = memory_.budget(),
                                  .max_connections = kMaxAdminConnections,
                                  .num_threads = 1};
  TANDEM_ASSIGN_OR_RETURN(admin_, Of("--admin", HttpServer::Create(options, admin_pages_.get())));
  return absl::OkStatus();
}

ProbeAnswer RouterApp::ReadyAnswer() const {
  const FleetView view = core_->View();
  const std::string why_not = WhyNotReady(view);
  std::string json = absl::StrFormat("{\"ready\":%s,", why_not.empty() ? "true" : "false");
  if (!why_not.empty()) {
    json += "\"why\":";
    AppendJsonString(why_not, &json);
    json += ',';
  }
  absl::StrAppendFormat(&json, "\"workers\":%d,\"awaited\":[", view.workers.size());
  for (size_t i = 0; i < view.awaited.size(); ++i) {
    if (i > 0) json += ',';
    AppendJsonString(view.awaited[i], &json);
  }
  absl::StrAppendFormat(&json, "],\"lost\":%d,\"lost_workers\":[", view.num_lost);
  for (size_t i = 0; i < view.lost.size(); ++i) {
    const LostWorker& worker = view.lost[i];
    json += i > 0 ? ",{\"name\":" : "{\"name\":";
    AppendJsonString(worker.name, &json);
    json += ",\"address\":";
    AppendJsonString(worker.address, &json);
    json += ",\"role\":";
    AppendJsonString(WorkerRoleName(worker.role), &json);
    json += ",\"why\":";
    AppendJsonString(worker.why, &json);
    json += '}';
  }
  return {.ok = why_not.empty(), .json = json + "]}"};
}

RouterApp::~RouterApp() { Stop(kFlushTimeout); }

void RouterApp::Stop(std::chrono::milliseconds flush) {
  if (std::exchange(stopped_, true)) return;
  const auto until = std::chrono::steady_clock::now() + flush;  // The end of both flushes.
  // It stays until nobody makes a page for its clients any more.
  if (admin_ != nullptr) admin_->Stop({});
  // The text threads finish what they have and take no more, then the core ends what runs, while
  // the front ends still stand: they tell their clients, until nobody is left or time is up.
  if (http_ != nullptr) http_->EndDrain();
  if (pool_ != nullptr) pool_->Stop();
  if (collector_ != nullptr) collector_->StopRefreshing();
  if (core_ != nullptr) core_->BeginLeave();
  if (workers_ != nullptr) workers_->Close();
  if (core_ != nullptr) core_->Stop();
  if (grpc_ != nullptr) grpc_->Stop(flush);
  if (http_ != nullptr) http_->Stop(until);
  collector_.reset();
}

bool RouterApp::Ready() const { return WhyNotReady(core_->View()).empty(); }

std::string RouterApp::WhyNotReady(const FleetView& view) const {
  if (draining_) return "it drains";
  const bool by_dns = !options_.workers_dns.empty();
  if (by_dns && !workers_->resolved()) return "--workers-dns has not been resolved yet";
  if (!view.can_decode) {
    return absl::StrFormat(
        "no decode or hybrid worker of this model is healthy: of %d workers that are known %d "
        "decode it; %d are lost",
        view.workers.size(), view.num_decoding, view.num_lost);
  }
  const bool all_seen =
      by_dns ? view.workers.size() >= workers_->channels().size() : view.known_completely;
  const int64_t settle_us = by_dns ? options_.dns_settle_us : options_.settle_us;
  if (all_seen || clock_.NowUs() - started_us_ >= settle_us) return "";
  return absl::StrFormat("in its first %d s it waits for workers that it has not seen yet",
                         settle_us / 1'000'000);
}

void RouterApp::BeginDrain() {
  draining_ = true;
  http_->BeginDrain();
  grpc_->BeginDrain();
}

bool RouterApp::Drained() const {
  return core_->View().requests_in_flight == 0 && num_connections_ == 0 && grpc_->Drained();
}

}  // namespace tandem
