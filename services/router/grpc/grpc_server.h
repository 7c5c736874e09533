// The public gRPC address: Inference, Control, grpc.health.v1 and reflection.

#ifndef TANDEM_SERVICES_ROUTER_GRPC_GRPC_SERVER_H_
#define TANDEM_SERVICES_ROUTER_GRPC_GRPC_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/memory_budget.h"
#include "services/router/call_starter.h"
#include "services/router/text_pool.h"
#include "services/server/api_keys.h"
#include "services/server/listen_address.h"
#include "services/server/tls_identity.h"

namespace tandem {

struct GrpcServerOptions {
  ListenAddress address;
  TlsListener tls;
  MemoryBudget* budget = nullptr;  // Outlives the server.
  std::string instance_id;
  const ApiKeys* keys = nullptr;  // Callers must have one; null: they need none.
  std::function<bool()> ready;    // Shown by the health service. Any thread.
};

class GrpcServer {
 public:
  // Serves from now on. What is borrowed outlives it. Unavailable if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(const GrpcServerOptions& options,
                                                            CallStarter* starter, TextPool* pool);
  ~GrpcServer();  // Stop, within kFlushTimeout.

  int port() const;
  void BeginDrain();  // GatedServer::SayGoodbye.
  // After it: clients have heard it, or had their time, and no call is being answered.
  bool Drained() const;
  // Takes no call any more. Answers that are complete have `flush` to be sent; cancels what runs.
  void Stop(std::chrono::milliseconds flush);

 private:
  class Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GRPC_GRPC_SERVER_H_
