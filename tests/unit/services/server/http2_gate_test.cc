// Against a real gRPC server, with clients that say what no library would.

#include "services/server/http2_gate.h"

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "services/server/channel.h"
#include "services/server/early_reactor.h"
#include "services/server/http2_frames.h"
#include "tandem/v1/kv.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/http2_bytes.h"

namespace tandem {
namespace {

using Message = v1::FramesRequest;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kSay[] = "/test.Gate/Say";      // Answers at once...
constexpr char kHold[] = "/test.Gate/Hold";    // ...or when the test says so...
constexpr char kProve[] = "/test.Gate/Prove";  // ...after a proof that its client is of the fleet.
constexpr char kBlock[] = "/test.Gate/Block";  // ...and is not even looked at before.
constexpr char kNobody[] = "127.0.0.2";        // Another client's address.

// Sends what it is given while it reads what comes.
class RawClient {
 public:
  explicit RawClient(int port, const char* from = "127.0.0.1") {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // Of a connection: the preface and settings that acknowledge nothing.
  RawClient& Greet() {
    Send(std::string(kHttp2Preface) + Http2Frame(kSettingsFrame, 0));
    return *this;
  }
  void Send(const std::string& bytes) { unsent_ += bytes; }
  // How many bytes the kernel takes now. Nothing is read.
  size_t SendOnly(const std::string& bytes) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return static_cast<size_t>(std::max<ssize_t>(0, sent));
  }
  void EndSending() {
    EXPECT_TRUE(Eventually([&] { return Pump() && unsent_.empty(); }));
    shutdown(socket_, SHUT_WR);
  }
  // Sends and reads as much as there is now. False once the server has ended it.
  bool Pump() {
    while (!unsent_.empty()) {
      const ssize_t sent =
          send(socket_, unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent <= 0) break;
      unsent_.erase(0, static_cast<size_t>(sent));
    }
    char bytes[4096];
    while (true) {
      const ssize_t size = recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (size == 0 || (size < 0 && errno != EAGAIN)) return false;
      if (size < 0) return true;
      read_.append(bytes, static_cast<size_t>(size));
    }
  }
  bool Ends() {
    return Eventually([&] { return !Pump(); });
  }
  // Whether such a frame comes before the end.
  bool Hears(int type, uint32_t stream) {
    bool open = true;
    EXPECT_TRUE(Eventually([&] {
      open = open && Pump();
      return Has(type, stream) || !open;
    }));
    return Has(type, stream);
  }

 private:
  bool Has(int type, uint32_t stream) const {
    const auto byte = [&](size_t at) {
      return static_cast<uint32_t>(static_cast<uint8_t>(read_[at]));
    };
    for (size_t at = 0; at + 9 <= read_.size();) {
      const size_t size = byte(at) << 16 | byte(at + 1) << 8 | byte(at + 2);
      if (byte(at + 3) == static_cast<uint32_t>(type) && byte(at + 8) == stream) return true;
      at += 9 + size;
    }
    return false;
  }

  int socket_;
  std::string unsent_, read_;
};

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

  // What a library's client hears.
  grpc::Status Say(const std::string& target, const char* method = kSay, size_t bytes = 10) {
    grpc::GenericStub stub(DialControl(target, 20));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    Message message, answer;
    message.set_token(std::string(bytes, 't'));
    const grpc::Slice slice(message.SerializeAsString());
    grpc::ByteBuffer request(&slice, 1), response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, method, {}, &request, &response,
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
  RawClient one(gate_->port()), other(gate_->port(), kNobody);
  for (RawClient* client : {&one, &other}) client->Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return one.Pump() && other.Pump() && num_held() == 2; }));
  MutexLock lock(&mu_);
  EXPECT_EQ(clients_, (std::set<std::string>{"127.0.0.1", kNobody}));
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
  std::list<RawClient> crowd;
  for (int i = 0; i < 160; ++i) {
    RawClient& client = crowd.emplace_back(gate_->port(), kNobody).Greet();
    for (uint32_t call = 0; call < 125; ++call) client.Send(CallHeaders(2 * call + 1, kHold));
  }
  // They lack their message, and OpenCalls lets go of the oldest.
  bool asked = false;
  EXPECT_TRUE(Eventually([&] {
    for (RawClient& client : crowd) EXPECT_TRUE(client.Pump());
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
  std::list<RawClient> few;
  for (int i = 0; i < 4; ++i) {
    RawClient& client = few.emplace_back(gate_->port()).Greet();
    for (uint32_t call = 0; call < 5000; ++call) {
      client.Send(CallHeaders(2 * call + 1, kSay) + EmptyMessage(2 * call + 1));
    }
  }
  EXPECT_TRUE(Eventually([&] {
    for (RawClient& client : few) EXPECT_TRUE(client.Pump());
    return num_said_ == 20'000;
  }));
}

TEST_F(GateTest, WhatIsKeptOfAPieceIsAlwaysItsOwnEnd) {
  Start();
  constexpr uint32_t kCalls = 10, kCut = 9;  // The last byte there is the number of the stream.
  RawClient client(gate_->port());
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
  RawClient client(gate_->port());
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
  RawClient client(gate_->port());
  client.Greet();
  for (uint32_t call = 0; call < 20; ++call) {
    client.Send(CallHeaders(2 * call + 1, kHold) +
                Http2Frame(kResetFrame, 2 * call + 1, std::string(4, '\0')));
  }
  EXPECT_TRUE(Eventually([&] { return client.Pump() && gate_->num_unserved() == 4; }));
  EXPECT_TRUE(Say(target()).ok());
  EXPECT_TRUE(Eventually([&] { return gate_->num_unserved() == 4; }));
  EXPECT_LE(num_seen(), 4u);
}

TEST_F(GateTest, CallsThatAreResetRestNoLongerThanAMoment) {
  options_.max_streams = 4;
  options_.rest = std::chrono::milliseconds(1);
  Start();
  RawClient client(gate_->port());
  client.Greet();
  for (uint32_t call = 0; call < 8; ++call) {
    client.Send(CallHeaders(2 * call + 1, kHold) +
                Http2Frame(kResetFrame, 2 * call + 1, std::string(4, '\0')));
  }
  client.Send(CallHeaders(99, kSay) + EmptyMessage(99));
  EXPECT_TRUE(Eventually([&] { return client.Pump() && num_said_ == 1; }));
}

TEST_F(GateTest, WhoStandsInTheWayOfOthersIsCutOff) {
  options_.max_unserved = 1;
  options_.stuck_timeout = std::chrono::milliseconds(50);
  Start();
  RawClient stuck(gate_->port(), kNobody);
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
  auto client = std::make_unique<RawClient>(gate_->port());
  client->Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return client->Pump() && num_held() == 1; }));
  client.reset();
  EXPECT_TRUE(Eventually([&] { return num_held() == 0; }));
}

TEST_F(GateTest, WhoIsGoneIsGoneAlsoWhileNothingIsReadOfIt) {
  options_.max_streams = 1;
  Start();
  auto client = std::make_unique<RawClient>(gate_->port());
  client->Greet().Send(CallHeaders(1, kHold) + CallHeaders(3, kHold));
  EXPECT_TRUE(Eventually([&] { return client->Pump() && num_held() == 1; }));
  client.reset();
  EXPECT_TRUE(Eventually([&] { return num_held() == 0; }));
}

TEST_F(GateTest, WhoHasSaidAllHearsTheAnswer) {
  Start();
  RawClient client(gate_->port());
  client.Greet().Send(CallHeaders(1, kSay) + EmptyMessage(1));
  EXPECT_TRUE(client.Hears(kDataFrame, 1));
  client.EndSending();
  EXPECT_TRUE(client.Ends());  // Nothing more is to come.
}

TEST_F(GateTest, AServerThatEndsSaysSo) {
  Start();
  RawClient client(gate_->port());
  client.Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return client.Pump() && num_held() == 1; }));
  Stop();
  EXPECT_TRUE(client.Hears(kGoawayFrame, 0));
  EXPECT_TRUE(client.Ends());
  EXPECT_EQ(num_held(), 0u);
}

TEST_F(GateTest, WhatIsNotHttp2IsCutOff) {
  options_.preface_timeout = std::chrono::hours(1);
  Start();
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(kHttp2Preface) + CallHeaders(2, kSay),
        std::string(kHttp2Preface) +
            Http2Frame(kHeadersFrame, 1, std::string(kMaxHeaderBlockBytes, 'h'))}) {
    RawClient client(gate_->port());
    client.Send(said);
    EXPECT_TRUE(client.Ends());
  }
}

TEST_F(GateTest, APrefaceHasItsTime) {
  options_.preface_timeout = std::chrono::milliseconds(10);
  options_.header_timeout = std::chrono::hours(1);
  Start();
  RawClient client(gate_->port());
  client.Send(std::string(kHttp2Preface.substr(0, 23)));
  EXPECT_TRUE(client.Ends());
}

TEST_F(GateTest, AHeaderBlockHasItsTime) {
  options_.preface_timeout = std::chrono::hours(1);
  options_.header_timeout = std::chrono::milliseconds(10);
  Start();
  RawClient idle(gate_->port()), late(gate_->port());
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
  RawClient busy(gate_->port(), kNobody);
  busy.Greet().Send(CallHeaders(1, kHold));
  EXPECT_TRUE(Eventually([&] { return busy.Pump() && num_held() == 1; }));
  EXPECT_EQ(budget.held_bytes() - before, kGateConnectionBytes);
  // What is not whole is charged beside.
  RawClient half(gate_->port(), kNobody);
  half.Greet();
  EXPECT_TRUE(half.Hears(kSettingsFrame, 0));
  const int64_t idle_bytes = budget.held_bytes();
  half.Send(Http2Frame(kHeadersFrame, 1, std::string(30'000, 'h')).substr(0, 29'000));
  EXPECT_TRUE(
      Eventually([&] { return half.Pump() && budget.held_bytes() >= idle_bytes + 24'000; }));

  std::list<RawClient> idle;
  const int64_t room = budget.limit_bytes() - budget.held_bytes();
  for (int64_t i = 0; i < room / kGateConnectionBytes + 20; ++i) {
    idle.emplace_back(gate_->port(), kNobody).Greet();
  }
  EXPECT_TRUE(Eventually([&] {
    int64_t num_ended = 0;
    for (RawClient& client : idle) num_ended += client.Pump() ? 0 : 1;
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
  RawClient proven(gate_->port(), kNobody);
  proven.Greet().Send(CallHeaders(1, kProve));
  EXPECT_TRUE(Eventually([&] { return proven.Pump() && num_held() == 1; }));
  std::list<RawClient> strangers;
  const int64_t room = budget.limit_bytes() - budget.held_bytes();
  for (int64_t i = 0; i < room / kGateConnectionBytes + 20; ++i) {
    RawClient& stranger = strangers.emplace_back(gate_->port(), kNobody);
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
  RawClient client(gate_->port(), kNobody);
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
  std::list<RawClient> idle;
  for (int i = 0; i < kMost + 4; ++i) idle.emplace_back(gate_->port(), kNobody).Greet();
  EXPECT_TRUE(Eventually(
      [&] { return budget_.held_bytes() > budget_.limit_bytes() / kMost * (kMost - 1); }));
  EXPECT_TRUE(Eventually([&] {
    int num_ended = 0;
    for (RawClient& client : idle) num_ended += client.Pump() ? 0 : 1;
    return num_ended >= 4;
  }));
  EXPECT_TRUE(Say(target()).ok());
}

}  // namespace
}  // namespace tandem
