// What is served here, and the end of a request by its label.

#ifndef TANDEM_SERVICES_ROUTER_GRPC_CONTROL_SERVICE_H_
#define TANDEM_SERVICES_ROUTER_GRPC_CONTROL_SERVICE_H_

#include <functional>
#include <string>

#include "services/router/call_starter.h"
#include "services/server/early_reactor.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem {

class ControlService final : public EarlyService {
 public:
  // Borrows both.
  ControlService(CallStarter* starter, std::string instance_id, std::function<bool()> ready,
                 OpenCalls* calls, Admission admission);

 private:
  void DescribeServer(v1::ServerInfo* response) const;
  void DescribeModel(v1::ModelInfo* response) const;

  CallStarter* const starter_;
  const std::string instance_id_;
  const std::function<bool()> ready_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_GRPC_CONTROL_SERVICE_H_
