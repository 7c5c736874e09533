#include "services/worker/decode_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "services/server/fleet_auth.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tests/support/wire_cases.h"
#include "tests/unit/services/worker/fake_kv_transport.h"
#include "tests/unit/services/worker/stream_server.h"

namespace tandem {
namespace {

// Its block would otherwise be kept for ever.
TEST(DecodeSessionsTest, AFrameForASessionThatIsGoneHasFailed) {
  CommandQueue commands(1);
  DecodeSessions sessions({}, /*calls=*/nullptr, /*prompts=*/nullptr, /*transport=*/nullptr,
                          &commands);
  sessions.SendFrame(/*session=*/7, FrameHeader(), /*block=*/0, /*send_id=*/5);
  const std::vector<EngineCommand> said = commands.Drain();
  ASSERT_EQ(said.size(), 1u);
  const auto* const sent = std::get_if<FrameSent>(&said[0]);
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(sent->send_id, 5u);
  EXPECT_FALSE(sent->ok);
}

// A worker knows nothing of the prompts and blocks of the life before it.
TEST(DecodeSessionsTest, WhoWantsAnotherLifeOfThisWorkerIsToldSo) {
  const PrefillHello ours{.worker = {.name = "prefill", .incarnation = 2}};
  PrefillHello theirs{.worker = {.name = "decode", .incarnation = 7}, .expected = ours.worker};
  EXPECT_TRUE(CheckHello(theirs, ours).ok());
  theirs.expected.incarnation = 1;
  EXPECT_TRUE(absl::IsUnavailable(CheckHello(theirs, ours)));
  theirs.expected = {.name = "another", .incarnation = 2};
  EXPECT_TRUE(absl::IsUnavailable(CheckHello(theirs, ours)));
  theirs.expected = {};
  EXPECT_TRUE(CheckHello(theirs, ours).ok()) << "the answer to a hello expects nobody";
}

// A decode worker with its session.
struct Decode {
  explicit Decode(const std::shared_ptr<grpc::Channel>& channel)
      : stub(proto::Prefill::NewStub(channel)) {
    SetPatience(&context);
    stream = stub->Session(&context);
  }
  ~Decode() {
    context.TryCancel();
    if (!finished) stream->Finish();
  }
  // Why the session has ended.
  grpc::Status Finish() {
    proto::ToDecode message;
    EXPECT_FALSE(stream->Read(&message));
    finished = true;
    return stream->Finish();
  }
  void Send(const DecodeToPrefill& in) {
    proto::ToPrefill message;
    ToProto(in, &message);
    EXPECT_TRUE(stream->Write(message));
  }
  proto::ToDecode Next() {
    proto::ToDecode message;
    EXPECT_TRUE(stream->Read(&message));
    return message;
  }

  const std::unique_ptr<proto::Prefill::Stub> stub;
  grpc::ClientContext context;
  bool finished = false;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ToPrefill, proto::ToDecode>> stream;
};

class DecodeSessionTest : public testing::Test {
 protected:
  // The first session has the id 1.
  static constexpr SessionId kFirst = 1;

  explicit DecodeSessionTest(size_t max_commands = 1000) : parts_(max_commands) {}

  static PrefillHello Self() {
    return {.terms = {.kv_class = "class", .numerics_id = "numerics", .transport = "fake"},
            .worker = {.name = "prefill", .incarnation = 2}};
  }
  static PrefillHello Theirs() {
    PrefillHello hello = Self();
    hello.worker = {.name = "decode", .incarnation = 7};
    hello.expected = Self().worker;
    hello.transport_address = "the receiver's address";
    return hello;
  }
  static void Say(const PrefillHello& hello, Decode* decode) {
    proto::ToPrefill message;
    ToProto(hello, message.mutable_hello());
    EXPECT_TRUE(decode->stream->Write(message));
  }
  // Has been greeted.
  std::unique_ptr<Decode> Open() {
    auto decode = std::make_unique<Decode>(server_.Dial());
    Say(Theirs(), decode.get());
    const auto answer = FromProto(decode->Next().hello());
    EXPECT_TRUE(answer.ok()) << answer.status();
    PrefillHello expected = Self();
    expected.transport_address = FakeKvTransport::kAddress;
    if (answer.ok()) {
      EXPECT_EQ(*answer, expected);
    }
    // An end before its write is done would be a cancellation.
    EXPECT_TRUE(Eventually([this] { return sessions_.Flushed(); }));
    return decode;
  }

  StreamParts parts_;
  FakeKvTransport transport_;
  DecodeSessions sessions_{Self(), &parts_.calls, &parts_.prompts, &transport_, &parts_.commands};
  StreamServer<proto::ToDecode> server_{kPrefillSessionMethod, &parts_,
                                        [this](auto* context) { return sessions_.Open(context); }};
};

TEST_F(DecodeSessionTest, FramesTravelAndAreWithdrawnOverTheirSessionsLink) {
  const auto decode = Open();
  EXPECT_THAT(transport_.receivers(), testing::ElementsAre("the receiver's address"));
  const FrameHeader header{.ordinal = 3, .length_bytes = 128};
  sessions_.SendFrame(kFirst, header, /*block=*/5, /*send_id=*/9);
  const FakeKvTransport::Sent expected{header, 5, 9};
  EXPECT_THAT(transport_.sent(), testing::ElementsAre(expected));
  EXPECT_EQ(parts_.commands.size(), 0u) << "it is under way";
  sessions_.WithdrawFrame(kFirst + 1, 8);  // It is nobody's.
  sessions_.WithdrawFrame(kFirst, 9);
  EXPECT_THAT(transport_.withdrawn(), testing::ElementsAre(9));
}

TEST_F(DecodeSessionTest, AFrameForASessionWithoutALinkHasFailed) {
  Decode decode(server_.Dial());
  decode.stream->WaitForInitialMetadata();
  sessions_.SendFrame(kFirst, FrameHeader(), /*block=*/0, /*send_id=*/5);
  sessions_.WithdrawFrame(kFirst, 5);
  const auto sent = parts_.TakeOne<FrameSent>();
  EXPECT_EQ(sent.send_id, 5u);
  EXPECT_FALSE(sent.ok);
}

TEST_F(DecodeSessionTest, EachIsToldItsOwnAndAsksForItself) {
  const auto first = Open(), second = Open();
  sessions_.Send(kFirst + 1, Progress{.job = 2});
  sessions_.Send(kFirst, Progress{.job = 1});
  EXPECT_EQ(first->Next().progress().job(), 1u);
  EXPECT_EQ(second->Next().progress().job(), 2u);
  second->Send(Committed{.job = 4});
  const auto command = parts_.TakeOne<FromDecode>();
  EXPECT_EQ(command.session, kFirst + 1);
  EXPECT_EQ(std::get<Committed>(command.message).job, 4u);
  EXPECT_TRUE(Eventually([this] { return sessions_.Flushed(); }));
}

TEST_F(DecodeSessionTest, WhoIsGoneIsLostWithItsLink) {
  auto decode = Open();
  const auto other = Open();
  EXPECT_EQ(transport_.num_open(), 2);
  decode.reset();
  EXPECT_EQ(parts_.TakeOne<DecodeLost>().session, kFirst);
  EXPECT_TRUE(Eventually([this] { return transport_.num_open() == 1; }));
  sessions_.Send(kFirst, Progress{.job = 1});  // Goes nowhere.
  sessions_.SendFrame(kFirst + 1, FrameHeader(), 0, 1);
  EXPECT_EQ(transport_.sent().size(), 1u);
}

TEST_F(DecodeSessionTest, ALinkThatIsLostEndsItsSession) {
  const auto decode = Open();
  transport_.Lose(absl::InternalError("the cable is out"));
  const grpc::Status why = decode->Finish();
  EXPECT_EQ(why.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(why.error_message(), "KV link: INTERNAL: the cable is out");
  EXPECT_EQ(parts_.TakeOne<DecodeLost>().session, kFirst);
}

// Before a link is opened: what is at its other end is not what this worker has.
TEST_F(DecodeSessionTest, WhoDoesNotFitIsNotGreeted) {
  PrefillHello other_class = Theirs(), other_life = Theirs();
  other_class.terms.kv_class = "another";
  other_life.expected.incarnation += 1;
  for (const auto& [hello, code] : {std::pair(other_class, grpc::StatusCode::FAILED_PRECONDITION),
                                    std::pair(other_life, grpc::StatusCode::UNAVAILABLE)}) {
    Decode decode(server_.Dial());
    Say(hello, &decode);
    EXPECT_EQ(decode.Finish().error_code(), code);
  }
  EXPECT_THAT(transport_.receivers(), testing::IsEmpty());
}

TEST_F(DecodeSessionTest, AHelloComesFirstAndOnce) {
  Decode rude(server_.Dial());
  rude.Send(Committed{.job = 4});
  EXPECT_EQ(rude.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  parts_.TakeOne<DecodeLost>();
  const auto decode = Open();
  Say(Theirs(), decode.get());
  EXPECT_EQ(decode->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(transport_.receivers().size(), 1u);
}

class FullDecodeQueueTest : public DecodeSessionTest {
 protected:
  FullDecodeQueueTest() : DecodeSessionTest(/*max_commands=*/0) {}
};

TEST_F(FullDecodeQueueTest, APromptIsRefusedByItsJob) {
  const auto decode = Open();
  PrefillSubmit submit = std::get<PrefillSubmit>(WireToPrefill()[0]);
  submit.job = 6;
  decode->Send(submit);
  const proto::PrefillRefused refused = decode->Next().refused();
  EXPECT_EQ(refused.job(), 6u);
  EXPECT_EQ(refused.status().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_GT(refused.retry_after_us(), 0);
  decode->Send(PrefillCancel{.job = 6, .time_left_us = 1});
  EXPECT_TRUE(std::holds_alternative<PrefillCancel>(parts_.TakeOne<FromDecode>().message));
}

}  // namespace
}  // namespace tandem
