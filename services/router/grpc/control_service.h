// What is served here, and the end of a request by its label.

#ifndef TANDEM_SERVICES_ROUTER_GRPC_CONTROL_SERVICE_H_
#define TANDEM_SERVICES_ROUTER_GRPC_CONTROL_SERVICE_H_

#include <functional>
#include <string>

#include "services/router/generator.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem {

class ControlService final : public v1::Control::CallbackService {
 public:
  ControlService(Generator* generator, std::string instance_id, std::function<bool()> ready)
      : generator_(generator), instance_id_(std::move(instance_id)), ready_(std::move(ready)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::ModelInfo* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  Generator* const generator_;
  const std::string instance_id_;
  const std::function<bool()> ready_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GRPC_CONTROL_SERVICE_H_
