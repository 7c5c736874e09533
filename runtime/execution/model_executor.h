// Executor (runtime/engine/executor.h) from a model and a backend: owns or borrows the KV pool,
// runs the batch through the decoder, samples what is drawn and scores prompt tokens.
//
// Runs of one token go through decode attention, longer ones through prefill attention; both give
// the same bits. Logits are computed only for rows that need them, a bounded number at a time.

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
class ModelExecutor final : public SynchronousExecutor {
 public:
  // Borrows `model` and `backend`; both outlive the executor. InvalidArgument naming the number
  // that is out of range; ResourceExhausted without memory for pool or scratch.
  static absl::StatusOr<std::unique_ptr<ModelExecutor>> Create(const ModelExecutorOptions& options,
                                                               const Model* model, Backend* backend,
                                                               const KvPoolMemory& memory);

  // What Create allocates beside the pool of that model, or a little more, in two parts: for each
  // of max_batched_tokens, and for logits.
  static int64_t TokenScratchBytes(const ModelConfig& config, DType compute_dtype);
  static int64_t LogitScratchBytes(const ModelConfig& config, DType compute_dtype);

  absl::Status Execute(const StepInput& input, StepOutput* output) override;
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

  absl::Status Enqueue(const StepInput& input, StepOutput* output);
  absl::Status CopyBlocks(std::span<const BlockCopy> copies);
  void ArrangeRows(std::span<const SequenceRun> runs);
  void AddRows(const SequenceRun& run);
  absl::Status Forward();
  void ListQueries(std::span<const SequenceRun> runs);
  // Asks for the logits of row `row` of the forward pass; Ask adds queries to it.
  void AddLogitRow(int32_t row);
  void Ask(size_t run, SampleQuery query);
  absl::Status Sample();
  void Publish(StepOutput* output);

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
  std::vector<int32_t> logit_rows_;    // Rows of the forward pass whose logits are needed.
  std::vector<size_t> first_queries_;  // Each of these rows'.
  std::vector<SampleQuery> queries_;
  std::vector<size_t> query_runs_;  // Parallel to queries_, as are the results.
  std::vector<absl::StatusOr<SampleResult>> results_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_EXECUTION_MODEL_EXECUTOR_H_
