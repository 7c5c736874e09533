// A prefill worker whose device computes, and cannot read what it has computed.

#include <gtest/gtest.h>

#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using EngineDeviceTest = EngineTransferTest;

TEST_F(EngineDeviceTest, ADeviceThatCannotReadItsBlocksIsOneWhoseStepHasFailed) {
  Create();
  for (uint64_t i = 1; i <= kMaxFailedSteps; ++i) {
    EXPECT_FALSE(fleet_.engine(kPrefill).is_broken()) << i;
    // In the middle of the prompt, and at its end.
    const Submit submit = Disaggregated(i, RandomTokens(i % 2 == 0 ? 40 : 200, i), 5);
    fleet_.executor(kPrefill).FailChecksums(1);
    fleet_.Submit(kDecode, submit);
    Run();
    ASSERT_EQ(fleet_.record(submit.attempt).ended.size(), 1u);
    EXPECT_EQ(fleet_.record(submit.attempt).ended[0],
              absl::AbortedError("no checksums of blocks: simulated failure of a checksum"));
    EXPECT_TRUE(fleet_.record(submit.attempt).by_prefill);
    EXPECT_EQ(fleet_.frames_delivered(), 0);
  }
  EXPECT_TRUE(fleet_.engine(kPrefill).is_broken());
  const Submit submit = Disaggregated(100, RandomTokens(200, 100), 5);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_FALSE(fleet_.engine(kPrefill).is_broken());
}

// Its first chunk is planned when the blocks that it found are offered.
TEST_F(EngineDeviceTest, CachedBlocksThatCannotBeReadAreOfferedAgainWithTheChunk) {
  Create();
  const std::vector<int32_t> prompt = RandomTokens(200, 3);
  fleet_.Submit(kPrefill, MakeSubmit(1, prompt, 2));
  Run();
  fleet_.executor(kPrefill).FailChecksums(1);
  const Submit submit = Disaggregated(2, prompt, 10);
  fleet_.Submit(kDecode, submit);
  Run();
  EXPECT_EQ(fleet_.CheckFinished(submit), "");
  EXPECT_EQ(fleet_.frames_delivered(), 13);
  EXPECT_EQ(fleet_.executor(kPrefill).checksummed_blocks(), 13);
}

}  // namespace
}  // namespace tandem
