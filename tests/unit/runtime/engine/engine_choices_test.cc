// A pool that the choices of one request fill: who else comes does not wait for their end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using testing::IsEmpty;

class EngineChoicesTest : public EngineTransferTest {
 protected:
  // 8 choices that come to want more than a pool of 24 blocks.
  Submit FillPool() {
    Submit choices = MakeSubmit(1, RandomTokens(40, 1), /*max_tokens=*/120, /*num_choices=*/8);
    fleet_.Submit(kDecode, choices);
    fleet_.RunUntil([&] { return fleet_.engine(kDecode).Load().blocks.free == 0; });
    EXPECT_THAT(fleet_.record(choices.attempt).finish, IsEmpty());
    return choices;
  }
  bool Finished(const Submit& submit) {
    return fleet_.record(submit.attempt).finish.size() == submit.spec.choices.size();
  }
};

TEST_F(EngineChoicesTest, ANewcomerIsThroughBeforeAnyOfThem) {
  Create(/*decode_blocks=*/24);
  const Submit choices = FillPool();
  const Submit newcomer = MakeSubmit(2, RandomTokens(60, 2), 30);
  fleet_.Submit(kDecode, newcomer);
  fleet_.RunUntil([&] { return Finished(newcomer); });
  EXPECT_THAT(fleet_.record(choices.attempt).finish, IsEmpty());
  Run();
  for (const Submit& submit : {choices, newcomer}) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineChoicesTest, APromptThatIsComputedElsewhereIsGrantedTheirBlocks) {
  Create(/*decode_blocks=*/24);
  const Submit choices = FillPool();
  const Submit newcomer = Disaggregated(2, RandomTokens(60, 2), 30);
  fleet_.Submit(kDecode, newcomer);
  fleet_.RunUntil([&] { return Finished(newcomer); });
  EXPECT_THAT(fleet_.record(choices.attempt).finish, IsEmpty());
  EXPECT_EQ(fleet_.messages("Committed"), 1);
  Run();
  for (const Submit& submit : {choices, newcomer}) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineChoicesTest, TheLastOfThemIsNobodysBehindWhicheverEndedFirst) {
  Submit choices = MakeSubmit(1, RandomTokens(40, 1), /*max_tokens=*/120, /*num_choices=*/3);
  const auto tokens_of = [&](int32_t choice) {
    return SimulatedModel().Generate(choices.spec.token_ids, choice, choices.spec.sampling);
  };
  choices.spec.sampling.stop_token_ids = {tokens_of(0)[10].token, tokens_of(1)[2].token};
  ASSERT_EQ(tokens_of(0).size(), 11u);
  ASSERT_EQ(tokens_of(1).size(), 3u);
  ASSERT_EQ(tokens_of(2).size(), 120u);
  Create(/*decode_blocks=*/24);
  fleet_.Submit(kDecode, choices);
  fleet_.RunUntil([&] { return fleet_.record(choices.attempt).finish.size() == 2; });
  for (uint64_t next = 2; next < 40; ++next) {
    fleet_.Submit(kDecode, MakeSubmit(next, RandomTokens(60, next), 30));
  }
  fleet_.RunUntil([&] { return Finished(choices); });
  // It has not waited for all who came after it.
  EXPECT_THAT(fleet_.record(MakeSubmit(39, {}, 1).attempt).tokens, IsEmpty());
  Run();
  EXPECT_EQ(fleet_.CheckFinished(choices), "");
}

// More than a batch holds run where all fit: nobody is taken for more than he comes to be.
TEST_F(EngineChoicesTest, AnOnlyChoiceIsOne) {
  EngineOptions options = SmallEngine(/*num_blocks=*/6);
  options.max_sequences = 1;
  fleet_.AddWorker({.engine = options});
  const Submit first = MakeSubmit(1, RandomTokens(16, 1), 16);  // 2 blocks, and one to copy.
  const Submit second = MakeSubmit(2, RandomTokens(16, 2), 16);
  fleet_.Submit(kDecode, first);
  fleet_.Submit(kDecode, second);
  RunUntilFirstToken(second);
  EXPECT_THAT(fleet_.record(first.attempt).finish, IsEmpty());
  Run();
  for (const Submit& submit : {first, second}) EXPECT_EQ(fleet_.CheckFinished(submit), "");
}

TEST_F(EngineChoicesTest, TheyAreThroughInTheEndHoweverManyCome) {
  Create(/*decode_blocks=*/24);
  const Submit choices = FillPool();
  std::vector<Submit> newcomers;
  uint64_t next = 2;
  while (!Finished(choices)) {
    ASSERT_LT(next, 400u) << fleet_.record(choices.attempt).finish.size() << " choices are through";
    std::erase_if(newcomers, [&](const Submit& submit) { return Finished(submit); });
    while (newcomers.size() < 4) {
      newcomers.push_back(MakeSubmit(next, RandomTokens(60, next), 30));
      fleet_.Submit(kDecode, newcomers.back());
      ++next;
    }
    ASSERT_TRUE(fleet_.RunOne());
  }
  EXPECT_EQ(fleet_.CheckFinished(choices), "");
  Run();
}

}  // namespace
}  // namespace tandem
