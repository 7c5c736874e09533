// A router process in simulation: the real request owner, its watches and sessions over virtual
// links, and clients that compare what they get with the fault-free run, delta by delta.

#ifndef TANDEM_RUNTIME_SIMULATION_SIMULATED_ROUTER_H_
#define TANDEM_RUNTIME_SIMULATION_SIMULATED_ROUTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/request/request_owner.h"
#include "runtime/simulation/request_book.h"
#include "runtime/simulation/turns_judge.h"
#include "runtime/simulation/virtual_network.h"

namespace tandem {

class World;
class SimulatedWorker;

class SimulatedRouter final : private RouterOutbox {
 public:
  SimulatedRouter(World* world, std::string name);
  ~SimulatedRouter() override;

  void Start();  // A new incarnation that knows nothing.
  void Crash();  // The router's clients are gone, too.

  // A client's request, and perhaps the moment at which the client leaves.
  void Ask(AskedRequest asked, std::optional<int64_t> leaves_after_us);

  VirtualProcess* process() { return &process_; }
  // Is up, in the incarnation that has registered here.
  bool Knows(const SimulatedWorker& worker) const;
  int64_t num_overtaken() const { return turns_.num_overtaken(); }
  bool idle() const;  // Every request has had its terminal event.
  // Numbers of unfinished requests. `only_servable`: not those that no worker left can go on with.
  std::string Unfinished(bool only_servable = false) const;
  absl::Status AuditQuiet() const;

 private:
  class Client;
  struct Connection {
    std::shared_ptr<VirtualLink> watch;
    bool dialling_watch = false;
    std::optional<WorkerId> worker;  // As registered.
    std::shared_ptr<VirtualLink> session;
    bool dialling_session = false;
    SessionId session_id = 0;      // Ours.
    SessionId worker_session = 0;  // The worker's.
    SimulatedWorker* peer = nullptr;
    uint64_t peer_incarnation = 0;  // As registered when the session was opened.
  };
  struct LiveAttempt {
    AttemptId attempt;
    SessionId session = 0;
    SentAttempt sent;
  };

  int32_t KindOf(const AskedRequest& asked) const;  // For TurnsJudge.
  // All of it fits, and what was promised first stays promised.
  AskedRequest* AskedFor(const Submit& submit);
  void CheckFits(const Connection& connection, const Submit& submit);
  // Lets another worker compute the prompt, whatever its role.
  void NameAnyPeer(const SimulatedWorker& worker, Submit* submit);

  // RouterOutbox.
  void SendSubmit(SessionId session, const Submit& submit) override;
  void SendCancel(SessionId session, const Cancel& cancel) override;
  void CloseSession(SessionId session, std::string_view why) override;
  void RestartWatch(const WorkerId& worker) override;

  int64_t Now() const;
  uint64_t MostRefusals() const;
  void Tick();
  void DialAll();
  void DialWatch(Connection* connection, SimulatedWorker* worker);
  void DialSession(Connection* connection, SimulatedWorker* worker);
  Connection* Find(SessionId session);
  void OnBatch(SessionId session, const StepBatch& batch);
  void NotLive(const AttemptId& attempt, SessionId session, int32_t choice = -1);
  void SessionOver(SessionId session);
  void UpdateBook();  // Which attempts this router believes to run.

  World* const world_;
  VirtualProcess process_;
  uint64_t incarnation_ = 0;
  int64_t started_us_ = 0;
  std::unique_ptr<RequestOwner> owner_;
  std::map<std::string, Connection> connections_;  // By address.
  std::vector<std::unique_ptr<Client>> clients_;
  // The one attempt that computes a choice, as far as the router has heard.
  std::map<std::pair<RequestId, int32_t>, LiveAttempt> live_;
  std::set<AttemptId> said_token_;  // Attempts that have said a token.
  TurnsJudge turns_;
  uint64_t last_asked_ = 0;  // The last request's counter.
  SessionId last_session_ = 0;
  int64_t num_deltas_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_SIMULATED_ROUTER_H_
