// How attempts end: finished, cancelled, out of time, their router or this worker gone. Every way
// leads through ForgetAttempt, so that there is one release.

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/engine.h"

namespace tandem {
void Engine::OnCancel(SessionId router, const Cancel& cancel, int64_t now_us) {
  AdvanceTo(now_us);
  AbortOutcome outcome = AbortOutcome::kNotFound;
  const AttemptKey key{.router = router, .attempt = cancel.attempt};
  if (const auto found = attempts_.find(key); found != attempts_.end()) {
    EndAttempt(found->second.get(), absl::CancelledError("aborted by its router"));
    outcome = AbortOutcome::kAccepted;
  } else if (!ended_attempts_.Ended(key) &&
             ended_attempts_.AddAborted(key, After(now_us_, cancel.time_left_us), now_us_)) {
    outcome = AbortOutcome::kTombstoned;
  }
  outbox_->ToRouter(router, AbortReply{.attempt = cancel.attempt, .outcome = outcome});
}

void Engine::OnRouterLost(SessionId router, int64_t now_us) {
  AdvanceTo(now_us);
  EndAttemptsIf([router](const Attempt& attempt) { return attempt.key.router == router; },
                absl::UnavailableError("its router's session is lost"), /*notify=*/false);
}

void Engine::Drain(int64_t now_us) {
  AdvanceTo(now_us);
  if (draining_) return;
  draining_ = true;
  const absl::Status status = absl::UnavailableError("this worker is draining");
  EndAttemptsIf([](const Attempt&) { return true; }, status, /*notify=*/true);
  prefill_.RefuseQueued(status);
}

template <typename Predicate>
void Engine::EndAttemptsIf(Predicate ends, const absl::Status& status, bool notify) {
  for (auto next = attempts_.begin(); next != attempts_.end();) {
    Attempt* const attempt = (next++)->second.get();  // EndAttempt erases its entry.
    if (ends(*attempt)) EndAttempt(attempt, status, notify);
  }
}

void Engine::ExpireAttempts() {
  while (const auto key = attempt_deadlines_.PopDue(now_us_)) {
    EndAttempt(attempts_.at(*key).get(), absl::DeadlineExceededError("the deadline has passed"));
  }
}

void Engine::EndAttempt(Attempt* attempt, const absl::Status& status, bool notify) {
  if (notify) {
    outbox_->ToRouter(attempt->key.router,
                      EndedEvent{.attempt = attempt->key.attempt, .status = status});
  }
  ForgetAttempt(attempt);
}

void Engine::FinishAttempt(Attempt* attempt) {
  TANDEM_CHECK(attempt->num_unfinished == 0) << attempt->num_unfinished << " choices unfinished";
  ForgetAttempt(attempt);
}

void Engine::EndSequence(EngineSequence* sequence) {
  Attempt* const attempt = sequence->attempt;
  ReleaseSequence(sequence);
  PassOrderOn(*sequence);
  if (attempt->num_unfinished == 0) FinishAttempt(attempt);
}

// Each younger sibling moves up by a rank, so that a request with many choices always has one that
// nobody who came later goes before.
void Engine::PassOrderOn(const EngineSequence& ended) {
  uint64_t free = ended.order;
  for (const auto& sibling : ended.attempt->sequences) {
    if (sibling->ended || sibling->order < free) continue;
    const uint64_t order = std::exchange(free, sibling->order);
    scheduler_.Reorder(sibling.get(), order);
  }
}

void Engine::ForgetAttempt(Attempt* attempt) {
  decode_.End(attempt->order);
  for (const auto& sequence : attempt->sequences) {
    if (sequence != nullptr && !sequence->ended) ReleaseSequence(sequence.get());
  }
  for (auto& sequence : attempt->sequences) Bury(std::move(sequence));
  const AttemptKey key = attempt->key;
  ended_attempts_.AddEnded(key, attempt->deadline_us, now_us_);
  attempt_deadlines_.Remove(key);
  attempts_.erase(key);
}

// Steps that are begun may have runs of it.
void Engine::Bury(std::unique_ptr<EngineSequence> sequence) {
  graveyard_.push_back({.sequence = std::move(sequence), .step = begun_});
}

void Engine::ReleaseSequence(EngineSequence* sequence) {
  scheduler_.Remove(sequence);
  blocks_.Release(sequence);
  sequence->ended = true;
}

}  // namespace tandem
