#include "services/router/grpc/grpc_server.h"

#include <grpcpp/server_builder.h>

#include <chrono>
#include <iterator>
#include <utility>

#include "runtime/base/status_macros.h"
#include "services/router/api_limits.h"
#include "services/router/grpc/control_service.h"
#include "services/router/grpc/inference_service.h"
#include "services/server/channel.h"
#include "services/server/gated_server.h"
#include "services/server/machine_limits.h"
#include "services/server/open_calls.h"

namespace tandem {
namespace {

// Clients may keep idle connections alive this often.
constexpr std::chrono::seconds kMinPingInterval{1};

// Admits callers with a key to everything but health, which load balancers ask for.
Admission AdmissionOf(const ApiKeys* keys) {
  if (keys == nullptr) return nullptr;
  return [keys](grpc::CallbackServerContext* context, std::string_view) {
    const auto given = context->client_metadata().equal_range("authorization");
    if (given.first == given.second || std::next(given.first) != given.second) {
      return keys->Check("");
    }
    return keys->Check({given.first->second.data(), given.first->second.size()});
  };
}

}  // namespace

class GrpcServer::Impl {
 public:
  Impl(const GrpcServerOptions& options, CallStarter* starter, TextPool* pool)
      : calls_(options.budget, {.max_message_bytes = kMaxGrpcMessageBytes,
                                .message_timeout = kBodyTimeout,
                                .write_timeout = kWriteTimeout}),
        inference_(starter, pool, &calls_, AdmissionOf(options.keys)),
        control_(starter, options.instance_id, options.ready, &calls_, AdmissionOf(options.keys)),
        server_({.gate = {.address = options.address.ToString(),
                          .tls = options.tls,
                          .budget = options.budget,
                          .max_streams = kMaxGrpcStreams,
                          .max_connections = MaxConnections(kGateDescriptors),
                          .keepalive_time = kKeepaliveTime,
                          .keepalive_timeout = kKeepaliveTimeout,
                          .unread_timeout = kWriteTimeout},
                 .services = {v1::Inference::service_full_name(), v1::Control::service_full_name()},
                 .health = {{"", options.ready},
                            {v1::Inference::service_full_name(), options.ready},
                            {v1::Control::service_full_name(), options.ready}},
                 .admission = AdmissionOf(options.keys),
                 .grace = kFlushTimeout},
                &calls_) {}

  absl::Status Listen() {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMaxHeaderBytes));
    SetKeepalive(kKeepaliveTime, kKeepaliveTimeout, kMinPingInterval, &builder);
    builder.RegisterService(&inference_);
    builder.RegisterService(&control_);
    TANDEM_RETURN_IF_ERROR(server_.Open(&builder));
    server_.Serve();
    return absl::OkStatus();
  }

  int port() const { return server_.port(); }
  void BeginDrain() { server_.SayGoodbye(); }
  bool Drained() const { return server_.goodbye_over() && inference_.num_calls() == 0; }
  void Stop(std::chrono::milliseconds flush) { server_.Stop(flush); }

 private:
  OpenCalls calls_;
  InferenceService inference_;
  ControlService control_;
  GatedServer server_;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const GrpcServerOptions& options,
                                                               CallStarter* starter,
                                                               TextPool* pool) {
  auto impl = std::make_unique<Impl>(options, starter, pool);
  if (absl::Status status = impl->Listen(); !status.ok()) return status;
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;
int GrpcServer::port() const { return impl_->port(); }
void GrpcServer::BeginDrain() { impl_->BeginDrain(); }
bool GrpcServer::Drained() const { return impl_->Drained(); }
void GrpcServer::Stop(std::chrono::milliseconds flush) { impl_->Stop(flush); }

}  // namespace tandem
