// A worker process in simulation: the real engine over a model of hashes, its sessions over virtual
// links, its KV frames over a transport that may lose, repeat, delay, tear and corrupt them.
//
// Everything that leaves the engine is judged here, where it appears: positions, terminal events
// and every token against the fault-free run.

#ifndef TANDEM_RUNTIME_SIMULATION_SIMULATED_WORKER_H_
#define TANDEM_RUNTIME_SIMULATION_SIMULATED_WORKER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/protocol/peer_terms.h"
#include "runtime/simulation/late_executor.h"
#include "runtime/simulation/newcomer_judge.h"
#include "runtime/simulation/simulated_executor.h"
#include "runtime/simulation/simulated_grammar.h"
#include "runtime/simulation/virtual_network.h"
#include "runtime/worker/worker_core.h"

namespace tandem {

class World;

class SimulatedWorker final : private RouterLinks, private PeerOutbox {
 public:
  SimulatedWorker(World* world, std::string address, std::string name, WorkerRole role,
                  const WorkerShape& shape, uint64_t numerics, uint64_t kv_format, bool supervised);
  ~SimulatedWorker() override;

  void Start();  // A new incarnation.
  // Nothing of the process is left, but for what it had sent.
  void Crash(EndCause cause);
  // Nor of its machine: what was on its way may be lost, and nobody knows why it ended.
  void LoseHost();
  void Drain();  // Then, after a while, Crash and Start.
  void FailStepsUntil(int64_t until_us) { sick_until_us_ = until_us; }
  void StallUntil(int64_t until_us) { stalled_until_us_ = until_us; }
  // Crash, and Start after a while.
  void Replace(EndCause cause = EndCause::kOutside);
  // What the next incarnation will have.
  void set_numerics(uint64_t numerics) { numerics_ = numerics; }
  void set_shape(const WorkerShape& shape) { next_shape_ = shape; }

  // Called by the world after everything that ran in this process.
  void AfterEvent();
  // Both are about the running incarnation; nothing may be left at the end.
  absl::Status Audit() const;
  absl::Status AuditQuiet() const;

  VirtualProcess* process() { return &process_; }
  const WorkerId& id() const { return id_; }
  const std::string& address() const { return process_.name; }
  const WorkerShape& shape() const { return shape_; }
  PeerTerms terms() const;
  bool accepting() const { return process_.up; }

  // A router's Watch: messages go back over the link's end 1.
  struct WatchSink {
    std::function<void(const WorkerRegistration&)> on_registration;
    std::function<void(const WorkerLoad&, bool draining)> on_heartbeat;
    std::function<void(const KvEvents&)> on_events;
  };
  void AcceptWatch(std::shared_ptr<VirtualLink> link, WatchSink sink);
  // A router's Session.
  SessionId AcceptRouter(std::shared_ptr<VirtualLink> link,
                         std::function<void(const StepBatch&)> on_batch);
  // `meant_for` is the incarnation that the router believes to talk to.
  void OnSubmit(SessionId router, uint64_t meant_for, const Submit& submit);
  void OnCancel(SessionId router, const Cancel& cancel);
  void OnRouterLost(SessionId router);
  // A decode worker's Session.
  SessionId AcceptDecode(std::shared_ptr<VirtualLink> link, SimulatedWorker* decode);
  void OnDecodeLost(SessionId decode);

 private:
  struct PeerLink {
    std::shared_ptr<VirtualLink> link;  // Null while dialling.
    SessionId session = 0;              // At the peer.
    SimulatedWorker* peer = nullptr;
    std::vector<DecodeToPrefill> waiting;
    uint64_t dial = 0;
  };
  struct DecodeLink {
    std::shared_ptr<VirtualLink> link;
    SimulatedWorker* decode = nullptr;
    uint64_t decode_life = 0;
    // Waits for a link that takes its time, first in, first out.
    struct WaitingFrame {
      FrameHeader header;
      BlockId block = 0;
      uint64_t send_id = 0;
    };
    std::deque<WaitingFrame> waiting;
    bool sending = false;
  };
  struct Watcher {
    std::shared_ptr<VirtualLink> link;
    WatchSink sink;
  };
  struct Watched {  // What an attempt has said so far.
    std::map<int32_t, int64_t> next_position;
    std::set<int32_t> finished;
    bool over = false;            // No event of it may follow.
    bool aborted = false;         // Its abort was answered: it runs no more.
    int64_t forgotten_at_us = 0;  // Its deadline: nobody has to remember it longer.
  };
  // For the engine's thread.
  struct Command {
    EngineCommand what;
    uint64_t meant_for = 0;    // A Submit: the incarnation that its router believes to talk to.
    bool misdirected = false;  // From a peer that is so.
  };
  // One life.
  struct Life {
    std::unique_ptr<SimulatedGrammar> grammar;  // Where requests have one.
    std::unique_ptr<SimulatedExecutor> executor;
    std::unique_ptr<LateExecutor> late;  // Where steps overlap.
    std::deque<int64_t> step_ends_us;    // When those that are begun end.
    int64_t device_free_us = 0;
    std::unique_ptr<KvReceiver> receiver;
    LeaseKeeper leases;
    std::unique_ptr<WorkerCore> core;
    std::unique_ptr<NewcomerJudge> newcomers;
    std::map<SessionId, std::shared_ptr<VirtualLink>> routers;
    std::map<SessionId, std::function<void(const StepBatch&)>> router_sinks;
    // What a step says of its results: when it ends.
    std::vector<std::function<void()>> held;
    uint64_t steps_executed = 0;  // Before this step.
    bool in_step = false;
    bool finishing = false;  // A step, whose output is published.
    std::map<SessionId, DecodeLink> decodes;
    std::map<WorkerId, PeerLink> prefills;
    std::vector<Watcher> watchers;
    std::map<AttemptId, Watched> attempts;
    // Taken, or computed for others, and ended while no step did.
    std::set<AttemptId> over;
    std::map<AttemptId, bool> pushed;      // Submits, and whether the engine's queue had room.
    std::set<AttemptId> said;              // A token of these has left the process.
    std::map<Reservation, JobId> granted;  // The job whose frames may land under this name.
    std::map<std::pair<SessionId, JobId>, AttemptId> jobs;  // What a router calls those of peers.
    // What the engine has not heard yet: its thread takes all of it before each step.
    std::vector<Command> commands;
    std::set<BlockId> stuck;  // A transport never comes back for these.
    int64_t stuck_landings = 0;
    int64_t events = 0;
    int64_t last_step_us = 0;
    int64_t next_step_us = 0;  // Not earlier: the last one still runs.
    int64_t step_at_us = 0;    // Scheduled; INT64_MAX: none.
    uint64_t step_token = 0;
    // It, or a peer that it computes for, got work that was meant for an earlier life.
    bool misdirected = false;
  };

  // RouterLinks.
  std::vector<SessionId> Routers() const override;
  void SendBatch(SessionId router, const StepBatch& batch) override;
  void WaitUntilSent(std::span<const SessionId>) override {}
  void OnEvent(SessionId router, const RouterEvent& event) override;
  void OnChunks(std::span<const ChunkNotice> chunks) override;
  void OnPromptComputed(int64_t, int64_t) override {}

  // PeerOutbox.
  void ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) override;
  void ToDecode(SessionId decode, PrefillToDecode message) override;
  void SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                 uint64_t send_id) override;
  void WithdrawFrame(SessionId decode, uint64_t send_id) override;
  void OnTransferred(int64_t) override {}
  void OnPeerPaused(const WorkerId& prefill, PauseReason reason, const std::string&) override;

  void StartNextFrame(SessionId decode);
  void ReadAndSend(SessionId decode, const FrameHeader& header, BlockId block, uint64_t send_id);

  int64_t Now() const;  // By the process's own clock.
  // A step has killed the process: what its engine says afterwards was never said.
  bool dead() const { return life_->executor->killed_by().has_value(); }
  WorkerRegistration Registration() const;
  void Post(EngineCommand what, uint64_t meant_for = 0, bool misdirected = false) {
    life_->commands.push_back({std::move(what), meant_for, misdirected});
  }
  void Apply(const Command& command);
  // What it is judged by.
  void OnSubmitTaken(SessionId router, uint64_t meant_for, const Submit& submit, int64_t now_us);
  void OnPeerMessage(const FromDecode& from);
  int64_t SinceProgressUs() const;
  // What the thread of a session does with a Submit: it has room in the engine's queue, or says
  // itself that there is none. Copies fare like the first.
  enum class Push : uint8_t { kTaken, kRefused, kIgnored };
  Push TryPush(const AttemptId& attempt);
  // Now, or when the step that computed it is over.
  void Say(std::function<void()> say);
  void Over(const AttemptId& attempt);
  void End(bool with_host, EndCause cause);
  void ScheduleStep(int64_t at_us);
  void MayFailStep();
  void Step();
  void StepOverlapping();
  int64_t BeginOverlapping();
  void FinishOverlapping();
  void PlanTurn(int64_t wake_us);
  bool ReplaceIfBroken(const Engine::StepResult& result);
  int64_t DrawStepUs(const Engine::StepResult& result);
  void DrawKill(const Engine::StepResult& result, int64_t end_us);
  void Heartbeat();
  void RenewLeases();
  void PublishKvEvents();
  void Dial(const PrefillPeer& prefill, uint64_t dial);
  void SendToPrefill(PeerLink* peer, const DecodeToPrefill& message);
  void PrefillLost(const WorkerId& prefill, const absl::Status& why);
  struct Frame {
    FrameHeader header;
    std::vector<uint8_t> payload;
    bool torn = false;
  };
  void Arrive(const Frame& frame);
  void CheckWire(const std::string& what);  // Empty: every value may cross a process border.
  void Judge(const RouterEvent& event);
  template <typename Message>
  void LogPeer(std::string_view from, const Message& message);

  World* const world_;
  VirtualProcess process_;
  const std::string name_;
  const WorkerRole role_;
  WorkerShape shape_, next_shape_;
  uint64_t numerics_;
  const uint64_t kv_format_;
  const bool supervised_;
  std::vector<EndedLife> ended_lives_;
  WorkerId id_;
  std::unique_ptr<Life> life_;
  int64_t stalled_until_us_ = 0, sick_until_us_ = 0;
  SessionId last_session_ = 0;
  uint64_t last_dial_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_SIMULATED_WORKER_H_
