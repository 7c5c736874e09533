#include "services/server/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>

namespace tandem {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

grpc::ByteBuffer Zeros() {
  const grpc::Slice slice(std::string(kMiB, '\0'));
  return {&slice, 1};
}

// Answers every call with a message that is small once it is compressed.
class Answering final : public grpc::CallbackGenericService {
 public:
  Answering(bool bounded, grpc_compression_algorithm algorithm) : algorithm_(algorithm) {
    grpc::ServerBuilder builder;
    if (bounded) BoundServer(64 * kMiB, 128, &builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~Answering() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  std::atomic<size_t> most_read{0};  // The longest message that came.

 private:
  class Answer final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Answer(std::atomic<size_t>* most_read) : most_read_(most_read) {
      StartRead(&request_);
    }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      *most_read_ = std::max(most_read_->load(), request_.Length());
      StartWriteAndFinish(&response_, {}, grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    std::atomic<size_t>* const most_read_;
    grpc::ByteBuffer request_;
    const grpc::ByteBuffer response_ = Zeros();
  };

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    context->set_compression_algorithm(algorithm_);
    return new Answer(&most_read);
  }

  const grpc_compression_algorithm algorithm_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

struct Heard {
  grpc::Status status;
  size_t bytes = 0;
};

Heard Call(const std::shared_ptr<grpc::Channel>& channel, grpc_compression_algorithm algorithm) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  context.set_compression_algorithm(algorithm);
  const grpc::ByteBuffer request = Zeros();
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/test.Channel/Say", {}, &request, &response,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  Heard heard{.status = done.get_future().get()};
  if (heard.status.ok()) heard.bytes = response.Length();
  return heard;
}

std::shared_ptr<grpc::Channel> DialAsOthersDo(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

TEST(ChannelTest, WhatAServerCompressesIsNotInflated) {
  Answering server(/*bounded=*/false, GRPC_COMPRESS_GZIP);
  EXPECT_EQ(Call(DialAsOthersDo(server.address()), GRPC_COMPRESS_NONE).bytes, kMiB);
  for (const auto& channel :
       {DialControl(server.address(), 20), DialKv(server.address(), kMiB, 20)}) {
    EXPECT_LT(Call(channel, GRPC_COMPRESS_NONE).bytes, kMiB / 100);
  }
}

TEST(ChannelTest, WhatAClientCompressesIsNotInflated) {
  Answering trusting(/*bounded=*/false, GRPC_COMPRESS_GZIP);
  EXPECT_TRUE(Call(DialAsOthersDo(trusting.address()), GRPC_COMPRESS_GZIP).status.ok());
  EXPECT_EQ(trusting.most_read, kMiB);
  Answering server(/*bounded=*/true, GRPC_COMPRESS_GZIP);
  const Heard heard = Call(DialAsOthersDo(server.address()), GRPC_COMPRESS_GZIP);
  EXPECT_EQ(heard.status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
      << heard.status.error_message();
  EXPECT_LT(server.most_read, kMiB);
}

// What a peer may say is bounded, whoever it is.
TEST(ChannelTest, AnAnswerMayBeSoLongAndNoLonger) {
  Answering server(/*bounded=*/false, GRPC_COMPRESS_NONE);
  const std::string address = server.address();
  constexpr int64_t kFrameBytes = 64;  // What a frame has beside its block.
  EXPECT_EQ(Call(DialControl(address, 20, kMiB), GRPC_COMPRESS_NONE).bytes, kMiB);
  EXPECT_EQ(Call(DialKv(address, kMiB - kFrameBytes, 20), GRPC_COMPRESS_NONE).bytes, kMiB);
  for (const auto& channel :
       {DialControl(address, 20, kMiB - 1), DialKv(address, kMiB - kFrameBytes - 1, 20)}) {
    EXPECT_EQ(Call(channel, GRPC_COMPRESS_NONE).status.error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

// A proxy would see the fleet's secrets and prompts.
TEST(ChannelTest, OurOwnProcessesAreReachedThroughNoProxy) {
  setenv("grpc_proxy", "http://127.0.0.1:1", 1);
  setenv("no_grpc_proxy", "", 1);  // Whatever no_proxy is on this machine.
  Answering server(/*bounded=*/false, GRPC_COMPRESS_GZIP);
  const auto others = DialAsOthersDo(server.address());
  const auto control = DialControl(server.address(), 20), kv = DialKv(server.address(), kMiB, 20);
  unsetenv("grpc_proxy");
  unsetenv("no_grpc_proxy");
  EXPECT_FALSE(Call(others, GRPC_COMPRESS_NONE).status.ok());
  for (const auto& channel : {control, kv}) {
    const grpc::Status status = Call(channel, GRPC_COMPRESS_NONE).status;
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

}  // namespace
}  // namespace tandem
