#include "services/server/fleet_auth.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/entropy.h"
#include "runtime/base/log.h"
#include "services/server/gated_calls.h"

namespace tandem {
namespace {

constexpr char kProofKey[] = "tandem-proof-bin";
constexpr size_t kNonceBytes = 16;
constexpr std::string_view kCaller = "tandem-rpc-v1 caller";
constexpr std::string_view kCalled = "tandem-rpc-v1 called";
constexpr std::chrono::seconds kChallengeTimeout{5};

// What both ends know of an address, whatever name leads to it.
std::string PortOf(std::string_view address) {
  return std::string(address.substr(address.rfind(':') + 1));
}

// The one value of a metadata key; empty if there is none or more.
std::string ValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  if (metadata.count(kProofKey) != 1) return {};
  const grpc::string_ref value = metadata.find(kProofKey)->second;
  return std::string(value.data(), value.size());
}

}  // namespace

// ---- The called end ----

FleetDoor::FleetDoor(const FleetSecret& secret, OpenCalls* calls, size_t calls_per_challenge)
    : secret_(secret),
      calls_(calls),
      calls_per_challenge_(calls_per_challenge),
      service_(this),
      current_{.text = RandomBytes(kNonceBytes)} {}

void FleetDoor::ListensOn(std::string_view address) {
  MutexLock lock(&mu_);
  port_ = PortOf(address);
}

FleetDoor::Service::Service(FleetDoor* door) : EarlyService(door->calls_) {
  AddUnary<v1::ChallengeRequest, v1::ChallengeAnswer>(
      "/tandem.v1.Fleet/Challenge", [door](const auto&, v1::ChallengeAnswer* answer) {
        answer->set_challenge(door->CurrentChallenge());
        return absl::OkStatus();
      });
}

std::string FleetDoor::CurrentChallenge() {
  MutexLock lock(&mu_);
  return current_.text;
}

bool FleetDoor::Use(std::string_view challenge, std::string_view nonce) {
  MutexLock lock(&mu_);
  for (Challenge* const known : {&current_, &previous_}) {
    if (known->text != challenge || known->nonces.size() >= 2 * calls_per_challenge_) continue;
    if (!known->nonces.emplace(nonce).second) return false;
    if (current_.nonces.size() >= calls_per_challenge_) {
      previous_ = std::exchange(current_, {.text = RandomBytes(kNonceBytes)});
    }
    return true;
  }
  return false;
}

absl::Status FleetDoor::Admit(grpc::ServerContextBase* context, std::string_view method) {
  if (!secret_.configured()) return absl::OkStatus();
  std::string port;
  {
    MutexLock lock(&mu_);
    port = port_;
  }
  const std::string given = ValueOf(context->client_metadata());
  if (given.size() == 2 * kNonceBytes + kProofBytes && !port.empty()) {
    const std::string_view all = given, challenge = all.substr(0, kNonceBytes),
                           nonce = all.substr(kNonceBytes, kNonceBytes);
    const std::optional<size_t> key =
        secret_.Check({kCaller, challenge, nonce, method, port}, all.substr(2 * kNonceBytes));
    if (key.has_value() && Use(challenge, nonce)) {
      context->AddInitialMetadata(kProofKey,
                                  secret_.Prove({kCalled, challenge, nonce, method, port}, *key));
      SetPeerProven(context->peer());
      return absl::OkStatus();
    }
  }
  uint64_t refused = 0;
  {
    MutexLock lock(&mu_);
    refused = ++num_refused_;
  }
  // Strangers must not fill the log: the first, the second, the fourth...
  if ((refused & (refused - 1)) == 0) {
    LogWarning("a call without a proof of the fleet's secret is refused",
               {{"method", std::string(method)},
                {"peer", AddressOfPeer(context->peer())},
                {"so_far", refused}});
  }
  return absl::UnauthenticatedError(
      absl::StrCat("no proof of this fleet's secret (", kFleetSecretVariable,
                   ", --fleet-secret-file) for a call to port ", port));
}

// ---- The calling end ----

FleetCall::FleetCall(const FleetSecret* secret, std::shared_ptr<grpc::Channel> channel,
                     std::string_view target, std::string_view method, grpc::ClientContext* context)
    : secret_(secret),
      channel_(std::move(channel)),
      port_(PortOf(target)),
      method_(method),
      context_(context) {}

void FleetCall::Start(std::function<void()> start) {
  if (open()) return start();
  start_ = std::move(start);
  asking_.set_deadline(
      std::min(context_->deadline(), std::chrono::system_clock::now() + kChallengeTimeout));
  v1::Fleet::NewStub(channel_)->async()->Challenge(
      &asking_, &request_, &answer_, [this](const grpc::Status& status) { OnChallenge(status); });
}

void FleetCall::OnChallenge(const grpc::Status& status) {
  absl::Status why = FromGrpcStatus(status);
  if (why.ok() && answer_.challenge().size() != kNonceBytes) {
    why = absl::UnauthenticatedError("the other end made no challenge");
  } else if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    why = absl::UnauthenticatedError("the other end does not know of fleet secrets");
  }
  if (why.ok()) {
    nonce_ = RandomBytes(kNonceBytes);
    context_->AddMetadata(
        kProofKey,
        absl::StrCat(answer_.challenge(), nonce_,
                     secret_->Prove({kCaller, answer_.challenge(), nonce_, method_, port_})));
  } else {
    Fail(why);
  }
  const std::function<void()> start = std::exchange(start_, nullptr);
  start();  // Perhaps the end of this.
}

void FleetCall::Cancel() {
  asking_.TryCancel();
  context_->TryCancel();
}

void FleetCall::Fail(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    why_ = why;
  }
  context_->TryCancel();
}

bool FleetCall::Proven(bool ok) {
  if (!ok || open()) return ok;
  const std::string proof = ValueOf(context_->GetServerInitialMetadata());
  if (secret_->Check({kCalled, answer_.challenge(), nonce_, method_, port_}, proof).has_value()) {
    return true;
  }
  Fail(absl::UnauthenticatedError("the other end has not proven that it knows the fleet's secret"));
  return false;
}

absl::Status FleetCall::WhyEnded(const grpc::Status& status) const {
  MutexLock lock(&mu_);
  return why_.ok() ? FromGrpcStatus(status) : why_;
}

}  // namespace tandem
