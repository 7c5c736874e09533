#include "services/worker/prefill_peers.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/transport/stream/stream_transport.h"
#include "services/server/listen_socket.h"
#include "services/worker/read_window.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/unit/services/worker/fake_kv_transport.h"
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
  EXPECT_FALSE(peers.Flushed()) << "nobody takes a hello";
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

// What a prefill worker does.
struct Says {
  int32_t token = 99;  // Its first tokens are 5 and this...
  int times = 1;       // ...which it says so often,
  uint64_t life = 2;   // in the life it is said to have,
  std::string kv_class;
  bool greets = true;
  bool leaves = false;  // After that.
};

class OneToken final : public proto::Prefill::Service {
 public:
  static constexpr uint64_t kLife = Says().life;

  explicit OneToken(const Says& says) : says_(says) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~OneToken() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<proto::ToDecode, proto::ToPrefill>* stream) override {
    ++num_sessions;
    proto::ToPrefill said;
    if (!stream->Read(&said)) return grpc::Status::OK;
    proto::ToDecode hello, first;
    *hello.mutable_hello() = said.hello();
    *hello.mutable_hello()->mutable_worker() = said.hello().expected();
    hello.mutable_hello()->mutable_worker()->set_incarnation(says_.life);
    hello.mutable_hello()->clear_expected();
    hello.mutable_hello()->set_kv_class(says_.kv_class);
    ToProto(FirstToken{.job = 1, .tokens = {{.token = 5}, {.token = says_.token}}}, &first);
    if (says_.greets) stream->Write(hello);
    for (int i = 0; i < says_.times; ++i) stream->Write(first);
    while (!says_.leaves && stream->Read(&said)) continue;
    return grpc::Status::OK;
  }

  std::atomic<int> num_sessions{0};

  int port() const { return port_; }

 private:
  const Says says_;
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
    void Ready() override {}
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
  EXPECT_TRUE(WhyLost(OneToken({.token = 99})).ok());
  EXPECT_EQ(WhyLost(OneToken({.token = 100})).message(),
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
    const OneToken prefill({.times = 2 * static_cast<int>(waiting)});
    const absl::Status why = WhyLost(prefill, link, waiting);
    EXPECT_TRUE(absl::IsUnavailable(why)) << why;
    EXPECT_TRUE(why.message().find("the cable is out") != std::string::npos) << why;
  }
}

// What was granted was for the life that ended, whether or not the next one looks at whom it hears.
TEST(PrefillPeersTest, AnotherLifeOfAPrefillWorkerIsNotTheOneThatWasDialled) {
  const absl::Status why = WhyLost(OneToken({.life = OneToken::kLife + 1}));
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
  EXPECT_TRUE(why.message().find("reached prefill/") != std::string::npos) << why;
}

TEST(PrefillPeersTest, WhoDoesNotFitOrDoesNotGreetIsLost) {
  const absl::Status other = WhyLost(OneToken({.kv_class = "another"}));
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_TRUE(absl::IsInvalidArgument(WhyLost(OneToken({.greets = false}))));
}

// With an error, whatever it ended with: what was asked of it is not done.
TEST(PrefillPeersTest, APrefillWorkerThatLeavesIsLost) {
  const absl::Status why = WhyLost(OneToken({.times = 0, .leaves = true}));
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
}

// A session that is over, and another one only once the engine has heard of that.
TEST(PrefillPeersTest, WhoWasLostIsDialledAgainOnceItIsForgotten) {
  const OneToken prefill({.times = 0, .leaves = true});
  GrpcSide side(1);
  const FleetSecret no_secret;
  MemoryBudget budget(int64_t{256} << 20);
  CommandQueue commands(1);
  PrefillPeers peers({.worker = {.name = "self", .incarnation = 1}}, &no_secret, /*tls=*/nullptr,
                     /*vocab_size=*/100, /*liveness_scale=*/1, &budget, side.transport.get(),
                     &commands);
  const PrefillPeer peer{.worker = {.name = "prefill", .incarnation = OneToken::kLife},
                         .address = "127.0.0.1:" + std::to_string(prefill.port())};
  peers.Renew(peer.worker, {.jobs = {1}});
  EXPECT_EQ(budget.held_bytes(), 0) << "a renewal dials nobody";
  for (int session = 1; session <= 2; ++session) {
    peers.Send(peer, Committed{.job = 1});
    ASSERT_TRUE(Eventually([&] { return commands.size() == 1; }));
    EXPECT_EQ(std::get<PrefillLost>(commands.Drain()[0]).worker, peer.worker);
    peers.Send(peer, Committed{.job = 1});
    peers.Forget({.name = "another", .incarnation = 1});
    peers.Send(peer, Committed{.job = 1});
    peers.Forget(peer.worker);
    EXPECT_EQ(prefill.num_sessions, session);
    EXPECT_TRUE(peers.Flushed());
    EXPECT_TRUE(Eventually([&] { return budget.held_bytes() == 0; }));
  }
}

TEST(PrefillPeersTest, WhoCannotBeHadIsLost) {
  const auto silent = ListenSocket::Open("127.0.0.1:0");
  ASSERT_TRUE(silent.ok()) << silent.status();
  const auto why_lost = [&](int64_t budget_bytes, KvTransport* transport) {
    const FleetSecret no_secret;
    MemoryBudget budget(budget_bytes);
    CommandQueue commands(1);
    PrefillPeers peers({.worker = {.name = "self", .incarnation = 1}}, &no_secret, /*tls=*/nullptr,
                       /*vocab_size=*/100, /*liveness_scale=*/100, &budget, transport, &commands);
    peers.Send({.worker = {.name = "prefill", .incarnation = 1},
                .address = "127.0.0.1:" + std::to_string(silent->port())},
               Grant{});
    EXPECT_TRUE(Eventually([&] { return commands.size() == 1; }));
    const std::vector<EngineCommand> said = commands.Drain();
    const auto* const lost = said.empty() ? nullptr : std::get_if<PrefillLost>(&said[0]);
    return lost == nullptr ? absl::OkStatus() : lost->why;
  };
  GrpcSide side(1);
  FakeKvTransport none;
  const absl::Status no_room = why_lost(ReadWindow::kBytes, side.transport.get());
  EXPECT_TRUE(absl::IsResourceExhausted(no_room)) << no_room;
  const absl::Status no_way = why_lost(int64_t{256} << 20, &none);
  EXPECT_TRUE(absl::IsFailedPrecondition(no_way)) << no_way;
}

}  // namespace
}  // namespace tandem
