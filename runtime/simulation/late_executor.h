// A device that computes later: a step reads and writes its blocks when it is finished, so that
// whatever of it was touched too early shows in the tokens.

#ifndef TANDEM_RUNTIME_SIMULATION_LATE_EXECUTOR_H_
#define TANDEM_RUNTIME_SIMULATION_LATE_EXECUTOR_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "runtime/engine/executor.h"

namespace tandem {

class LateExecutor final : public Executor {
 public:
  // Borrows what computes.
  explicit LateExecutor(SynchronousExecutor* executor) : executor_(executor) {}

  bool overlaps_steps() const override { return true; }
  int32_t max_drawn() const override { return executor_->max_drawn(); }
  void Begin(const StepInput& input) override;
  void BeginDraws(int32_t run, std::span<const Draw> draws) override;
  absl::StatusOr<StepOutput*> Finish() override;
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override {
    return executor_->BlockChecksums(blocks, crc32c);
  }
  void Discard(BlockId block) override { executor_->Discard(block); }
  uint64_t work_done() const override { return executor_->work_done(); }

 private:
  // Where a run that is over has got to: what the next one of its sequence computes.
  struct NextToken {
    int32_t token = 0;
    int32_t position = 0;
  };
  struct Run {
    SequenceRun run;
    std::vector<int32_t> token_ids;
    std::vector<BlockId> block_table;
    std::vector<Draw> draws;
    // What `draws` refer to: its owner may have ended.
    std::vector<SamplingParams> sampling;
    std::vector<std::vector<uint32_t>> masks;
    void Keep(std::span<const Draw> to_keep);
    SequenceRun Resolve(const std::vector<NextToken>& before);
  };
  struct Step {
    std::vector<BlockCopy> copies;
    std::vector<Run> runs;
  };

  SynchronousExecutor* const executor_;
  std::deque<Step> begun_;
  StepOutput output_, computed_;  // The latter without runs that have no place.
  std::vector<NextToken> next_;   // By run of the step that was finished last.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_LATE_EXECUTOR_H_
