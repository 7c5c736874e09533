// Streams of frames as gRPC's, of tandem.v1.Kv. HTTP/2 flow control bounds what is on the way.

#ifndef TANDEM_SERVICES_WORKER_GRPC_FRAME_CARRIER_H_
#define TANDEM_SERVICES_WORKER_GRPC_FRAME_CARRIER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

#include "runtime/transport/stream/frame_stream.h"
#include "services/server/fleet_auth.h"
#include "services/server/fleet_tls.h"

namespace tandem {

struct GrpcFrameOptions {
  int64_t payload_bytes = 0;  // of a frame, at most
  double liveness_scale = 1;
  FleetDoor* door = nullptr;  // Outlives the carrier.
  FleetSecret secret;
  const FleetTls* tls = nullptr;  // Outlives the carrier; null: in the clear.
};

class GrpcFrameCarrier final : public FrameCarrier {
 public:
  explicit GrpcFrameCarrier(const GrpcFrameOptions& options) : options_(options), service_(this) {}

  // To be registered with the worker's server, which shuts down before the transport goes.
  grpc::Service* service() { return &service_; }

  std::string_view name() const override { return "grpc"; }
  void Serve(FrameServer* server) override { server_ = server; }
  std::shared_ptr<DialledStream> Dial(const std::string& target, const std::string& token,
                                      std::shared_ptr<FrameTarget> to) override;

 private:
  class Service final : public FleetService {
   public:
    explicit Service(GrpcFrameCarrier* carrier);
  };
  class Sending;    // The server's end of the RPC.
  class Receiving;  // The client's end of the RPC.

  const GrpcFrameOptions options_;
  Service service_;
  FrameServer* server_ = nullptr;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_GRPC_FRAME_CARRIER_H_
