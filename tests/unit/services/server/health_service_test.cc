#include "services/server/health_service.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "services/server/channel.h"
#include "tests/support/eventually.h"

namespace tandem {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthServiceTest : public testing::Test {
 protected:
  HealthServiceTest() {
    grpc::ServerBuilder builder;
    ConfigureServer(1, &builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = DialControl("127.0.0.1:" + std::to_string(port), 1);
    stub_ = Health::NewStub(channel_);
  }
  ~HealthServiceTest() override {
    service_.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  struct Watch {
    HealthCheckResponse::ServingStatus Next() {
      HealthCheckResponse response;
      EXPECT_TRUE(reader->Read(&response));
      return response.status();
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader;
  };
  std::unique_ptr<Watch> Open(const std::string& service) {
    auto watch = std::make_unique<Watch>();
    watch->context.set_deadline(Deadline());
    HealthCheckRequest request;
    request.set_service(service);
    watch->reader = stub_->Watch(&watch->context, request);
    return watch;
  }
  static std::chrono::system_clock::time_point Deadline() {
    return std::chrono::system_clock::now() + std::chrono::seconds(30);
  }
  // The service looks at what it watches so many times more.
  void AwaitLooks(int num_looks) {
    const int before = num_looks_;
    EXPECT_TRUE(Eventually([&] { return num_looks_ >= before + num_looks; }));
  }

  MemoryBudget budget_{int64_t{64} << 20};
  OpenCalls calls_{&budget_, {.max_message_bytes = 1 << 20}};
  std::atomic<bool> ready_{true};
  std::atomic<int> num_looks_{0};
  HealthService service_{{{"", [] { return true; }},
                          {"service",
                           [this] {
                             ++num_looks_;
                             return ready_.load();
                           }}},
                         &calls_};
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(HealthServiceTest, ACheckSaysHowItIsNow) {
  HealthCheckResponse response;
  const auto check = [&](const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Check(&context, request, &response);
  };
  ASSERT_TRUE(check("service").ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  ready_ = false;
  ASSERT_TRUE(check("service").ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(check("").ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << "another one's";
  EXPECT_EQ(check("nobody").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthServiceTest, AWatchSaysEachChangeOnce) {
  const auto watch = Open("service");
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVING);
  for (int i = 0; i < 2; ++i) {
    AwaitLooks(3);
    ready_ = false;
    EXPECT_EQ(watch->Next(), HealthCheckResponse::NOT_SERVING);
    AwaitLooks(3);
    ready_ = true;
    EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVING);
  }
}

TEST_F(HealthServiceTest, AWatchOfWhatThereIsNotStays) {
  const auto watch = Open("nobody");
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  const auto other = Open("service");
  EXPECT_EQ(other->Next(), HealthCheckResponse::SERVING);
  AwaitLooks(3);
  service_.Stop();
  EXPECT_EQ(watch->reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Its message may come later than its headers.
TEST_F(HealthServiceTest, AWatchIsToldNothingBeforeItHasSaidOfWhat) {
  const auto other = Open("service");
  EXPECT_EQ(other->Next(), HealthCheckResponse::SERVING);
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/grpc.health.v1.Health/Watch", &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  EXPECT_TRUE(done());
  AwaitLooks(3);
  HealthCheckRequest request;
  request.set_service("service");
  const grpc::Slice slice(request.SerializeAsString());
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  EXPECT_TRUE(done());
  grpc::ByteBuffer received;
  call->Read(&received, nullptr);
  EXPECT_TRUE(done());
  HealthCheckResponse response;
  EXPECT_TRUE(
      grpc::SerializationTraits<HealthCheckResponse>::Deserialize(&received, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
}

TEST_F(HealthServiceTest, AnEndEndsEveryWatchAndThoseThatComeLater) {
  const auto first = Open("service"), second = Open("");
  first->Next();
  second->Next();
  service_.Stop();
  for (Watch* const watch : {first.get(), second.get()}) {
    const grpc::Status status = watch->reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), "the process ends");
  }
  EXPECT_EQ(Open("service")->reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(HealthServiceTest, WhoseClientIsGoneIsNotKept) {
  const int64_t before = budget_.held_bytes();
  const auto watch = Open("service");
  watch->Next();
  EXPECT_GE(budget_.held_bytes(), before + kCallBytes);
  watch->context.TryCancel();
  EXPECT_EQ(watch->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == before; }));
  const int looks = num_looks_;
  const auto other = Open("");
  other->Next();
  EXPECT_LE(num_looks_, looks + 1) << "nobody watches it";
}

}  // namespace
}  // namespace tandem
