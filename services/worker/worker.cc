#include "services/worker/worker.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/peer_terms.h"
#include "runtime/transport/nccl/nccl_transport.h"
#include "runtime/transport/stream/stream_transport.h"
#include "runtime/transport/ucx/ucx_transport.h"
#include "services/http/admin_pages.h"
#include "services/http/http_limits.h"
#include "services/http/http_server.h"
#include "services/server/channel.h"
#include "services/server/fleet_auth.h"
#include "services/server/gated_server.h"
#include "services/server/limits.h"
#include "services/server/machine_limits.h"
#include "services/server/memory_keeper.h"
#include "services/server/tls_metrics.h"
#include "services/worker/decode_sessions.h"
#include "services/worker/engine_loop.h"
#include "services/worker/grpc_frame_carrier.h"
#include "services/worker/hang_watch.h"
#include "services/worker/liveness_timer.h"
#include "services/worker/prefill_peers.h"
#include "services/worker/router_sessions.h"
#include "services/worker/transport_events.h"
#include "services/worker/watch_hub.h"
#include "services/worker/watched_copier.h"
#include "services/worker/worker_metrics.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tandem/v1/worker.grpc.pb.h"

namespace tandem {

namespace {

// What Watch, Control and Frames need. A peer that sends more is bounded by gRPC's quota.
constexpr int64_t kMaxUnaryMessageBytes = int64_t{1} << 20;

// So many commands may wait for the engine; what is more is refused.
constexpr size_t kMaxQueuedCommands = 4096;

// Prompts that wait may have half of the budget: refusing the next ones, and streams, have the
// rest.
constexpr int64_t kPromptsShare = 2;

WorkerRegistration RegistrationOf(const WorkerConfig& config) {
  const EngineOptions& engine = config.engine;
  WorkerRegistration registration = config.registration;
  registration.worker = engine.self;
  registration.model = engine.model;
  registration.kv = engine.kv;
  registration.max_model_tokens = engine.max_model_tokens;
  registration.max_sequences = engine.max_sequences;
  registration.sequence_blocks = engine.MostBlocks(engine.max_model_tokens);
  registration.terms.transport = config.transport;
  // UCX has no link between a pool of this kind and one of the host's: no router is to make one.
  if (config.transport == "ucx" && config.device_pool != nullptr) {
    registration.terms.transport = "ucx-device";
  }
  return registration;
}

}  // namespace

// Hand over to the registries.
class Worker::Services {
 public:
  explicit Services(Worker* worker) : worker_service(worker), prefill_service(worker) {}

  class WorkerService final : public FleetService {
   public:
    explicit WorkerService(Worker* worker) : FleetService(worker->door_.get()), worker_(worker) {
      AddMethod<proto::WatchEvent>(
          kWatchMethod, [worker](auto* context) { return worker->watches_->Open(context); });
      AddMethod<proto::StepBatch>(kWorkerSessionMethod, [worker](auto* context) {
        return worker->routers_->Open(context);
      });
      AddUnary<proto::ControlRequest, proto::ControlResponse>(
          kControlMethod,
          [this](const auto& request, auto* response) { return Control(request, response); });
    }

   private:
    absl::Status Control(const proto::ControlRequest& request, proto::ControlResponse* response) {
      switch (request.command_case()) {
        case proto::ControlRequest::kDrain:
          worker_->DrainAndEnd();
          response->mutable_drain();
          return absl::OkStatus();
        case proto::ControlRequest::kMetrics:
          MetricsToProto(worker_->registry_.Collect(), response->mutable_metrics());
          return absl::OkStatus();
        case proto::ControlRequest::COMMAND_NOT_SET:
          break;
      }
      return absl::InvalidArgumentError("command: none that this build knows");
    }

    Worker* const worker_;
  };

  class PrefillService final : public FleetService {
   public:
    explicit PrefillService(Worker* worker) : FleetService(worker->door_.get()) {
      AddMethod<proto::ToDecode>(kPrefillSessionMethod, [worker](auto* context) {
        return worker->decodes_->Open(context);
      });
    }
  };

  WorkerService worker_service;
  PrefillService prefill_service;
};

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const WorkerConfig& config,
                                                       const ExecutorFactory& make_executor) {
  std::unique_ptr<Worker> worker(new Worker);
  TANDEM_RETURN_IF_ERROR(worker->Open(config, make_executor));
  return worker;
}

TlsListener Worker::Tls(bool any_client) const {
  return {.identity = tls_ == nullptr ? nullptr : tls_->identity(), .any_client = any_client};
}

absl::Status Worker::OpenTransport(const WorkerConfig& config) {
  const bool on_host = config.device_pool == nullptr;
  if (config.device_copier != nullptr) {
    copier_ = std::make_unique<WatchedCopier>(config.device_copier, metrics_.get());
  }
  // From here on it is the transport's: `memory` says that no host address is meant.
  const KvPool pool = {.base = reinterpret_cast<std::byte*>(config.device_pool.address()),
                       .kv = config.engine.kv,
                       .memory = on_host ? MemoryKind::kHost : MemoryKind::kDevice,
                       .copier = copier_.get()};
  if (config.transport == "ucx") {
    const UcxOptions options = {.pool = pool,
                                .devices = config.ucx_devices,
                                .memory = config.ucx_memory,
                                .secret = secret_};
    TANDEM_ASSIGN_OR_RETURN(
        transport_, UcxTransport::Create(options, receiver_.get(), transport_events_.get()));
    return absl::OkStatus();
  }
  const bool nccl = config.transport == "nccl";
  if (config.transport != "grpc" && !nccl) {
    return absl::InvalidArgumentError(
        absl::StrFormat("transport: \"%s\", want \"ucx\", \"grpc\" or \"nccl\"", config.transport));
  }
  auto carrier = std::make_unique<GrpcFrameCarrier>(GrpcFrameOptions{
      .payload_bytes = nccl ? NcclTransport::kMaxPayloadBytes : config.engine.kv.block_bytes,
      .liveness_scale = config.liveness_scale,
      .door = door_.get(),
      .secret = secret_,
      .tls = tls_.get()});
  kv_service_ = carrier->service();
  if (nccl) {
    TANDEM_ASSIGN_OR_RETURN(
        transport_, NcclTransport::Create({.pool = pool, .api = config.nccl}, std::move(carrier),
                                          receiver_.get(), transport_events_.get()));
  } else {
    TANDEM_ASSIGN_OR_RETURN(transport_,
                            StreamTransport::Create(pool, std::move(carrier), receiver_.get(),
                                                    transport_events_.get()));
  }
  return absl::OkStatus();
}

absl::Status Worker::OpenServer(const WorkerConfig& config) {
  const std::chrono::milliseconds keepalive(KeepaliveMs(config.liveness_scale));
  const auto ready = [this] { return ready_.load(); };
  // "" and "tandem.v1.Worker" serve while the engine makes progress and accepts attempts
  // (readiness); "liveness" serves while the process runs.
  const GatedServerOptions options{
      .gate = {.address = config.listen,
               .tls = Tls(/*any_client=*/false),
               .budget = memory_->budget(),
               .max_streams = kMaxPeerStreams,
               .max_connections = MaxConnections(kGateDescriptors),
               .awaits_proof = secret_.configured(),
               .keepalive_time = keepalive,
               .keepalive_timeout = keepalive,
               .unread_timeout = 2 * keepalive},
      .services = {"tandem.v1.Worker", "tandem.v1.Prefill", "tandem.v1.Kv", "tandem.v1.Fleet"},
      .health = {{"", ready}, {"tandem.v1.Worker", ready}, {"liveness", [] { return true; }}},
      .grace = Worker::kShutdownGrace};
  server_ = std::make_unique<GatedServer>(options, calls_.get());
  grpc::ServerBuilder builder;
  ConfigureServer(config.liveness_scale, &builder);
  builder.RegisterService(&services_->worker_service);
  builder.RegisterService(&services_->prefill_service);
  builder.RegisterService(door_->service());
  if (kv_service_ != nullptr) builder.RegisterService(kv_service_);
  loop_->Start();
  TANDEM_RETURN_IF_ERROR(server_->Open(&builder));
  door_->ListensOn(config.listen.starts_with(kUnixAddress) ? config.listen
                                                           : absl::StrFormat(":%d", port()));
  server_->Serve();
  return absl::OkStatus();
}

absl::Status Worker::Open(const WorkerConfig& config, const ExecutorFactory& make_executor) {
  on_drain_ = config.on_drain;
  secret_ = config.secret;
  TANDEM_ASSIGN_OR_RETURN(tls_, FleetTls::Open(config.tls));
  if (tls_ != nullptr) ShowInMetrics("fleet", tls_->identity(), &registry_);
  memory_ = std::make_unique<MemoryKeeper>(config.memory_limit_bytes, &registry_);
  calls_ = std::make_unique<OpenCalls>(
      memory_->budget(), OpenCalls::Options{.max_message_bytes = kMaxUnaryMessageBytes});
  prompts_ = std::make_unique<MemoryBudget>(config.memory_limit_bytes / kPromptsShare);
  door_ = std::make_unique<FleetDoor>(secret_, calls_.get());
  commands_ = std::make_unique<CommandQueue>(kMaxQueuedCommands);
  receiver_ = std::make_unique<KvReceiver>(config.engine.kv.block_bytes);
  const WorkerRegistration registration = RegistrationOf(config);
  metrics_ = std::make_unique<WorkerMetrics>(registration, config.backend, &registry_);
  transport_events_ = std::make_unique<TransportEvents>(commands_.get(), metrics_.get());
  TANDEM_RETURN_IF_ERROR(OpenTransport(config));
  TANDEM_ASSIGN_OR_RETURN(executor_, make_executor(transport_->pool()));

  EngineOptions engine = config.engine;
  engine.times = LivenessTimes::Scaled(config.liveness_scale);
  const PrefillHello hello{.terms = registration.terms, .worker = registration.worker};
  routers_ = std::make_unique<RouterSessions>(registration.worker.incarnation, calls_.get(),
                                              prompts_.get(), commands_.get());
  decodes_ = std::make_unique<DecodeSessions>(hello, calls_.get(), prompts_.get(), transport_.get(),
                                              commands_.get());
  prefills_ = std::make_unique<PrefillPeers>(hello, &secret_, tls_.get(), engine.vocab_size,
                                             config.liveness_scale, memory_->budget(),
                                             transport_.get(), commands_.get());
  watches_ = std::make_unique<WatchHub>(registration, calls_.get(), commands_.get());
  TANDEM_ASSIGN_OR_RETURN(loop_,
                          EngineLoop::Create(engine, {.commands = commands_.get(),
                                                      .executor = executor_.get(),
                                                      .receiver = receiver_.get(),
                                                      .leases = &leases_,
                                                      .routers = routers_.get(),
                                                      .decodes = decodes_.get(),
                                                      .prefills = prefills_.get(),
                                                      .watches = watches_.get(),
                                                      .metrics = metrics_.get(),
                                                      .backend = config.backend,
                                                      .copier = copier_.get(),
                                                      .on_broken = [this] { DrainAndEnd(); }}));

  services_ = std::make_unique<Services>(this);
  TANDEM_RETURN_IF_ERROR(OpenServer(config));
  timer_ = std::make_unique<LivenessTimer>(engine.times, LivenessParts{.engine = loop_.get(),
                                                                       .copier = copier_.get(),
                                                                       .prefills = prefills_.get(),
                                                                       .decodes = decodes_.get(),
                                                                       .watches = watches_.get(),
                                                                       .ready = &ready_,
                                                                       .on_hung = config.on_hung});
  return config.admin.has_value() ? OpenAdmin(config, engine.times) : absl::OkStatus();
}

absl::Status Worker::OpenAdmin(const WorkerConfig& config, const LivenessTimes& times) {
  const auto health = [this, hung_us = kHungStalls * times.engine_stalled_us] {
    const int64_t idle_us = loop_->Load().since_progress_us;
    return ProbeAnswer{.ok = idle_us < hung_us,
                       .json = absl::StrFormat("{\"status\":\"%s\",\"since_progress_ms\":%d}",
                                               idle_us < hung_us ? "ok" : "hung", idle_us / 1000)};
  };
  const auto ready = [this] {
    return ProbeAnswer{.ok = ready_, .json = ready_ ? "{\"ready\":true}" : "{\"ready\":false}"};
  };
  const auto metrics = [this, name = config.engine.self.name](const auto& done) {
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    AddLabel("worker", name, &families);
    done(std::make_shared<const std::string>(MetricsToText(families)));
  };
  admin_pages_ = std::make_unique<AdminPages>(AdminPagesParts{.address = *config.admin,
                                                              .health = health,
                                                              .ready = ready,
                                                              .metrics = metrics,
                                                              .fleet_metrics = nullptr});
  TANDEM_ASSIGN_OR_RETURN(admin_, HttpServer::Create({.address = *config.admin,
                                                      .tls = Tls(/*any_client=*/true),
                                                      .budget = memory_->budget(),
                                                      .max_connections = kMaxAdminConnections,
                                                      .num_threads = 1},
                                                     admin_pages_.get()));
  return absl::OkStatus();
}

Worker::~Worker() {
  admin_.reset();
  timer_.reset();
  const absl::Status leaving = absl::UnavailableError("the worker is leaving");
  if (watches_ != nullptr) watches_->CloseAll(leaving);
  if (routers_ != nullptr) routers_->CloseAll(leaving);
  if (decodes_ != nullptr) decodes_->CloseAll(leaving);
  if (server_ != nullptr) server_->Stop();
  if (loop_ != nullptr) loop_->Stop();
  prefills_.reset();  // Nobody dials any more.
  // The transport goes after its links and before what it reports to.
  server_.reset();
  services_.reset();
  decodes_.reset();
  loop_.reset();
  executor_.reset();
  transport_.reset();
}

int Worker::port() const { return server_->port(); }
int Worker::admin_port() const { return admin_ == nullptr ? 0 : admin_->port(); }
void Worker::Drain() {
  if (!drain_asked_.exchange(true)) commands_->PushAlways(DrainEngine{});
}

void Worker::DrainAndEnd() {
  Drain();
  if (on_drain_) on_drain_();
}

bool Worker::is_broken() const { return loop_->is_broken(); }

bool Worker::Drained() const {
  // Else routers would take it for lost.
  if (!loop_->drained() || !timer_->HasToldOfDrain() || !watches_->Flushed()) return false;
  return routers_->Flushed() && decodes_->Flushed() && prefills_->Flushed();
}

}  // namespace tandem
