#include "services/server/reflection_service.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tandem {
namespace {

using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

std::set<std::string> Files(const ServerReflectionResponse& response) {
  std::set<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.insert(file.name());
  }
  return names;
}

TEST(ReflectionServiceTest, TellsServicesAndFilesWithWhatTheyImport) {
  ServerReflectionRequest request;
  request.set_list_services("*");
  const ServerReflectionResponse listed = AnswerReflection({"tandem.v1.Worker"}, request);
  ASSERT_EQ(listed.list_services_response().service_size(), 1);
  EXPECT_EQ(listed.list_services_response().service(0).name(), "tandem.v1.Worker");
  request.set_file_containing_symbol("grpc.reflection.v1alpha.ServerReflection");
  EXPECT_EQ(Files(AnswerReflection({}, request)),
            std::set<std::string>{"grpc/reflection/v1alpha/reflection.proto"});
  request.set_file_by_filename("tandem/v1/worker.proto");
  const std::set<std::string> files = Files(AnswerReflection({}, request));
  EXPECT_TRUE(files.contains("tandem/v1/worker.proto") && files.contains("tandem/v1/common.proto"));
}

TEST(ReflectionServiceTest, WhatIsNotKnownIsAnError) {
  ServerReflectionRequest request;
  EXPECT_EQ(AnswerReflection({}, request).error_response().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_file_containing_symbol("tandem.v1.Nobody");
  const ServerReflectionResponse unknown = AnswerReflection({}, request);
  EXPECT_EQ(unknown.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(unknown.original_request().file_containing_symbol(), "tandem.v1.Nobody");
  request.set_all_extension_numbers_of_type("tandem.v1.Nobody");
  EXPECT_TRUE(AnswerReflection({}, request).has_error_response());
}

}  // namespace
}  // namespace tandem
