// What a worker keeps of work and of peers that are gone: nothing.

#include "tests/support/growth.h"
#include "tests/unit/runtime/engine/engine_transfer_fixture.h"

namespace tandem {
namespace {

using EngineForgetsTest = EngineTransferTest;

// All of one prompt has arrived, and nothing of another, when their prefill worker is gone.
TEST_F(EngineForgetsTest, OfPrefillWorkersThatAreLostNothingIsLeft) {
  Create();
  const int64_t growth = Growth([this](uint64_t number) {
    const Submit arrived = Disaggregated(2 * number, RandomTokens(100, 2 * number), 3);
    const Submit lost = Disaggregated(2 * number + 1, RandomTokens(100, 2 * number + 1), 3);
    fleet_.Submit(kDecode, arrived);
    Run();
    EXPECT_EQ(fleet_.CheckFinished(arrived), "");
    const int64_t grants = fleet_.messages("Grant");
    fleet_.Submit(kDecode, lost);
    fleet_.RunUntil([&] { return fleet_.messages("Grant") > grants; });
    // For a reason that pauses nobody: of pauses some are kept.
    fleet_.BreakSession(kDecode, kPrefill, absl::FailedPreconditionError("no pair"));
    Run();
    EXPECT_FALSE(fleet_.record(lost.attempt).ended.empty());
    fleet_.Rename(kPrefill);
    fleet_.Advance(600'000'000);  // Past all deadlines.
    fleet_.ForgetRecords();
  });
  EXPECT_LT(growth, kNoGrowth);
}

}  // namespace
}  // namespace tandem
