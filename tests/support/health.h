// Asks grpc.health.v1 without its generated code: the two messages are one field each.

#ifndef TANDEM_TESTS_SUPPORT_HEALTH_H_
#define TANDEM_TESTS_SUPPORT_HEALTH_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <future>
#include <string>

namespace tandem {

// "SERVING", "NOT_SERVING", "UNKNOWN", or the error.
inline std::string HealthOf(const std::string& address, const std::string& service) {
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  std::string request;
  if (!service.empty()) {
    request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  }
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &message, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  if (!status.ok()) return status.error_message();
  grpc::Slice answer;
  if (!response.DumpToSingleSlice(&answer).ok() || answer.size() != 2) return "UNKNOWN";
  return answer.begin()[1] == 1 ? "SERVING" : answer.begin()[1] == 2 ? "NOT_SERVING" : "UNKNOWN";
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_HEALTH_H_
