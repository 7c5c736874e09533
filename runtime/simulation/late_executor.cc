#include "runtime/simulation/late_executor.h"

#include "runtime/base/check.h"

namespace tandem {

void LateExecutor::Begin(const StepInput& input) {
  TANDEM_CHECK(begun_.size() < static_cast<size_t>(kMaxStepsBegun));
  Step& step = begun_.emplace_back();
  step.copies.assign(input.copies.begin(), input.copies.end());
  for (const SequenceRun& run : input.runs) {
    Run& kept = step.runs.emplace_back();
    kept.run = run;
    kept.token_ids.assign(run.token_ids.begin(), run.token_ids.end());
    kept.block_table.assign(run.block_table.begin(), run.block_table.end());
    kept.draws.assign(run.draws.begin(), run.draws.end());
    for (const Draw& draw : run.draws) kept.sampling.push_back(*draw.sampling);
  }
}

absl::StatusOr<StepOutput*> LateExecutor::Finish() {
  TANDEM_CHECK(!begun_.empty());
  Step& step = begun_.front();
  std::vector<SequenceRun> runs;
  for (Run& kept : step.runs) {
    if (kept.run.unseen_run >= 0) {
      kept.token_ids.back() = drawn_.at(static_cast<size_t>(kept.run.unseen_run));
    }
    for (size_t i = 0; i < kept.draws.size(); ++i) kept.draws[i].sampling = &kept.sampling[i];
    SequenceRun& run = runs.emplace_back(kept.run);
    run.token_ids = kept.token_ids;
    run.block_table = kept.block_table;
    run.draws = kept.draws;
    run.unseen_run = -1;
  }
  const absl::Status status = executor_->Execute({.copies = step.copies, .runs = runs}, &output_);
  drawn_.assign(runs.size(), 0);
  for (size_t i = 0; status.ok() && i < runs.size(); ++i) {
    if (!output_.runs[i].drawn.empty()) drawn_[i] = output_.runs[i].drawn.front().token;
  }
  begun_.pop_front();
  if (!status.ok()) return status;
  return &output_;
}

}  // namespace tandem
