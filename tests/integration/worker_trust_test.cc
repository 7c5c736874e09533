// Workers with a fleet's secret, over both transports: whom they serve, whom they tell nothing, and
// how much room a peer has.

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/server/channel.h"
#include "services/server/convert.h"
#include "services/server/fleet_auth.h"
#include "services/server/limits.h"
#include "services/server/open_calls.h"
#include "services/worker/worker.h"
#include "tandem/v1/kv.grpc.pb.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/support/raw_http.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_door.h"
#include "tests/support/test_worker.h"

namespace tandem {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);
const std::string kSecretText(32, 's'), kNewText(32, 'n');

FleetSecret Secret(const std::string& text) { return *FleetSecret::Parse(text); }

struct Heard {
  std::vector<SampledToken> tokens;
  int32_t cached_tokens = 0;
  absl::Status ended;  // Or refused.
};

// A router with one Session.
class Router {
 public:
  Router(const TestWorker& worker, const FleetSecret& secret)
      : secret_(secret),
        channel_(DialControl(worker.address, 1)),
        stub_(proto::Worker::NewStub(channel_)),
        proof_(&secret_, channel_, worker.address, kWorkerSessionMethod, &context_) {
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    std::promise<void> ready;
    proof_.Start([&] { ready.set_value(); });
    ready.get_future().wait();
    stream_ = stub_->Session(&context_);
    proto::StepBatch first;
    EXPECT_TRUE(stream_->Read(&first));
    EXPECT_EQ(first.worker_incarnation(), worker.id.incarnation);
    EXPECT_TRUE(proof_.Proven(true));
  }
  ~Router() {
    context_.TryCancel();
    stream_->Finish();
  }

  // Submits, and reads until the one choice has ended.
  Heard Ask(const Submit& submit) {
    proto::ToWorker message;
    ToProto(RouterCommand(submit), &message);
    EXPECT_TRUE(stream_->Write(message));
    Heard heard;
    bool over = false;
    proto::StepBatch batch;
    while (!over && stream_->Read(&batch)) {
      const auto said = FromProto(batch);
      if (!said.ok()) {
        ADD_FAILURE() << said.status();
        break;
      }
      for (const RouterEvent& event : said->events) {
        if (const auto* token = std::get_if<TokenEvent>(&event)) {
          heard.tokens.push_back(token->token);
          over |= token->finish != FinishReason::kNone;
        } else if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
          heard.cached_tokens = prompt->cached_tokens;
        } else if (const auto* refused = std::get_if<RefusedEvent>(&event)) {
          heard.ended = refused->status;
          over = true;
        } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
          heard.ended = ended->status;
          over = true;
        }
      }
    }
    EXPECT_TRUE(over) << "the session ended";
    return heard;
  }

 private:
  const FleetSecret secret_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<proto::Worker::Stub> stub_;
  grpc::ClientContext context_;
  FleetCall proof_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ToWorker, proto::StepBatch>> stream_;
};

void ExpectAnswer(const Heard& heard, const Submit& submit) {
  ASSERT_TRUE(heard.ended.ok()) << heard.ended;
  EXPECT_EQ(
      heard.tokens,
      SimulatedModel(kTestVocabulary).Generate(submit.spec.token_ids, 0, submit.spec.sampling));
}

class WorkerTrustTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<TestWorker> Start(const std::string& name, const FleetSecret& secret) {
    WorkerConfig config = SmallWorker({.name = name, .incarnation = ++incarnation_});
    config.transport = GetParam();
    config.secret = secret;
    return StartTestWorker(config);
  }

  static Submit SubmitTo(const PrefillPeer& prefill, uint64_t seed) {
    Submit submit = MakeSubmit(seed, RandomTokens(100, seed), 20);
    submit.prefill = prefill;
    return submit;
  }

  uint64_t incarnation_ = 1000;
};

TEST_P(WorkerTrustTest, WorkersOfOneSecretServeEachOther) {
  auto prefill = Start("prefill", Secret(kSecretText));
  // Knows a new one already, and proves with the old one.
  auto decode = Start("decode", Secret(kSecretText + " " + kNewText));
  const Submit submit = SubmitTo(prefill->peer(), 1);
  const Heard heard = Router(*decode, Secret(kNewText)).Ask(submit);
  ExpectAnswer(heard, submit);
  // It was the prefill worker that computed the prompt: all of its full blocks but the last.
  Submit again = submit;
  again.prefill = {};
  again.attempt.request.counter += 1;
  EXPECT_EQ(Router(*prefill, Secret(kSecretText)).Ask(again).cached_tokens, 96);
}

// A file has no port to be proven: its path stands for it.
TEST_P(WorkerTrustTest, AWorkerBehindAFileIsProvenByItsPath) {
  const TempFolder folder;
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.transport = GetParam();
  config.secret = Secret(kSecretText);
  config.listen = "unix:" + folder.path() + "/worker";
  auto worker = StartTestWorker(config);
  worker->address = config.listen;
  const Submit submit = MakeSubmit(1, RandomTokens(20, 1), 5);
  ExpectAnswer(Router(*worker, Secret(kSecretText)).Ask(submit), submit);
}

TEST_P(WorkerTrustTest, APrefillWorkerOfAnotherSecretServesNot) {
  auto prefill = Start("prefill", Secret(kSecretText));
  auto decode = Start("decode", Secret(kNewText));
  Router router(*decode, Secret(kNewText));
  EXPECT_EQ(router.Ask(SubmitTo(prefill->peer(), 1)).ended.code(),
            absl::StatusCode::kFailedPrecondition);
}

// The status of a call that sends its headers and nothing else.
grpc::Status HeadersOnly(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  EXPECT_TRUE(queue.Next(&tag, &ok));
  call->Finish(&status, nullptr);
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

TEST_P(WorkerTrustTest, StrangersAreRefusedAtTheirHeaders) {
  auto worker = Start("hybrid", Secret(kSecretText));
  const auto channel = DialControl(worker->address, 1);
  std::vector<std::string> methods = {kWatchMethod, kWorkerSessionMethod, kControlMethod,
                                      kPrefillSessionMethod};
  if (GetParam() == "grpc") methods.emplace_back(kFramesMethod);
  for (const std::string& method : methods) {
    EXPECT_EQ(HeadersOnly(channel, method).error_code(), grpc::StatusCode::UNAUTHENTICATED)
        << method;
  }
}

TEST_P(WorkerTrustTest, StrangersAreRefusedByEveryService) {
  auto worker = Start("hybrid", Secret(kSecretText));
  const auto channel = DialControl(worker->address, 1);
  const auto expect_refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  };
  {
    grpc::ClientContext context;
    const auto watch = proto::Worker::NewStub(channel)->Watch(&context, {});
    proto::WatchEvent event;
    EXPECT_FALSE(watch->Read(&event));
    expect_refused(watch->Finish());
  }
  {
    grpc::ClientContext context;
    const auto session = proto::Worker::NewStub(channel)->Session(&context);
    proto::ToWorker submit;
    ToProto(RouterCommand(MakeSubmit(1, RandomTokens(70, 3), 20)), &submit);
    session->Write(submit);
    proto::StepBatch batch;
    EXPECT_FALSE(session->Read(&batch));
    expect_refused(session->Finish());
  }
  {
    grpc::ClientContext context;
    proto::ControlRequest drain;
    drain.mutable_drain();
    proto::ControlResponse response;
    expect_refused(proto::Worker::NewStub(channel)->Control(&context, drain, &response));
  }
  {  // UCX would parse what this hello holds, and it knows no bounds.
    grpc::ClientContext context;
    const auto session = proto::Prefill::NewStub(channel)->Session(&context);
    proto::ToPrefill hello;
    hello.mutable_hello()->set_transport_address(std::string(1000, '\xff'));
    session->Write(hello);
    proto::ToDecode answer;
    EXPECT_FALSE(session->Read(&answer));
    expect_refused(session->Finish());
  }
  if (GetParam() == "grpc") {
    grpc::ClientContext context;
    proto::FramesRequest request;
    request.set_token(std::string(16, 't'));
    const auto frames = proto::Kv::NewStub(channel)->Frames(&context);
    frames->Write(request);
    proto::Frame frame;
    EXPECT_FALSE(frames->Read(&frame));
    expect_refused(frames->Finish());
  }
  // It neither drains nor computes anything of theirs.
  const Submit submit = MakeSubmit(2, RandomTokens(70, 4), 5);
  ExpectAnswer(Router(*worker, Secret(kSecretText)).Ask(submit), submit);
}

// Takes the place of a prefill worker: admits everybody, and knows no secret.
class Impostor final : public proto::Prefill::Service {
 public:
  Impostor() : door_(FleetSecret()) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.RegisterService(door_.service());
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~Impostor() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Session(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<proto::ToDecode, proto::ToPrefill>* stream) override {
    ++num_sessions;
    stream->SendInitialMetadata();
    proto::ToPrefill message;
    while (stream->Read(&message)) ++num_messages;
    return grpc::Status::OK;
  }

  const std::string& address() const { return address_; }

  std::atomic<int> num_sessions{0}, num_messages{0};

 private:
  TestDoor door_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_P(WorkerTrustTest, APrefillWorkerThatProvesNothingIsToldNothing) {
  auto decode = Start("decode", Secret(kSecretText));
  Impostor impostor;
  Router router(*decode, Secret(kSecretText));
  const PrefillPeer taken{.worker = {.name = "prefill", .incarnation = 7},
                          .address = impostor.address()};
  EXPECT_EQ(router.Ask(SubmitTo(taken, 1)).ended.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(impostor.num_sessions, 1);
  EXPECT_EQ(impostor.num_messages, 0);
}

TEST(WorkerLimitsTest, APeerIsToldTheLimitsOfItsConnection) {
  auto worker = StartTestWorker(SmallWorker({.name = "hybrid", .incarnation = 1}));
  constexpr uint8_t kStreams = 3, kWindow = 4;
  EXPECT_TRUE(TellsSetting(worker->worker->port(), kStreams, kMaxPeerStreams));
  EXPECT_TRUE(TellsSetting(worker->worker->port(), kWindow, kCallWindowBytes));
}

TEST(WorkerLimitsTest, SessionsAreChargedAndRefusedWithoutRoom) {
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<proto::ToWorker, proto::StepBatch>> stream;
  };
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.memory_limit_bytes = int64_t{5} << 20;
  auto worker = StartTestWorker(config);
  const auto stub = proto::Worker::NewStub(DialControl(worker->address, 1));
  std::vector<std::unique_ptr<Call>> open;
  int num_refused = 0;
  for (int i = 0; i < 40; ++i) {
    auto call = std::make_unique<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + kPatience);
    call->stream = stub->Session(&call->context);
    proto::StepBatch first;
    if (call->stream->Read(&first)) {
      open.push_back(std::move(call));
      continue;
    }
    ++num_refused;
    EXPECT_EQ(call->stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  // A quarter of the budget, or one message, is set aside; a session takes 160 KiB.
  EXPECT_GE(num_refused, 8);
  EXPECT_GE(open.size(), 16u);
  for (const auto& call : open) {
    call->context.TryCancel();
    call->stream->Finish();
  }
}

TEST(WorkerLimitsTest, PromptsThatWaitAreChargedAndRefusedWithoutRoom) {
  constexpr int kPrompts = 250;  // 8 KiB each: there is room for all, and not for as many again.
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.memory_limit_bytes = int64_t{5} << 20;
  config.engine.max_sequences = 1;
  config.engine.max_waiting_attempts = 10 * kPrompts;
  auto worker = StartTestWorker(config);
  const auto stub = proto::Worker::NewStub(DialControl(worker->address, 1));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto stream = stub->Session(&context);
  uint64_t counter = 0;
  const auto submit = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ++counter;
      proto::ToWorker message;
      ToProto(RouterCommand(MakeSubmit(counter, RandomTokens(10, counter), 400)), &message);
      ASSERT_TRUE(stream->Write(message));
    }
  };
  // Reads until a token has come, or somebody was refused: with what.
  const auto refused = [&] {
    proto::StepBatch batch;
    while (stream->Read(&batch)) {
      for (const proto::RouterEvent& event : batch.events()) {
        if (event.has_refused()) return event.refused().status().message();
        if (event.has_token()) return std::string();
      }
    }
    return std::string("the session ended");
  };
  worker->gate.Close();
  submit(kPrompts);
  worker->gate.Open();
  EXPECT_EQ(refused(), "");
  worker->gate.Close();  // The engine has them all; one runs.
  submit(kPrompts);
  std::string why;
  while (why.empty()) why = refused();
  EXPECT_THAT(why, testing::HasSubstr(absl::StrCat("of ", config.memory_limit_bytes / 2)));
  worker->gate.Open();
  context.TryCancel();
  stream->Finish();
}

INSTANTIATE_TEST_SUITE_P(Transports, WorkerTrustTest, testing::Values("ucx", "grpc"));

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  grpc_init();  // Held: gRPC's global shutdown between tests takes up to 10 s.
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
