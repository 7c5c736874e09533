// Which tokens of which sequences run in the next step.
//
// One token budget a step (Sarathi-Serve, Agrawal et al., OSDI 2024): running decodes first, then
// the chunks of running prompts, then waiting sequences in order of arrival. Blocks are allocated
// chunk by chunk; a decode that finds none preempts the youngest sequence, which gives its blocks
// back, keeps its tokens and recomputes later (PagedAttention, Kwon et al., SOSP 2023).
//
// Nothing starves: the oldest sequence is never preempted for a younger one, a step in which any
// sequence lacked a block admits nothing behind it, decodes cannot use up the budget
// (max_batched_tokens > max_sequences), and a step belongs to the max_sequences oldest. Sequences
// that wait for a KV transfer are not here: they Join when their blocks are there.

#ifndef TANDEM_RUNTIME_SCHEDULER_SCHEDULER_H_
#define TANDEM_RUNTIME_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "runtime/scheduler/block_source.h"
#include "runtime/scheduler/sequence.h"

namespace tandem {

struct SchedulerLimits {
  int32_t max_sequences = 0;       // In one batch.
  int32_t max_batched_tokens = 0;  // In one batch; more than max_sequences.
  int32_t block_tokens = 16;
};

// The most that a lonely sequence computes in a step. It may be what kills workers: the less a step
// holds, the more exactly its death tells where, and the sooner an innocent one is past that.
inline constexpr int32_t kMaxLonelyChunkTokens = 64;

inline constexpr uint64_t kNoOrder = std::numeric_limits<uint64_t>::max();

struct ScheduledRun {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 0;  // From num_computed on; at least one; the table covers them.
};

struct StepPlan {
  std::vector<ScheduledRun> runs;
  std::vector<Sequence*> admitted;    // Of `runs`: those that waited until now.
  std::vector<Sequence*> preempted;   // Waiting again.
  uint64_t blocked_order = kNoOrder;  // The oldest sequence that lacked a block.
};

// Engine thread only.
class Scheduler {
 public:
  // Borrows `blocks`, which outlives it.
  Scheduler(const SchedulerLimits& limits, BlockSource* blocks);

  void Enqueue(Sequence* sequence);  // Idle, without blocks: waits for its turn by `order`.
  void Join(Sequence* sequence);     // Idle, with blocks: runs from the next step on.
  void Remove(Sequence* sequence);   // Makes it idle; its blocks stay with it. Idle: nothing.

  // Sequences younger than `admit_before` stay waiting (an older one elsewhere lacks blocks). The
  // plan is valid until the next Schedule.
  const StepPlan& Schedule(uint64_t admit_before = kNoOrder);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_alone() const { return num_alone_; }  // Running or waiting.
  int64_t waiting_tokens() const;  // Not yet computed, of waiting and running sequences.

 private:
  struct Older {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->order < b->order; }
  };

  bool full() const;
  int32_t ChunkOf(const Sequence& sequence) const;  // Tokens that it may run with what is left.
  // Fewer than max_sequences of the running ones are older.
  bool AmongOldest(const Sequence* sequence) const;
  std::set<Sequence*, Older>::const_iterator FirstWaiting() const;  // That shares steps.
  void Plan(Sequence* sequence, int32_t num_tokens);
  void ScheduleShared(uint64_t admit_before);
  void ScheduleAlone(uint64_t admit_before);
  void ScheduleDecodes();
  void ScheduleChunks();
  void Admit(uint64_t admit_before);
  bool TryAdmit(Sequence* sequence);
  void RunDecode(Sequence* sequence);
  void RunChunk(Sequence* sequence);
  Sequence* YoungestPreemptible() const;
  bool AnotherPreemptible(const Sequence* than) const;
  void Preempt(Sequence* sequence);
  void Blocked(const Sequence* sequence);
  Sequence* OldestAlone() const;

  const SchedulerLimits limits_;
  BlockSource* const blocks_;
  std::vector<Sequence*> running_;  // Oldest first.
  std::set<Sequence*, Older> waiting_;
  int32_t num_alone_ = 0;  // Running or waiting.
  bool last_step_alone_ = false;
  int32_t budget_ = 0;  // Tokens left in the plan under construction.
  // Who lacked blocks when it was last tried to be admitted, and what there was.
  struct Refusal {
    uint64_t order = 0;
    int32_t available = 0;
    int32_t headroom = 0;
    int32_t budget = 0;
    bool operator==(const Refusal&) const = default;
  };
  Refusal last_refusal_;
  StepPlan plan_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SCHEDULER_SCHEDULER_H_
