#include "services/server/fleet_auth.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/entropy.h"
#include "services/server/channel.h"
#include "services/server/gated_calls.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/support/count_of.h"
#include "tests/support/test_door.h"

namespace tandem {
namespace {

const std::string kOld(32, 'o'), kNew(32, 'n');

FleetSecret Secret(const std::string& text) { return *FleetSecret::Parse(text); }

// A worker of which one method exists.
class Called final : public v1::Worker::CallbackService {
 public:
  explicit Called(const FleetSecret& secret, size_t calls_per_challenge = 1000,
                  bool with_challenge = true, bool knows_its_port = true)
      : door_(secret, calls_per_challenge) {
    grpc::ServerBuilder builder;
    ConfigureServer(1, &builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    if (with_challenge) builder.RegisterService(door_.service());
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
    if (knows_its_port) door_.ListensOn(address_);
  }
  ~Called() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::ServerUnaryReactor* Control(grpc::CallbackServerContext* context, const v1::ControlRequest*,
                                    v1::ControlResponse*) override {
    const absl::Status admitted = door_.Admit(context, kControlMethod);
    if (admitted.ok()) ++num_admitted;
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(admitted));
    return reactor;
  }

  const std::string& address() const { return address_; }
  std::shared_ptr<grpc::Channel> Dial() const { return DialControl(address_, 1); }
  // Through a pair of sockets of which the server's end is `connection`, as a gate makes them.
  std::shared_ptr<grpc::Channel> DialAs(std::shared_ptr<GatedConnection> connection) const {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    GatedConnection::Name(pair[1], std::move(connection));
    grpc::AddInsecureChannelFromFd(server_.get(), pair[1]);
    return grpc::CreateInsecureChannelFromFd("", pair[0]);
  }

  std::atomic<int> num_admitted{0};

 private:
  TestDoor door_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

struct Outcome {
  absl::Status call;
  bool proven = false;
  absl::Status why;
};

// One whole call, as a router makes it.
Outcome Call(const Called& called, const FleetSecret& secret, const std::string& target) {
  const auto channel = called.Dial();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  FleetCall proof(&secret, channel, target, kControlMethod, &context);
  v1::ControlRequest request;
  v1::ControlResponse response;
  std::promise<grpc::Status> done;
  const auto stub = v1::Worker::NewStub(channel);
  proof.Start([&] {
    stub->async()->Control(&context, &request, &response,
                           [&](grpc::Status status) { done.set_value(std::move(status)); });
  });
  const grpc::Status status = done.get_future().get();
  const bool proven = proof.Proven(status.ok());
  return {FromGrpcStatus(status), proven, proof.WhyEnded(status)};
}

Outcome Call(const Called& called, const FleetSecret& secret) {
  return Call(called, secret, called.address());
}

std::string ChallengeOf(const Called& called) {
  grpc::ClientContext context;
  v1::ChallengeAnswer answer;
  EXPECT_TRUE(v1::Fleet::NewStub(called.Dial())->Challenge(&context, {}, &answer).ok());
  return answer.challenge();
}

// A call with these bytes for a proof.
grpc::Status Present(const std::shared_ptr<grpc::Channel>& channel, const std::string& bytes) {
  grpc::ClientContext context;
  if (!bytes.empty()) context.AddMetadata("tandem-proof-bin", bytes);
  v1::ControlResponse response;
  return v1::Worker::NewStub(channel)->Control(&context, {}, &response);
}
grpc::Status Present(const Called& called, const std::string& bytes) {
  return Present(called.Dial(), bytes);
}

std::string ProofFor(const std::string& secret, const std::string& challenge,
                     const std::string& nonce, const std::string& method,
                     const std::string& address) {
  return challenge + nonce +
         Secret(secret).Prove({"tandem-rpc-v1 caller", challenge, nonce, method,
                               address.substr(address.rfind(':') + 1)});
}

TEST(FleetAuthTest, WhoKnowsTheSecretIsAdmittedAndAnswered) {
  const Called called(Secret(kOld));
  const Outcome outcome = Call(called, Secret(kOld));
  EXPECT_TRUE(outcome.call.ok()) << outcome.call;
  EXPECT_TRUE(outcome.proven && outcome.why.ok()) << outcome.why;
  EXPECT_TRUE(Call(called, Secret(kOld), "another.name" + called.address().substr(9)).proven);
  EXPECT_EQ(called.num_admitted, 2);
}

TEST(FleetAuthTest, StrangersAreRefusedBeforeTheHandlerDoesAnything) {
  const Called called(Secret(kOld));
  for (const FleetSecret& secret : {FleetSecret(), Secret(kNew)}) {
    const Outcome outcome = Call(called, secret);
    EXPECT_EQ(outcome.call.code(), absl::StatusCode::kUnauthenticated) << outcome.call;
    EXPECT_FALSE(outcome.proven);
    EXPECT_EQ(outcome.why, outcome.call);
  }
  const std::string challenge = ChallengeOf(called), nonce(16, 'n');
  const std::string good = ProofFor(kOld, challenge, nonce, kControlMethod, called.address());
  std::string flipped = good;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  for (const std::string& proof :
       {std::string("x"), flipped, good.substr(1), good + "x", std::string(64, '\0'),
        // For another purpose, another place, another life, a challenge of one's own.
        ProofFor(kOld, challenge, nonce, kWatchMethod, called.address()),
        ProofFor(kOld, challenge, nonce, kControlMethod, ":1"),
        ProofFor(kOld, ChallengeOf(Called(Secret(kOld))), nonce, kControlMethod, called.address()),
        ProofFor(kOld, std::string(16, 'c'), nonce, kControlMethod, called.address())}) {
    EXPECT_EQ(Present(called, proof).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(called.num_admitted, 0);
  EXPECT_TRUE(Present(called, good).ok());
  EXPECT_EQ(called.num_admitted, 1);
}

// The gate cuts strangers where others need room.
TEST(FleetAuthTest, AConnectionIsProvenOnceACallOfItIs) {
  const Called called(Secret(kOld));
  const auto connection = std::make_shared<GatedConnection>(
      std::make_shared<UnservedCalls>(8, [] {}), "ipv4:127.0.0.1:4711");
  const auto channel = called.DialAs(connection);
  const std::string good =
      ProofFor(kOld, ChallengeOf(called), std::string(16, 'n'), kControlMethod, called.address());
  EXPECT_FALSE(Present(channel, good + "x").ok());
  EXPECT_FALSE(connection->proven());
  EXPECT_TRUE(Present(channel, good).ok());
  EXPECT_TRUE(connection->proven());
}

// It would be good at every process that has just begun.
TEST(FleetAuthTest, NoProofIsGoodForAPortThatIsNotKnownYet) {
  const Called called(Secret(kOld), 1000, /*with_challenge=*/true, /*knows_its_port=*/false);
  const std::string proof =
      ProofFor(kOld, ChallengeOf(called), std::string(16, 'n'), kControlMethod, ":");
  EXPECT_EQ(Present(called, proof).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(called.num_admitted, 0);
}

// Strangers call as often as they like.
TEST(FleetAuthTest, TheLogTellsLessAndLessOfStrangers) {
  const Called called(Secret(kOld));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(Present(called, "x").ok());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf("without a proof of the fleet's secret", log), 3)
      << "the 1st, 2nd, 4th: " << log;
}

TEST(FleetAuthTest, AProofIsGoodForOneCall) {
  constexpr int kCallsPerChallenge = 4;
  const Called called(Secret(kOld), kCallsPerChallenge);
  std::vector<std::string> used;
  for (int i = 0; i < 5 * kCallsPerChallenge; ++i) {
    used.push_back(ProofFor(kOld, ChallengeOf(called), std::string(16, static_cast<char>('a' + i)),
                            kControlMethod, called.address()));
    EXPECT_TRUE(Present(called, used.back()).ok()) << i;
  }
  // Also when nobody remembers them any more: their challenge has gone, too.
  for (const std::string& proof : used) {
    EXPECT_EQ(Present(called, proof).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(called.num_admitted, 5 * kCallsPerChallenge);
}

TEST(FleetAuthTest, AChallengeOutlivesItsSuccessorsFirstCalls) {
  const Called called(Secret(kOld), 2);
  const std::string early = ChallengeOf(called);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Call(called, Secret(kOld)).call.ok());
  ASSERT_NE(ChallengeOf(called), early);
  EXPECT_TRUE(
      Present(called, ProofFor(kOld, early, std::string(16, 'e'), kControlMethod, called.address()))
          .ok());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Call(called, Secret(kOld)).call.ok());
  EXPECT_FALSE(
      Present(called, ProofFor(kOld, early, std::string(16, 'f'), kControlMethod, called.address()))
          .ok());
}

// What it remembers is bounded, whoever goes on with an old challenge.
TEST(FleetAuthTest, AnOldChallengeIsGoodForSoManyCallsAndNoMore) {
  const Called called(Secret(kOld), 1);
  const std::string old = ChallengeOf(called);
  const auto call = [&](char nonce) {
    return Present(called,
                   ProofFor(kOld, old, std::string(16, nonce), kControlMethod, called.address()))
        .ok();
  };
  EXPECT_TRUE(call('a'));
  ASSERT_NE(ChallengeOf(called), old);
  EXPECT_TRUE(call('b'));
  EXPECT_FALSE(call('c'));
}

TEST(FleetAuthTest, TwoSecretsAreValidDuringARotation) {
  const std::string steps[] = {kOld, kOld + " " + kNew, kNew + " " + kOld, kNew};
  for (int called_step = 0; called_step < 4; ++called_step) {
    for (int caller_step = std::max(0, called_step - 1); caller_step < std::min(4, called_step + 2);
         ++caller_step) {
      const Called called(Secret(steps[called_step]));
      const Outcome outcome = Call(called, Secret(steps[caller_step]));
      EXPECT_TRUE(outcome.proven) << called_step << ' ' << caller_step << outcome.why;
    }
  }
  EXPECT_FALSE(Call(Called(Secret(kNew)), Secret(steps[1])).call.ok()) << "two steps at once";
}

// Whoever took a dead worker's port answers whatever is asked, and knows no secret.
TEST(FleetAuthTest, AnOtherEndThatProvesNothingIsNotBelieved) {
  const Called impostor{FleetSecret()};
  const Outcome outcome = Call(impostor, Secret(kOld));
  EXPECT_TRUE(outcome.call.ok()) << "it admits everybody: " << outcome.call;
  EXPECT_FALSE(outcome.proven);
  EXPECT_EQ(outcome.why.code(), absl::StatusCode::kUnauthenticated);
}

TEST(FleetAuthTest, WithoutAChallengeTheCallIsStartedCancelled) {
  const Called old(FleetSecret(), 1000, /*with_challenge=*/false);
  const Outcome outcome = Call(old, Secret(kOld));
  EXPECT_EQ(outcome.call.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(outcome.proven);
  EXPECT_EQ(outcome.why.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(old.num_admitted, 0);
}

// The other end of a call for a challenge: answers none, or this one.
class OtherFleet final : public v1::Fleet::CallbackService {
 public:
  explicit OtherFleet(std::optional<std::string> challenge) : challenge_(std::move(challenge)) {
    grpc::ServerBuilder builder;
    ConfigureServer(1, &builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~OtherFleet() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::ServerUnaryReactor* Challenge(grpc::CallbackServerContext* context,
                                      const v1::ChallengeRequest*,
                                      v1::ChallengeAnswer* answer) override {
    if (challenge_.has_value()) {
      answer->set_challenge(*challenge_);
      grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
    struct Silent final : grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    asked_.set_value();
    return new Silent;
  }

  // Why a call to it does not begin; it is cancelled once a challenge is awaited, if `cancelled`.
  absl::Status WhyEnded(bool cancelled) {
    const FleetSecret secret = Secret(kOld);
    grpc::ClientContext context;
    FleetCall proof(&secret, DialControl(address_, 1), address_, kControlMethod, &context);
    std::promise<void> started;
    proof.Start([&] { started.set_value(); });
    if (cancelled) {
      asked_.get_future().wait();
      proof.Cancel();
    }
    auto start = started.get_future();
    if (start.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
      ADD_FAILURE() << "it still waits";
      proof.Cancel();
      start.wait();
    }
    return proof.WhyEnded(grpc::Status::OK);
  }

 private:
  const std::optional<std::string> challenge_;
  std::promise<void> asked_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// The calls behind a challenge have no deadline, so the challenge needs its own.
TEST(FleetAuthTest, AChallengeThatDoesNotComeIsNotAwaitedForEver) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(OtherFleet(std::nullopt).WhyEnded(/*cancelled=*/false)));
}

TEST(FleetAuthTest, ACallIsCancelledWhileItsChallengeIsAwaited) {
  EXPECT_TRUE(absl::IsCancelled(OtherFleet(std::nullopt).WhyEnded(/*cancelled=*/true)));
}

TEST(FleetAuthTest, ACallThatNeedsNoChallengeIsCancelledToo) {
  const Called called{FleetSecret()};
  const FleetSecret none;
  const auto channel = called.Dial();
  grpc::ClientContext context;
  FleetCall proof(&none, channel, called.address(), kControlMethod, &context);
  proof.Cancel();
  v1::ControlResponse response;
  EXPECT_EQ(v1::Worker::NewStub(channel)->Control(&context, {}, &response).error_code(),
            grpc::StatusCode::CANCELLED);
}

// Nothing is proven to who asks for a proof of something else.
TEST(FleetAuthTest, WhatIsNoChallengeIsNotAnswered) {
  for (const size_t bytes : {0, 15, 17, 1000}) {
    const absl::Status why = OtherFleet(std::string(bytes, 'c')).WhyEnded(/*cancelled=*/false);
    EXPECT_TRUE(absl::IsUnauthenticated(why)) << bytes << ": " << why;
  }
}

TEST(FleetAuthTest, WithoutASecretEverybodyMayCall) {
  const Called called{FleetSecret()};
  const Outcome outcome = Call(called, FleetSecret());
  EXPECT_TRUE(outcome.proven && outcome.why.ok());
  EXPECT_TRUE(Present(called, "").ok());
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  grpc_init();  // Held: gRPC's global shutdown between tests takes up to 10 s.
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
