// A decode worker and a prefill worker back to back.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_ENGINE_ENGINE_TRANSFER_FIXTURE_H_
#define TANDEM_TESTS_UNIT_RUNTIME_ENGINE_ENGINE_TRANSFER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/math.h"
#include "tests/support/engine_cases.h"
#include "tests/support/engine_fleet.h"

namespace tandem {

inline constexpr int kDecode = 0;
inline constexpr int kPrefill = 1;

class EngineTransferTest : public testing::Test {
 protected:
  void TearDown() override {
    if (fleet_.num_workers() > 0) ExpectQuiet(fleet_);
  }

  static void ExpectQuiet(const EngineFleet& fleet) { EXPECT_EQ(fleet.AuditQuiet(), ""); }
  void Create(int32_t decode_blocks = 64, int32_t prefill_blocks = 64, int32_t failing_token = -1) {
    Create(&fleet_, decode_blocks, prefill_blocks, failing_token);
  }
  static void Create(EngineFleet* fleet, int32_t decode_blocks = 64, int32_t prefill_blocks = 64,
                     int32_t failing_token = -1) {
    fleet->AddWorker({.engine = SmallEngine(decode_blocks)});
    fleet->AddWorker({.engine = SmallEngine(prefill_blocks), .failing_token = failing_token});
  }
  static Submit Disaggregated(const EngineFleet& fleet, uint64_t counter,
                              std::vector<int32_t> prompt, int32_t max_tokens,
                              int32_t num_choices = 1) {
    Submit submit = MakeSubmit(counter, std::move(prompt), max_tokens, num_choices);
    submit.prefill = fleet.peer(kPrefill);
    submit.disaggregate_from_tokens = 1;
    return submit;
  }
  Submit Disaggregated(uint64_t counter, std::vector<int32_t> prompt, int32_t max_tokens,
                       int32_t num_choices = 1) {
    return Disaggregated(fleet_, counter, std::move(prompt), max_tokens, num_choices);
  }
  // As the decode worker calls it, where submits come in the order of their counters from 1.
  static JobId JobOf(const Submit& submit) { return submit.attempt.request.counter; }
  // What the decode worker asks of the prefill worker if none of it is cached.
  static PrefillSubmit PrefillSubmitOf(const Submit& submit) {
    const auto num_tokens = static_cast<int32_t>(submit.spec.token_ids.size());
    return {.job = JobOf(submit),
            .attempt = submit.attempt,
            .spec = submit.spec,
            .num_blocks = CeilDiv(num_tokens, SmallEngine().kv.block_tokens)};
  }
  void Run() { ASSERT_TRUE(fleet_.RunUntilQuiet()); }
  // Steps until the attempt has delivered a token.
  void RunUntilFirstToken(const Submit& submit) {
    while (fleet_.record(submit.attempt).tokens.empty()) ASSERT_TRUE(fleet_.RunOne());
  }
  // Until the first message of this kind is on its way.
  void DecodeUntil(const std::string& kind, const Submit& submit) {
    fleet_.Submit(kDecode, submit);
    fleet_.RunUntil([&] { return fleet_.messages(kind) == 1; });
  }
  void DecodeUntilFirstToken(const Submit& submit) {
    fleet_.Submit(kDecode, submit);
    RunUntilFirstToken(submit);
  }
  int64_t computed(int worker) { return fleet_.executor(worker).computed_tokens(); }

  EngineFleet fleet_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_ENGINE_ENGINE_TRANSFER_FIXTURE_H_
