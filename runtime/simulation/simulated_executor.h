// Executor over a SimulatedModel: KV content is 8 bytes a token in an ordinary block pool, which
// copies, frames and checksums move and cover as they would the real one.

#ifndef TANDEM_RUNTIME_SIMULATION_SIMULATED_EXECUTOR_H_
#define TANDEM_RUNTIME_SIMULATION_SIMULATED_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/executor.h"
#include "runtime/kv_cache/kv_geometry.h"
#include "runtime/simulation/simulated_model.h"

namespace tandem {

struct SimulatedExecutorOptions {
  int32_t block_tokens = 16;
  int32_t num_blocks = 0;
  int32_t vocabulary = SimulatedModel::kVocabulary;
  int32_t window = 0;      // Positions that a token sees, itself too, at least 2; 0: all.
  uint64_t numerics = 0;   // What its model computes depends on this.
  uint64_t kv_format = 0;  // And how a payload lies in its slot, on this.
  // A run that computes this token fails alone, as one with NaN logits would. -1: none.
  int32_t failing_token = -1;
  // Computing one of these payloads ends the process (see killed_by), or makes the step fail.
  // Null: none.
  const std::set<uint64_t>* deadly_payloads = nullptr;
  bool deadly_payloads_fail = false;
  // A run that may draws up to so many tokens, some of which it guesses right: how many changes
  // from step to step, which they are does not.
  int32_t max_drawn = 1;
};

// Engine thread only.
class SimulatedExecutor final : public SynchronousExecutor {
 public:
  explicit SimulatedExecutor(const SimulatedExecutorOptions& options);

  int32_t max_drawn() const override { return options_.max_drawn; }
  absl::Status Execute(const StepInput& input, StepOutput* output) override;
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override;
  void Discard(BlockId block) override;  // Garbage.
  uint64_t work_done() const override { return num_steps_.load(std::memory_order_relaxed); }

  // The block's bytes: what a transport sends and receives into.
  std::span<uint8_t> BlockBytes(BlockId block);
  KvGeometry kv() const {
    return {.block_tokens = options_.block_tokens,
            .num_blocks = options_.num_blocks,
            .block_bytes = block_bytes()};
  }
  int64_t block_bytes() const { return int64_t{options_.block_tokens} * 8; }

  // The next Execute returns `failure`, and after DataLoss all that follow; so does BlockChecksums
  // then. What a step should have written holds garbage.
  void FailNextStep(absl::Status failure = absl::InternalError("it was told to fail")) {
    if (!absl::IsDataLoss(next_failure_)) next_failure_ = std::move(failure);
  }
  // The next so many BlockChecksums return Internal.
  void FailChecksums(int32_t times) { failing_checksums_ = times; }

  // From now on each run that may draw several tokens draws so many, if they have a place.
  void DrawEach(int32_t num_tokens) { draw_each_ = num_tokens; }

  // The deadly payload that was computed: nothing of this step, or after it, has happened.
  const std::optional<uint64_t>& killed_by() const { return killed_by_; }
  // Or that made the last step fail.
  std::optional<uint64_t> failed_by() const { return failed_by_; }

  const SimulatedModel& model() const { return model_; }
  int64_t computed_tokens() const { return computed_tokens_; }  // Since construction.
  int64_t copied_blocks() const { return copied_blocks_; }
  int64_t checksummed_blocks() const { return checksummed_blocks_; }
  int32_t largest_batch() const { return largest_batch_; }

 private:
  uint64_t PayloadAt(std::span<const BlockId> table, int32_t position) const;
  size_t SlotIndex(std::span<const BlockId> table, int32_t position) const;
  // What the model knows after the tokens of a context.
  struct Context {
    SimulatedContext seen;
    uint64_t payload = 0;  // The last token's.
  };
  void Run(const SequenceRun& run, RunOutput* output);
  void Compute(const SequenceRun& run, int32_t token, int32_t position, Context* context);
  void DrawSeveral(const SequenceRun& run, int32_t end, Context context, RunOutput* output);
  void Spoil(const SequenceRun& run);  // Garbage where its tokens belong.

  const SimulatedExecutorOptions options_;
  const SimulatedModel model_;
  std::vector<uint64_t> slots_;  // [block][token]
  std::atomic<uint64_t> num_steps_{0};
  absl::Status next_failure_;
  int32_t failing_checksums_ = 0;
  std::optional<int32_t> draw_each_;
  std::optional<uint64_t> killed_by_, failed_by_;
  int64_t computed_tokens_ = 0;
  int64_t copied_blocks_ = 0;
  int64_t checksummed_blocks_ = 0;
  int32_t largest_batch_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_SIMULATED_EXECUTOR_H_
