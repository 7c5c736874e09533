#include "services/router/grpc/grpc_server.h"

#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "grpc/health/v1/health.grpc.pb.h"
#include "runtime/base/status_macros.h"
#include "services/router/api_limits.h"
#include "services/router/grpc/control_service.h"
#include "services/router/grpc/inference_service.h"
#include "services/server/channel.h"
#include "services/server/health_service.h"
#include "services/server/http2_gate.h"
#include "services/server/open_calls.h"
#include "services/server/reflection_service.h"

namespace tandem {
namespace {

// Clients may keep idle connections alive this often.
constexpr int kMinPingIntervalMs = 1000;

int Ms(std::chrono::milliseconds time) { return static_cast<int>(time.count()); }

}  // namespace

class GrpcServer::Impl {
 public:
  Impl(const GrpcServerOptions& options, Generator* generator, TextPool* pool)
      : calls_(options.budget, {.max_message_bytes = kMaxGrpcMessageBytes,
                                .message_timeout = kBodyTimeout,
                                .write_timeout = kWriteTimeout}),
        inference_(generator, pool, &calls_),
        control_(generator, options.instance_id, options.ready, &calls_),
        health_({{"", options.ready},
                 {v1::Inference::service_full_name(), options.ready},
                 {v1::Control::service_full_name(), options.ready}},
                &calls_),
        reflection_({v1::Inference::service_full_name(), v1::Control::service_full_name(),
                     grpc::health::v1::Health::service_full_name()},
                    &calls_),
        unknown_(&calls_) {}

  ~Impl() {
    health_.Stop();
    if (gate_ != nullptr) gate_->StopAccepting();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kFlushTimeout);
    gate_.reset();
  }

  absl::Status Listen(const GrpcServerOptions& options) {
    TANDEM_ASSIGN_OR_RETURN(gate_, Http2Gate::Open({.address = options.address.ToString(),
                                                    .budget = options.budget,
                                                    .max_streams = kMaxGrpcStreams,
                                                    .keepalive_time = kKeepaliveTime,
                                                    .keepalive_timeout = kKeepaliveTimeout}));
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
    BoundServer(options.budget->limit_bytes(), kMaxGrpcStreams, &builder);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMaxHeaderBytes));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Ms(kKeepaliveTime));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Ms(kKeepaliveTimeout));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.RegisterService(&inference_);
    builder.RegisterService(&control_);
    builder.RegisterService(&health_);
    builder.RegisterService(&reflection_);
    builder.RegisterCallbackGenericService(&unknown_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("gRPC does not start");
    gate_->Serve(server_.get());
    return absl::OkStatus();
  }

  int port() const { return gate_->port(); }
  bool idle() const { return inference_.num_calls() == 0; }

 private:
  OpenCalls calls_;
  InferenceService inference_;
  ControlService control_;
  HealthService health_;
  ReflectionService reflection_;
  UnknownMethods unknown_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Http2Gate> gate_;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const GrpcServerOptions& options,
                                                               Generator* generator,
                                                               TextPool* pool) {
  auto impl = std::make_unique<Impl>(options, generator, pool);
  if (absl::Status status = impl->Listen(options); !status.ok()) return status;
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;
int GrpcServer::port() const { return impl_->port(); }
bool GrpcServer::idle() const { return impl_->idle(); }

}  // namespace tandem
