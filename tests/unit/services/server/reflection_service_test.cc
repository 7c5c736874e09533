#include "services/server/reflection_service.h"

#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/server/channel.h"
#include "tests/support/eventually.h"

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
  request.mutable_file_containing_extension()->set_containing_type("tandem.v1.Worker");
  EXPECT_TRUE(AnswerReflection({}, request).has_error_response());
}

TEST(ReflectionServiceTest, AnAnswerNamesItsHost) {
  ServerReflectionRequest request;
  request.set_host("here");
  EXPECT_EQ(AnswerReflection({}, request).valid_host(), "here");
}

// The service behind a server.
class ReflectionStreamTest : public testing::Test {
 protected:
  void Start(Admission admission = nullptr) {
    service_ = std::make_unique<ReflectionService>(std::vector<std::string>{"tandem.v1.Worker"},
                                                   &calls_, std::move(admission));
    grpc::ServerBuilder builder;
    ConfigureServer(1, &builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream_ = grpc::reflection::v1alpha::ServerReflection::NewStub(
                  DialControl("127.0.0.1:" + std::to_string(port), 1))
                  ->ServerReflectionInfo(&context_);
  }
  ~ReflectionStreamTest() override {
    context_.TryCancel();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  grpc::StatusCode AskForFile(const std::string& name) {
    ServerReflectionRequest request;
    request.set_file_by_filename(name);
    stream_->Write(request);
    ServerReflectionResponse response;
    EXPECT_FALSE(stream_->Read(&response));
    return stream_->Finish().error_code();
  }

  MemoryBudget budget_{int64_t{64} << 20};
  OpenCalls calls_{&budget_, {.max_message_bytes = 1 << 20}};
  const int64_t idle_bytes_ = budget_.held_bytes();
  std::unique_ptr<ReflectionService> service_;
  std::unique_ptr<grpc::Server> server_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>>
      stream_;
};

TEST_F(ReflectionStreamTest, OneAnswerFollowsTheOtherAndNothingIsKept) {
  Start();
  ServerReflectionRequest request;
  request.set_list_services("*");
  ServerReflectionResponse response;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(stream_->Write(request));
    ASSERT_TRUE(stream_->Read(&response));
    ASSERT_EQ(response.list_services_response().service_size(), 2);
    EXPECT_EQ(response.list_services_response().service(0).name(), "tandem.v1.Worker");
    EXPECT_EQ(response.list_services_response().service(1).name(),
              "grpc.reflection.v1alpha.ServerReflection");
  }
  request.set_file_by_filename("tandem/v1/worker.proto");
  ASSERT_TRUE(stream_->Write(request));
  ASSERT_TRUE(stream_->Read(&response));
  EXPECT_GE(response.file_descriptor_response().file_descriptor_proto_size(), 2);
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == idle_bytes_ + kCallBytes; }));
  stream_->WritesDone();
  EXPECT_FALSE(stream_->Read(&response));
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == idle_bytes_; }));
}

TEST_F(ReflectionStreamTest, ALongNameIsRefused) {
  Start();
  EXPECT_EQ(AskForFile(std::string(5000, 'n')), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ReflectionStreamTest, AnAnswerIsChargedToWhoAsks) {
  Start();
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == idle_bytes_ + kCallBytes; }));
  const auto others = budget_.Hold("another", budget_.limit_bytes() - budget_.held_bytes() - 4096);
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_EQ(AskForFile("tandem/v1/worker.proto"), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ReflectionStreamTest, WhoIsNotAdmittedIsToldNothing) {
  Start([](grpc::CallbackServerContext*, std::string_view method) {
    return absl::UnauthenticatedError(std::string(method));
  });
  EXPECT_EQ(AskForFile("tandem/v1/worker.proto"), grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace tandem
