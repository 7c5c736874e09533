#include "runtime/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

// A sequence is left out while the token that it draws, or the end of its chunk, is to come.
bool Awaits(const Sequence& sequence) { return sequence.held || sequence.remaining() == 0; }

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, BlockSource* blocks)
    : limits_(limits), blocks_(blocks) {
  TANDEM_CHECK(limits.max_sequences > 0 && limits.max_batched_tokens > limits.max_sequences)
      << limits.max_batched_tokens << " tokens for " << limits.max_sequences << " sequences";
}

void Scheduler::Enqueue(Sequence* sequence) {
  TANDEM_CHECK(sequence->state == SequenceState::kIdle && sequence->block_table.empty());
  num_alone_ += sequence->runs_alone;
  Wait(sequence);
}

void Scheduler::Join(Sequence* sequence) {
  TANDEM_CHECK(sequence->state == SequenceState::kIdle);
  EnterNextRound(sequence);
  num_alone_ += sequence->runs_alone;
  Run(sequence);
}

void Scheduler::Wait(Sequence* sequence) {
  sequence->state = SequenceState::kWaiting;
  waiting_.insert(sequence);
  waiting_by_length_.insert(sequence);
}

void Scheduler::Run(Sequence* sequence) {
  sequence->state = SequenceState::kRunning;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, Older()), sequence);
}

void Scheduler::TakeOut(Sequence* sequence) {
  if (sequence->state == SequenceState::kWaiting) {
    waiting_.erase(sequence);
    waiting_by_length_.erase(sequence);
  } else {
    running_.erase(std::lower_bound(running_.begin(), running_.end(), sequence, Older()));
  }
}

void Scheduler::Remove(Sequence* sequence) {
  if (sequence->state == SequenceState::kIdle) return;
  TakeOut(sequence);
  num_alone_ -= sequence->runs_alone;
  sequence->state = SequenceState::kIdle;
}

void Scheduler::Reorder(Sequence* sequence, uint64_t order) {
  const SequenceState state = sequence->state;
  if (state != SequenceState::kIdle) TakeOut(sequence);
  sequence->order = order;
  if (state == SequenceState::kWaiting) Wait(sequence);
  if (state == SequenceState::kRunning) Run(sequence);
}

int32_t Scheduler::MakeRoom(uint64_t order, int32_t num_blocks) {
  const size_t before = plan_.preempted.size();
  while (blocks_->num_available() - num_running() < num_blocks && PreemptHigherRank(order)) {
  }
  return static_cast<int32_t>(plan_.preempted.size() - before);
}

void Scheduler::EnterNextRound(Sequence* sequence) {
  RequestRounds* const rounds = sequence->rounds;
  rounds->last = std::max(now_, rounds->last + 1);
  sequence->round = rounds->last;
}

const StepPlan& Scheduler::Schedule(uint64_t admit_before) {
  plan_.runs.clear();
  plan_.admitted.clear();
  plan_.preempted.clear();
  plan_.blocked_order = kNoOrder;
  budget_ = limits_.max_batched_tokens;
  first_prompt_ran_ = false;
  brief_blocked_ = false;
  no_place_from_ = kNoOrder;
  spare_blocks_.reset();

  // Steps of a sequence that runs alone and shared steps alternate, so that neither waits for the
  // other.
  const bool alone_first = num_alone_ > 0 && !last_step_alone_;
  if (alone_first) ScheduleAlone(admit_before);
  last_step_alone_ = !plan_.runs.empty();
  if (last_step_alone_) return plan_;
  ScheduleShared(admit_before);
  if (plan_.runs.empty() && num_alone_ > 0 && !alone_first) {
    ScheduleAlone(admit_before);
    last_step_alone_ = !plan_.runs.empty();
  }
  return plan_;
}

void Scheduler::ScheduleShared(uint64_t admit_before) {
  decodes_.clear();
  left_out_.clear();
  chunks_.clear();
  for (Sequence* sequence : running_) {
    if (sequence->runs_alone || Awaits(*sequence)) continue;
    (sequence->remaining() == 1 ? decodes_ : chunks_).push_back(sequence);
  }
  odd_ = !odd_;
  const auto prompts = static_cast<int32_t>(chunks_.size() + waiting_.size());
  const int32_t half = (limits_.max_sequences + (odd_ ? 1 : 0)) / 2;
  ScheduleDecodes(limits_.max_sequences - std::min(prompts, half),
                  FirstPrompt(/*shortest=*/!shortest_first_, admit_before), admit_before);
  if (prompts > 0 && (first_prompt_ran_ || !full())) SchedulePrompts(admit_before);
  ScheduleLeftOut();
}

void Scheduler::ScheduleDecodes(int32_t places, Sequence* first_prompt, uint64_t admit_before) {
  const auto num_places = static_cast<size_t>(places);
  if (decodes_.size() > num_places) {
    const auto last = decodes_.begin() + places;
    std::nth_element(decodes_.begin(), last, decodes_.end(), EarlierTurn());
    left_out_.assign(last, decodes_.end());
    decodes_.erase(last, decodes_.end());
    std::sort(decodes_.begin(), decodes_.end(), Older());
  }
  // Victims are never older than who needs their blocks, so they are not yet in the plan.
  for (size_t i = 0; i < decodes_.size(); ++i) {
    Sequence* const sequence = decodes_[i];
    if (first_prompt != nullptr && first_prompt->order < sequence->order) {
      RunFirstPrompt(std::exchange(first_prompt, nullptr), decodes_.size() - i, admit_before);
    }
    if (sequence->state == SequenceState::kRunning) RunDecode(sequence);
  }
  if (first_prompt != nullptr) RunFirstPrompt(first_prompt, 0, admit_before);
}

// The prompt that goes first, if there are sequences of higher rank whose blocks it may take;
// otherwise null.
Sequence* Scheduler::FirstPrompt(bool shortest, uint64_t admit_before) const {
  if (running_.empty() || RankOf(running_.back()->order) == 0) return nullptr;
  const uint64_t limit = shortest ? std::min(admit_before, held_back_) : admit_before;
  const PromptOrder earlier{.shortest = shortest};
  Sequence* first = nullptr;
  for (Sequence* sequence : chunks_) {
    if (first == nullptr || earlier(sequence, first)) first = sequence;
  }
  for (Sequence* sequence : shortest ? waiting_by_length_ : waiting_) {
    if (sequence->runs_alone) continue;
    const bool goes_first = first == nullptr || earlier(sequence, first);
    if (sequence->order > limit) {
      // Nobody holds back what is through in this step; it takes no blocks.
      if (goes_first && sequence->brief() && sequence->remaining() <= budget_) return nullptr;
      continue;
    }
    if (goes_first) first = sequence;
    break;
  }
  if (first == nullptr || RankOf(first->order) >= RankOf(running_.back()->order)) return nullptr;
  return first;
}

// Leaves places and tokens to the decodes that are not yet in the plan.
void Scheduler::RunFirstPrompt(Sequence* sequence, size_t decodes_left, uint64_t admit_before) {
  const auto left = static_cast<int32_t>(decodes_left);
  const size_t before = plan_.runs.size();
  if (static_cast<int32_t>(before) + left >= limits_.max_sequences) return;
  budget_ -= left;
  if (sequence->state == SequenceState::kRunning) {
    std::erase(chunks_, sequence);
    const int32_t wanted = sequence->num_computed + ChunkOf(*sequence);
    while (blocks_->Grow(sequence, wanted) < wanted && PreemptHigherRank(sequence->order)) {
    }
    RunChunk(sequence);
  } else if (sequence->order < std::min(admit_before, plan_.blocked_order) &&
             (HasPlace(*sequence) || EverybodyFits(*sequence))) {
    // A block for everyone who goes before it: the others cannot take its own.
    const auto older =
        std::lower_bound(running_.begin(), running_.end(), sequence, Older()) - running_.begin();
    TryAdmit(sequence, static_cast<int32_t>(older), /*complete=*/false, /*take=*/true,
             &last_take_refusal_);
  }
  budget_ += left;
  first_prompt_ran_ = plan_.runs.size() > before;
}

// What prompts have left of their half. Nobody is preempted any more who could be in the plan. If
// they had no use for any of it, a decode runs as it would have without them: nobody schedules
// again after a step in which nothing ran.
void Scheduler::ScheduleLeftOut() {
  if (full()) return;
  std::sort(left_out_.begin(), left_out_.end(), EarlierTurn());
  for (Sequence* sequence : left_out_) {
    if (full()) return;
    const auto& admitted = plan_.admitted;  // Preempted in this step, and back already.
    const bool back = std::find(admitted.begin(), admitted.end(), sequence) != admitted.end();
    if (sequence->state != SequenceState::kRunning || back) continue;
    if (plan_.runs.empty()) {
      RunDecode(sequence);
      continue;
    }
    if (GrowDecode(sequence)) PlanDecode(sequence);
  }
}

void Scheduler::SchedulePrompts(uint64_t admit_before) {
  shortest_first_ = !shortest_first_;
  if (shortest_first_) RunPrompts(waiting_by_length_, std::min(admit_before, held_back_));
  if (shortest_first_ && !plan_.runs.empty()) return;
  shortest_first_ = false;
  RunPrompts(waiting_, admit_before);
  held_back_ = plan_.blocked_order;
}

void Scheduler::RunPrompts(const PromptQueue& waiting, uint64_t admit_before) {
  const PromptOrder earlier = waiting.key_comp();
  std::sort(chunks_.begin(), chunks_.end(), earlier);
  auto chunk = chunks_.begin();
  auto next = waiting.begin();
  while (!full() && (chunk != chunks_.end() || next != waiting.end())) {
    const bool waits = chunk == chunks_.end() || (next != waiting.end() && earlier(*next, *chunk));
    Sequence* const sequence = waits ? *next++ : *chunk++;  // Admit takes it out of the set.
    if (sequence->runs_alone) continue;
    if (waits) {
      Admit(sequence, admit_before);
    } else if (sequence->state == SequenceState::kRunning) {
      RunChunk(sequence);
    }
  }
}

void Scheduler::Admit(Sequence* sequence, uint64_t admit_before) {
  if (sequence->brief() && TryAdmitBrief(sequence)) return;
  if (!plan_.preempted.empty()) return;
  if (sequence->order > std::min(admit_before, plan_.blocked_order)) return;
  if (!HasPlace(*sequence) && !EverybodyFits(*sequence)) return;
  // A block for everyone who runs already, so that what is admitted is not preempted at once.
  if (!TryAdmit(sequence, /*headroom=*/num_running(), /*complete=*/false, /*take=*/false,
                &last_refusal_)) {
    Blocked(sequence);
  }
}

// Fewer than max_sequences other requests that are older run. A batch holds no more, and each that
// has begun keeps its blocks; but forks and transfers join without asking, and would else keep out
// an older prompt for as long as they come.
bool Scheduler::HasPlace(const Sequence& sequence) {
  if (sequence.order > no_place_from_) return false;
  int32_t places = limits_.max_sequences;
  for (const Sequence* running : running_) {
    if (running->order > sequence.order || RankOf(running->order) > 0) break;
    if (running->rounds != sequence.rounds && --places == 0) {
      no_place_from_ = running->order;
      return false;
    }
  }
  return true;
}

// There are blocks for whatever becomes of those that run and of this one: more than a batch holds
// can run by rounds, and nobody will be preempted.
bool Scheduler::EverybodyFits(const Sequence& sequence) {
  if (!spare_blocks_.has_value()) {
    int64_t spare = blocks_->num_available();
    for (const Sequence* running : running_) {
      spare -= BlocksAtEnd(*running) - static_cast<int64_t>(running->block_table.size());
    }
    spare_blocks_ = spare;
  }
  return BlocksAtEnd(sequence) <= *spare_blocks_;
}

int64_t Scheduler::BlocksAtEnd(const Sequence& sequence) const {
  const int64_t tokens = sequence.keeps_blocks ? static_cast<int64_t>(sequence.token_ids.size())
                                               : sequence.final_tokens;
  return CeilDiv<int64_t>(tokens, limits_.block_tokens) + 1;  // One may have to be copied.
}

// What is through in this step gives its blocks back before anybody else wants them.
bool Scheduler::TryAdmitBrief(Sequence* sequence) {
  if (brief_blocked_ || sequence->remaining() > budget_) return false;
  if (TryAdmit(sequence, /*headroom=*/0, /*complete=*/true, /*take=*/false, &last_brief_refusal_)) {
    return true;
  }
  brief_blocked_ = true;
  return false;
}

bool Scheduler::TryAdmit(Sequence* sequence, int32_t headroom, bool complete, bool take,
                         Refusal* last) {
  // Looking its prefix up is not cheap: while others run, not again before something has changed.
  const Refusal refusal{.order = sequence->order,
                        .available = blocks_->num_available(),
                        .headroom = headroom,
                        .budget = budget_};
  const bool known = refusal == *last && !plan_.runs.empty();
  if (known || (refusal.available <= headroom && !take)) return false;
  blocks_->AttachPrefix(sequence);
  const int32_t chunk = ChunkOf(*sequence);
  const int32_t wanted = sequence->keeps_blocks ? static_cast<int32_t>(sequence->token_ids.size())
                                                : sequence->num_computed + chunk;
  const int32_t blocks_wanted =
      CeilDiv(wanted, limits_.block_tokens) - static_cast<int32_t>(sequence->block_table.size());
  while (take && blocks_wanted + headroom > blocks_->num_available() &&
         PreemptHigherRank(sequence->order)) {
  }
  if (blocks_wanted + headroom > blocks_->num_available() ||
      (complete && chunk < sequence->remaining())) {
    blocks_->Release(sequence);
    *last = refusal;
    return false;
  }
  TANDEM_CHECK(blocks_->Grow(sequence, wanted) == wanted) << "no block although some were left";
  TakeOut(sequence);
  Run(sequence);
  spare_blocks_.reset();
  plan_.admitted.push_back(sequence);
  Plan(sequence, chunk);
  return true;
}

void Scheduler::ScheduleAlone(uint64_t admit_before) {
  Sequence* const sequence = OldestAlone();
  if (sequence == nullptr) return;
  const bool waits = sequence->state == SequenceState::kWaiting;
  if (!waits && sequence->remaining() == 1) {
    RunDecode(sequence);
    return;
  }
  RunFirstPrompt(sequence, /*decodes_left=*/0, admit_before);
  if (waits && plan_.runs.empty()) Admit(sequence, admit_before);
}

// True if the next token has a place.
bool Scheduler::GrowDecode(Sequence* sequence) {
  const int32_t next = sequence->num_computed + 1;
  if (sequence->lookahead_tokens == 0) return blocks_->Grow(sequence, next) == next;
  const int64_t most = std::min<int64_t>(next + sequence->lookahead_tokens, sequence->final_tokens);
  return blocks_->Grow(sequence, std::max(next, static_cast<int32_t>(most))) >= next;
}

void Scheduler::RunDecode(Sequence* sequence) {
  while (!GrowDecode(sequence)) {
    Sequence* const victim = YoungestPreemptible();
    if (victim == sequence && !AnotherPreemptible(sequence)) {
      // Whoever has the blocks is no sequence of ours to preempt; giving up its own would only
      // have them recomputed.
      Blocked(sequence);
      return;
    }
    if (PreemptionHeld()) return Blocked(sequence);
    if (TakeGuessBack()) continue;
    Preempt(victim);
    if (victim == sequence) return;
  }
  PlanDecode(sequence);
}

void Scheduler::PlanDecode(Sequence* sequence) {
  now_ = std::max(now_, sequence->round);
  EnterNextRound(sequence);
  Plan(sequence, 1);
}

void Scheduler::RunChunk(Sequence* sequence) {
  const int32_t wanted = sequence->num_computed + ChunkOf(*sequence);
  int32_t covered = blocks_->Grow(sequence, wanted);
  // A prompt waits for decodes to finish; but prompts must not wait for each other.
  while (covered == sequence->num_computed && plan_.runs.empty()) {
    Sequence* const victim = YoungestPreemptible();
    if (victim == nullptr || victim->order <= sequence->order || PreemptionHeld()) break;
    if (!TakeGuessBack()) Preempt(victim);
    covered = blocks_->Grow(sequence, wanted);
  }
  if (covered < wanted) Blocked(sequence);
  if (covered > sequence->num_computed) Plan(sequence, covered - sequence->num_computed);
}

Sequence* Scheduler::YoungestPreemptible() const {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (!(*it)->keeps_blocks) return *it;
  }
  return nullptr;
}

bool Scheduler::AnotherPreemptible(const Sequence* than) const {
  return std::any_of(running_.begin(), running_.end(),
                     [than](const Sequence* s) { return s != than && !s->keeps_blocks; });
}

bool Scheduler::PreemptHigherRank(uint64_t order) {
  Sequence* const victim = YoungestPreemptible();
  if (victim == nullptr || RankOf(victim->order) <= RankOf(order)) return false;
  if (PreemptionHeld()) return false;
  if (!TakeGuessBack()) Preempt(victim);
  return true;
}

// True: the youngest that has blocks behind its tokens, for what it may guess, has given them up.
bool Scheduler::TakeGuessBack() {
  return std::any_of(running_.rbegin(), running_.rend(), [this](Sequence* s) {
    return s->lookahead_tokens > 0 && blocks_->Shrink(s, static_cast<int32_t>(s->token_ids.size()));
  });
}

bool Scheduler::PreemptionHeld() {
  preemption_wanted_ |= preemption_held_;
  return preemption_held_;
}

void Scheduler::Preempt(Sequence* sequence) {
  Remove(sequence);
  blocks_->Release(sequence);
  Enqueue(sequence);
  plan_.preempted.push_back(sequence);
  Blocked(sequence);
}

void Scheduler::Blocked(const Sequence* sequence) {
  plan_.blocked_order = std::min(plan_.blocked_order, sequence->order);
}

void Scheduler::Plan(Sequence* sequence, int32_t num_tokens) {
  plan_.runs.push_back({.sequence = sequence, .num_tokens = num_tokens});
  budget_ -= num_tokens;
}

int32_t Scheduler::ChunkOf(const Sequence& sequence) const {
  const int32_t most = sequence.runs_alone ? std::min(budget_, kMaxAloneChunkTokens) : budget_;
  return std::min(sequence.remaining(), most);
}

bool Scheduler::full() const {
  return budget_ == 0 || static_cast<int32_t>(plan_.runs.size()) >= limits_.max_sequences;
}

Sequence* Scheduler::OldestAlone() const {
  const auto is_alone = [](const Sequence* s) { return s->runs_alone; };
  const auto running = std::find_if(running_.begin(), running_.end(), is_alone);
  if (running != running_.end()) return *running;
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), is_alone);
  return waiting == waiting_.end() ? nullptr : *waiting;
}

int64_t Scheduler::waiting_tokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : waiting_) tokens += sequence->remaining();
  for (const Sequence* sequence : running_) {
    if (sequence->remaining() > 1) tokens += sequence->remaining();
  }
  return tokens;
}

}  // namespace tandem
