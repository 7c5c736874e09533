// gRPC's reflection: what grpcurl and its like ask to learn the methods of a server.

#ifndef TANDEM_SERVICES_SERVER_REFLECTION_SERVICE_H_
#define TANDEM_SERVICES_SERVER_REFLECTION_SERVICE_H_

#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "services/server/early_reactor.h"

namespace tandem {

// `services` are the full names of those that the server has. What is not known, extensions among
// it, is an error in the answer.
grpc::reflection::v1alpha::ServerReflectionResponse AnswerReflection(
    const std::vector<std::string>& services,
    const grpc::reflection::v1alpha::ServerReflectionRequest& request);

class ReflectionService final : public EarlyService {
 public:
  // Borrows `calls`. Of `services` and this one.
  ReflectionService(std::vector<std::string> services, OpenCalls* calls, Admission admission);

 private:
  class Stream;

  std::vector<std::string> services_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_REFLECTION_SERVICE_H_
