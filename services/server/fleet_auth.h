// Who may speak inside a fleet: both ends of an internal call prove that they know its secret.
//
//   caller                                             worker
//     Fleet.Challenge                            →
//                                                ←     challenge (of this process)
//     call, metadata: challenge, nonce, proof    →     Admit: before anything else
//     Proven: before anything is believed        ←     initial metadata: its own proof
//     or, where it opens a session, said
//
// A proof covers challenge, nonce, method and the port that was dialled: it is good for one call of
// one method to one process, and whoever sits on another port cannot pass it on. What it does not
// do is in docs/protocol.md.

#ifndef TANDEM_SERVICES_SERVER_FLEET_AUTH_H_
#define TANDEM_SERVICES_SERVER_FLEET_AUTH_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/base/fleet_secret.h"
#include "runtime/base/mutex.h"
#include "services/server/early_reactor.h"
#include "services/server/status_proto.h"
#include "tandem/v1/fleet.grpc.pb.h"

namespace tandem {

// As gRPC names them.
inline constexpr char kWatchMethod[] = "/tandem.v1.Worker/Watch";
inline constexpr char kWorkerSessionMethod[] = "/tandem.v1.Worker/Session";
inline constexpr char kControlMethod[] = "/tandem.v1.Worker/Control";
inline constexpr char kPrefillSessionMethod[] = "/tandem.v1.Prefill/Session";
inline constexpr char kFramesMethod[] = "/tandem.v1.Kv/Frames";

// The called end. Any thread.
class FleetDoor {
 public:
  // A challenge remembers the nonces of as many calls; then there is another.
  static constexpr size_t kCallsPerChallenge = 32768;

  // `calls` outlives this.
  FleetDoor(const FleetSecret& secret, OpenCalls* calls,
            size_t calls_per_challenge = kCallsPerChallenge);

  OpenCalls* calls() { return calls_; }

  // tandem.v1.Fleet, to be registered; lives as long as this.
  grpc::Service* service() { return &service_; }
  // "host:port", once the port is known. Before, no proof is good.
  void ListensOn(std::string_view address) EXCLUDES(mu_);

  // First of all in a handler. Unauthenticated without a proof that is good here and was not seen
  // before. OK with ours in the initial metadata, and always where no secret is configured.
  absl::Status Admit(grpc::ServerContextBase* context, std::string_view method) EXCLUDES(mu_);

 private:
  class Service final : public EarlyService {
   public:
    explicit Service(FleetDoor* door);
  };
  struct Challenge {
    std::string text;
    std::set<std::string> nonces;  // What admitted calls have used up.
  };

  std::string CurrentChallenge() EXCLUDES(mu_);
  // The nonce was not used with this challenge, which is one of ours; now it is.
  bool Use(std::string_view challenge, std::string_view nonce) EXCLUDES(mu_);

  const FleetSecret secret_;
  OpenCalls* const calls_;
  const size_t calls_per_challenge_;
  Service service_;
  Mutex mu_;
  std::string port_ GUARDED_BY(mu_);
  Challenge current_ GUARDED_BY(mu_);
  Challenge previous_ GUARDED_BY(mu_);  // Somebody may just have asked for it.
  uint64_t num_refused_ GUARDED_BY(mu_) = 0;
};

// A service inside the fleet: who calls a method of it has proven itself before anything else
// happens.
class FleetService : public EarlyService {
 protected:
  explicit FleetService(FleetDoor* door)  // Outlives this.
      : EarlyService(door->calls(),
                     [door](grpc::CallbackServerContext* context, std::string_view method) {
                       return door->Admit(context, method);
                     }) {}
};

// The calling end of one call. Lives as long as the call's context.
class FleetCall {
 public:
  // `target` is what `channel` was dialled with. Everything outlives this.
  FleetCall(const FleetSecret* secret, std::shared_ptr<grpc::Channel> channel,
            std::string_view target, std::string_view method, grpc::ClientContext* context);

  // Asks for a challenge, puts the proof into the context and calls `start`, which starts the call:
  // once, whatever comes, on a gRPC thread or, without a secret, at once. If there is no challenge
  // the context has been cancelled.
  void Start(std::function<void()> start);
  // Instead of the context's TryCancel: also while the challenge is awaited.
  void Cancel();

  // Once the initial metadata is here, or (not `ok`) will not come. False unless the other end has
  // proven itself: the call is over, or has been cancelled.
  bool Proven(bool ok) EXCLUDES(mu_);
  // At the end of the call: why there was no challenge or no proof; else `status`, as gRPC tells
  // it.
  absl::Status WhyEnded(const grpc::Status& status) const EXCLUDES(mu_);
  // Nobody needs to prove anything.
  bool open() const { return !secret_->configured(); }

 private:
  void OnChallenge(const grpc::Status& status) EXCLUDES(mu_);
  // The call ends for it.
  void Fail(const absl::Status& why) EXCLUDES(mu_);

  const FleetSecret* const secret_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string port_, method_;
  grpc::ClientContext* const context_;

  grpc::ClientContext asking_;
  v1::ChallengeRequest request_;
  v1::ChallengeAnswer answer_;
  std::string nonce_;
  std::function<void()> start_;
  mutable Mutex mu_;
  absl::Status why_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_FLEET_AUTH_H_
