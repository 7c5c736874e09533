// A worker: one engine, its transport, and the services around it.

#ifndef TANDEM_SERVICES_WORKER_WORKER_H_
#define TANDEM_SERVICES_WORKER_WORKER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "kernels/api/device_ptr.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/fleet_secret.h"
#include "runtime/base/memory_budget.h"
#include "runtime/engine/engine.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/nccl/nccl_api.h"
#include "runtime/transport/ucx/ucx_memory.h"
#include "services/server/fleet_tls.h"
#include "services/server/listen_address.h"
#include "services/server/metrics_registry.h"
#include "services/worker/command_queue.h"

namespace tandem {

struct WorkerConfig {
  EngineOptions engine;             // Complete but for the times.
  WorkerRegistration registration;  // What `engine` and `transport` say is filled in.
  std::string listen = "127.0.0.1:0";
  std::optional<ListenAddress> admin;
  std::string transport;    // "ucx", "grpc" or "nccl".
  std::string ucx_devices;  // Empty: shared memory of this host only.
  UcxMemory ucx_memory;     // What `device_pool` is, if "ucx" moves it.
  // A KV pool in a device's memory, and who copies its blocks; both outlive the worker. Null: one
  // of the host's, which the transport allocates, as its peers may map it.
  DevicePtr<std::byte> device_pool;
  DeviceCopier* device_copier = nullptr;
  // What the executor computes on, for metrics; outlives the worker. Null: they say nothing of it.
  // Asked what it is when the worker is made, and what memory it has then and on the engine thread.
  const Backend* backend = nullptr;
  NcclApi* nccl = nullptr;  // The transport's, if it is "nccl"; outlives the worker.
  double liveness_scale = 1;
  FleetSecret secret;  // Proven by every internal call and KV link.
  FleetTlsFlags tls;   // For all that is said over gRPC, and for `admin`.
  // The worker drains and the process is to end, as SIGTERM ends it: Control.Drain came, perhaps
  // again, or it is broken. Any thread. Empty: it stays.
  std::function<void()> on_drain;
  // A step, or a copy of blocks, has no end, and the process is to end at once. Empty: it stays.
  std::function<void()> on_hung;
  int64_t memory_limit_bytes = int64_t{64} << 20;  // For what peers send and leave unread.
};

// Makes the executor over the transport's pool, which outlives it.
using ExecutorFactory =
    std::function<absl::StatusOr<std::unique_ptr<Executor>>(const KvPool& pool)>;

class EngineLoop;
class FleetDoor;
class LivenessTimer;

class Worker {
 public:
  // How long its server waits for calls to notice that it ends.
  static constexpr std::chrono::milliseconds kShutdownGrace{500};

  // Serves once it returns. InvalidArgument, ResourceExhausted or FailedPrecondition say what of
  // `config` this machine cannot do; Unavailable that the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const WorkerConfig& config,
                                                        const ExecutorFactory& make_executor);
  // Ends all sessions at once.
  ~Worker();

  int port() const;
  int admin_port() const;  // 0: there is none.

  // Refuses new attempts, ends what runs, serves what is being fetched. Any thread.
  void Drain();
  // Drained, and all has been written.
  bool Drained() const;
  // No step succeeds any more (Engine::is_broken), or its device is lost: it drains, to be
  // replaced.
  bool is_broken() const;

 private:
  class Services;

  Worker() = default;
  void DrainAndEnd();
  absl::Status Open(const WorkerConfig& config, const ExecutorFactory& make_executor);
  TlsListener Tls(bool any_client) const;
  absl::Status OpenTransport(const WorkerConfig& config);
  absl::Status OpenServer(const WorkerConfig& config);
  absl::Status OpenAdmin(const WorkerConfig& config, const LivenessTimes& times);

  // In the order of construction.
  MetricsRegistry registry_;
  FleetSecret secret_;
  std::unique_ptr<FleetTls> tls_;
  std::unique_ptr<class MemoryKeeper> memory_;
  std::unique_ptr<class OpenCalls> calls_;
  std::unique_ptr<MemoryBudget> prompts_;  // Outlives the commands and the engine.
  std::unique_ptr<FleetDoor> door_;
  std::unique_ptr<CommandQueue> commands_;
  std::unique_ptr<KvReceiver> receiver_;
  LeaseKeeper leases_;
  std::unique_ptr<class WorkerMetrics> metrics_;
  std::unique_ptr<class TransportEvents> transport_events_;
  std::unique_ptr<class WatchedCopier> copier_;
  std::unique_ptr<KvTransport> transport_;
  grpc::Service* kv_service_ = nullptr;  // The transport's, if it has one.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<class RouterSessions> routers_;
  std::unique_ptr<class DecodeSessions> decodes_;
  std::unique_ptr<class PrefillPeers> prefills_;
  std::unique_ptr<class WatchHub> watches_;
  std::unique_ptr<EngineLoop> loop_;
  std::atomic<bool> ready_{true};
  std::atomic<bool> drain_asked_{false};
  std::unique_ptr<Services> services_;
  std::unique_ptr<class GatedServer> server_;
  std::unique_ptr<LivenessTimer> timer_;
  std::unique_ptr<class AdminPages> admin_pages_;
  std::unique_ptr<class HttpServer> admin_;
  std::function<void()> on_drain_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_WORKER_H_
