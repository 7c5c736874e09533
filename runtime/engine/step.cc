// One step: expire, grant, schedule, say what is computed, execute, publish.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/engine/engine.h"

namespace tandem {

Engine::StepResult Engine::Step(int64_t now_us) {
  Note(now_us);
  ExpireAttempts();
  prefill_.Expire();
  decode_.Expire();
  ended_attempts_.Expire(now_us_);
  decode_.GrantHeld();

  const StepPlan& plan = scheduler_.Schedule(decode_.OldestHeldGrant());
  decode_.set_blocked_order(plan.blocked_order);
  CountAdmitted(plan.admitted.size());
  StartAdmitted(plan);
  preempted_ += static_cast<int32_t>(plan.preempted.size());
  StepResult result;
  if (!plan.runs.empty()) {
    Execute(plan, &result);
  } else {
    decode_.GrantHeld();  // What held grants back at the step before may be gone.
    stalled_ = !scheduler_.idle();
    result.again = RelieveMemory() || preempted_ > 0;
  }
  result.preempted = std::exchange(preempted_, 0);
  graveyard_.clear();
  WatchQuarantine(/*moves=*/result.again);
  result.next_wakeup_us = NextWakeup();
  return result;
}

void Engine::StartAdmitted(const StepPlan& plan) {
  for (Sequence* base : plan.admitted) {
    auto* const sequence = static_cast<EngineSequence*>(base);
    if (sequence->attached_tokens < 0) sequence->attached_tokens = sequence->num_computed;
    if (sequence->job == nullptr) {
      sequence->attempt->charge.reset();
    } else {
      prefill_.OnStarted(sequence->job->key, sequence->attached_tokens, FinalBlocks(*sequence));
    }
  }
}

// True if somebody has given blocks up.
bool Engine::RelieveMemory() {
  if (scheduler_.idle() && !decode_.grants_wait()) return false;
  if (memory_.Counts().quarantined > 0) return false;
  return decode_.YieldYoungest(/*peers_hold_blocks=*/prefill_.holds_blocks());
}

void Engine::WatchQuarantine(bool moves) {
  const int64_t quarantined = memory_.Counts().quarantined;
  const bool too_large = static_cast<double>(quarantined) >
                         options_.max_quarantined_share * static_cast<double>(options_.num_blocks);
  const bool waiting = !scheduler_.idle() || decode_.grants_wait();
  const bool in_the_way = quarantined > 0 && waiting && !moves;
  quarantine_since_us_ =
      too_large || in_the_way ? std::min(quarantine_since_us_, now_us_) : kNeverUs;
}

bool Engine::quarantine_is_stuck() const {
  return quarantine_since_us_ != kNeverUs &&
         now_us_ - quarantine_since_us_ >= options_.times.quarantine_us;
}

void Engine::Execute(const StepPlan& plan, StepResult* result) {
  runs_.clear();
  for (const ScheduledRun& run : plan.runs) {
    auto* const sequence = static_cast<EngineSequence*>(run.sequence);
    if (sequence->begun_us < 0) sequence->begun_us = now_us_;
    runs_.push_back(RunOf(*sequence, run.num_tokens));
    result->tokens += run.num_tokens;
  }
  result->again = true;
  result->sequences = static_cast<int32_t>(plan.runs.size());
  BeginChunks(plan);
  const absl::Status status =
      executor_->Execute({.copies = memory_.copies(), .runs = runs_}, &output_);
  memory_.ClearCopies();
  failed_steps_ = status.ok() ? 0 : failed_steps_ + 1;
  result->failed = !status.ok();
  if (status.ok()) {
    TANDEM_CHECK(output_.runs.size() == plan.runs.size())
        << output_.runs.size() << " outputs of " << plan.runs.size() << " runs";
    Publish(plan);
    return;
  }
  for (const ScheduledRun& run : plan.runs) {
    auto* const sequence = static_cast<EngineSequence*>(run.sequence);
    if (!sequence->ended) {
      FailRun(sequence, absl::AbortedError(absl::StrCat("a step failed: ", status.message())));
    }
  }
}

// Where a choice of its own decodes, its last token says.
void Engine::BeginChunks(const StepPlan& plan) {
  chunks_.clear();
  for (const ScheduledRun& run : plan.runs) {
    const auto& sequence = *static_cast<const EngineSequence*>(run.sequence);
    if (sequence.forked) continue;
    ChunkNotice& notice = chunks_.emplace_back();
    if (sequence.job == nullptr) notice.router = sequence.attempt->key.router;
    notice.chunk = {
        .attempt = sequence.job == nullptr ? sequence.attempt->key.attempt : sequence.job->attempt,
        .first_position = sequence.num_computed,
        .end_position = sequence.num_computed + run.num_tokens};
  }
  if (!chunks_.empty()) outbox_->BeginChunks(chunks_);
}

SequenceRun Engine::RunOf(const EngineSequence& sequence, int32_t num_tokens) {
  const auto first = static_cast<size_t>(sequence.num_computed);
  const size_t end = first + static_cast<size_t>(num_tokens);
  const bool complete = end == sequence.token_ids.size();
  SequenceRun run;
  run.token_ids = std::span(sequence.token_ids).subspan(first, end - first);
  run.first_position = sequence.num_computed;
  run.block_table = sequence.block_table;
  if (complete) run.draws = sequence.draws;
  run.num_prompt_logprobs = sequence.num_prompt_logprobs;
  run.next_token_id = complete ? -1 : sequence.token_ids[end];
  return run;
}

int64_t Engine::NextWakeup() const {
  const bool watched = quarantine_since_us_ != kNeverUs && !quarantine_is_stuck();
  const int64_t stuck_us =
      watched ? After(quarantine_since_us_, options_.times.quarantine_us) : kNeverUs;
  return std::min({attempt_deadlines_.next_us(), prefill_.next_us(), decode_.next_us(), stuck_us});
}

}  // namespace tandem
