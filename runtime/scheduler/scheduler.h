// Which tokens of which sequences run in the next step.
//
// One token budget a step (Sarathi-Serve, Agrawal et al., OSDI 2024): running decodes first, then
// prompts, running and waiting. Blocks are allocated chunk by chunk; a decode that finds none
// takes those that others have for guesses, and then preempts the youngest sequence, which gives
// its blocks back, keeps its tokens and recomputes later (PagedAttention, Kwon et al., SOSP 2023).
// Sequences that wait for a KV transfer are not here: they Join when their blocks are there.
//
// Requests share steps, not sequences. More sequences may run than a batch has places; those that a
// step leaves out keep their blocks.
// - Decodes that do not all find a place go in rounds, which give each request one, however many
//   sequences it has: deficit round robin (Shreedhar & Varghese, SIGCOMM 1995) with the next round
//   of each written down as a number, as in start-time fair queueing (Goyal et al., SIGCOMM 1996),
//   so that who comes between two steps needs no place in a ring.
// - Of two steps the oldest prompt goes first in one, the shortest in the other: a short one waits
//   for no long one, and a long one has half of the tokens whatever comes. Prompts do not share a
//   step evenly, because each that has begun holds blocks: they run one after another.
// - While decodes are left out, prompts have half of the places.
//
// Nor do many choices keep the blocks from others: a sequence's order is its rank among its
// siblings first and its arrival second (OrderOf), and "older" below means an earlier order. The
// prompt that goes first in a step takes blocks from sequences of higher rank than its own.
//
// Nothing starves: the oldest sequence is never preempted for a younger one; while a sequence lacks
// a block nobody younger is admitted, except who gives its blocks back at the end of the step; and
// decodes cannot use up the budget (max_batched_tokens > max_sequences).

#ifndef TANDEM_RUNTIME_SCHEDULER_SCHEDULER_H_
#define TANDEM_RUNTIME_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <limits>
#include <optional>
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

// The most that a sequence which runs alone computes in a step. It may be what kills workers: the
// less a step holds, the more exactly its death tells where, and the sooner an innocent one is past
// that.
inline constexpr int32_t kMaxAloneChunkTokens = 64;

struct ScheduledRun {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 0;  // From num_computed on; at least one; the table covers them.
};

struct StepPlan {
  std::vector<ScheduledRun> runs;
  std::vector<Sequence*> admitted;    // The sequences of `runs` that waited until now.
  std::vector<Sequence*> preempted;   // Waiting again.
  uint64_t blocked_order = kNoOrder;  // The oldest sequence that lacked a block.
};

// Engine thread only.
class Scheduler {
 public:
  // Borrows `blocks`, which outlives it.
  Scheduler(const SchedulerLimits& limits, BlockSource* blocks);

  void Enqueue(Sequence* sequence);  // Idle, without blocks: waits to be admitted.
  void Join(Sequence* sequence);     // Idle, with blocks: runs from the next step on.
  void Remove(Sequence* sequence);   // Makes it idle; its blocks stay with it. Idle: nothing.
  // An older sibling has ended. Nobody else has this order.
  void Reorder(Sequence* sequence, uint64_t order);
  // Preempts sequences of higher rank than `order` until so many blocks are available beyond one
  // for each that runs, or none is left. Returns how many.
  int32_t MakeRoom(uint64_t order, int32_t num_blocks);

  // While a step runs, blocks that are taken from its sequences come back only at its end: nobody
  // is preempted while this is held.
  void HoldPreemption(bool hold) {
    preemption_held_ = hold;
    preemption_wanted_ &= hold;
  }
  // Somebody would have been, since it is held.
  bool preemption_wanted() const { return preemption_wanted_; }

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
  struct EarlierTurn {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->round != b->round ? a->round < b->round : a->order < b->order;
    }
  };
  struct PromptOrder {
    bool shortest = false;  // The shortest of the lowest rank goes first; otherwise the oldest.
    bool operator()(const Sequence* a, const Sequence* b) const {
      const bool same_rank = RankOf(a->order) == RankOf(b->order);
      if (shortest && same_rank && Left(*a) != Left(*b)) return Left(*a) < Left(*b);
      return a->order < b->order;
    }
    // Does not change while it waits, although a prefix is looked up for it.
    static int64_t Left(const Sequence& s) {
      return s.state == SequenceState::kWaiting ? static_cast<int64_t>(s.token_ids.size())
                                                : s.remaining();
    }
  };
  using PromptQueue = std::set<Sequence*, PromptOrder>;

  // The sequence that was last refused for want of blocks, and what there was.
  struct Refusal {
    uint64_t order = 0;
    int32_t available = 0;
    int32_t headroom = 0;
    int32_t budget = 0;
    bool operator==(const Refusal&) const = default;
  };

  bool full() const;
  int32_t ChunkOf(const Sequence& sequence) const;  // Tokens that it may run with what is left.
  void Plan(Sequence* sequence, int32_t num_tokens);
  void Wait(Sequence* sequence);
  void Run(Sequence* sequence);
  void TakeOut(Sequence* sequence);  // The sequence waits or runs no more.
  void EnterNextRound(Sequence* sequence);
  void ScheduleShared(uint64_t admit_before);
  void ScheduleAlone(uint64_t admit_before);
  // `first_prompt` may be null.
  void ScheduleDecodes(int32_t places, Sequence* first_prompt, uint64_t admit_before);
  void ScheduleLeftOut();
  Sequence* FirstPrompt(bool shortest, uint64_t admit_before) const;
  void RunFirstPrompt(Sequence* sequence, size_t decodes_left, uint64_t admit_before);
  void SchedulePrompts(uint64_t admit_before);
  void RunPrompts(const PromptQueue& waiting, uint64_t admit_before);
  void Admit(Sequence* sequence, uint64_t admit_before);
  bool HasPlace(const Sequence& sequence);
  bool EverybodyFits(const Sequence& sequence);
  bool TryAdmitBrief(Sequence* sequence);
  // `complete`: only if it is through in this step. `take`: also blocks of higher ranks.
  bool TryAdmit(Sequence* sequence, int32_t headroom, bool complete, bool take, Refusal* last);
  int64_t BlocksAtEnd(const Sequence& sequence) const;
  bool GrowDecode(Sequence* sequence);
  void RunDecode(Sequence* sequence);
  void PlanDecode(Sequence* sequence);
  void RunChunk(Sequence* sequence);
  Sequence* YoungestPreemptible() const;
  bool AnotherPreemptible(const Sequence* than) const;
  bool PreemptHigherRank(uint64_t order);
  bool TakeGuessBack();
  void Preempt(Sequence* sequence);
  bool PreemptionHeld();
  void Blocked(const Sequence* sequence);
  Sequence* OldestAlone() const;

  const SchedulerLimits limits_;
  BlockSource* const blocks_;
  std::vector<Sequence*> running_;  // Oldest first.
  PromptQueue waiting_;
  PromptQueue waiting_by_length_{PromptOrder{.shortest = true}};  // The same ones.
  int32_t num_alone_ = 0;                                         // Running or waiting.
  bool last_step_alone_ = false;
  bool odd_ = false;               // Every second step rounds the prompts' half of the places up.
  bool shortest_first_ = false;    // The last step with prompts.
  uint64_t held_back_ = kNoOrder;  // The oldest that lacked a block when the oldest went first.
  int64_t now_ = 0;                // The latest round that has run.
  Refusal last_refusal_;
  Refusal last_brief_refusal_;
  Refusal last_take_refusal_;

  bool preemption_held_ = false;
  bool preemption_wanted_ = false;

  // The plan under construction.
  int32_t budget_ = 0;  // Tokens left.
  bool first_prompt_ran_ = false;
  bool brief_blocked_ = false;           // A brief one lacked blocks.
  uint64_t no_place_from_ = kNoOrder;    // Younger sequences have no place.
  std::optional<int64_t> spare_blocks_;  // See EverybodyFits; not known if empty.
  std::vector<Sequence*> decodes_;       // Decodes that shall run.
  std::vector<Sequence*> left_out_;      // Decodes without a place.
  std::vector<Sequence*> chunks_;        // Running prompts.
  StepPlan plan_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SCHEDULER_SCHEDULER_H_
