// A model whose layers all have a window: sequences give back what it has left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "tests/support/engine_cases.h"
#include "tests/support/engine_fleet.h"

namespace tandem {
namespace {

constexpr int64_t kWindow = 40;

EngineOptions Windowed(int32_t num_blocks) {
  EngineOptions options = SmallEngine(num_blocks);
  options.max_sequences = 4;
  options.max_batched_tokens = 32;
  options.window = kWindow;
  return options;
}

// What one sequence holds at most, of 16 tokens each: the window and a step, and their edges.
constexpr int32_t kEnough = (40 + 32 + 15) / 16 + 2;

// Whether steps overlap, and how many tokens a run may draw.
class EngineWindowTest : public testing::TestWithParam<std::tuple<bool, int32_t>> {
 protected:
  void TearDown() override { EXPECT_EQ(fleet_.AuditQuiet(), ""); }
  int AddWorker(const EngineOptions& options) {
    const auto [overlap, max_drawn] = GetParam();
    return fleet_.AddWorker({.engine = options, .max_drawn = max_drawn, .overlap_steps = overlap});
  }
  void Run() { ASSERT_TRUE(fleet_.RunUntilQuiet()); }
  // The most blocks that are held at a time until quiet.
  int64_t RunAndCountHeld(int worker) {
    int64_t most = 0;
    fleet_.RunUntil([&] {
      most = std::max(most, fleet_.engine(worker).Load().blocks.held);
      return false;
    });
    return most;
  }
  // But for tokens that were computed once more, where nothing was guessed of what follows them.
  void ExpectComputed(int worker, int64_t tokens) {
    if (std::get<1>(GetParam()) == 1) {
      EXPECT_EQ(computed(worker), tokens);
    } else {
      EXPECT_GE(computed(worker), tokens);
    }
  }
  int64_t computed(int worker) { return fleet_.executor(worker).computed_tokens(); }

  EngineFleet fleet_;
};
INSTANTIATE_TEST_SUITE_P(All, EngineWindowTest,
                         testing::Combine(testing::Bool(), testing::Values(1, 20)));

TEST_P(EngineWindowTest, ATextThatNeverFitsThePoolRunsInIt) {
  for (const bool caching : {true, false}) {
    EngineOptions options = Windowed(kEnough);
    options.prefix_caching = caching;
    AddWorker(options);
    const Submit submit = MakeSubmit(1, RandomTokens(200, 1), 150);
    const int worker = fleet_.num_workers() - 1;
    Submit copy = submit;
    copy.attempt.request.counter += static_cast<uint64_t>(worker);
    fleet_.Submit(worker, copy);
    EXPECT_LE(RunAndCountHeld(worker), kEnough);
    EXPECT_EQ(fleet_.CheckFinished(copy), "");
    ExpectComputed(worker, 200 + 149);
    EXPECT_EQ(fleet_.preemptions(), 0);
  }
}

TEST_P(EngineWindowTest, WhatHoldsNoWindowAndStepIsRefused) {
  AddWorker(Windowed(kEnough - 1));
  const Submit long_one = MakeSubmit(1, RandomTokens(200, 1), 10);
  fleet_.Submit(0, long_one);
  const Submit short_one = MakeSubmit(2, RandomTokens(70, 2), 10);
  fleet_.Submit(0, short_one);
  Run();
  ASSERT_EQ(fleet_.record(long_one.attempt).refused.size(), 1u);
  EXPECT_EQ(fleet_.record(long_one.attempt).refused.front(),
            absl::InvalidArgumentError("210 tokens need 7 blocks of 16, this worker has a context "
                                       "of 512 and 6 blocks"));
  EXPECT_EQ(fleet_.CheckFinished(short_one), "");
}

TEST_P(EngineWindowTest, ChoicesShareTheWindowAndLeaveItEachForItself) {
  AddWorker(Windowed(64));
  const Submit submit = MakeSubmit(1, RandomTokens(100, 1), 120, /*num_choices=*/3);
  fleet_.Submit(0, submit);
  EXPECT_LE(RunAndCountHeld(0), 3 * kEnough);
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_P(EngineWindowTest, PreemptedSequencesRecomputeToTheSameTokens) {
  AddWorker(Windowed(kEnough + 3));
  std::vector<Submit> submits;
  for (uint64_t i = 1; i <= 4; ++i) {
    submits.push_back(MakeSubmit(i, RandomTokens(20, i), 200));
    fleet_.Submit(0, submits.back());
  }
  Run();
  for (const Submit& submit : submits) EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_GT(fleet_.preemptions(), 0);
}

// The blocks before the window are gone, those in it are cached.
TEST_P(EngineWindowTest, AHitNeedsOnlyWhatTheNextTokenSees) {
  AddWorker(Windowed(kEnough));
  Submit submit = MakeSubmit(1, RandomTokens(200, 1), 20);
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  const int64_t before = computed(0);
  submit.attempt.request.counter = 2;
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.record(submit.attempt).prompts.front().cached_tokens, 192);
  ExpectComputed(0, before + 8 + 19);
}

TEST_P(EngineWindowTest, OnlyWhatTheNextTokenSeesTravels) {
  AddWorker(Windowed(kEnough));
  AddWorker(Windowed(64));
  Submit submit = MakeSubmit(1, RandomTokens(200, 1), 100);
  submit.prefill = fleet_.peer(1);
  submit.disaggregate_from_tokens = 1;
  fleet_.Submit(0, submit);
  EXPECT_LE(RunAndCountHeld(0), kEnough);
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  // Positions 160 to 199 lie in blocks 10 to 12 of 13.
  EXPECT_EQ(fleet_.frames_delivered(), 3);
  ExpectComputed(0, 99);

  // A longer one whose beginning the decode worker has: what it lacks travels, from the window on.
  submit.attempt.request.counter = 2;
  std::vector<int32_t> more = RandomTokens(300, 1);
  submit.spec.token_ids = more;
  submit.spec.prompt_tokens = 300;
  fleet_.Submit(0, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.frames_delivered(), 3 + 3);
}

// The peer's word may be that more travels than the window shows.
TEST_P(EngineWindowTest, WhatWasPromisedIsKeptUntilItHasTravelled) {
  for (int decode = 0; decode < 2; ++decode) AddWorker(SmallEngine());  // They know of no window.
  AddWorker(Windowed(64));
  for (int decode = 0; decode < 2; ++decode) {  // The second time the beginning is a hit.
    Submit submit = MakeSubmit(1 + static_cast<uint64_t>(decode), RandomTokens(200, 1), 2);
    submit.prefill = fleet_.peer(2);
    submit.disaggregate_from_tokens = 1;
    fleet_.Submit(decode, submit);
    Run();
    EXPECT_EQ(fleet_.frames_delivered(), 13 * (1 + decode));
    EXPECT_EQ(fleet_.record(submit.attempt).tokens.at(0).size(), 2u);
  }
}

TEST_P(EngineWindowTest, APromptThatTravelsGivesBackWhatDoesNot) {
  AddWorker(Windowed(64));
  AddWorker(Windowed(64));
  Submit submit = MakeSubmit(1, RandomTokens(320, 1), 5);
  submit.prefill = fleet_.peer(1);
  submit.disaggregate_from_tokens = 1;
  fleet_.Submit(0, submit);
  fleet_.QueueFrames();
  fleet_.RunUntil([&] { return fleet_.frames_held() == 3; });
  ASSERT_EQ(fleet_.frames_held(), 3);
  EXPECT_EQ(fleet_.engine(1).Load().blocks.held, 0);
  EXPECT_EQ(fleet_.engine(1).Load().blocks.in_flight, 3);
  fleet_.ReleaseFrames();
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

}  // namespace
}  // namespace tandem
