#include "runtime/scheduler/scheduler.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/math.h"

namespace tandem {

Scheduler::Scheduler(const SchedulerLimits& limits, BlockSource* blocks)
    : limits_(limits), blocks_(blocks) {
  TANDEM_CHECK(limits.max_sequences > 0 && limits.max_batched_tokens > limits.max_sequences)
      << limits.max_batched_tokens << " tokens for " << limits.max_sequences << " sequences";
}

void Scheduler::Enqueue(Sequence* sequence) {
  TANDEM_CHECK(sequence->state == SequenceState::kIdle && sequence->block_table.empty());
  sequence->state = SequenceState::kWaiting;
  waiting_.insert(sequence);
  num_alone_ += sequence->alone;
}

void Scheduler::Join(Sequence* sequence) {
  TANDEM_CHECK(sequence->state == SequenceState::kIdle);
  sequence->state = SequenceState::kRunning;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, Older()), sequence);
  num_alone_ += sequence->alone;
}

void Scheduler::Remove(Sequence* sequence) {
  if (sequence->state == SequenceState::kIdle) return;
  if (sequence->state == SequenceState::kWaiting) {
    waiting_.erase(sequence);
  } else {
    running_.erase(std::lower_bound(running_.begin(), running_.end(), sequence, Older()));
  }
  num_alone_ -= sequence->alone;
  sequence->state = SequenceState::kIdle;
}

const StepPlan& Scheduler::Schedule(uint64_t admit_before) {
  plan_.runs.clear();
  plan_.admitted.clear();
  plan_.preempted.clear();
  plan_.blocked_order = kNoOrder;
  budget_ = limits_.max_batched_tokens;

  // Steps of a lonely sequence and shared steps take turns, so that neither waits for the other.
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
  ScheduleDecodes();
  ScheduleChunks();
  Admit(std::min(admit_before, plan_.blocked_order));
}

void Scheduler::ScheduleDecodes() {
  // A step belongs to the max_sequences oldest: forks and transfers join without asking, and would
  // else keep out an older prompt for as long as they come.
  int32_t places = limits_.max_sequences;
  const auto first = FirstWaiting();
  if (first != waiting_.end() && AmongOldest(*first)) --places;
  for (size_t i = 0; i < running_.size() && places > 0;) {
    Sequence* const sequence = running_[i];
    if (!sequence->alone) --places;
    if (!sequence->alone && sequence->remaining() == 1) RunDecode(sequence);
    // Victims are never older than `sequence`: at most itself has left its place.
    if (i < running_.size() && running_[i] == sequence) ++i;
  }
}

void Scheduler::ScheduleChunks() {
  for (size_t i = 0; i < running_.size() && !full(); ++i) {
    Sequence* const sequence = running_[i];
    if (!sequence->alone && sequence->remaining() > 1) RunChunk(sequence);
  }
}

void Scheduler::Admit(uint64_t admit_before) {
  if (!plan_.preempted.empty()) return;
  for (auto next = waiting_.begin(); next != waiting_.end() && !full();) {
    Sequence* const sequence = *next++;  // TryAdmit takes it out of the set.
    if (sequence->order > admit_before) return;
    if (sequence->alone) continue;
    if (!AmongOldest(sequence)) return;
    if (!TryAdmit(sequence)) return;
  }
}

std::set<Sequence*, Scheduler::Older>::const_iterator Scheduler::FirstWaiting() const {
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [](const Sequence* sequence) { return !sequence->alone; });
}

bool Scheduler::AmongOldest(const Sequence* sequence) const {
  const auto last = static_cast<size_t>(limits_.max_sequences) - 1;
  return running_.size() <= last || running_[last]->order > sequence->order;
}

bool Scheduler::TryAdmit(Sequence* sequence) {
  // A block for everyone who runs already, so that what is admitted is not preempted at once.
  const int32_t headroom = num_running();
  // Looking its prefix up is not cheap: while others run, not again before something has changed.
  const Refusal refusal{.order = sequence->order,
                        .available = blocks_->num_available(),
                        .headroom = headroom,
                        .budget = budget_};
  const bool known = refusal == last_refusal_ && !plan_.runs.empty();
  if (known || refusal.available <= headroom) {
    Blocked(sequence);
    return false;
  }
  blocks_->AttachPrefix(sequence);
  const int32_t chunk = ChunkOf(*sequence);
  const int32_t wanted = sequence->whole ? static_cast<int32_t>(sequence->token_ids.size())
                                         : sequence->num_computed + chunk;
  const int32_t blocks_wanted =
      CeilDiv(wanted, limits_.block_tokens) - static_cast<int32_t>(sequence->block_table.size());
  if (blocks_wanted + headroom > blocks_->num_available()) {
    blocks_->Release(sequence);
    last_refusal_ = refusal;
    Blocked(sequence);
    return false;
  }
  TANDEM_CHECK(blocks_->Grow(sequence, wanted) == wanted) << "no block although some were left";
  waiting_.erase(sequence);
  sequence->state = SequenceState::kRunning;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, Older()), sequence);
  plan_.admitted.push_back(sequence);
  Plan(sequence, chunk);
  return true;
}

void Scheduler::ScheduleAlone(uint64_t admit_before) {
  Sequence* const sequence = OldestAlone();
  if (sequence == nullptr) return;
  if (sequence->state == SequenceState::kWaiting) {
    if (sequence->order <= admit_before && AmongOldest(sequence)) {
      TryAdmit(sequence);
    }
  } else if (sequence->remaining() == 1) {
    RunDecode(sequence);
  } else {
    RunChunk(sequence);
  }
}

void Scheduler::RunDecode(Sequence* sequence) {
  const int32_t wanted = sequence->num_computed + 1;
  while (blocks_->Grow(sequence, wanted) < wanted) {
    Sequence* const victim = YoungestPreemptible();
    if (victim == sequence && !AnotherPreemptible(sequence)) {
      // Whoever has the blocks is no sequence of ours to preempt; giving up its own would only
      // have them recomputed.
      Blocked(sequence);
      return;
    }
    Preempt(victim);
    if (victim == sequence) return;
  }
  Plan(sequence, 1);
}

void Scheduler::RunChunk(Sequence* sequence) {
  const int32_t wanted = sequence->num_computed + ChunkOf(*sequence);
  int32_t covered = blocks_->Grow(sequence, wanted);
  // A prompt waits for decodes to finish; but prompts must not wait for each other.
  while (covered == sequence->num_computed && plan_.runs.empty()) {
    Sequence* const victim = YoungestPreemptible();
    if (victim == nullptr || victim->order <= sequence->order) break;
    Preempt(victim);
    covered = blocks_->Grow(sequence, wanted);
  }
  if (covered < wanted) Blocked(sequence);
  if (covered > sequence->num_computed) Plan(sequence, covered - sequence->num_computed);
}

Sequence* Scheduler::YoungestPreemptible() const {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (!(*it)->whole) return *it;
  }
  return nullptr;
}

bool Scheduler::AnotherPreemptible(const Sequence* than) const {
  return std::any_of(running_.begin(), running_.end(),
                     [than](const Sequence* s) { return s != than && !s->whole; });
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
  const int32_t most = sequence.alone ? std::min(budget_, kMaxLonelyChunkTokens) : budget_;
  return std::min(sequence.remaining(), most);
}

bool Scheduler::full() const {
  return budget_ == 0 || static_cast<int32_t>(plan_.runs.size()) >= limits_.max_sequences;
}

Sequence* Scheduler::OldestAlone() const {
  const auto is_alone = [](const Sequence* s) { return s->alone; };
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
