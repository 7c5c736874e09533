#include "services/server/early_reactor.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "services/server/channel.h"
#include "tandem/v1/kv.grpc.pb.h"
#include "tests/support/eventually.h"

namespace tandem {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kMethod[] = "/test.Early/Say";

class Service final : public EarlyService {
 public:
  Service(OpenCalls* calls, std::function<void()> answer) {
    AddUnary<v1::FramesRequest, v1::FramesRequest>(
        calls, kMethod, [answer = std::move(answer)](const auto&, v1::FramesRequest*) {
          answer();
          return absl::OkStatus();
        });
  }
};

TEST(EarlyReactorTest, AMessageIsChargedWhileItIsAnsweredAndNoLonger) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, {.max_message_bytes = 4 * kMiB});
  const int64_t before = budget.held_bytes();
  int64_t held = 0;
  Service service(&calls, [&] { held = budget.held_bytes(); });
  grpc::ServerBuilder builder;
  ConfigureServer(1, &builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  grpc::GenericStub stub(DialControl("127.0.0.1:" + std::to_string(port), 1));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::FramesRequest message;
  message.set_token(std::string(kMiB, 't'));
  const grpc::Slice slice(message.SerializeAsString());
  grpc::ByteBuffer request(&slice, 1), response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, kMethod, {}, &request, &response,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GE(held, before + kCallBytes + kMiB);
  EXPECT_TRUE(Eventually([&] { return budget.held_bytes() == before; }));
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace tandem
