// Streams one answer over gRPC and prints its text.
//
//   generate_example 127.0.0.1:9000 "And God said"

#include <grpcpp/grpcpp.h>

#include <iostream>
#include <memory>

#include "tandem/v1/inference.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " ADDRESS PROMPT\n";
    return 1;
  }
  const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  const std::unique_ptr<tandem::v1::Inference::Stub> stub = tandem::v1::Inference::NewStub(channel);

  tandem::v1::GenerateRequest request;  // No model: the one that is served.
  request.set_text(argv[2]);
  request.set_temperature(0);
  request.mutable_stopping()->set_max_new_tokens(16);

  // Leaving before Finish, or a deadline set here, aborts the request.
  grpc::ClientContext context;
  const auto reader = stub->GenerateStream(&context, request);
  tandem::v1::GenerateResponse response;
  while (reader->Read(&response)) {
    for (const auto& output : response.outputs()) std::cout << output.text() << std::flush;
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) {
    std::cerr << "error " << status.error_code() << ": " << status.error_message() << '\n';
    return 1;
  }
  std::cout << '\n';
  return 0;
}
