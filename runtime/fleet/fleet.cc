#include "runtime/fleet/fleet.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/protocol/peer_terms.h"

namespace tandem {

int32_t FleetWorker::estimated_sequences() const {
  const int32_t reported = load.running_sequences + load.waiting_sequences;
  return std::max(live.sequences, reported + live.sequences - live_when_heard.sequences);
}

int64_t FleetWorker::estimated_prompt_tokens() const {
  return std::max(live.prompt_tokens,
                  load.waiting_prompt_tokens + live.prompt_tokens - live_when_heard.prompt_tokens);
}

int64_t FleetWorker::offered_tokens() const {
  const WorkerRegistration& r = registration;
  // A window may leave the blocks behind that a longer one than the pool would need.
  const bool all_fit = r.sequence_blocks > 0 && r.sequence_blocks <= r.kv.num_blocks;
  return all_fit ? r.max_model_tokens : std::min<int64_t>(r.max_model_tokens, r.kv.pool_tokens());
}

int64_t FleetWorker::offered_prompt_tokens() const {
  const WorkerRegistration& r = registration;
  return std::min(r.kv.pool_tokens(), int64_t{r.max_model_tokens} - 1);
}

absl::StatusOr<std::vector<Fleet::Replaced>> Fleet::OnRegistration(
    const std::string& address, const WorkerRegistration& registration, int64_t now_us) {
  FleetWorker& worker = workers_[registration.worker.name];
  // Each would otherwise end the other's sessions, over and over.
  if (worker.watched && worker.address != address &&
      now_us - worker.heard_us < times_.no_new_work_after_us) {
    const bool same = worker.id() == registration.worker;
    if (same) {  // What it has is known by its other address.
      awaited_.erase(address);
      missing_.erase(address);
      See(address);
    }
    return absl::FailedPreconditionError(
        absl::StrFormat("%s named %s: at %s, heard %d ms ago, and at %s",
                        same ? "one worker is" : "two workers are", registration.worker.name,
                        worker.address, (now_us - worker.heard_us) / 1000, address));
  }
  std::vector<Replaced> replaced;
  if (!worker.id().name.empty() && worker.id() != registration.worker) {
    replaced.push_back({.worker = worker.id(), .session = worker.session});
    session_owner_.erase(worker.session);
    worker = FleetWorker{};
  }
  std::erase_if(workers_, [&](const auto& entry) {
    const FleetWorker& other = entry.second;
    if (other.address != address || entry.first == registration.worker.name) return false;
    replaced.push_back({.worker = other.id(), .session = other.session});
    session_owner_.erase(other.session);
    return true;
  });
  if (worker.id().name.empty()) {
    // A batch, and as many that wait for their turn in it.
    worker.window = worker.prompt_window = WorkWindow(int64_t{2} * registration.max_sequences);
  }
  missing_.erase(address);
  See(address);
  worker.registration = registration;
  if (const auto live = live_.find(worker.id()); live != live_.end()) {
    worker.live = live->second;
  }
  worker.address = address;
  worker.watched = true;
  worker.heard_us = now_us;
  return replaced;
}

FleetWorker* Fleet::FindMutable(const WorkerId& id) {
  const auto it = workers_.find(id.name);
  return it == workers_.end() || it->second.id() != id ? nullptr : &it->second;
}

const FleetWorker* Fleet::Find(const WorkerId& id) const {
  return const_cast<Fleet*>(this)->FindMutable(id);
}

const FleetWorker* Fleet::FindSession(SessionId session) const {
  const auto it = session_owner_.find(session);
  return it == session_owner_.end() ? nullptr : &workers_.at(it->second);
}

std::optional<EndCause> Fleet::CauseOf(const WorkerId& ended) const {
  const auto it = workers_.find(ended.name);
  if (it == workers_.end()) return std::nullopt;
  const std::vector<EndedLife>& lives = it->second.registration.ended_lives;
  const auto life = std::find_if(lives.begin(), lives.end(), [&](const EndedLife& l) {
    return l.incarnation == ended.incarnation;
  });
  return life == lives.end() ? std::nullopt : std::optional(life->cause);
}

bool Fleet::OnHeartbeat(const WorkerId& id, const WorkerLoad& load, bool draining, int64_t now_us) {
  FleetWorker* worker = FindMutable(id);
  if (worker == nullptr) return false;
  worker->load = load;
  worker->draining = draining;
  worker->peer_lost = false;
  worker->heard_us = now_us;
  worker->live_when_heard = worker->live;
  worker->window.OnHeartbeat(worker->live.attempts, times_.heartbeat_us, now_us);
  worker->prompt_window.OnHeartbeat(worker->live.prompts, times_.heartbeat_us, now_us);
  return true;
}

bool Fleet::OnSnapshot(const WorkerId& id) {
  FleetWorker* worker = FindMutable(id);
  if (worker == nullptr) return false;
  awaited_.erase(worker->address);
  return true;
}

bool Fleet::OnWatchLost(const WorkerId& id) {
  FleetWorker* worker = FindMutable(id);
  if (worker == nullptr) return false;
  worker->watched = false;
  return true;
}

bool Fleet::OnSessionUp(const WorkerId& id, SessionId session) {
  TANDEM_CHECK(session != 0 && !session_owner_.contains(session)) << "session " << session;
  FleetWorker* worker = FindMutable(id);
  if (worker == nullptr || worker->session != 0) return false;
  worker->session = session;
  session_owner_.emplace(session, id.name);
  return true;
}

std::optional<WorkerId> Fleet::OnSessionLost(SessionId session) {
  const auto it = session_owner_.find(session);
  if (it == session_owner_.end()) return std::nullopt;
  FleetWorker& worker = workers_.at(it->second);
  worker.session = 0;
  session_owner_.erase(it);
  return worker.id();
}

std::vector<WorkerId> Fleet::ForgetGone(int64_t now_us) {
  std::vector<WorkerId> gone;
  for (auto it = workers_.begin(); it != workers_.end();) {
    const FleetWorker& worker = it->second;
    if (!worker.watched && worker.session == 0 && now_us - worker.heard_us > kForgetAfterUs) {
      gone.push_back(worker.id());
      if (expected_.contains(worker.address)) {
        missing_[worker.address] = {.name = worker.id().name,
                                    .role = worker.registration.role,
                                    .was_draining = worker.draining};
      }
      it = workers_.erase(it);
    } else {
      ++it;
    }
  }
  return gone;
}

void Fleet::AddLive(const WorkerId& id, const LiveWork& more) {
  const auto entry = live_.try_emplace(id).first;
  LiveWork& live = entry->second;
  live.attempts += more.attempts;
  live.sequences += more.sequences;
  live.prompts += more.prompts;
  live.prompt_tokens += more.prompt_tokens;
  TANDEM_CHECK(std::min({live.attempts, live.sequences, live.prompts}) >= 0 &&
               live.prompt_tokens >= 0)
      << id.name << ": " << live.attempts << " attempts, " << live.sequences << " sequences, "
      << live.prompts << " prompts, " << live.prompt_tokens << " prompt tokens";
  if (FleetWorker* worker = FindMutable(id)) worker->live = live;
  if (live == LiveWork()) live_.erase(entry);
}

void Fleet::OnFull(const WorkerId& id, int64_t retry_after_us, int64_t now_us) {
  FleetWorker* worker = FindMutable(id);
  if (worker == nullptr) return;
  worker->window.OnRefused(worker->live.attempts, retry_after_us, times_.heartbeat_us, now_us);
}

void Fleet::OnPromptRefused(const WorkerId& id, int64_t retry_after_us, int64_t now_us) {
  FleetWorker* worker = FindMutable(id);
  if (worker == nullptr) return;
  worker->prompt_window.OnRefused(worker->live.prompts, retry_after_us, times_.heartbeat_us,
                                  now_us);
}

void Fleet::OnRunAloneRefused(const WorkerId& id, int64_t now_us) {
  FleetWorker* const worker = FindMutable(id);
  if (worker != nullptr) worker->alone_refused_until_us = now_us + times_.heartbeat_us;
}

void Fleet::OnDraining(const WorkerId& id) {
  if (FleetWorker* worker = FindMutable(id)) worker->draining = true;
}

void Fleet::OnPeerLost(const WorkerId& id) {
  if (FleetWorker* worker = FindMutable(id)) worker->peer_lost = true;
}

void Fleet::Reserve(const WorkerId& id, bool reserved) {
  if (FleetWorker* worker = FindMutable(id)) worker->reserved = reserved;
}

void Fleet::OnStepFailed(const WorkerId& id, int64_t now_us) {
  FleetWorker* const worker = FindMutable(id);
  // A step fails once, however many streams tell of it.
  if (worker != nullptr) worker->failing.Begin(times_.heartbeat_us, times_.max_pause_us, now_us);
}

void Fleet::OnStepWorked(const WorkerId& id) {
  if (FleetWorker* worker = FindMutable(id)) worker->failing = {};
}

void Fleet::OnOwnPause(int64_t pause_us, int64_t now_us) {
  for (auto& [name, worker] : workers_) {
    worker.heard_us = std::min(worker.heard_us + pause_us, now_us);
  }
}

bool Fleet::Healthy(const FleetWorker& worker, int64_t now_us) const {
  const bool heard = worker.watched && now_us - worker.heard_us < times_.no_new_work_after_us;
  const bool progressing =
      !worker.load.has_work || worker.load.since_progress_us < times_.engine_stalled_us;
  return heard && progressing && !worker.draining && !worker.peer_lost &&
         !worker.failing.Holds(now_us);
}

bool Fleet::MayTakeWork(const FleetWorker& worker, bool runs_alone, int64_t now_us) const {
  const bool room = worker.window.HasRoom(worker.live.attempts, now_us);
  const bool undisturbed =
      !worker.reserved &&
      (!runs_alone || (worker.live.prompt_tokens == 0 && now_us >= worker.alone_refused_until_us));
  return room && undisturbed && worker.session != 0 && Healthy(worker, now_us);
}

WorkerFault Fleet::FaultOf(const FleetWorker& worker, int64_t now_us) const {
  if (now_us - worker.heard_us >= times_.move_streams_after_us) return WorkerFault::kSilent;
  if (worker.load.has_work && worker.load.since_progress_us >= times_.move_streams_after_us) {
    return WorkerFault::kStalled;
  }
  return WorkerFault::kNone;
}

void Fleet::OnPairFailed(const WorkerId& decode, const WorkerId& prefill, int64_t now_us) {
  std::erase_if(pair_pauses_, [this](const auto& entry) {
    return Find(entry.first.first) == nullptr || Find(entry.first.second) == nullptr;
  });
  pair_pauses_[{decode, prefill}].Begin(times_.first_pause_us, times_.max_pause_us, now_us);
}

void Fleet::OnPairWorked(const WorkerId& decode, const WorkerId& prefill) {
  pair_pauses_.erase({decode, prefill});
}

bool Fleet::MayPair(const FleetWorker& decode, const FleetWorker& prefill, int64_t now_us) const {
  const auto pause = pair_pauses_.find({decode.id(), prefill.id()});
  if (pause != pair_pauses_.end() && pause->second.Holds(now_us)) return false;
  return decode.registration.model == prefill.registration.model &&
         CheckPeerTerms(decode.registration.terms, prefill.registration.terms).ok();
}

void Fleet::Expect(const std::vector<std::string>& addresses) {
  awaited_.insert(addresses.begin(), addresses.end());
  expected_ = awaited_;
}

void Fleet::SetExpected(std::set<std::string> addresses) {
  expected_ = std::move(addresses);
  std::erase_if(missing_, [this](const auto& entry) { return !expected_.contains(entry.first); });
  std::erase_if(seen_, [this](const auto& address) { return !expected_.contains(address); });
  for (const auto& [name, worker] : workers_) See(worker.address);
}

void Fleet::See(const std::string& address) {
  if (expected_.contains(address)) seen_.insert(address);
}

const FleetWorker* Fleet::Largest(const std::string& model, bool any_role) const {
  const FleetWorker* largest = nullptr;
  for (const auto& [name, worker] : workers_) {
    const WorkerRegistration& registration = worker.registration;
    if (registration.model != model) continue;
    if (!any_role && registration.role == WorkerRole::kPrefill) continue;
    if (largest == nullptr || worker.offered_tokens() > largest->offered_tokens()) {
      largest = &worker;
    }
  }
  return largest;
}

}  // namespace tandem
