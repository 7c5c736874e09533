// A router, whole: model files, core, worker channels and both listeners.

#ifndef TANDEM_SERVICES_ROUTER_APP_ROUTER_APP_H_
#define TANDEM_SERVICES_ROUTER_APP_ROUTER_APP_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/clock.h"
#include "runtime/base/fleet_secret.h"
#include "services/http/admin_pages.h"
#include "services/http/http_server.h"
#include "services/router/call_starter.h"
#include "services/router/grpc/grpc_server.h"
#include "services/router/http/http_api.h"
#include "services/router/metrics_collector.h"
#include "services/router/model_info.h"
#include "services/router/router_core.h"
#include "services/router/router_metrics.h"
#include "services/router/text_pool.h"
#include "services/router/worker_pool.h"
#include "services/server/fleet_tls.h"
#include "services/server/listen_address.h"
#include "services/server/memory_keeper.h"

namespace tandem {

struct RouterOptions {
  std::string name = "router";
  std::string model;  // Folder.
  std::string served_model_name;
  std::vector<std::string> workers;  // host:port each, or...
  std::string workers_dns;           // ...name:port.
  ListenAddress http;
  ListenAddress grpc;
  std::optional<ListenAddress> admin;  // Where metrics are then, instead of at `http`.
  std::vector<std::string> allowed_hosts, cors_origins;  // BrowserGuardOptions.
  DisaggregatePolicy disaggregate = DisaggregatePolicy::kAuto;
  double liveness_scale = 1;
  int32_t max_queued_requests = 4096;
  // It is ready once it has seen every worker of the list, or as many as a DNS name has; or, so
  // that no single worker holds it up for ever, so long after its start.
  int64_t settle_us = 30'000'000, dns_settle_us = 5'000'000;
  FleetSecret secret;  // The workers have the same.
  FleetTlsFlags fleet_tls;
  TlsFiles tls;                    // What clients and `admin` see; empty: none.
  std::string api_key_file;        // The keys of clients; empty: they need none.
  bool isolate_cache = false;      // Every request must have a cache_salt.
  int64_t memory_limit_bytes = 0;  // 0: DefaultMemoryLimit.
};

class RouterApp {
 public:
  // Listening when it returns. Errors name the file, field or address.
  static absl::StatusOr<std::unique_ptr<RouterApp>> Create(const RouterOptions& options);
  ~RouterApp();  // Stop, with kFlushTimeout.

  int http_port() const { return http_->port(); }
  int grpc_port() const { return grpc_->port(); }
  int admin_port() const { return admin_ == nullptr ? 0 : admin_->port(); }
  bool Ready() const;
  int64_t num_requests() const { return core_->View().requests_in_flight; }

  // Takes no new connection, and has clients go elsewhere; what has come is answered.
  void BeginDrain();
  // No request runs, no HTTP connection is open, and gRPC's clients have heard it.
  bool Drained() const;
  // What still runs is told that it is Unavailable. Clients have `flush` to read their last words,
  // and kGateFlushTimeout those that do not; then it is over. The destructor does no more.
  void Stop(std::chrono::milliseconds flush);

 private:
  explicit RouterApp(const RouterOptions& options);
  // Makes the parts in the order of the members, and serves at its end.
  absl::Status Start();
  absl::Status OpenTls();
  absl::Status LoadModel();
  absl::Status StartCore();  // With what reaches the workers.
  absl::Status StartHttp();
  absl::Status StartGrpc();
  absl::Status StartAdmin();
  ProbeAnswer ReadyAnswer() const;
  std::string WhyNotReady(const FleetView& view) const;  // Empty: it is.

  const RouterOptions options_;
  const SteadyClock clock_;
  const int64_t started_us_;
  ModelInfo model_;
  ModelText text_;
  MetricsRegistry registry_;
  MemoryKeeper memory_;
  RouterMetrics metrics_;
  std::atomic<bool> draining_{false};
  bool stopped_ = false;
  std::atomic<int> num_connections_{0};
  std::unique_ptr<FleetTls> fleet_tls_;
  std::unique_ptr<TlsIdentity> tls_;
  // Each uses those above it; destroyed from the last to the first.
  std::unique_ptr<RouterCore> core_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<MetricsCollector> collector_;
  std::unique_ptr<CallStarter> starter_;
  std::unique_ptr<TextPool> pool_;
  std::unique_ptr<ApiKeys> keys_;
  std::unique_ptr<HttpApi> api_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<AdminPages> admin_pages_;
  std::unique_ptr<HttpServer> admin_;
  std::unique_ptr<GrpcServer> grpc_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_APP_ROUTER_APP_H_
