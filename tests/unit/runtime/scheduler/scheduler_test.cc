#include "runtime/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <numeric>

#include "runtime/base/math.h"
#include "runtime/base/random.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kBlockTokens = 4;

// A count of blocks, with nothing in them.
class CountedBlocks final : public BlockSource {
 public:
  explicit CountedBlocks(int32_t num_blocks) : available_(num_blocks) {}

  void AttachPrefix(Sequence*) override { ++lookups_; }
  int32_t Grow(Sequence* sequence, int32_t num_tokens) override {
    while (static_cast<int32_t>(sequence->block_table.size()) * kBlockTokens < num_tokens &&
           available_ > 0) {
      --available_;
      sequence->block_table.push_back(0);
    }
    return std::min(num_tokens, static_cast<int32_t>(sequence->block_table.size()) * kBlockTokens);
  }
  void Release(Sequence* sequence) override {
    available_ += static_cast<int32_t>(sequence->block_table.size());
    sequence->block_table.clear();
    sequence->num_computed = 0;
  }
  int32_t num_available() const override { return available_; }
  void Take(int32_t num_blocks) { available_ -= num_blocks; }
  int lookups() const { return lookups_; }

 private:
  int32_t available_;
  int lookups_ = 0;
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
    sequence.token_ids.resize(static_cast<size_t>(num_tokens));
    return &sequence;
  }
  Sequence* Enqueue(int32_t num_tokens) {
    Sequence* const sequence = Add(num_tokens);
    scheduler_->Enqueue(sequence);
    return sequence;
  }

  // Schedules and computes: a sequence that has caught up gets one more token.
  const StepPlan& Step() {
    const StepPlan& plan = scheduler_->Schedule();
    ran_.clear();
    for (const ScheduledRun& run : plan.runs) {
      ran_.emplace_back(run.sequence->order, run.num_tokens);
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
  std::vector<std::pair<uint64_t, int32_t>> ran_;  // (order, tokens) of the last step.
};

TEST_F(SchedulerTest, DecodesComeFirstThenChunksThenNewcomersWithinOneBudget) {
  Create(/*num_blocks=*/100, /*max_sequences=*/8, /*max_batched_tokens=*/16);
  Enqueue(10);
  Enqueue(30);
  Enqueue(5);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 10), std::pair(2, 6)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1), std::pair(2, 15)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1), std::pair(2, 9), std::pair(3, 5)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1), std::pair(2, 1), std::pair(3, 1)));
}

TEST_F(SchedulerTest, TakesBlocksChunkByChunk) {
  Create(/*num_blocks=*/100, 8, 16);
  Sequence* const sequence = Enqueue(40);
  Step();
  EXPECT_EQ(sequence->block_table.size(), 4u);
  Step();
  EXPECT_EQ(sequence->block_table.size(), 8u);
}

TEST_F(SchedulerTest, AdmitsNoMoreSequencesThanABatchHolds) {
  Create(100, /*max_sequences=*/2, 16);
  for (int i = 0; i < 3; ++i) Enqueue(2);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 2), std::pair(2, 2)));
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  Finish(&sequences_[0]);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 1), std::pair(3, 2)));
}

TEST_F(SchedulerTest, LooksAPrefixUpAgainOnlyWhenSomethingHasChanged) {
  Create(/*num_blocks=*/6, /*max_sequences=*/8, /*max_batched_tokens=*/32);
  Sequence* const running = Enqueue(5);  // Two blocks, with room for three more tokens.
  Step();
  Sequence* const waiting = Enqueue(16);  // Four, and one is kept for whoever runs.
  const int before = blocks_->lookups();
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_EQ(running->block_table.size(), 2u);
  EXPECT_EQ(blocks_->lookups(), before + 1);
  Step();
  EXPECT_EQ(running->block_table.size(), 3u);
  EXPECT_EQ(blocks_->lookups(), before + 1 + 1);
  Finish(running);
  Step();
  EXPECT_EQ(waiting->num_computed, 16);
}

TEST_F(SchedulerTest, AnOldPromptGetsItsPlaceHoweverManyJoin) {
  Create(/*num_blocks=*/1000, /*max_sequences=*/4, /*max_batched_tokens=*/16);
  Sequence* const old = Add(20);  // Preempted, say: it waits, with more running than a batch holds.
  for (int i = 0; i < 6; ++i) {
    Sequence* const joined = Add(8);
    blocks_->Grow(joined, 8);
    joined->num_computed = 7;
    scheduler_->Join(joined);
  }
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(2, 1), std::pair(3, 1), std::pair(4, 1), std::pair(5, 1)));
  scheduler_->Enqueue(old);
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(2, 1), std::pair(3, 1), std::pair(4, 1), std::pair(1, 13)));
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(2, 1), std::pair(3, 1), std::pair(4, 1), std::pair(1, 7)));
  Enqueue(3);  // Younger than a batch of others: waits.
  Step();
  EXPECT_THAT(ran_,
              ElementsAre(std::pair(1, 1), std::pair(2, 1), std::pair(3, 1), std::pair(4, 1)));
}

TEST_F(SchedulerTest, DecodeWithoutABlockPreemptsTheYoungestAndAdmitsNobody) {
  Create(/*num_blocks=*/4, 8, 16);
  Sequence* const old = Enqueue(7);    // 2 blocks, a third after one more token.
  Sequence* const young = Enqueue(7);  // The other 2.
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 7)));  // One block of headroom for the first.
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1)));
  scheduler_->Remove(young);
  ASSERT_EQ(blocks_->Grow(young, 7), 7);
  young->num_computed = 7;
  young->token_ids.push_back(0);
  scheduler_->Join(young);  // As after a transfer: the pool is full.
  Enqueue(1);
  const StepPlan& plan = Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 1)));
  EXPECT_THAT(plan.preempted, ElementsAre(young));
  EXPECT_THAT(plan.admitted, IsEmpty());
  EXPECT_EQ(young->num_computed, 0);
  EXPECT_EQ(young->token_ids.size(), 8u);
  EXPECT_EQ(plan.blocked_order, young->order);
  Finish(old);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 8), std::pair(3, 1)));
}

TEST_F(SchedulerTest, WholeSequenceStartsOnlyWithAllItsBlocksAndIsNeverPreempted) {
  Create(/*num_blocks=*/10, 4, 8);
  Sequence* const first = Enqueue(4);
  Sequence* const whole = Add(36);
  whole->whole = true;
  scheduler_->Enqueue(whole);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 4)));
  Finish(first);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 8)));
  EXPECT_EQ(whole->block_table.size(), 9u);

  Sequence* const joined = Add(4);
  joined->order = 0;  // Older than everything.
  ASSERT_EQ(blocks_->Grow(joined, 4), 4);
  joined->num_computed = 4;
  joined->token_ids.push_back(0);
  scheduler_->Join(joined);
  const StepPlan& plan = Step();  // The pool is full; only `joined` itself could give way.
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 8)));
  EXPECT_EQ(plan.blocked_order, 0u);
}

TEST_F(SchedulerTest, LonelySequencesTakeTurnsWithSharedBatches) {
  Create(100);
  Enqueue(4);
  Sequence* const lonely = Add(20);
  lonely->alone = true;
  scheduler_->Enqueue(lonely);
  Enqueue(4);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 16)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 4), std::pair(3, 4)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 4)));
  Finish(&sequences_[0]);
  Finish(&sequences_[2]);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 1)));
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(2, 1)));
}

TEST_F(SchedulerTest, ALonelySequenceComputesSmallChunks) {
  Create(/*num_blocks=*/1'000, /*max_sequences=*/8, /*max_batched_tokens=*/512);
  Sequence* const lonely = Add(3 * kMaxLonelyChunkTokens + 5);
  lonely->alone = true;
  scheduler_->Enqueue(lonely);
  for (const int32_t tokens : {64, 64, 64, 5, 1}) {
    Step();
    EXPECT_THAT(ran_, ElementsAre(std::pair(lonely->order, tokens)));
  }
  scheduler_->Remove(lonely);
  Sequence* const other = Enqueue(300);
  Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(other->order, 300)));
}

TEST_F(SchedulerTest, AnOlderClaimElsewhereHoldsBackYoungerAdmissions) {
  Create(100);
  Enqueue(2);
  Enqueue(2);
  const StepPlan& plan = scheduler_->Schedule(/*admit_before=*/1);
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].sequence->order, 1u);
}

TEST_F(SchedulerTest, BlockedHeadOfTheQueueIsNotOvertaken) {
  Create(/*num_blocks=*/4, 8, 16);
  Enqueue(9);  // 3 blocks.
  Enqueue(8);  // Would need 2.
  Enqueue(1);  // Would fit.
  const StepPlan& plan = Step();
  EXPECT_THAT(ran_, ElementsAre(std::pair(1, 9)));
  EXPECT_EQ(plan.blocked_order, 2u);
  EXPECT_EQ(scheduler_->num_waiting(), 2);
}

TEST_F(SchedulerTest, RemoveIsIdempotentWhereverTheSequenceIs) {
  Create(100);
  Sequence* const running = Enqueue(2);
  Step();
  Sequence* const waiting = Enqueue(2);
  for (int i = 0; i < 2; ++i) {
    Finish(running);
    Finish(waiting);
  }
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(blocks_->num_available(), 100);
}

// Random loads: whatever arrives, everything finishes, and no plan breaks a limit.
TEST_F(SchedulerTest, EverythingFinishesUnderRandomLoad) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const auto max_sequences = static_cast<int32_t>(random.Between(1, 6));
    const auto max_tokens = static_cast<int32_t>(random.Between(max_sequences + 1, 24));
    const auto num_blocks = static_cast<int32_t>(random.Between(8, 30));
    sequences_.clear();
    Create(num_blocks, max_sequences, max_tokens);
    std::vector<int32_t> length;  // At which the sequence finishes, by index.
    size_t arrived = 0;
    size_t finished = 0;
    const size_t total = 20;
    for (int step = 0; finished < total; ++step) {
      ASSERT_LT(step, 20'000);
      if (arrived < total && random.Chance(0.3)) {
        Sequence* const sequence = Add(static_cast<int32_t>(random.Between(1, 16)));
        sequence->alone = random.Chance(0.1);
        sequence->whole = !sequence->alone && random.Chance(0.1);
        length.push_back(static_cast<int32_t>(sequence->token_ids.size()) +
                         (sequence->whole ? 0 : static_cast<int32_t>(random.Between(1, 16))));
        scheduler_->Enqueue(sequence);
        ++arrived;
      }
      const StepPlan plan = scheduler_->Schedule();
      ASSERT_LE(static_cast<int32_t>(plan.runs.size()), max_sequences);
      int32_t tokens = 0;
      for (const ScheduledRun& run : plan.runs) {
        Sequence* const sequence = run.sequence;
        tokens += run.num_tokens;
        ASSERT_GT(run.num_tokens, 0);
        ASSERT_EQ(sequence->state, SequenceState::kRunning);
        ASSERT_GE(static_cast<int32_t>(sequence->block_table.size()) * kBlockTokens,
                  sequence->num_computed + run.num_tokens);
        ASSERT_TRUE(!sequence->alone || plan.runs.size() == 1u);
        sequence->num_computed += run.num_tokens;
        if (sequence->remaining() > 0) continue;
        if (static_cast<int32_t>(sequence->token_ids.size()) >= length[sequence->order - 1]) {
          Finish(sequence);
          ++finished;
        } else {
          sequence->token_ids.push_back(0);
        }
      }
      ASSERT_LE(tokens, max_tokens);
      for (const Sequence* sequence : plan.preempted) ASSERT_FALSE(sequence->whole);
      ASSERT_TRUE(plan.preempted.empty() || plan.admitted.empty());
    }
    EXPECT_EQ(blocks_->num_available(), num_blocks);
  }
}

}  // namespace
}  // namespace tandem
