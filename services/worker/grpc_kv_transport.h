// KvTransport over gRPC streams of tandem.v1.Kv.
//
// The receiver dials (a connection of its own, so that blocks never share one with control) and
// names the link by a token that it drew; frames come down the stream. A block is handed to gRPC
// as a slice that points into the pool; the slice's destruction is the proof that it has been read.
// HTTP/2 flow control bounds what is on the way: one message of a link is inside gRPC at a time.

#ifndef TANDEM_SERVICES_WORKER_GRPC_KV_TRANSPORT_H_
#define TANDEM_SERVICES_WORKER_GRPC_KV_TRANSPORT_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "runtime/transport/kv_transport.h"
#include "services/server/fleet_auth.h"
#include "services/server/fleet_tls.h"
#include "tandem/v1/kv.grpc.pb.h"

namespace tandem {

struct GrpcKvOptions {
  int64_t block_bytes = 0;
  int32_t num_blocks = 0;
  double liveness_scale = 1;
  FleetDoor* door = nullptr;  // Outlives the transport.
  FleetSecret secret;
  const FleetTls* tls = nullptr;  // Outlives the transport; null: in the clear.
};

class GrpcKvTransport final : public KvTransport {
 public:
  // ResourceExhausted if the pool cannot be mapped.
  static absl::StatusOr<std::unique_ptr<GrpcKvTransport>> Create(const GrpcKvOptions& options,
                                                                 KvReceiver* receiver,
                                                                 Listener* listener);
  // After the server that `service` was registered with has shut down. Waits for gRPC to let go
  // of the pool.
  ~GrpcKvTransport() override;

  // To be registered with the worker's server; lives as long as this.
  grpc::Service* service() { return &service_; }

  std::string_view name() const override { return "grpc"; }
  const KvPool& pool() const override { return pool_; }
  absl::StatusOr<std::unique_ptr<KvInbound>> OpenInbound(const std::string& peer,
                                                         const std::string& peer_target,
                                                         LostCallback on_lost) override;
  absl::StatusOr<std::unique_ptr<KvOutbound>> OpenOutbound(const std::string& peer,
                                                           const std::string& receiver_address,
                                                           LostCallback on_lost) override;

 private:
  class Service final : public FleetService {
   public:
    explicit Service(GrpcKvTransport* transport);
  };
  class SendLink;    // Outlives its handle until its last slice is gone.
  class SendStream;  // The server's end of the RPC.
  class Outbound;
  class ReceiveStream;  // The client's end of the RPC.
  class Inbound;
  struct Completion;

  GrpcKvTransport(const GrpcKvOptions& options, const KvPool& pool, KvReceiver* receiver,
                  Listener* listener);

  // Counts what gRPC holds of ours: streams and slices.
  void Retain() EXCLUDES(mu_);
  void Release() EXCLUDES(mu_);
  // The link that waits for a stream, which it waits for no more. Null if there is none.
  std::shared_ptr<SendLink> Forget(const std::string& token) EXCLUDES(mu_);

  const GrpcKvOptions options_;
  const KvPool pool_;
  KvReceiver* const receiver_;
  Listener* const listener_;
  const std::vector<std::byte> probe_;  // A block of zeros.
  Service service_;

  Mutex mu_;
  CondVar released_;
  int64_t retained_ GUARDED_BY(mu_) = 0;
  std::map<std::string, std::shared_ptr<SendLink>> awaited_ GUARDED_BY(mu_);  // By token.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_GRPC_KV_TRANSPORT_H_
