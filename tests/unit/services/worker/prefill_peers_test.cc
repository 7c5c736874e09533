#include "services/worker/prefill_peers.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "runtime/transport/stream/stream_transport.h"
#include "services/server/listen_socket.h"
#include "services/worker/read_window.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/unit/services/worker/grpc_side.h"

namespace tandem {
namespace {

// Routers name them, as many as they like, and whoever answers would stay.
TEST(PrefillPeersTest, OfTooManyThoseThatWereUsedLeastLatelyAreLost) {
  // It takes connections and says nothing.
  const auto silent = ListenSocket::Open("127.0.0.1:0");
  ASSERT_TRUE(silent.ok()) << silent.status();
  GrpcSide side(1);
  const FleetSecret no_secret;
  MemoryBudget budget(int64_t{256} << 20);
  CommandQueue commands(1);
  PrefillPeers peers({.worker = {.name = "self", .incarnation = 1}}, &no_secret, /*tls=*/nullptr,
                     /*vocab_size=*/100, /*liveness_scale=*/100, &budget, side.transport.get(),
                     &commands);
  const auto send = [&](size_t number) {
    peers.Send({.worker = {.name = std::to_string(number), .incarnation = 1},
                .address = "127.0.0.1:" + std::to_string(silent->port())},
               Grant{});
  };
  for (size_t i = 0; i < kMaxPrefillPeers; ++i) send(i);
  send(0);
  EXPECT_GE(budget.held_bytes(), static_cast<int64_t>(kMaxPrefillPeers) * ReadWindow::kBytes);
  EXPECT_EQ(commands.size(), 0u) << "there is room for all of them";
  // Each takes another one's place, though the engine has not heard of that yet.
  for (size_t more = 0; more < 2; ++more) {
    send(kMaxPrefillPeers + more);
    ASSERT_TRUE(Eventually([&] { return commands.size() == more + 1; })) << more;
  }
  std::vector<std::string> lost;
  for (const EngineCommand& command : commands.Drain()) {
    ASSERT_TRUE(std::holds_alternative<PrefillLost>(command));
    lost.push_back(std::get<PrefillLost>(command).worker.name);
  }
  EXPECT_EQ(lost, (std::vector<std::string>{"1", "2"}));
}

// A prefill worker that greets, in the life it is said to have, and says one first token, perhaps
// again and again.
class OneToken final : public proto::Prefill::Service {
 public:
  static constexpr uint64_t kLife = 2;

  explicit OneToken(int32_t token, uint64_t life = kLife, int times = 1)
      : token_(token), life_(life), times_(times) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~OneToken() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<proto::ToDecode, proto::ToPrefill>* stream) override {
    proto::ToPrefill said;
    if (!stream->Read(&said)) return grpc::Status::OK;
    proto::ToDecode hello, first;
    *hello.mutable_hello() = said.hello();
    *hello.mutable_hello()->mutable_worker() = said.hello().expected();
    hello.mutable_hello()->mutable_worker()->set_incarnation(life_);
    hello.mutable_hello()->clear_expected();
    ToProto(FirstToken{.job = 1, .tokens = {{.token = 5}, {.token = token_}}}, &first);
    stream->Write(hello);
    for (int i = 0; i < times_; ++i) stream->Write(first);
    while (stream->Read(&said)) continue;
    return grpc::Status::OK;
  }

  int port() const { return port_; }

 private:
  const int32_t token_;
  const uint64_t life_;
  const int times_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Dials one stream of KV on which nothing ever comes. Its end ends the session, too.
class SilentCarrier final : public FrameCarrier {
 public:
  std::string_view name() const override { return "silent"; }
  void Serve(FrameServer*) override {}
  std::shared_ptr<DialledStream> Dial(const std::string&, const std::string&,
                                      std::shared_ptr<FrameTarget> to) override {
    dialled_ = std::make_shared<Stream>(std::move(to));
    return dialled_;
  }
  void End(const absl::Status& why) { dialled_->End(why); }

 private:
  class Stream final : public DialledStream {
   public:
    explicit Stream(std::shared_ptr<FrameTarget> to) : to_(std::move(to)) {}
    void Cancel() override { End(absl::CancelledError("cancelled")); }
    void End(const absl::Status& why) {
      if (const auto to = std::exchange(to_, nullptr); to != nullptr) to->OnEnded(why);
    }

   private:
    std::shared_ptr<FrameTarget> to_;
  };

  std::shared_ptr<Stream> dialled_;
};

// Why a decode worker loses it; Ok if its first token is taken. Not before its `link` has ended, if
// that is not OK: once `num_waiting` of its messages wait for the engine.
absl::Status WhyLost(const OneToken& prefill, const absl::Status& link = absl::OkStatus(),
                     size_t num_waiting = 1) {
  Side side;
  auto owned = std::make_unique<SilentCarrier>();
  SilentCarrier* const carrier = owned.get();
  side.transport = *StreamTransport::Create({.kv = {.num_blocks = 1, .block_bytes = kBlockBytes}},
                                            std::move(owned), &side.receiver, &side.recorder);
  const FleetSecret no_secret;
  MemoryBudget budget(int64_t{256} << 20);
  CommandQueue commands(1);
  PrefillPeers peers({.worker = {.name = "self", .incarnation = 1}}, &no_secret, /*tls=*/nullptr,
                     /*vocab_size=*/100, /*liveness_scale=*/100, &budget, side.transport.get(),
                     &commands);
  peers.Send({.worker = {.name = "prefill", .incarnation = OneToken::kLife},
              .address = "127.0.0.1:" + std::to_string(prefill.port())},
             Grant{.job = 1, .reservation = {.index = 1, .generation = 1}});
  std::vector<EngineCommand> said;  // The engine is in a step: it is done with none of them.
  const auto hear = [&] {
    std::vector<EngineCommand> more = commands.Drain();
    std::move(more.begin(), more.end(), std::back_inserter(said));
    return !said.empty() && (link.ok() || std::holds_alternative<PrefillLost>(said.back()));
  };
  EXPECT_TRUE(Eventually([&] { return commands.size() >= num_waiting; }));
  if (!link.ok()) carrier->End(link);
  EXPECT_TRUE(Eventually(hear));
  if (said.empty()) return absl::InternalError("nothing is said");
  const auto* const lost = std::get_if<PrefillLost>(&said.back());
  EXPECT_TRUE(lost != nullptr || std::holds_alternative<FromPrefill>(said.back()));
  return lost == nullptr ? absl::OkStatus() : lost->why;
}

// The engine, and with it the kernels, trust them: the next step computes with them.
TEST(PrefillPeersTest, AFirstTokenOutsideTheVocabularyEndsTheSession) {
  EXPECT_TRUE(WhyLost(OneToken(99)).ok());
  EXPECT_EQ(WhyLost(OneToken(100)).message(),
            "first token has token id 100 at 0, must be from 0 to 99");
}

// It would be waited for until the deadline of each request.
TEST(PrefillPeersTest, ALinkThatIsLostEndsItsSession) {
  const absl::Status link = absl::UnavailableError("the cable is out");
  proto::ToDecode first;
  ToProto(FirstToken{.job = 1, .tokens = {{.token = 5}, {.token = 99}}}, &first);
  ASSERT_TRUE(first.ParseFromString(first.SerializeAsString()));
  const size_t taken_bytes = sizeof(EngineCommand) + first.SpaceUsedLong();
  const size_t most_waiting = (ReadWindow::kBytes + taken_bytes - 1) / taken_bytes;
  for (const size_t waiting : {size_t{1}, most_waiting}) {
    const OneToken prefill(99, OneToken::kLife, /*times=*/2 * static_cast<int>(waiting));
    const absl::Status why = WhyLost(prefill, link, waiting);
    EXPECT_TRUE(absl::IsUnavailable(why)) << why;
    EXPECT_TRUE(why.message().find("the cable is out") != std::string::npos) << why;
  }
}

// What was granted was for the life that ended, whether or not the next one looks at whom it hears.
TEST(PrefillPeersTest, AnotherLifeOfAPrefillWorkerIsNotTheOneThatWasDialled) {
  const absl::Status why = WhyLost(OneToken(99, OneToken::kLife + 1));
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
  EXPECT_TRUE(why.message().find("reached prefill/") != std::string::npos) << why;
}

}  // namespace
}  // namespace tandem
