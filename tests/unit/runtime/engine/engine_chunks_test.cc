// What an engine says that it begins is what it then computes, and it says so first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/engine_cases.h"
#include "tests/support/engine_fleet.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kPromptTokens = 150;  // In chunks of at most 64.

// Compares each step with what was said before it, when it begins.
class WatchingExecutor final : public FleetExecutor, public SynchronousExecutor {
 public:
  WatchingExecutor(EngineFleet* fleet, int worker)
      : fleet_(fleet), worker_(worker), executor_({.num_blocks = 64}) {}

  SynchronousExecutor& executor() override { return *this; }
  int64_t block_bytes() const override { return executor_.block_bytes(); }
  std::span<uint8_t> BlockBytes(BlockId block) override { return executor_.BlockBytes(block); }

  absl::Status Execute(const StepInput& input, StepOutput* output) override {
    std::multiset<std::pair<int32_t, int32_t>> begun;
    for (; num_seen_ < fleet_->notices().size(); ++num_seen_) {
      const auto& [worker, notice] = fleet_->notices()[num_seen_];
      if (worker != worker_) continue;
      begun.emplace(notice.chunk.first_position, notice.chunk.end_position);
    }
    for (const SequenceRun& run : input.runs) {
      const auto end = run.first_position + static_cast<int32_t>(run.token_ids.size());
      const auto said = begun.find({run.first_position, end});
      if (said != begun.end()) {
        begun.erase(said);
        continue;
      }
      EXPECT_EQ(run.token_ids.size(), 1u);
      EXPECT_GE(run.first_position, kPromptTokens) << "a prompt of which nothing was said";
    }
    EXPECT_THAT(begun, IsEmpty()) << "said, and not computed";
    return executor_.Execute(input, output);
  }
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override {
    return executor_.BlockChecksums(blocks, crc32c);
  }
  void Discard(BlockId block) override { executor_.Discard(block); }
  uint64_t work_done() const override { return executor_.work_done(); }

 private:
  EngineFleet* const fleet_;
  const int worker_;
  SimulatedExecutor executor_;
  size_t num_seen_ = 0;
};

class EngineChunksTest : public testing::Test {
 protected:
  EngineChunksTest() {
    for (int worker = 0; worker < 2; ++worker) {
      fleet_.AddWorker({.engine = SmallEngine(),
                        .executor = std::make_unique<WatchingExecutor>(&fleet_, worker)});
    }
  }
  // Positions that the worker has begun of the attempt; all to the same router.
  std::vector<std::pair<int32_t, int32_t>> Begun(int worker, const AttemptId& attempt,
                                                 std::optional<SessionId> router) const {
    std::vector<std::pair<int32_t, int32_t>> begun;
    for (const auto& [by, notice] : fleet_.notices()) {
      if (by != worker || notice.chunk.attempt != attempt) continue;
      EXPECT_EQ(notice.router, router);
      begun.emplace_back(notice.chunk.first_position, notice.chunk.end_position);
    }
    return begun;
  }

  EngineFleet fleet_;
};

TEST_F(EngineChunksTest, EveryChunkOfAPromptIsSaidBeforeItRunsAndNoTokenAfterIt) {
  const Submit submit = MakeSubmit(1, RandomTokens(kPromptTokens, 1), 20, /*num_choices=*/2);
  fleet_.Submit(0, submit);
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_THAT(Begun(0, submit.attempt, EngineFleet::kRouter),
              ElementsAre(std::pair(0, 64), std::pair(64, 128), std::pair(128, 150)));
}

TEST_F(EngineChunksTest, PromptsThatShareAStepAreSaidTogether) {
  for (uint64_t i = 1; i <= 6; ++i) {
    fleet_.Submit(0, MakeSubmit(i, RandomTokens(kPromptTokens, i), 10));
  }
  ASSERT_TRUE(fleet_.RunUntilQuiet());
}

TEST_F(EngineChunksTest, OfACachedPromptTheRestIsSaid) {
  const Submit first = MakeSubmit(1, RandomTokens(kPromptTokens, 1), 2);
  fleet_.Submit(0, first);
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  const Submit again = MakeSubmit(2, RandomTokens(kPromptTokens, 1), 2);
  fleet_.Submit(0, again);
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  EXPECT_THAT(Begun(0, again.attempt, EngineFleet::kRouter), ElementsAre(std::pair(144, 150)));
}

TEST_F(EngineChunksTest, AResumedAttemptSaysWhatItComputesAgain) {
  Submit submit = MakeSubmit(1, RandomTokens(kPromptTokens, 1), 20);
  submit.spec.prompt_tokens -= 10;
  fleet_.Submit(0, submit);
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  EXPECT_THAT(Begun(0, submit.attempt, EngineFleet::kRouter),
              ElementsAre(std::pair(0, 64), std::pair(64, 128), std::pair(128, 150)));
}

TEST_F(EngineChunksTest, OfAResumedAttemptNoMoreIsCachedThanThePrompt) {
  fleet_.Submit(0, MakeSubmit(1, RandomTokens(kPromptTokens, 1), 20));
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  Submit resumed = MakeSubmit(2, RandomTokens(kPromptTokens, 1), 120);
  resumed.spec.prompt_tokens = 50;
  fleet_.Submit(0, resumed);
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  EXPECT_EQ(fleet_.record(resumed.attempt).prompts.at(0).cached_tokens, 50);
}

TEST_F(EngineChunksTest, OfAPromptForADecodeWorkerEveryRouterIsTold) {
  Submit submit = MakeSubmit(1, RandomTokens(kPromptTokens, 1), 20);
  submit.prefill = fleet_.peer(1);
  submit.disaggregate_from_tokens = 1;
  fleet_.Submit(0, submit);
  ASSERT_TRUE(fleet_.RunUntilQuiet());
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_THAT(Begun(1, submit.attempt, std::nullopt),
              ElementsAre(std::pair(0, 64), std::pair(64, 128), std::pair(128, 150)));
  EXPECT_THAT(Begun(0, submit.attempt, EngineFleet::kRouter), IsEmpty());
}

}  // namespace
}  // namespace tandem
