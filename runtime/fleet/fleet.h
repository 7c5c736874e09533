// What a router knows of its workers: who they are, what they last said of themselves, and whether
// they may be given work. Rebuilt from the workers by every router; nothing is shared or stored.
//
// A worker is heard through its Watch (registration, heartbeats) and given work through a Session.
// Its name is stable, its incarnation is not: a registration with another incarnation replaces the
// old life and everything that was known of it. An address has one worker: another name that
// registers there replaces the one before, so that what is kept is bounded by the addresses.
//
// One thread, every method. `now_us` never goes back.

#ifndef TANDEM_RUNTIME_FLEET_FLEET_H_
#define TANDEM_RUNTIME_FLEET_FLEET_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/fleet/work_window.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/pause.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/protocol/times.h"

namespace tandem {

// What this router has running at a worker.
struct LiveWork {
  int32_t attempts = 0;
  int32_t sequences = 0;      // What these attempts have together.
  int32_t prompts = 0;        // Computed there for decode workers.
  int64_t prompt_tokens = 0;  // In prompts that are not computed yet, whoever they are for.

  bool operator==(const LiveWork&) const = default;
  LiveWork operator-() const { return {-attempts, -sequences, -prompts, -prompt_tokens}; }
};

struct FleetWorker {
  WorkerRegistration registration;
  std::string address;  // host:port of its gRPC listener, as the router found it.
  WorkerLoad load;      // As last reported.
  bool draining = false;
  bool watched = false;    // The Watch stands.
  bool peer_lost = false;  // A decode worker lost it since its last heartbeat.
  int64_t heard_us = 0;    // Last message of its Watch.
  SessionId session = 0;   // 0: none.

  LiveWork live;  // The reported load lags by a heartbeat; this does not.
  LiveWork live_when_heard;

  Pause failing;  // A step failed there: no new work. Over once one is seen to succeed.

  WorkWindow window{0}, prompt_window{0};  // For attempts, and for prompts of decode workers.
  int64_t alone_refused_until_us = 0;      // It has somebody else's attempt that must run alone.

  // A sequence that may be what kills workers has no token yet: no other prompt comes here, so that
  // only one can be blamed.
  bool reserved = false;

  const WorkerId& id() const { return registration.worker; }
  // The longest prompt + output that it runs: its context, and the whole pool, or what a window
  // leaves of it.
  int64_t offered_tokens() const;
  // The longest prompt that it computes for another, all of it in its pool: it draws the first
  // token, too.
  int64_t offered_prompt_tokens() const;
  // Best guesses: what was reported, corrected by what we did since.
  int32_t estimated_sequences() const;
  int64_t estimated_prompt_tokens() const;
};

// Why streams must leave a worker.
enum class WorkerFault : uint8_t {
  kNone,
  kSilent,   // No message for move_streams_after_us.
  kStalled,  // It talks, but its engine has had work and no progress for that long.
};

class Fleet {
 public:
  explicit Fleet(const LivenessTimes& times) : times_(times) {}

  // ---- What is heard ----

  // First message of a Watch. Returns what this ends: the earlier life of this name, if its
  // incarnation differs, and the worker of another name that was at this address (their sessions,
  // if they had one, are gone from the fleet with them). FailedPrecondition if a worker of this
  // name, this one or another, was heard at another address within no_new_work_after_us.
  struct Replaced {
    WorkerId worker;
    SessionId session = 0;
  };
  absl::StatusOr<std::vector<Replaced>> OnRegistration(const std::string& address,
                                                       const WorkerRegistration& registration,
                                                       int64_t now_us);
  // The following ignore a worker that is not known in this incarnation (false).
  bool OnHeartbeat(const WorkerId& worker, const WorkerLoad& load, bool draining, int64_t now_us);
  bool OnSnapshot(const WorkerId& worker);  // The worker's prefix cache is known from now on.
  bool OnWatchLost(const WorkerId& worker);
  // `session` is not 0 and never used before. Returns false also if one is up already.
  bool OnSessionUp(const WorkerId& worker, SessionId session);
  // The worker that had it, if any has.
  std::optional<WorkerId> OnSessionLost(SessionId session);
  // Forgets workers that have neither Watch nor Session and were not heard for kForgetAfterUs.
  // Returns them. Of one whose address is expected it stays known that somebody is missing there.
  std::vector<WorkerId> ForgetGone(int64_t now_us);

  // ---- What the router does there ----

  void AddLive(const WorkerId& worker, const LiveWork& more);
  // These, too, ignore an incarnation that is not known.
  // It refused for being full: an attempt, a prompt for a decode worker, or one that must run alone
  // while another such runs there. `retry_after_us` is when it may have room; 0: it did not say.
  void OnFull(const WorkerId& worker, int64_t retry_after_us, int64_t now_us);
  void OnPromptRefused(const WorkerId& prefill, int64_t retry_after_us, int64_t now_us);
  void OnRunAloneRefused(const WorkerId& worker, int64_t now_us);
  void OnDraining(const WorkerId& worker);  // It said so, or refused or ended an attempt for it.
  // A decode worker lost it: no work until its next heartbeat.
  void OnPeerLost(const WorkerId& prefill);
  void Reserve(const WorkerId& worker, bool reserved);
  // A step failed there as a whole: no work for a heartbeat; for twice as long each time up to
  // max_pause_us, until one is seen to succeed.
  void OnStepFailed(const WorkerId& worker, int64_t now_us);
  void OnStepWorked(const WorkerId& worker);
  // These two cannot exchange blocks, for a reason that registrations do not tell: they are not
  // paired again for first_pause_us, which doubles each time up to max_pause_us.
  void OnPairFailed(const WorkerId& decode, const WorkerId& prefill, int64_t now_us);
  void OnPairWorked(const WorkerId& decode, const WorkerId& prefill);
  // The router itself was not running for so long: nobody was silent, it did not listen.
  void OnOwnPause(int64_t pause_us, int64_t now_us);

  // ---- What may be done with whom ----

  // Heard within no_new_work_after_us, progressing, not draining, not just lost by a peer, and no
  // step failed there just now.
  bool Healthy(const FleetWorker& worker, int64_t now_us) const;
  // Healthy, has a session, is not reserved, and its window has room. `runs_alone`: also no prompt
  // of ours, and has not just refused to let somebody run alone.
  bool MayTakeWork(const FleetWorker& worker, bool runs_alone, int64_t now_us) const;
  bool MayPrefill(const FleetWorker& worker, int64_t now_us) const {
    return Healthy(worker, now_us) && !worker.reserved;
  }
  bool HasPromptRoom(const FleetWorker& worker, int64_t now_us) const {
    return worker.prompt_window.HasRoom(worker.live.prompts, now_us);
  }
  WorkerFault FaultOf(const FleetWorker& worker, int64_t now_us) const;
  // Blocks of one mean the same to the other, bit for bit, and the last attempt has not failed just
  // now.
  bool MayPair(const FleetWorker& decode, const FleetWorker& prefill, int64_t now_us) const;

  // ---- Completeness ----

  // The static list of worker addresses; call once, before the first registration.
  void Expect(const std::vector<std::string>& addresses);
  // Or those that a DNS name has now: nobody waits for them.
  void SetExpected(std::set<std::string> addresses);
  // Every address of the static list has registered and sent its snapshot at least once.
  bool KnownCompletely() const { return awaited_.empty(); }
  // Addresses not known yet.
  const std::set<std::string>& awaited() const { return awaited_; }
  // Expected addresses whose worker was forgotten: no work waits for it, no prefix is known of it,
  // but it is missed until another registers there or nobody is expected any more.
  struct Missing {
    std::string name;
    WorkerRole role = WorkerRole::kHybrid;
    bool was_draining = false;  // It had said that it would leave.

    bool operator==(const Missing&) const = default;
  };
  const std::map<std::string, Missing>& missing() const { return missing_; }
  // Expected addresses at which no worker has ever registered.
  int64_t NumUnseen() const { return std::ssize(expected_) - std::ssize(seen_); }

  // The worker that offers most tokens, of those that are registered with this model (lost ones
  // that are not forgotten included) and decode, or have `any_role`. Null: there is none.
  const FleetWorker* Largest(const std::string& model, bool any_role) const;

  // By name.
  const std::map<std::string, FleetWorker>& workers() const { return workers_; }
  const FleetWorker* Find(const WorkerId& worker) const;  // Null unless in this incarnation.
  const FleetWorker* FindSession(SessionId session) const;
  // How this earlier life ended, if the present one of its name has told.
  std::optional<EndCause> CauseOf(const WorkerId& ended) const;
  const LivenessTimes& times() const { return times_; }

  static constexpr int64_t kForgetAfterUs = 60'000'000;

 private:
  void See(const std::string& address);
  FleetWorker* FindMutable(const WorkerId& worker);

  const LivenessTimes times_;
  std::map<std::string, FleetWorker> workers_;
  std::map<SessionId, std::string> session_owner_;
  // What workers_ says of those that it knows. An incarnation that has been replaced, and registers
  // again, still has what runs there. No more than there are attempts.
  std::map<WorkerId, LiveWork> live_;
  std::set<std::string> expected_, awaited_;
  std::set<std::string> seen_;              // Expected ones where somebody has registered.
  std::map<std::string, Missing> missing_;  // Only expected ones.
  // Decode, prefill. Of workers that are known when one is added.
  std::map<std::pair<WorkerId, WorkerId>, Pause> pair_pauses_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_FLEET_FLEET_H_
