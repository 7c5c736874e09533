// A client on one side, gRPC's end of the socket pair on the other, and a clock that is told.

#include "services/server/gate_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/http2_bytes.h"

namespace tandem {
namespace {

using Clock = GateConnection::Clock;
using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr char kCall[] = "/test.Gate/Call";

std::string Ping(int flags = 0) { return Http2Frame(kPingFrame, 0, "a number", flags); }
std::string Settings(int flags = 0) { return Http2Frame(kSettingsFrame, 0, "", flags); }
std::string Message(uint32_t stream, size_t bytes) {
  return Http2Frame(kDataFrame, stream, std::string(bytes, 'm'));
}

// What a client is told that is to go on elsewhere.
std::string Goodbye() {
  return Http2Frame(kGoawayFrame, 0, BigEndian(0x7fffffff, 4) + BigEndian(0, 4)) +
         Http2Frame(kPingFrame, 0, "goodbye!");
}

// One end of a connected socket.
class Peer {
 public:
  explicit Peer(int descriptor) : descriptor_(descriptor) {}
  ~Peer() { close(descriptor_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  int descriptor() const { return descriptor_; }
  // False, and nothing is said, if the kernel has no room. Of Unix sockets it takes what is small
  // as a whole.
  bool Say(const std::string& bytes) {
    const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    EXPECT_TRUE(sent < 0 || static_cast<size_t>(sent) == bytes.size()) << sent;
    return sent >= 0;
  }
  // What has come since.
  std::string Hear() {
    std::string heard;
    char bytes[4096];
    while (true) {
      const ssize_t size = recv(descriptor_, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (size == 0) ended_ = true;
      if (size <= 0) return heard;
      heard.append(bytes, static_cast<size_t>(size));
    }
  }
  bool ended() const { return ended_; }

 private:
  const int descriptor_;
  bool ended_ = false;
};

class GateConnectionTest : public testing::Test {
 protected:
  GateConnectionTest() {
    shared_.options = {.budget = &budget_, .max_streams = 2};
    shared_.options.preface_timeout = shared_.options.header_timeout = hours(1);
    shared_.options.rest = hours(1);
    shared_.connection_bytes = kGateConnectionBytes;
    shared_.io = &io_;
    shared_.calls = std::make_shared<UnservedCalls>(100, [] {});
    shared_.give_to_grpc = [this](int descriptor) { grpc_.emplace(descriptor); };
    shared_.on_closed = [this] { ++num_closed_; };
  }
  ~GateConnectionTest() override { connection_->Abandon(); }

  void Connect() {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room_, sizeof(room_));
    client_.emplace(pair[1]);
    connection_ = std::make_shared<GateConnection>(&shared_, pair[0], "ipv4:127.0.0.1:1");
    ASSERT_TRUE(connection_->Begin());
  }
  // Both have said and acknowledged their settings.
  void Greet() {
    Connect();
    const std::string greeting = std::string(kHttp2Preface) + Settings();
    EXPECT_EQ(ByClient(greeting), greeting);
    EXPECT_EQ(ByGrpc(Settings() + Settings(kAckFlag)), Settings() + Settings(kAckFlag));
    EXPECT_EQ(ByClient(Settings(kAckFlag)), Settings(kAckFlag));
  }
  void Run() {
    io_.restart();
    while (io_.poll() > 0) {
    }
  }
  // What the other end hears of it.
  std::string ByClient(const std::string& bytes) {
    EXPECT_TRUE(client_->Say(bytes));
    Run();
    return grpc_->Hear();
  }
  std::string ByGrpc(const std::string& bytes) {
    EXPECT_TRUE(grpc_->Say(bytes));
    Run();
    return client_->Hear();
  }
  // gRPC says as much as there is room for while the client does not read.
  std::string Fill() {
    const std::string message = Message(1, 1'000);
    std::string said;
    for (size_t before = 1; before != said.size(); Run()) {
      before = said.size();
      while (grpc_->Say(message)) said += message;
    }
    return said;
  }
  // All that comes from now on.
  std::string HearAll() {
    std::string heard;
    for (std::string more; !(more = client_->Hear()).empty(); Run()) heard += more;
    return heard;
  }

  const Clock::time_point start_ = Clock::now();
  MemoryBudget budget_{int64_t{64} << 20};
  GateShared shared_;
  boost::asio::io_context io_{1};  // After what connections use, as in the gate.
  int num_closed_ = 0;
  int room_ = 200'000;  // For what the client has not read.
  std::optional<Peer> client_, grpc_;
  std::shared_ptr<GateConnection> connection_;
};

// A peer that breaks the rules, and then goes on before it reads what it is answered.
TEST_F(GateConnectionTest, WhatFollowsTheEndOfGrpcGoesNowhere) {
  shared_.options.max_streams = 1;
  shared_.options.rest = kGateReadTimeout / 2;
  Greet();
  ByClient(CallHeaders(1, kCall) + ResetOf(1));
  const std::string said = Fill();
  grpc_.reset();
  EXPECT_TRUE(client_->Say(WindowUpdate(0, 1) + CallHeaders(3, kCall)));
  Run();
  for (const auto time : {start_, start_ + shared_.options.rest}) {
    EXPECT_TRUE(connection_->Tick(time));
    Run();
  }
  EXPECT_EQ(shared_.calls->count(), 0) << "the call that was reset has had its rest";
  EXPECT_EQ(HearAll().size(), said.size());
  EXPECT_TRUE(client_->ended());
}

TEST_F(GateConnectionTest, AGoodbyeStandsBetweenFrames) {
  Greet();
  const std::string message = Message(1, 100);
  EXPECT_EQ(ByGrpc(message.substr(0, 50)), message.substr(0, 50));
  connection_->SayGoodbye();
  Run();
  EXPECT_EQ(client_->Hear(), "");
  EXPECT_EQ(ByGrpc(message.substr(50) + Ping()), message.substr(50) + Goodbye() + Ping());
}

TEST_F(GateConnectionTest, AGoodbyeIsNothingToGrpc) {
  Connect();
  connection_->SayGoodbye();  // Whoever has said nothing yet.
  const std::string greeting = std::string(kHttp2Preface) + Settings();
  EXPECT_EQ(ByClient(greeting), greeting);
  connection_->SayGoodbye();
  EXPECT_EQ(ByClient(Ping()), Ping());
  EXPECT_EQ(ByGrpc(Settings()), Settings() + Goodbye()) << "a server's first frame is its settings";
}

TEST_F(GateConnectionTest, AGoodbyeIsHeardOnceTheClientHasAnsweredAllThatItWasAsked) {
  Greet();
  ByGrpc(Ping());
  connection_->SayGoodbye();
  EXPECT_EQ(client_->Hear(), Goodbye());
  ByClient(WindowUpdate(0, 1) + Ping());
  ByGrpc(Ping(kAckFlag));
  EXPECT_FALSE(connection_->goodbye_heard());
  ByClient(Ping(kAckFlag));
  EXPECT_FALSE(connection_->goodbye_heard()) << "that was for the server's own";
  ByClient(Ping(kAckFlag));
  EXPECT_TRUE(connection_->goodbye_heard());
}

TEST_F(GateConnectionTest, WhoIsOwedTooManyAnswersIsNotHeard) {
  Greet();
  std::string pings;
  for (int i = 0; i < kMaxUnanswered; ++i) pings += Ping();
  EXPECT_EQ(ByClient(pings + Ping(kAckFlag)), pings + Ping(kAckFlag));
  EXPECT_EQ(ByClient(Settings() + WindowUpdate(0, 1)), "");
  EXPECT_EQ(ByGrpc(pings + Ping() + Message(1, 10)), pings + Ping() + Message(1, 10));
  EXPECT_EQ(grpc_->Hear(), "");
  ByGrpc(Ping(kAckFlag));
  EXPECT_EQ(grpc_->Hear(), Settings() + WindowUpdate(0, 1));
  EXPECT_EQ(ByClient(Ping()), "") << "one answer, one more";
}

TEST_F(GateConnectionTest, WhoWaitsForItsOwnCallsIsClosedOnceItHasLeft) {
  shared_.options.max_streams = 1;
  Greet();
  EXPECT_EQ(ByClient(CallHeaders(1, kCall) + CallHeaders(3, kCall)), CallHeaders(1, kCall));
  EXPECT_TRUE(connection_->Tick(start_));
  EXPECT_EQ(num_closed_, 0);
  shutdown(client_->descriptor(), SHUT_WR);
  connection_->Tick(start_);
  EXPECT_EQ(num_closed_, 1);
}

TEST_F(GateConnectionTest, ACallMayHaveTrailersAtTheLimit) {
  shared_.options.max_streams = 1;
  Greet();
  const std::string call = CallHeaders(1, kCall);
  EXPECT_EQ(ByClient(call + call + CallHeaders(3, kCall)), call + call);
}

TEST_F(GateConnectionTest, CallsRestForAsLongAsIsSaid) {
  shared_.options.rest = minutes(10);
  Greet();
  ByClient(CallHeaders(1, kCall) + ResetOf(1));
  EXPECT_TRUE(connection_->Tick(start_));
  EXPECT_TRUE(connection_->Tick(start_ + minutes(10) - seconds(1)));
  EXPECT_EQ(shared_.calls->count(), 1);
  EXPECT_TRUE(connection_->Tick(start_ + minutes(10)));
  EXPECT_EQ(shared_.calls->count(), 0);
}

// ---- Times ----

TEST_F(GateConnectionTest, AHeaderBlockThatTricklesInHasTheTimeOfOne) {
  Greet();
  const std::string call = CallHeaders(1, kCall);
  EXPECT_EQ(ByClient(call.substr(0, 10)), "");
  const auto begun = Clock::now();
  EXPECT_EQ(ByClient(call.substr(10, 10)), "");
  ByGrpc(Message(1, 10));  // What the server says is no progress.
  EXPECT_TRUE(connection_->Tick(start_ + shared_.options.header_timeout));
  EXPECT_EQ(num_closed_, 0);
  connection_->Tick(begun + shared_.options.header_timeout);
  EXPECT_EQ(num_closed_, 1);
}

TEST_F(GateConnectionTest, EachHeaderBlockHasATimeOfItsOwn) {
  Greet();
  const std::string call = CallHeaders(1, kCall);
  ByClient(call.substr(0, 10));
  const auto begun = Clock::now();
  EXPECT_EQ(ByClient(call.substr(10) + CallHeaders(3, kCall).substr(0, 10)), call);
  EXPECT_TRUE(connection_->Tick(begun + shared_.options.header_timeout));
  EXPECT_EQ(num_closed_, 0);
}

TEST_F(GateConnectionTest, WhoWaitsForUsHasAllTheTime) {
  shared_.options.max_streams = 1;
  Greet();
  ByClient(CallHeaders(1, kCall).substr(0, 10));
  ByClient(CallHeaders(1, kCall).substr(10) + CallHeaders(3, kCall));
  EXPECT_TRUE(connection_->Tick(start_ + hours(100)));
  EXPECT_EQ(num_closed_, 0) << "for the end of a call";
  connection_->Close();
  grpc_.reset();
  Greet();
  for (size_t before = 1; before > 0; Run()) {
    for (before = 0; client_->Say(Message(1, 1'000)); ++before) {
    }
  }
  EXPECT_TRUE(connection_->Tick(start_ + hours(100)));
  EXPECT_EQ(num_closed_, 1) << "for gRPC to read";
}

TEST_F(GateConnectionTest, WhatGrpcSaidBeforeItsEndHasATime) {
  Greet();
  Fill();
  EXPECT_TRUE(connection_->Tick(start_));
  EXPECT_TRUE(connection_->Tick(start_ + hours(100)));
  EXPECT_EQ(num_closed_, 0) << "nothing has ended";
  grpc_.reset();
  const auto ended = start_ + hours(200);
  EXPECT_TRUE(connection_->Tick(ended));
  EXPECT_TRUE(connection_->Tick(ended + kGateReadTimeout - seconds(1)));
  EXPECT_EQ(num_closed_, 0);
  connection_->Tick(ended + kGateReadTimeout);
  EXPECT_EQ(num_closed_, 1);
}

TEST_F(GateConnectionTest, WhoHasNoCallIsClosedOnceItHasHeardAll) {
  shared_.closes_idle = true;
  Greet();
  ByClient(CallHeaders(1, kCall));
  EXPECT_TRUE(connection_->Tick(start_));
  EXPECT_EQ(num_closed_, 0) << "it has a call";
  ByGrpc(Http2Frame(kHeadersFrame, 1, "end", kEndStreamFlag | kEndHeadersFlag));
  const std::string said = Fill();
  EXPECT_TRUE(connection_->Tick(start_));
  EXPECT_EQ(num_closed_, 0) << "it has not heard all";
  EXPECT_EQ(HearAll().size(), said.size());
  EXPECT_FALSE(client_->ended());
  connection_->Tick(start_);
  EXPECT_EQ(num_closed_, 1);
}

// ---- What is kept ----

TEST_F(GateConnectionTest, WhatIsKeptIsChargedForAsLongAsItIs) {
  Greet();
  const int64_t before = budget_.held_bytes();
  const std::string said = Fill();
  EXPECT_GT(budget_.held_bytes(), before);
  EXPECT_EQ(HearAll().size(), said.size());
  EXPECT_EQ(budget_.held_bytes(), before);
  connection_->Close();
  EXPECT_FALSE(connection_->Tick(start_)) << "nothing rests";
  EXPECT_EQ(budget_.held_bytes(), 0);
  Connect();
  EXPECT_GT(budget_.held_bytes(), 0);
  connection_->Abandon();
  EXPECT_EQ(budget_.held_bytes(), 0);
  EXPECT_EQ(num_closed_, 2);
}

TEST_F(GateConnectionTest, WhoeverAsksHearsWhenAllIsPassedOn) {
  Greet();
  const ServedCall call("fd:" + std::to_string(grpc_->descriptor()));
  int told = 0;
  const auto ask = [&] {
    call.connection()->WhenPassedOn([&] { ++told; });
    Run();
  };
  ASSERT_NE(call.connection(), nullptr);
  ask();
  EXPECT_EQ(told, 1) << "nothing is on its way";
  EXPECT_TRUE(grpc_->Say(Ping()));
  std::string heard;
  call.connection()->WhenPassedOn([&] { heard = client_->Hear(); });
  Run();
  EXPECT_EQ(heard, Ping()) << "what has not even been read is";
  Fill();
  ask();
  ByClient(WindowUpdate(0, 1));
  EXPECT_EQ(told, 1);
  HearAll();
  EXPECT_EQ(told, 2);
  Fill();
  ask();
  EXPECT_EQ(told, 2);
  connection_->Close();
  EXPECT_EQ(told, 3) << "it never will be";
  call.connection()->WhenPassedOn([&] { ++told; });
  EXPECT_EQ(told, 4) << "without the gate's thread, which may have ended";
}

TEST_F(GateConnectionTest, AProofThatComesAfterTheEndIsNothingToTheGate) {
  shared_.options.awaits_proof = true;
  Greet();
  const ServedCall call("fd:" + std::to_string(grpc_->descriptor()));
  ASSERT_NE(call.connection(), nullptr);
  connection_->Close();
  Run();
  call.connection()->SetProven();
  io_.restart();
  EXPECT_EQ(io_.poll(), 0u);
}

// ---- Whatever both say, in pieces of any size, in any order, and whoever leaves ----

class AnyConversationTest : public GateConnectionTest {
 protected:
  // Frames that one side says, and where each ends.
  struct Script {
    std::string bytes;
    std::vector<size_t> ends;
    size_t said = 0;
    void Add(const std::string& frame) { ends.push_back((bytes += frame).size()); }
  };

  int Below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  size_t Some(size_t most) { return Below(4) == 0 ? most : 1 + random_() % most; }

  std::string ClientFrame() {
    switch (Below(9)) {
      case 0:
      case 1:
        return CallHeaders((next_stream_ += 2) - 2, kCall);
      case 2:
        return ResetOf(AnyStream());
      case 3:
        return Message(AnyStream(), Some(20'000));
      case 4:
        return CallHeaders(AnyStream(), kCall);  // Trailers.
      case 5:
        return Settings(Below(2));
      case 6:
        return Ping(Below(2));
      default:
        return WindowUpdate(0, 1);
    }
  }
  std::string GrpcFrame() {
    switch (Below(6)) {
      case 0:
        return Http2Frame(kHeadersFrame, AnyStream(), "end", kEndStreamFlag | kEndHeadersFlag);
      case 1:
        return Http2Frame(kHeadersFrame, AnyStream(), "cut") +
               Http2Frame(kContinuationFrame, AnyStream(), "in two", kEndHeadersFlag);
      case 2:
        return Below(2) == 0 ? Ping() : Settings();
      default:
        return Message(AnyStream(), Some(20'000));
    }
  }
  uint32_t AnyStream() { return static_cast<uint32_t>(1 + 2 * Below(20)); }

  static void SayOf(Script* script, size_t most, Peer* peer) {
    const std::string part = script->bytes.substr(script->said, most);
    if (!part.empty() && peer->Say(part)) script->said += part.size();
  }

  // What is done how often: of each seed something else is done most, or never.
  void DrawHabits() {
    std::vector<int> weights(8);
    for (int& weight : weights) weight = Below(3) == 0 ? 0 : 1 << Below(6);
    weights.back() += 8;
    habits_ = std::discrete_distribution<int>(weights.begin(), weights.end());
  }
  void Step() {
    switch (habits_(random_)) {
      case 0:
        return SayOf(&by_client_, Some(4'000), &*client_);
      case 1:
        if (grpc_.has_value()) SayOf(&by_grpc_, Some(4'000), &*grpc_);
        return;
      case 2:
        heard_by_client_ += client_->Hear();
        return;
      case 3:
        return HearAsGrpc();
      case 4:
        connection_->Tick(now_ += std::chrono::milliseconds(Below(200)));
        return;
      case 5:
        if (Below(20) == 0) grpc_.reset();
        return;
      case 6:
        if (Below(20) == 0) shutdown(client_->descriptor(), SHUT_WR);
        if (Below(20) == 0) connection_->SayGoodbye();
        return;
      default:
        return Run();
    }
  }

  // Now and then it answers, as gRPC would: acknowledges what it is asked, and ends calls.
  void HearAsGrpc() {
    if (!grpc_.has_value()) return;
    heard_by_grpc_ += grpc_->Hear();
    if (Below(3) != 0) return;
    std::string_view rest = std::string_view(heard_by_grpc_).substr(answered_);
    const size_t preface = answered_ == 0 ? kHttp2Preface.size() : 0;
    if (rest.size() < preface) return;
    rest.remove_prefix(preface);
    while (rest.size() >= 9) {
      const auto byte = [&](size_t at) { return static_cast<uint8_t>(rest[at]); };
      const size_t size = 9 + (size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2));
      if (rest.size() < size) break;
      const uint32_t stream = byte(8);
      if (byte(3) == kHeadersFrame && Below(2) == 0) {
        by_grpc_.Add(Http2Frame(kHeadersFrame, stream, "end", kEndStreamFlag | kEndHeadersFlag));
      } else if ((byte(3) == kPingFrame || byte(3) == kSettingsFrame) && byte(4) == 0) {
        by_grpc_.Add(byte(3) == kPingFrame ? Ping(kAckFlag) : Settings(kAckFlag));
      }
      rest.remove_prefix(size);
    }
    answered_ = heard_by_grpc_.size() - rest.size();
  }

  // What was said, with the goodbye between two frames or nowhere, as far as it has come.
  bool IsHeardOf(const Script& script, const std::string& heard) const {
    if (script.bytes.starts_with(heard)) return true;
    return std::any_of(script.ends.begin(), script.ends.end(), [&](size_t end) {
      return (script.bytes.substr(0, end) + Goodbye() + script.bytes.substr(end))
          .starts_with(heard);
    });
  }

  std::mt19937 random_;
  std::discrete_distribution<int> habits_;
  Script by_client_, by_grpc_;
  std::string heard_by_client_, heard_by_grpc_;
  size_t answered_ = 0;
  uint32_t next_stream_ = 1;
  Clock::time_point now_ = start_;
};

TEST_F(AnyConversationTest, NothingIsLostInTheMiddleOrMadeUpAndAllIsGivenBack) {
  const uint32_t first = std::random_device()();
  for (uint32_t seed = first; seed < first + 4'000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    by_client_ = by_grpc_ = {};
    heard_by_client_.clear();
    heard_by_grpc_.clear();
    answered_ = 0;
    next_stream_ = 1;
    grpc_.reset();
    shared_.options.max_streams = 1 + Below(4);
    shared_.options.rest = std::chrono::milliseconds(Below(300));
    room_ = 1 << (10 + Below(8));
    Connect();
    DrawHabits();
    by_client_.Add(std::string(kHttp2Preface));
    by_client_.Add(Settings());
    by_grpc_.Add(Settings());
    for (int i = 0; i < 40; ++i) by_client_.Add(ClientFrame());
    for (int i = 0; i < 40; ++i) by_grpc_.Add(GrpcFrame());
    for (int i = 0; i < 500; ++i) {
      Step();
      ASSERT_TRUE(by_client_.bytes.starts_with(heard_by_grpc_));
    }
    ASSERT_TRUE(IsHeardOf(by_grpc_, heard_by_client_ += HearAll()));
    connection_->Close();
    while (connection_->Tick(now_ += seconds(1))) {
    }
    ASSERT_EQ(budget_.held_bytes(), 0);
    ASSERT_EQ(shared_.calls->count(), 0);
    Run();
  }
}

}  // namespace
}  // namespace tandem
