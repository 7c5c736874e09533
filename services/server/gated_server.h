// A gRPC server of ours as a whole: its services behind the gate, beside health, reflection and the
// refusal of methods that there are not.

#ifndef TANDEM_SERVICES_SERVER_GATED_SERVER_H_
#define TANDEM_SERVICES_SERVER_GATED_SERVER_H_

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/server/early_reactor.h"
#include "services/server/health_service.h"
#include "services/server/http2_gate.h"
#include "services/server/open_calls.h"
#include "services/server/reflection_service.h"

namespace tandem {

struct GatedServerOptions {
  Http2GateOptions gate;
  std::vector<std::string> services;  // Full names, for reflection.
  std::map<std::string, HealthService::Ready> health;
  Admission admission;                 // To reflection; null: for everybody.
  std::chrono::milliseconds grace{0};  // For the calls that are open when it stops.
};

class GatedServer {
 public:
  // `calls` and what `builder` was given in Open outlive this.
  GatedServer(const GatedServerOptions& options, OpenCalls* calls);
  ~GatedServer();  // Stop.

  // Bound, and deaf until Serve. `builder` has the services, and settings beside those of
  // BoundServer. Unavailable if the address cannot be.
  absl::Status Open(grpc::ServerBuilder* builder);
  void Serve() { gate_->Serve(server_.get()); }
  // Takes no connection any more, and has clients begin their next calls elsewhere. What has come
  // is served as ever. Before Stop.
  void SayGoodbye();
  // They know, or have had kGoodbyeTimeout; and somebody of ours serves what they began before.
  bool goodbye_over() const { return gate_->goodbye_over(); }
  // Takes no call any more and ends those that are open, within `grace` and kGateFlushTimeout; when
  // it returns no reaction runs, and what was sent is with the kernel, as far as clients read.
  void Stop(std::chrono::milliseconds grace);
  void Stop() { Stop(options_.grace); }

  int port() const { return gate_->port(); }

 private:
  const GatedServerOptions options_;
  HealthService health_;
  ReflectionService reflection_;
  UnknownMethods unknown_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Http2Gate> gate_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_GATED_SERVER_H_
