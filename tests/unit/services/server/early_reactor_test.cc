#include "services/server/early_reactor.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
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
constexpr char kStreamMethod[] = "/test.Stream/SayTwice";
constexpr char kHearingMethod[] = "/test.Stream/Hear";

class Service final : public EarlyService {
 public:
  Service(OpenCalls* calls, std::function<void()> answer) : EarlyService(calls) {
    AddUnary<v1::FramesRequest, v1::FramesRequest>(
        kMethod, [answer = std::move(answer)](const auto&, v1::FramesRequest*) {
          answer();
          return absl::OkStatus();
        });
  }
};

// Answers its request twice, the second time when it is told to.
class TwoAnswers final : public EarlyReactor<v1::FramesRequest, v1::FramesRequest> {
 public:
  TwoAnswers(OpenCalls* calls, grpc::CallbackServerContext* context, TwoAnswers** made,
             std::atomic<int>* num_written)
      : EarlyReactor(calls, context), num_written_(num_written) {
    *made = this;
    AwaitRequest();
  }
  void SayAgain() { Write(&response_); }
  void OnDone() override { delete this; }

 private:
  void OnRequest(std::shared_ptr<const v1::FramesRequest>) override { Write(&response_); }
  void OnWritten(bool ok) override {
    if (++*num_written_ == 2) Finish(grpc::Status::OK);
  }

  std::atomic<int>* const num_written_;
  v1::FramesRequest response_;
};

// Hears what its client says after the request.
class Hearing final : public EarlyReactor<v1::FramesRequest, v1::FramesRequest> {
 public:
  Hearing(OpenCalls* calls, grpc::CallbackServerContext* context, std::atomic<int>* num_words)
      : EarlyReactor(calls, context), num_words_(num_words) {
    AwaitRequest();
  }
  void OnDone() override { delete this; }

 private:
  void OnRequest(std::shared_ptr<const v1::FramesRequest>) override { HearWords(); }
  void OnWord() override {
    if (++*num_words_ == 3) Finish(grpc::Status::OK);
  }

  std::atomic<int>* const num_words_;
};

class StreamService final : public EarlyService {
 public:
  explicit StreamService(OpenCalls* calls) : EarlyService(calls) {
    AddMethod<v1::FramesRequest>(kStreamMethod, [this, calls](auto* context) {
      return new TwoAnswers(calls, context, &call, &num_written);
    });
    AddMethod<v1::FramesRequest>(kHearingMethod, [this, calls](auto* context) {
      return new Hearing(calls, context, &num_words);
    });
  }
  TwoAnswers* call = nullptr;  // The last one.
  std::atomic<int> num_written{0};
  std::atomic<int> num_words{0};
};

// A call whose operations its client begins and waits for one by one.
class StepwiseCall {
 public:
  StepwiseCall(const std::string& target, const char* method) : stub_(DialControl(target, 1)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    EXPECT_TRUE(Done());
  }

  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return Done();
  }
  bool WritesDone() {
    call_->WritesDone(nullptr);
    return Done();
  }
  bool Read() {
    grpc::ByteBuffer answer;
    call_->Read(&answer, nullptr);
    return Done();
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    EXPECT_TRUE(Done());
    return status;
  }

 private:
  // The operation has ended, and has done what it should.
  bool Done() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class EarlyReactorTest : public testing::Test {
 protected:
  static constexpr int64_t kMaxBytes = 8 * kMiB;

  EarlyReactorTest() {
    grpc::ServerBuilder builder;
    ConfigureServer(1, &builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    builder.RegisterService(&streams_);
    server_ = builder.BuildAndStart();
  }
  ~EarlyReactorTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }
  // What a client hears that says `bytes`.
  grpc::Status Say(const std::string& bytes) {
    grpc::GenericStub stub(DialControl(target(), 1));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1), response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, kMethod, {}, &request, &response,
                   [&](grpc::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  }
  static std::string MessageOf(int64_t token_bytes) {
    v1::FramesRequest message;
    message.set_token(std::string(static_cast<size_t>(token_bytes), 't'));
    return message.SerializeAsString();
  }

  MemoryBudget budget_{64 * kMiB};
  OpenCalls calls_{&budget_, {.max_message_bytes = kMaxBytes}};
  int64_t held_ = 0;  // While it was answered.
  int num_answered_ = 0;
  Service service_{&calls_, [this] {
                     held_ = budget_.held_bytes();
                     ++num_answered_;
                   }};
  StreamService streams_{&calls_};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(EarlyReactorTest, AMessageIsChargedWhileItIsAnsweredAndNoLonger) {
  const int64_t before = budget_.held_bytes();
  constexpr int64_t kBytes = 6 * kMiB;  // More than gRPC itself would take.
  const grpc::Status status = Say(MessageOf(kBytes));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GE(held_, before + kCallBytes + kBytes);
  EXPECT_TRUE(Eventually([&] { return budget_.held_bytes() == before; }));
}

// gRPC itself lets as much in as the longest message of any method has.
TEST_F(EarlyReactorTest, AMessageIsNoLongerThanItsMethodAllows) {
  const grpc::Status status = Say(MessageOf(kMaxBytes));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find(std::to_string(kMaxBytes)), std::string::npos);
  EXPECT_EQ(num_answered_, 0);
}

TEST_F(EarlyReactorTest, ACallThatEndsWithoutItsMessageIsToldSo) {
  StepwiseCall call(target(), kMethod);
  EXPECT_TRUE(call.WritesDone());
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_EQ(num_answered_, 0);
}

// Its client may be slow to read what is written; what is being made it waits for.
TEST_F(EarlyReactorTest, BetweenItsAnswersACallGivesWayToNobody) {
  StepwiseCall call(target(), kStreamMethod);
  ASSERT_TRUE(call.Write(MessageOf(1)));
  ASSERT_TRUE(call.Read());
  ASSERT_TRUE(Eventually([&] { return streams_.num_written == 1; }));
  const auto rest = *budget_.Hold("rest", budget_.limit_bytes() - budget_.held_bytes());
  EXPECT_FALSE(budget_.Hold("another", kCallBytes / 2).ok());
  streams_.call->SayAgain();
  EXPECT_TRUE(call.Read());
  const grpc::Status status = call.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(budget_.num_cut(), 0);
}

TEST_F(EarlyReactorTest, WordsAreHeardAsLongAsTheyAreEmpty) {
  {
    StepwiseCall call(target(), kHearingMethod);
    ASSERT_TRUE(call.Write(MessageOf(1)));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(call.Write(""));
    EXPECT_TRUE(call.Finish().ok());
    EXPECT_EQ(streams_.num_words, 3);
  }
  StepwiseCall call(target(), kHearingMethod);
  ASSERT_TRUE(call.Write(MessageOf(1)));
  ASSERT_TRUE(call.Write(MessageOf(1)));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(streams_.num_words, 3);
}

TEST_F(EarlyReactorTest, AMessageThatWouldGrowIsNotParsed) {
  std::string unknown;
  for (int i = 0; i < kMiB; ++i) unknown += std::string("\x7a\0", 2);
  EXPECT_EQ(Say(unknown).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Say("\xff").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(num_answered_, 0);
}

}  // namespace
}  // namespace tandem
