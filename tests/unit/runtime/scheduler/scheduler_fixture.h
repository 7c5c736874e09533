// A scheduler over blocks with nothing in them, and sequences whose tokens are all the same.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_SCHEDULER_SCHEDULER_FIXTURE_H_
#define TANDEM_TESTS_UNIT_RUNTIME_SCHEDULER_SCHEDULER_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/scheduler/scheduler.h"

namespace tandem {

inline constexpr int32_t kBlockTokens = 4;

// A count of blocks, with nothing in them.
class CountedBlocks final : public BlockSource {
 public:
  explicit CountedBlocks(int32_t num_blocks) : available_(num_blocks) {}

  void AttachPrefix(Sequence* sequence) override {
    ++lookups_;
    const auto num_tokens = static_cast<int32_t>(sequence->token_ids.size());
    const int32_t cached = std::min(cached_blocks_ * kBlockTokens, num_tokens - 1) / kBlockTokens;
    Grow(sequence, cached * kBlockTokens);
    sequence->num_computed = static_cast<int32_t>(sequence->block_table.size()) * kBlockTokens;
  }
  int32_t Grow(Sequence* sequence, int32_t num_tokens) override {
    while (static_cast<int32_t>(sequence->block_table.size()) * kBlockTokens < num_tokens &&
           available_ > 0) {
      --available_;
      sequence->block_table.push_back(0);
    }
    return std::min(num_tokens, static_cast<int32_t>(sequence->block_table.size()) * kBlockTokens);
  }
  bool Shrink(Sequence* sequence, int32_t num_tokens) override {
    const auto kept = static_cast<size_t>((num_tokens + kBlockTokens - 1) / kBlockTokens);
    if (sequence->block_table.size() <= kept) return false;
    available_ += static_cast<int32_t>(sequence->block_table.size() - kept);
    sequence->block_table.resize(kept);
    return true;
  }
  void Release(Sequence* sequence) override {
    available_ += static_cast<int32_t>(sequence->block_table.size());
    sequence->block_table.clear();
    sequence->num_computed = 0;
  }
  int32_t num_available() const override { return available_; }
  void Take(int32_t num_blocks) { available_ -= num_blocks; }
  int lookups() const { return lookups_; }
  // So much of every prompt is found.
  void set_cached_blocks(int32_t cached_blocks) { cached_blocks_ = cached_blocks; }

 private:
  int32_t available_;
  int lookups_ = 0;
  int32_t cached_blocks_ = 0;
};

class SchedulerTest : public testing::Test {
 protected:
  void Create(int32_t num_blocks, int32_t max_sequences = 8, int32_t max_batched_tokens = 16) {
    num_blocks_ = num_blocks;
    blocks_ = std::make_unique<CountedBlocks>(num_blocks);
    scheduler_ =
        std::make_unique<Scheduler>(SchedulerLimits{.max_sequences = max_sequences,
                                                    .max_batched_tokens = max_batched_tokens,
                                                    .block_tokens = kBlockTokens},
                                    blocks_.get());
  }

  Sequence* Add(int32_t num_tokens) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.order = sequences_.size();
    numbers_[&sequence] = sequences_.size();
    sequence.token_ids.resize(static_cast<size_t>(num_tokens));
    sequence.rounds = &rounds_.emplace_back();
    return &sequence;
  }
  // A sequence of the same request, next in rank.
  Sequence* AddSibling(const Sequence& of, int32_t num_tokens) {
    Sequence* const sequence = Add(num_tokens);
    sequence->rounds = of.rounds;
    sequence->order = OrderOf(sequence->order, RankOf(of.order) + 1);
    return sequence;
  }
  // As after a transfer, or when a choice begins: all but the last token are computed.
  void Join(Sequence* sequence) {
    const auto num_tokens = static_cast<int32_t>(sequence->token_ids.size());
    ASSERT_EQ(blocks_->Grow(sequence, num_tokens), num_tokens);
    sequence->num_computed = num_tokens - 1;
    scheduler_->Join(sequence);
  }
  void JoinForks(int count, int32_t num_tokens = 8) {
    const Sequence* last = Add(num_tokens);
    for (int i = 1; i < count; ++i) last = AddSibling(*last, num_tokens);
    for (size_t i = sequences_.size() - static_cast<size_t>(count); i < sequences_.size(); ++i) {
      Join(&sequences_[i]);
    }
  }
  bool Ran(const Sequence* sequence) const {
    return std::any_of(ran_.begin(), ran_.end(),
                       [&](const auto& run) { return run.first == numbers_.at(sequence); });
  }
  Sequence* Enqueue(int32_t num_tokens) {
    Sequence* const sequence = Add(num_tokens);
    scheduler_->Enqueue(sequence);
    return sequence;
  }

  // Schedules and computes: a sequence that has caught up gets one more token.
  const StepPlan& Step(uint64_t admit_before = kNoOrder) {
    const StepPlan& plan = scheduler_->Schedule(admit_before);
    ran_.clear();
    for (const ScheduledRun& run : plan.runs) {
      ran_.emplace_back(numbers_.at(run.sequence), run.num_tokens);
      run.sequence->num_computed += run.num_tokens;
      if (run.sequence->remaining() == 0) run.sequence->token_ids.push_back(0);
    }
    return plan;
  }
  void Finish(Sequence* sequence) {
    scheduler_->Remove(sequence);
    blocks_->Release(sequence);
  }

  int32_t num_blocks_ = 0;
  std::unique_ptr<CountedBlocks> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<Sequence> sequences_;
  std::deque<RequestRounds> rounds_;
  std::map<const Sequence*, size_t> numbers_;    // In the order of Add, from 1 on.
  std::vector<std::pair<size_t, int32_t>> ran_;  // (number, tokens) of the last step.
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_SCHEDULER_SCHEDULER_FIXTURE_H_
