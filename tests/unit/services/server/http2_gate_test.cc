// Against a real gRPC server, with clients that say what no library would.

#include "services/server/http2_gate.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/mutex.h"
#include "services/server/channel.h"
#include "services/server/early_reactor.h"
#include "services/server/http2_frames.h"
#include "tandem/v1/kv.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/http2_bytes.h"
#include "tests/support/raw_http2_client.h"

namespace tandem {
namespace {

using Message = v1::FramesRequest;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kSay[] = "/test.Gate/Say";      // Answers at once...
constexpr char kHold[] = "/test.Gate/Hold";    // ...or when the test says so...
constexpr char kProve[] = "/test.Gate/Prove";  // ...after a proof that its client is of the fleet.
constexpr char kBlock[] = "/test.Gate/Block";  // ...and is not even looked at before.
constexpr char kNobody[] = "127.0.0.2";        // Another client's address.

class GateTest : public testing::Test {
 protected:
  class Held final : public EarlyReactor<Message, Message> {
   public:
    Held(GateTest* test, grpc::CallbackServerContext* context)
        : EarlyReactor(&test->calls_, context), test_(test) {
      MutexLock lock(&test_->mu_);
      test_->clients_.insert(ClientOfCall(context->peer()));
      test_->held_.push_back(this);
      ++test_->num_seen_;
      test_->most_held_ = std::max(test_->most_held_, test_->held_.size());
    }
    void OnDone() override {
      {
        MutexLock lock(&test_->mu_);
        std::erase(test_->held_, this);
      }
      delete this;
    }

   private:
    void OnRequest(std::shared_ptr<const Message>) override {}

    GateTest* const test_;
  };

  class Service final : public EarlyService {
   public:
    explicit Service(GateTest* test) : EarlyService(&test->calls_) {
      AddUnary<Message, Message>(kSay, [test](const auto& request, auto* response) {
        ++test->num_said_;
        *response = request;
        return absl::OkStatus();
      });
      AddMethod<Message>(kHold, [test](auto* context) {
        auto* const held = new Held(test, context);
        held->AwaitRequest();
        return held;
      });
      AddMethod<Message>(kProve, [test](auto* context) {
        SetPeerProven(context->peer());
        auto* const held = new Held(test, context);
        held->AwaitRequest();
        return held;
      });
      AddMethod<Message>(kBlock, [test](auto* context) {
        {
          MutexLock lock(&test->mu_);
          ++test->num_blocked_;
          while (!test->unblocked_) test->unblock_.Wait(&test->mu_);
        }
        return new Held(test, context);
      });
    }
  };

  GateTest() { options_ = {.address = "127.0.0.1:0", .budget = &budget_, .max_streams = 128}; }
  ~GateTest() override { Stop(); }

  void Start() {
    auto gate = Http2Gate::Open(options_);
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    grpc::ServerBuilder builder;
    ConfigureServer(20, &builder);
    builder.RegisterService(&service_);
    builder.RegisterCallbackGenericService(&unknown_);
    server_ = builder.BuildAndStart();
    gate_->Serve(server_.get());
  }
  void Stop() {
    if (gate_ != nullptr) gate_->StopAccepting();
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    }
    gate_.reset();
    server_.reset();
  }

  void SayGoodbye() {
    gate_->StopAccepting();
    gate_->SayGoodbye();
  }

  // What a library's client hears.
  static grpc::Status Say(const std::string& target, const char* method = kSay, size_t bytes = 10) {
    grpc::GenericStub stub(DialControl(target, 20));
    return Say(&stub, method, bytes);
  }
  static grpc::Status Say(grpc::GenericStub* stub, const char* method, size_t bytes) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    Message message, answer;
    message.set_token(std::string(bytes, 't'));
    const grpc::Slice slice(message.SerializeAsString());
    grpc::ByteBuffer request(&slice, 1), response;
    std::promise<grpc::Status> done;
    stub->UnaryCall(&context, method, {}, &request, &response,
                    [&](grpc::Status status) { done.set_value(std::move(status)); });
    const grpc::Status status = done.get_future().get();
    EXPECT_TRUE(!status.ok() || response.Length() >= bytes);
    return status;
  }
  std::string target() const { return "127.0.0.1:" + std::to_string(gate_->port()); }

  size_t num_held() {
    MutexLock lock(&mu_);
    return held_.size();
  }
  size_t num_seen() {
    MutexLock lock(&mu_);
    return num_seen_;
  }
  // Ends the oldest call that is held.
  void EndOne() {
    MutexLock lock(&mu_);
    Held* const oldest = held_.front();
    held_.erase(held_.begin());
    oldest->Finish(grpc::Status::OK);
  }

  MemoryBudget budget_{64 * kMiB};
  OpenCalls calls_{&budget_, {.max_message_bytes = 4 * kMiB}};
  Mutex mu_;
  std::vector<Held*> held_;
  size_t num_seen_ = 0, most_held_ = 0;
  std::set<std::string> clients_;
  CondVar unblock_;
  int num_blocked_ = 0;
  bool unblocked_ = false;
  std::atomic<int> num_said_{0};
  Service service_{this};
  UnknownMethods unknown_{&calls_};
  Http2GateOptions options_;
  std::unique_ptr<Http2Gate> gate_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(GateTest, CallsPassAndTheirClientsAreKnown) {
  Start();
  EXPECT_TRUE(Say(target()).ok());
  EXPECT_TRUE(Say(target(), kSay, 3 * kMiB).ok());
  EXPECT_EQ(Say(target(), "/test.Gate/Nothing").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  RawHttp2Client one(gate_->port()), other(gate_->port(), kNobody);
  for (RawHttp2Client* client : {&one, &other}) client->Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return one.Pump() && other.Pump() && num_held() == 2; }));
  MutexLock lock(&mu_);
  EXPECT_EQ(clients_, (std::set<std::string>{"127.0.0.1", kNobody}));
}

// What the gate has told the kernel of the connections that it has accepted.
TEST_F(GateTest, ConnectionsNoticeLostPeersAndWaitForNoMoreBytes) {
  options_.keepalive_time = std::chrono::seconds(7);
  options_.unread_timeout = std::chrono::seconds(9);
  Start();
  EXPECT_TRUE(Say(target()).ok());
  RawHttp2Client client(gate_->port());
  EXPECT_TRUE(client.Greet().Hears(kSettingsFrame, 0));
  int num_accepted = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    const auto port_of = [descriptor](auto get) {
      sockaddr_in address{};
      socklen_t size = sizeof(address);
      const bool found = get(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
      return found && address.sin_family == AF_INET ? ntohs(address.sin_port) : 0;
    };
    if (port_of(getsockname) != gate_->port() || port_of(getpeername) == 0) continue;
    ++num_accepted;
    for (const auto& [level, name, value] :
         std::vector<std::array<int, 3>>{{IPPROTO_TCP, TCP_NODELAY, 1},
                                         {IPPROTO_TCP, TCP_KEEPIDLE, 7},
                                         {IPPROTO_TCP, TCP_USER_TIMEOUT, 9'000}}) {
      int set = 0;
      socklen_t size = sizeof(set);
      EXPECT_EQ(getsockopt(descriptor, level, name, &set, &size), 0);
      EXPECT_EQ(set, value) << name;
    }
  }
  EXPECT_GE(num_accepted, 1);
}

TEST_F(GateTest, AFileIsListenedOnLikeAPort) {
  const std::string path = testing::TempDir() + "/gate_test.socket";
  options_.address = "unix:" + path;
  Start();
  EXPECT_TRUE(Say("unix:" + path).ok());
  EXPECT_EQ(Http2Gate::Open(options_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Say("unix:" + path).ok());
  Stop();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(GateTest, AFileThatNobodyServesAnyMoreIsListenedOn) {
  const std::string path = testing::TempDir() + "/gate_test.left";
  std::filesystem::remove(path);
  sockaddr_un file{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(file.sun_path, sizeof(file.sun_path) - 1);
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(left, reinterpret_cast<sockaddr*>(&file), sizeof(file)), 0);
  ASSERT_EQ(listen(left, 1), 0);
  close(left);
  options_.address = "unix:" + path;
  Start();
  EXPECT_TRUE(Say("unix:" + path).ok());
}

TEST_F(GateTest, APortThatIsTakenIsAnError) {
  Start();
  options_.address = target();
  const auto second = Http2Gate::Open(options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(target()), std::string::npos);
}

TEST_F(GateTest, ACrowdOfCallsIsLookedAtStepByStep) {
  Start();
  std::list<RawHttp2Client> crowd;
  for (int i = 0; i < 160; ++i) {
    RawHttp2Client& client = crowd.emplace_back(gate_->port(), kNobody).Greet();
    for (uint32_t call = 0; call < 125; ++call) client.Send(CallHeaders(2 * call + 1, kHold));
  }
  // They lack their message, and OpenCalls lets go of the oldest.
  bool asked = false;
  EXPECT_TRUE(Eventually([&] {
    for (RawHttp2Client& client : crowd) EXPECT_TRUE(client.Pump());
    if (num_seen() > 1000 && !std::exchange(asked, true)) {
      EXPECT_TRUE(Say(target()).ok());
    }
    return num_seen() == 20'000;
  }));
  MutexLock lock(&mu_);
  EXPECT_LE(most_held_,
            static_cast<size_t>(budget_.limit_bytes() / 4 / kCallBytes) + kMaxUnservedCalls + 32);
}

TEST_F(GateTest, ManyCallsOfFewConnectionsAllComeToTheirEnd) {
  Start();
  std::list<RawHttp2Client> few;
  for (int i = 0; i < 4; ++i) {
    RawHttp2Client& client = few.emplace_back(gate_->port()).Greet();
    for (uint32_t call = 0; call < 5000; ++call) {
      client.Send(CallHeaders(2 * call + 1, kSay) + EmptyMessage(2 * call + 1));
    }
  }
  EXPECT_TRUE(Eventually([&] {
    for (RawHttp2Client& client : few) EXPECT_TRUE(client.Pump());
    return num_said_ == 20'000;
  }));
}

TEST_F(GateTest, WhatIsKeptOfAPieceIsAlwaysItsOwnEnd) {
  Start();
  constexpr uint32_t kCalls = 10, kCut = 9;  // The last byte there is the number of the stream.
  RawHttp2Client client(gate_->port());
  client.Greet();
  EXPECT_TRUE(client.Hears(kSettingsFrame, 0));
  std::string next = CallHeaders(1, kSay) + EmptyMessage(1);
  client.Send(next.substr(0, kCut));
  for (uint32_t stream = 1; stream < 2 * kCalls; stream += 2) {
    const std::string rest = next.substr(kCut);
    next = CallHeaders(stream + 2, kSay) + EmptyMessage(stream + 2);
    client.Send(rest + next.substr(0, kCut));
    EXPECT_TRUE(client.Hears(kDataFrame, stream)) << stream;
  }
  EXPECT_EQ(num_said_, static_cast<int>(kCalls));
}

TEST_F(GateTest, CallsBeyondTheLimitGoOnWhenOthersEnd) {
  options_.max_streams = 4;
  Start();
  RawHttp2Client client(gate_->port());
  client.Greet();
  for (uint32_t call = 0; call < 10; ++call) client.Send(CallHeaders(2 * call + 1, kHold));
  for (size_t seen = 4; seen <= 10; ++seen) {
    EXPECT_TRUE(Eventually([&] { return client.Pump() && num_seen() == seen; })) << seen;
    EndOne();
  }
  MutexLock lock(&mu_);
  EXPECT_EQ(most_held_, 4u);
}

TEST_F(GateTest, CallsThatAreResetRest) {
  options_.max_streams = 4;
  options_.rest = std::chrono::hours(1);
  Start();
  RawHttp2Client client(gate_->port());
  client.Greet();
  for (uint32_t call = 0; call < 20; ++call) {
    client.Send(CallHeaders(2 * call + 1, kHold) + ResetOf(2 * call + 1));
  }
  EXPECT_TRUE(Eventually([&] { return client.Pump() && gate_->num_unserved() == 4; }));
  EXPECT_TRUE(Say(target()).ok());
  EXPECT_TRUE(Eventually([&] { return gate_->num_unserved() == 4; }));
  EXPECT_LE(num_seen(), 4u);
}

// gRPC has them to cancel, as those that are reset.
TEST_F(GateTest, CallsOfAConnectionThatIsLostRest) {
  options_.max_streams = 8;
  options_.rest = std::chrono::hours(1);
  Start();
  for (const bool orderly : {true, false}) {
    const int resting = gate_->num_unserved();
    const size_t seen = num_seen();
    auto client = std::make_unique<RawHttp2Client>(gate_->port());
    if (!orderly) client->ResetAtEnd();
    client->Greet();
    for (uint32_t call = 0; call < 3; ++call) client->Send(CallHeaders(2 * call + 1, kHold));
    ASSERT_TRUE(Eventually([&] { return client->Pump() && num_seen() == seen + 3; }));
    client.reset();
    ASSERT_TRUE(Eventually([&] { return num_held() == 0; })) << "gRPC has been told";
    EXPECT_EQ(gate_->num_unserved() - resting, 3) << (orderly ? "closed" : "reset");
  }
}

TEST_F(GateTest, CallsThatAreResetRestNoLongerThanAMoment) {
  options_.max_streams = 4;
  options_.rest = std::chrono::milliseconds(1);
  Start();
  RawHttp2Client client(gate_->port());
  client.Greet();
  for (uint32_t call = 0; call < 8; ++call) {
    client.Send(CallHeaders(2 * call + 1, kHold) + ResetOf(2 * call + 1));
  }
  client.Send(CallHeaders(99, kSay) + EmptyMessage(99));
  EXPECT_TRUE(Eventually([&] { return client.Pump() && num_said_ == 1; }));
}

TEST_F(GateTest, WhoStandsInTheWayOfOthersIsCutOff) {
  options_.max_unserved = 1;
  options_.stuck_timeout = std::chrono::milliseconds(50);
  Start();
  RawHttp2Client stuck(gate_->port(), kNobody);
  stuck.Greet().Send(CallHeaders(1, kBlock));
  EXPECT_TRUE(Eventually([&] {
    MutexLock lock(&mu_);
    return stuck.Pump() && num_blocked_ == 1;
  }));
  EXPECT_TRUE(Say(target()).ok());
  EXPECT_TRUE(stuck.Ends());
  MutexLock lock(&mu_);
  unblocked_ = true;
  unblock_.SignalAll();
}

TEST_F(GateTest, WhoIsGoneIsGoneForGrpcToo) {
  Start();
  auto client = std::make_unique<RawHttp2Client>(gate_->port());
  client->Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return client->Pump() && num_held() == 1; }));
  client.reset();
  EXPECT_TRUE(Eventually([&] { return num_held() == 0; }));
}

TEST_F(GateTest, WhoIsGoneIsGoneAlsoWhileNothingIsReadOfIt) {
  options_.max_streams = 1;
  Start();
  auto client = std::make_unique<RawHttp2Client>(gate_->port());
  client->Greet().Send(CallHeaders(1, kHold) + CallHeaders(3, kHold));
  EXPECT_TRUE(Eventually([&] { return client->Pump() && num_held() == 1; }));
  client.reset();
  EXPECT_TRUE(Eventually([&] { return num_held() == 0; }));
}

TEST_F(GateTest, WhoHasSaidAllHearsTheAnswer) {
  Start();
  RawHttp2Client client(gate_->port());
  client.Greet().Send(CallHeaders(1, kSay) + EmptyMessage(1));
  EXPECT_TRUE(client.Hears(kDataFrame, 1));
  client.EndSending();
  EXPECT_TRUE(client.Ends());  // Nothing more is to come.
}

TEST_F(GateTest, AServerThatEndsSaysSo) {
  Start();
  RawHttp2Client client(gate_->port());
  client.Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return client.Pump() && num_held() == 1; }));
  Stop();
  EXPECT_TRUE(client.Hears(kGoawayFrame, 0));
  EXPECT_TRUE(client.Ends());
  EXPECT_EQ(num_held(), 0u);
}

TEST_F(GateTest, ACallThatComesBeforeItsClientHasHeardAGoodbyeIsServed) {
  options_.goodbye_timeout = std::chrono::hours(1);
  Start();
  RawHttp2Client client(gate_->port()), other(gate_->port());
  EXPECT_TRUE(client.Greet().Hears(kSettingsFrame, 0));
  EXPECT_TRUE(other.Greet().Hears(kSettingsFrame, 0));
  SayGoodbye();
  EXPECT_TRUE(client.Hears(kGoawayFrame, 0) && client.Hears(kPingFrame, 0));
  client.Send(CallHeaders(1, kSay) + EmptyMessage(1));
  EXPECT_TRUE(client.Hears(kDataFrame, 1));
  EXPECT_FALSE(gate_->goodbye_over());
  // It has heard, and what it has begun is not yet with anybody of ours.
  client.Send(CallHeaders(3, kBlock));
  EXPECT_TRUE(Eventually([&] {
    client.Acknowledge();
    MutexLock lock(&mu_);
    return client.Pump() && num_blocked_ == 1;
  }));
  for (uint32_t stream = 1; stream < 200; stream += 2) {  // So that it looks some times.
    other.Send(CallHeaders(stream, kSay) + EmptyMessage(stream));
    EXPECT_TRUE(other.Hears(kDataFrame, stream));
    other.Acknowledge();
  }
  EXPECT_FALSE(gate_->goodbye_over());
  {
    MutexLock lock(&mu_);
    unblocked_ = true;
  }
  unblock_.SignalAll();
  EXPECT_TRUE(Eventually([&] {
    client.Acknowledge();
    other.Acknowledge();
    return client.Pump() && other.Pump() && gate_->goodbye_over();
  }));
}

TEST_F(GateTest, AGoodbyeIsSaidToWhoHasHeardNothingYet) {
  options_.goodbye_timeout = std::chrono::hours(1);
  Start();
  std::list<RawHttp2Client> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(gate_->port()).Greet().Send(CallHeaders(1, kHold) + EmptyMessage(1));
  }
  EXPECT_TRUE(Eventually([&] {
    for (RawHttp2Client& client : clients) client.Pump();
    return num_seen() == clients.size();
  }));
  SayGoodbye();
  EXPECT_TRUE(Eventually([&] {
    for (RawHttp2Client& client : clients) {
      EXPECT_TRUE(client.Pump());
      client.Acknowledge();
    }
    return gate_->goodbye_over();
  }));
}

TEST_F(GateTest, WhoDoesNotHearAGoodbyeIsNotWaitedForLong) {
  options_.goodbye_timeout = std::chrono::milliseconds(10);
  Start();
  RawHttp2Client client(gate_->port());
  client.Greet();
  EXPECT_TRUE(client.Hears(kSettingsFrame, 0));
  SayGoodbye();
  EXPECT_TRUE(Eventually([&] { return gate_->goodbye_over(); }));
  EXPECT_TRUE(client.Pump());
  EXPECT_TRUE(client.Hears(kGoawayFrame, 0));
}

// gRPC would wait for it to acknowledge that.
TEST_F(GateTest, AtAnEndWhoHasNoCallIsClosedWhateverItAcknowledgesAndWhoHasOneAfterIt) {
  Start();
  RawHttp2Client idle(gate_->port()), had(gate_->port()), has(gate_->port());
  idle.Greet();
  EXPECT_TRUE(idle.Hears(kSettingsFrame, 0));
  had.Greet().Send(CallHeaders(1, kSay) + EmptyMessage(1));
  EXPECT_TRUE(had.Hears(kDataFrame, 1));
  has.Greet().Send(CallHeaders(1, kHold) + EmptyMessage(1));
  EXPECT_TRUE(Eventually([&] { return has.Pump() && num_held() == 1; }));
  gate_->CloseIdle();
  EXPECT_TRUE(idle.Ends());
  EXPECT_TRUE(had.Ends());
  EXPECT_TRUE(has.Pump()) << "it is not closed";
  EndOne();
  EXPECT_TRUE(has.Hears(kHeadersFrame, 1));
  EXPECT_TRUE(has.Ends());
}

TEST_F(GateTest, ALibrarysClientGoesOnElsewhereAndLosesNoCall) {
  Start();
  Service same(this);
  const auto other_gate = *Http2Gate::Open(options_);
  grpc::ServerBuilder builder;
  ConfigureServer(20, &builder);
  builder.RegisterService(&same);
  const auto other_server = builder.BuildAndStart();
  other_gate->Serve(other_server.get());
  const std::string both = absl::StrCat("ipv4:", target(), ",127.0.0.1:", other_gate->port());
  std::atomic<bool> ending{false};
  std::atomic<int> num_failed{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      grpc::GenericStub stub(DialControl(both, 20));
      for (int call = 0; !ending; ++call) {
        if (!Say(&stub, kSay, call % 4 == 0 ? kMiB : 10).ok()) ++num_failed;
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return num_said_ > 50; }));
  SayGoodbye();
  EXPECT_TRUE(Eventually([&] { return gate_->goodbye_over(); }));
  Stop();
  const int before = num_said_;
  EXPECT_TRUE(Eventually([&] { return num_said_ > before + 50; }));
  ending = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_failed, 0);
  other_gate->StopAccepting();
  other_server->Shutdown();
}

TEST_F(GateTest, WhatIsNotHttp2IsCutOff) {
  options_.preface_timeout = std::chrono::hours(1);
  Start();
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(kHttp2Preface) + CallHeaders(2, kSay),
        std::string(kHttp2Preface) +
            Http2Frame(kHeadersFrame, 1, std::string(kMaxHeaderBlockBytes, 'h'))}) {
    RawHttp2Client client(gate_->port());
    client.Send(said);
    EXPECT_TRUE(client.Ends());
  }
}

TEST_F(GateTest, APrefaceHasItsTime) {
  options_.preface_timeout = std::chrono::milliseconds(10);
  options_.header_timeout = std::chrono::hours(1);
  Start();
  RawHttp2Client client(gate_->port());
  client.Send(std::string(kHttp2Preface.substr(0, 23)));
  EXPECT_TRUE(client.Ends());
}

TEST_F(GateTest, AHeaderBlockHasItsTime) {
  options_.preface_timeout = std::chrono::hours(1);
  options_.header_timeout = std::chrono::milliseconds(10);
  Start();
  RawHttp2Client idle(gate_->port()), late(gate_->port());
  idle.Greet();
  EXPECT_TRUE(idle.Hears(kSettingsFrame, 0));
  late.Greet().Send(CallHeaders(1, kSay).substr(0, 30));
  EXPECT_TRUE(late.Ends());
  EXPECT_TRUE(idle.Pump());
}

TEST_F(GateTest, ConnectionsAreChargedAndIdleOnesGiveWay) {
  MemoryBudget budget(4 * kMiB);
  options_.budget = &budget;
  Start();
  const int64_t before = budget.held_bytes();
  RawHttp2Client busy(gate_->port(), kNobody);
  busy.Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return busy.Pump() && num_held() == 1; }));
  EXPECT_EQ(budget.held_bytes() - before, kGateConnectionBytes);
  // What is not whole is charged beside.
  RawHttp2Client half(gate_->port(), kNobody);
  half.Greet();
  EXPECT_TRUE(half.Hears(kSettingsFrame, 0));
  const int64_t idle_bytes = budget.held_bytes();
  half.Send(Http2Frame(kHeadersFrame, 1, std::string(30'000, 'h')).substr(0, 29'000));
  EXPECT_TRUE(
      Eventually([&] { return half.Pump() && budget.held_bytes() >= idle_bytes + 24'000; }));

  std::list<RawHttp2Client> idle;
  const int64_t room = budget.limit_bytes() - budget.held_bytes();
  for (int64_t i = 0; i < room / kGateConnectionBytes + 20; ++i) {
    idle.emplace_back(gate_->port(), kNobody).Greet();
  }
  EXPECT_TRUE(Eventually([&] {
    int64_t num_ended = 0;
    for (RawHttp2Client& client : idle) num_ended += client.Pump() ? 0 : 1;
    return num_ended >= 10;
  }));
  // Another client finds room, and who has a call keeps it.
  EXPECT_TRUE(Say(target()).ok());
  EXPECT_TRUE(busy.Pump());
  EXPECT_EQ(num_held(), 1u);
  idle.clear();
  EXPECT_TRUE(Eventually([&] { return budget.held_bytes() <= idle_bytes + 40'000; }));
  Stop();
}

TEST_F(GateTest, StrangersGiveWayWhateverTheyCall) {
  MemoryBudget budget(4 * kMiB);
  options_.budget = &budget;
  options_.awaits_proof = true;
  Start();
  RawHttp2Client proven(gate_->port(), kNobody);
  proven.Greet().Send(CallHeaders(1, kProve));
  EXPECT_TRUE(Eventually([&] { return proven.Pump() && num_held() == 1; }));
  std::list<RawHttp2Client> strangers;
  const int64_t room = budget.limit_bytes() - budget.held_bytes();
  for (int64_t i = 0; i < room / kGateConnectionBytes + 20; ++i) {
    RawHttp2Client& stranger = strangers.emplace_back(gate_->port(), kNobody);
    stranger.Greet().Send(CallHeaders(1, kHold));
    EXPECT_TRUE(Eventually([&] { return !stranger.Pump() || num_seen() == strangers.size() + 1; }));
  }
  EXPECT_TRUE(Say(target()).ok()) << "another client finds room";
  EXPECT_TRUE(proven.Pump());
  strangers.clear();
  EXPECT_TRUE(Eventually([&] { return num_held() == 1; }));
  Stop();
}

TEST_F(GateTest, WhoAsksAndDoesNotReadIsNotHeard) {
  constexpr size_t kMuch = 64 << 20;  // More than kernels keep.
  Start();
  RawHttp2Client client(gate_->port(), kNobody);
  client.Greet();
  std::string pings;
  while (pings.size() < (1 << 20)) pings += Http2Frame(kPingFrame, 0, std::string(8, 'p'));
  size_t sent = 0, before = 1;
  // Others come and go meanwhile.
  for (int still = 0; still < 5 && sent < kMuch; still = sent == before ? still + 1 : 0) {
    before = sent;
    for (size_t more = 1; more > 0 && sent < kMuch; sent += more) more = client.SendOnly(pings);
    EXPECT_TRUE(Say(target()).ok());
  }
  EXPECT_LT(sent, kMuch);
}

TEST_F(GateTest, TheBudgetIsUsedUpByTheTimeTooManyConnectionsAreOpen) {
  constexpr int kMost = 8;
  options_.max_connections = kMost;
  Start();
  std::list<RawHttp2Client> idle;
  for (int i = 0; i < kMost + 4; ++i) idle.emplace_back(gate_->port(), kNobody).Greet();
  EXPECT_TRUE(Eventually(
      [&] { return budget_.held_bytes() > budget_.limit_bytes() / kMost * (kMost - 1); }));
  EXPECT_TRUE(Eventually([&] {
    int num_ended = 0;
    for (RawHttp2Client& client : idle) num_ended += client.Pump() ? 0 : 1;
    return num_ended >= 4;
  }));
  EXPECT_TRUE(Say(target()).ok());
}

}  // namespace
}  // namespace tandem
