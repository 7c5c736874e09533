// One step: expire, grant, schedule, say what is computed, begin; then finish, publish.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/engine/engine.h"

namespace tandem {

Engine::StepResult Engine::Step(int64_t now_us) {
  StepResult result;
  if (may_begin_step()) result = BeginStep(now_us);
  const bool another = result.sequences > 0 && may_begin_step();
  if (another || steps_begun() == 0) return result;
  StepResult finished = FinishStep(now_us);
  result.again = finished.again;
  result.finished_sequences = finished.finished_sequences;
  result.failure = std::move(finished.failure);
  result.next_wakeup_us = finished.next_wakeup_us;
  return result;
}

Engine::StepResult Engine::BeginStep(int64_t now_us) {
  TANDEM_CHECK(may_begin_step()) << steps_begun() << " steps are begun";
  AdvanceTo(now_us);
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
    Begin(plan, &result);
  } else if (steps_begun() > 0) {
    result.again = true;
  } else {
    decode_.GrantHeld();  // What held grants back at the step before may be gone.
    stalled_ = !scheduler_.idle();
    result.again = RelieveMemory() || preempted_ > 0;
  }
  result.preempted = std::exchange(preempted_, 0);
  if (steps_begun() == 0) Settle(&result);  // Otherwise when the oldest one is over.
  return result;
}

void Engine::Settle(StepResult* result) {
  WatchQuarantine(/*moves=*/result->again);
  result->next_wakeup_us = NextWakeup();
}

void Engine::StartAdmitted(const StepPlan& plan) {
  for (Sequence* base : plan.admitted) {
    auto* const sequence = static_cast<EngineSequence*>(base);
    if (sequence->attached_tokens < 0) sequence->attached_tokens = sequence->num_computed;
    if (sequence->job == nullptr) {
      sequence->attempt->charge.reset();
    } else {
      prefill_.OnStarted(sequence->job->key, sequence->attached_tokens,
                         FinalBlocks(*sequence, sequence->num_computed));
    }
  }
}

// True if somebody has given blocks up.
bool Engine::RelieveMemory() {
  if (scheduler_.idle() && !decode_.grants_wait()) return false;
  if (blocks_.Counts().quarantined > 0) return false;
  return decode_.YieldYoungest(/*peers_hold_blocks=*/prefill_.holds_blocks());
}

void Engine::WatchQuarantine(bool moves) {
  const int64_t quarantined = blocks_.Counts().quarantined;
  const bool too_large =
      static_cast<double>(quarantined) >
      options_.max_quarantined_share * static_cast<double>(options_.kv.num_blocks);
  const bool waiting = !scheduler_.idle() || decode_.grants_wait();
  const bool in_the_way = quarantined > 0 && waiting && !moves;
  quarantine_since_us_ =
      too_large || in_the_way ? std::min(quarantine_since_us_, now_us_) : kNeverUs;
}

bool Engine::quarantine_is_stuck() const {
  return quarantine_since_us_ != kNeverUs &&
         now_us_ - quarantine_since_us_ >= options_.times.quarantine_us;
}

void Engine::Begin(const StepPlan& plan, StepResult* result) {
  BegunStep& step = steps_[++begun_ % kMaxStepsBegun];
  step.clear();
  runs_.clear();
  chunks_.clear();
  for (const ScheduledRun& run : plan.runs) {
    auto* const sequence = static_cast<EngineSequence*>(run.sequence);
    if (sequence->begun_us < 0) sequence->begun_us = now_us_;
    runs_.push_back(RunOf(sequence, run.num_tokens));
    step.push_back({.sequence = sequence,
                    .first_position = sequence->num_computed,
                    .end_position = sequence->num_computed + run.num_tokens,
                    .complete = run.num_tokens == sequence->remaining(),
                    .draws_wait = runs_.back().draws_wait});
    if (!sequence->forked) chunks_.push_back(NoticeOf(step.back()));
    // From now on it counts as computed.
    sequence->num_computed += run.num_tokens;
    sequence->last_step = begun_;
    result->tokens += run.num_tokens;
  }
  result->again = true;
  result->sequences = static_cast<int32_t>(plan.runs.size());
  tokens_of_steps_[begun_ % kMaxStepsBegun] = result->tokens;
  ShowOldestStep();
  if (!chunks_.empty()) outbox_->BeginChunks(chunks_);
  executor_->Begin({.copies = blocks_.copies(), .runs = runs_});
  blocks_.BeginStep(begun_);
  scheduler_.HoldPreemption(true);
  if (!overlaps_steps_) return;
  for (size_t i = 0; i < step.size(); ++i) CountOnDraw(step[i], static_cast<int32_t>(i));
}

// What a run draws counts as one token, unless that would be its sequence's last. A prompt waits
// for what was begun of it.
void Engine::CountOnDraw(const BegunRun& run, int32_t index) {
  EngineSequence* const sequence = run.sequence;
  if (!sequence->forked) {
    sequence->held = true;
    return;
  }
  if (!run.complete || std::ssize(sequence->token_ids) >= sequence->final_tokens) return;
  sequence->unseen_run = index;
  sequence->token_ids.push_back(kUnseenToken);
}

Engine::StepResult Engine::FinishStep(int64_t now_us) {
  TANDEM_CHECK(steps_begun() > 0) << "no step is begun";
  AdvanceTo(now_us);
  const absl::StatusOr<StepOutput*> output = executor_->Finish();
  const uint64_t number = finished_ + 1;
  const BegunStep& step = steps_[number % kMaxStepsBegun];
  blocks_.FinishStep(number);
  absl::Status status = output.status();
  if (output.ok()) {
    status = Publish(step, *output);
  } else {
    for (const BegunRun& run : step) {
      if (!run.sequence->ended) {
        FailRun(run.sequence,
                absl::AbortedError(absl::StrCat("a step failed: ", output.status().message())));
      }
    }
  }
  CountFailure(number, status);
  finished_ = number;
  ShowOldestStep();
  BeginWaitingDraws();
  scheduler_.HoldPreemption(steps_begun() > 0);
  StepResult result{.again = true,
                    .finished_sequences = static_cast<int32_t>(step.size()),
                    .failure = std::move(status)};
  Settle(&result);
  return result;
}

// What fails behind a step that failed, and was begun before anybody knew, is the same failure.
void Engine::CountFailure(uint64_t number, const absl::Status& status) {
  if (status.ok()) {
    failed_steps_ = 0;
  } else if (absl::IsDataLoss(status)) {
    failed_steps_ = kMaxFailedSteps;
  } else if (number > last_excused_) {
    ++failed_steps_;
    last_excused_ = begun_;
  }
}

void Engine::ShowOldestStep() {
  if (steps_begun() == 0) return;
  step_tokens_.store(tokens_of_steps_[(finished_ + 1) % kMaxStepsBegun], std::memory_order_relaxed);
}

// What routers are told of a run of a prompt. They are told of no choice that has forked: where it
// is, its last token says.
ChunkNotice Engine::NoticeOf(const BegunRun& run) {
  const EngineSequence& sequence = *run.sequence;
  ChunkNotice notice{
      .chunk = {.first_position = run.first_position, .end_position = run.end_position}};
  if (sequence.job == nullptr) {
    notice.router = sequence.attempt->key.router;
    notice.chunk.attempt = sequence.attempt->key.attempt;
  } else {
    notice.chunk.attempt = sequence.job->attempt;
  }
  return notice;
}

SequenceRun Engine::RunOf(EngineSequence* sequence, int32_t num_tokens) const {
  const auto first = static_cast<size_t>(sequence->num_computed);
  const size_t end = first + static_cast<size_t>(num_tokens);
  const bool complete = end == sequence->token_ids.size();
  SequenceRun run;
  run.token_ids = std::span(sequence->token_ids).subspan(first, end - first);
  run.first_position = sequence->num_computed;
  run.block_table = sequence->block_table;
  run.last_position = static_cast<int32_t>(end);
  if (complete && sequence->lookahead_tokens > 0) run.last_position = LastPosition(*sequence);
  if (overlaps_steps_ && run.token_ids.back() == kUnseenToken) {
    TANDEM_CHECK(sequence->last_step + 1 == begun_) << "drawn by step " << sequence->last_step;
    run.unseen_run = sequence->unseen_run;
  }
  if (complete) AddDraws(sequence, &run);
  run.num_prompt_logprobs = sequence->num_prompt_logprobs;
  run.next_token_id = complete ? -1 : sequence->token_ids[end];
  return run;
}

// A mask is made of tokens that are seen; one that is not ready now costs its sequence this step.
void Engine::AddDraws(EngineSequence* sequence, SequenceRun* run) const {
  if (sequence->masks != nullptr) {
    run->draws_wait = run->unseen_run >= 0;
    if (run->draws_wait || !MaskDraws(sequence)) return;
  }
  run->draws = sequence->draws;
}

// False: its mask is not ready.
bool Engine::MaskDraws(EngineSequence* sequence) {
  const auto num_seen = static_cast<size_t>(sequence->num_seen());
  const TokenMask mask = sequence->masks->After(std::span(sequence->token_ids).first(num_seen));
  for (Draw& draw : sequence->draws) draw.mask = mask;
  return !mask.empty();
}

// Those of the step that runs, now that the tokens before them are seen.
void Engine::BeginWaitingDraws() {
  if (masker_ == nullptr || steps_begun() == 0) return;
  const BegunStep& step = steps_[begun_ % kMaxStepsBegun];
  for (size_t i = 0; i < step.size(); ++i) {
    EngineSequence* const sequence = step[i].sequence;
    if (!step[i].draws_wait || sequence->ended || !MaskDraws(sequence)) continue;
    executor_->BeginDraws(static_cast<int32_t>(i), sequence->draws);
  }
}

// Who may draw several tokens does so as far as they have a place, and are wanted.
int32_t Engine::LastPosition(const EngineSequence& sequence) const {
  const int64_t covered = std::ssize(sequence.block_table) * options_.kv.block_tokens;
  return static_cast<int32_t>(std::min(covered, sequence.final_tokens));
}

int64_t Engine::NextWakeup() const {
  const bool watched = quarantine_since_us_ != kNeverUs && !quarantine_is_stuck();
  const int64_t stuck_us =
      watched ? After(quarantine_since_us_, options_.times.quarantine_us) : kNeverUs;
  return std::min({attempt_deadlines_.next_us(), prefill_.next_us(), decode_.next_us(), stuck_us});
}

}  // namespace tandem
