#include "runtime/simulation/late_executor.h"

#include <utility>

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
    kept.Keep(run.draws);
  }
}

void LateExecutor::BeginDraws(int32_t run, std::span<const Draw> draws) {
  TANDEM_CHECK(begun_.size() == 1) << begun_.size() << " steps are begun";
  Run& kept = begun_.back().runs.at(static_cast<size_t>(run));
  TANDEM_CHECK(kept.run.draws_wait && kept.draws.empty()) << "run " << run << " has its draws";
  kept.Keep(draws);
}

void LateExecutor::Run::Keep(std::span<const Draw> to_keep) {
  draws.assign(to_keep.begin(), to_keep.end());
  for (const Draw& draw : to_keep) {
    sampling.push_back(*draw.sampling);
    masks.emplace_back(draw.mask.words.begin(), draw.mask.words.end());
  }
}

// What the run is, now that it is known what the step before has drawn.
SequenceRun LateExecutor::Run::Resolve(const std::vector<NextToken>& before) {
  if (run.unseen_run >= 0) {
    const NextToken& next = before.at(static_cast<size_t>(run.unseen_run));
    token_ids = {next.token};
    run.first_position = next.position;
    run.unseen_run = -1;
  }
  for (size_t i = 0; i < draws.size(); ++i) {
    draws[i].sampling = &sampling[i];
    draws[i].mask = {masks[i]};
  }
  run.token_ids = token_ids;
  run.block_table = block_table;
  run.draws = draws;
  return run;
}

absl::StatusOr<StepOutput*> LateExecutor::Finish() {
  TANDEM_CHECK(!begun_.empty());
  Step& step = begun_.front();
  std::vector<SequenceRun> runs;
  std::vector<NextToken> next(step.runs.size());
  output_.runs.resize(step.runs.size());
  std::vector<size_t> computed;  // Which of them are in `runs`: the others have no place left.
  for (size_t i = 0; i < step.runs.size(); ++i) {
    const SequenceRun run = step.runs[i].Resolve(next_);
    const auto end = run.first_position + static_cast<int32_t>(run.token_ids.size());
    next[i] = {.token = run.token_ids.back(), .position = end - 1};
    output_.runs[i] = {};
    if (end > run.last_position) continue;
    computed.push_back(i);
    runs.push_back(run);
  }
  const absl::Status status = executor_->Execute({.copies = step.copies, .runs = runs}, &computed_);
  for (size_t i = 0; i < computed.size(); ++i) {
    NextToken& after = next[computed[i]];
    if (!status.ok()) {
      after = {.token = 0, .position = after.position + 1};
      continue;
    }
    RunOutput& output = output_.runs[computed[i]] = std::move(computed_.runs[i]);
    if (output.drawn.empty()) continue;
    after = {.token = output.drawn.back().token,
             .position = after.position + static_cast<int32_t>(output.drawn.size())};
  }
  next_ = std::move(next);
  begun_.pop_front();
  if (!status.ok()) return status;
  return &output_;
}

}  // namespace tandem
