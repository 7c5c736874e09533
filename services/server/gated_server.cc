#include "services/server/gated_server.h"

#include <utility>

#include "runtime/base/status_macros.h"
#include "services/server/channel.h"

namespace tandem {
namespace {

std::vector<std::string> WithHealth(std::vector<std::string> services) {
  services.emplace_back(grpc::health::v1::Health::service_full_name());
  return services;
}

}  // namespace

GatedServer::GatedServer(const GatedServerOptions& options, OpenCalls* calls)
    : options_(options),
      health_(options.health, calls),
      reflection_(WithHealth(options.services), calls, options.admission),
      unknown_(calls) {}

GatedServer::~GatedServer() { Stop(); }

absl::Status GatedServer::Open(grpc::ServerBuilder* builder) {
  TANDEM_ASSIGN_OR_RETURN(gate_, Http2Gate::Open(options_.gate));
  BoundServer(options_.gate.budget->limit_bytes(), options_.gate.max_streams, builder);
  builder->RegisterService(&health_);
  builder->RegisterService(&reflection_);
  builder->RegisterCallbackGenericService(&unknown_);
  server_ = builder->BuildAndStart();
  if (server_ == nullptr) return absl::UnavailableError("gRPC does not start");
  return absl::OkStatus();
}

void GatedServer::SayGoodbye() {
  gate_->StopAccepting();
  gate_->SayGoodbye();
}

void GatedServer::Stop(std::chrono::milliseconds grace) {
  health_.Stop();
  if (gate_ != nullptr) {
    gate_->StopAccepting();
    gate_->CloseIdle();
  }
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + grace);
    server_->Wait();
  }
  gate_.reset();
  server_.reset();
}

}  // namespace tandem
