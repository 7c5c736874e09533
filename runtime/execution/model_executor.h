// Executor (runtime/engine/executor.h) from a model and a backend: owns or borrows the KV pool,
// runs the batch through the decoder, samples what is drawn and scores prompt tokens.
//
// Runs of one token go through decode attention, longer ones through prefill attention; both give
// the same bits. Logits are computed only for rows that may need them, a bounded number at a time.
//
// Where the backend runs beside the host, steps overlap: tokens stay on the device, where the next
// step's embedding finds them, and the host sees them when the step is finished.

#ifndef TANDEM_RUNTIME_EXECUTION_MODEL_EXECUTOR_H_
#define TANDEM_RUNTIME_EXECUTION_MODEL_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/engine/executor.h"
#include "runtime/execution/logit_queries.h"
#include "runtime/model/decoder.h"
#include "runtime/model/kv_layout.h"
#include "runtime/model/model.h"

namespace tandem {

struct ModelExecutorOptions {
  int32_t block_tokens = 16;  // A multiple of kHashTokens.
  int32_t num_blocks = 0;
  int32_t max_sequences = 0;       // Runs in one step.
  int32_t max_batched_tokens = 0;  // Tokens in one step.
  int32_t max_model_tokens = 0;    // One sequence's; at most the model's positions.
};

// Engine thread only, except where noted.
class ModelExecutor final : public Executor {
 public:
  // Borrows `model` and `backend`; both outlive the executor. InvalidArgument naming the number
  // that is out of range; ResourceExhausted without memory for pool or scratch.
  static absl::StatusOr<std::unique_ptr<ModelExecutor>> Create(const ModelExecutorOptions& options,
                                                               const Model* model, Backend* backend,
                                                               const KvPoolMemory& memory);
  ~ModelExecutor() override;  // Waits for what is begun.

  // What Create allocates beside the pool of that model, or a little more, in two parts: for each
  // of max_batched_tokens, and for logits.
  static int64_t TokenScratchBytes(const ModelConfig& config, DType compute_dtype);
  static int64_t LogitScratchBytes(const ModelConfig& config, DType compute_dtype);

  bool overlaps_steps() const override { return backend_->runs_beside_host(); }
  int32_t max_drawn() const override { return 1; }
  void Begin(const StepInput& input) override;
  void BeginDraws(int32_t run, std::span<const Draw> draws) override;
  absl::StatusOr<StepOutput*> Finish() override;
  // Both, of a step beside which there is no other.
  absl::Status Execute(const StepInput& input, StepOutput* output);
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override;
  void Discard(BlockId block) override;
  uint64_t work_done() const override { return backend_->work_done(); }

  // Where a block's block_bytes() lie.
  DevicePtr<std::byte> BlockAddress(BlockId block) const {
    return pool_.data() +
           static_cast<std::ptrdiff_t>(block) * static_cast<std::ptrdiff_t>(layout_.block_bytes);
  }
  size_t block_bytes() const { return layout_.block_bytes; }
  const KvLayout& layout() const { return layout_; }

 private:
  ModelExecutor(const ModelExecutorOptions& options, const Model* model, Backend* backend,
                KvLayout layout)
      : options_(options), model_(*model), backend_(backend), layout_(std::move(layout)) {}

  static constexpr int32_t kNowhere = -1;

  // The end of a run, for the one of the next step that goes on after it.
  struct RunEnd {
    int32_t token = 0;     // Its last one. Below 0: the step before draws it (EmbeddingArgs).
    int32_t position = 0;  // Where that is.
    int32_t waiting_row = kNowhere;  // Its logits', where its draw waits.
    int32_t num_draws = 0;
    int32_t drawn_at = kNowhere;  // The first one's place in `drawn_tokens_`.
  };
  // A step that is begun and not finished.
  struct Step {
    std::vector<RunEnd> ends;  // One a run.
    LogitQueries queries;
    LogitQueries waiting;  // Draws that came later; rows from first_waiting_row on.
    int32_t first_waiting_row = 0;
    int32_t num_logit_rows = 0;
    absl::Status status;  // What could not be enqueued.
    DeviceEvent over;

    // In that place of `drawn_tokens_`, once the step is over.
    int32_t TokenAt(size_t place) const {
      return place < queries.size() ? queries.TokenAt(place)
                                    : waiting.TokenAt(place - queries.size());
    }
  };
  Step& StepAt(int64_t number) { return steps_[number % kMaxStepsBegun]; }
  int64_t steps_begun() const { return num_begun_ - num_finished_; }

  absl::Status Enqueue(const StepInput& input, Step* step);
  absl::Status CopyBlocks(std::span<const BlockCopy> copies);
  void FindEnds(std::span<const SequenceRun> runs, Step* step);
  void ArrangeRows(std::span<const SequenceRun> runs, const Step& step);
  void AddRows(const SequenceRun& run, const RunEnd& end);
  absl::Status Forward();
  void ListQueries(std::span<const SequenceRun> runs, Step* step);
  void ListQueriesOf(const SequenceRun& run, size_t index, Step* step);
  // The draws that waited, if any are not enqueued yet.
  void EnqueueWaiting(Step* step);

  const ModelExecutorOptions options_;
  const Model& model_;
  Backend* const backend_;
  const KvLayout layout_;
  DeviceBuffer pool_;
  std::unique_ptr<Decoder> decoder_;

  // Arrays of a step, kept for the next one.
  std::vector<int32_t> copy_sources_, copy_destinations_;
  std::vector<int32_t> token_ids_, positions_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> first_row_;  // Each run's.
  int64_t max_blocks_ = 0;
  std::vector<int32_t> decode_blocks_, decode_num_tokens_;
  std::vector<int32_t> prefill_blocks_, prefill_query_start_, prefill_num_cached_;
  std::vector<int32_t> logit_rows_;  // Rows of the forward pass whose logits may be needed.

  // Tokens of the step that drew last: those of its queries, then those that waited. [..] int32
  DeviceBuffer drawn_tokens_;
  Step steps_[kMaxStepsBegun];
  int64_t num_begun_ = 0;
  int64_t num_finished_ = 0;
  StepOutput output_;  // The step's that was finished last.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_EXECUTION_MODEL_EXECUTOR_H_
