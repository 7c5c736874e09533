// The forward pass of a decoder-only transformer, as its ModelSpec declares it: tokens in, KV
// written to their slots, hidden states kept, logits for the rows that are asked for.
//
// The residual stream is f32; what feeds a matrix is in the compute type. A row's bits depend on
// its tokens alone (docs/numerics.md): not on the other rows, and not on whether it came as a
// decode or as part of a prefill.

#ifndef TANDEM_RUNTIME_MODEL_DECODER_H_
#define TANDEM_RUNTIME_MODEL_DECODER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/model/host_arrays.h"
#include "runtime/model/kv_layout.h"
#include "runtime/model/model.h"

namespace tandem {

// T rows: first one for each of `num_decodes` sequences, then those of the prefill runs. All arrays
// are the host's and live until Forward returns.
struct ForwardInput {
  std::span<const int32_t> token_ids;   // [T]; those below 0 are in `drawn_tokens` (EmbeddingArgs)
  std::span<const int32_t> positions;   // [T]
  std::span<const int64_t> slots;       // [T] block · block_tokens + offset, all different
  std::span<const int32_t> logit_rows;  // [R] of which Logits may be asked
  DevicePtr<const int32_t> drawn_tokens = nullptr;

  int64_t num_decodes = 0;
  int64_t num_prefills = 0;
  int64_t max_blocks = 0;              // M, width of both tables
  const int32_t* decode_blocks;        // [num_decodes, M]
  const int32_t* decode_num_tokens;    // [num_decodes] own token included
  const int32_t* prefill_blocks;       // [num_prefills, M]
  const int32_t* prefill_query_start;  // [num_prefills + 1] from 0, rows after the decodes
  const int32_t* prefill_num_cached;   // [num_prefills]
};

// Engine thread only.
class Decoder {
 public:
  // Everything is borrowed and outlives the decoder; `pool` is the first block. Scratch is
  // allocated here: ResourceExhausted if it cannot be had. `max_tokens` is T's limit,
  // `max_logit_rows` that of one Logits call.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const Model* model, Backend* backend,
                                                         const KvLayout& layout,
                                                         DevicePtr<std::byte> pool,
                                                         int64_t max_tokens,
                                                         int64_t max_logit_rows);

  // What Create allocates of that model, or a little more.
  static int64_t ScratchBytes(const ModelConfig& config, DType compute_dtype, int64_t max_tokens,
                              int64_t max_logit_rows);

  // Enqueues: all has been written once the backend was synchronized with. Array contents are
  // trusted.
  absl::Status Forward(const ForwardInput& input);

  // Enqueues, too: logits of `count` of the last Forward's logit_rows, from the `first`-th on,
  // [count, vocabulary], for what is enqueued before the next call.
  absl::StatusOr<DevicePtr<const float>> Logits(int64_t first, int64_t count);

  int64_t max_logit_rows() const { return max_logit_rows_; }

 private:
  Decoder(const Model* model, Backend* backend, int64_t max_tokens, int64_t max_logit_rows)
      : model_(*model),
        config_(model->config()),
        backend_(backend),
        max_tokens_(max_tokens),
        max_logit_rows_(max_logit_rows),
        step_upload_(backend) {}

  struct Scratch {
    DeviceBuffer Decoder::*buffer;
    int64_t rows, columns;
    size_t element_bytes;

    int64_t bytes() const { return rows * columns * static_cast<int64_t>(element_bytes); }
  };
  static std::vector<Scratch> ListScratch(const ModelConfig& config, DType compute_dtype,
                                          int64_t max_tokens, int64_t max_logit_rows);
  absl::Status Allocate(const KvLayout& layout, DevicePtr<std::byte> pool);
  // ForwardInput's arrays, where operations read them.
  struct StepArrays {
    DevicePtr<const int32_t> token_ids, positions;
    DevicePtr<const int64_t> slots;
    DevicePtr<const int32_t> decode_blocks, decode_num_tokens;
    DevicePtr<const int32_t> prefill_blocks, prefill_query_start, prefill_num_cached;
    DevicePtr<const int32_t> logit_rows;
  };
  absl::StatusOr<StepArrays> UploadArrays(const ForwardInput& input);
  absl::Status Enqueue(const ForwardInput& input, const StepArrays& arrays);
  absl::Status Embed(const ForwardInput& input, const StepArrays& arrays);
  absl::Status RunLayer(size_t layer, const ForwardInput& input, const StepArrays& arrays);
  absl::Status Attention(size_t layer, const ForwardInput& input, const StepArrays& arrays);
  // A norm; with `layer`, which multiplies its output, behind it where one is given.
  absl::Status Norm(const NormWeights& weights, DevicePtr<const float> input,
                    DevicePtr<void> output, int64_t rows, DType output_dtype,
                    const LinearArgs* layer = nullptr);
  absl::Status NormLinear(const NormWeights& norm, DevicePtr<const float> input,
                          DevicePtr<void> normed, const LinearWeights& projection,
                          DevicePtr<void> output, int64_t rows);
  static LinearArgs ArgsOf(const LinearWeights& weights, DevicePtr<const void> input,
                           DevicePtr<void> output, int64_t rows);
  absl::Status FeedForward(const LayerWeights& weights);
  // residual += projection of `input`, or its norm where there is one: how attention and the
  // feed-forward both end. These are the segmented projections, whose inputs the ranks of a
  // tensor-parallel group share: their sums would meet before anything is added.
  absl::Status AddToResidual(const LinearWeights& projection, const NormWeights& norm,
                             DevicePtr<const void> input);

  const Model& model_;
  const ModelConfig& config_;
  Backend* const backend_;
  const int64_t max_tokens_;
  const int64_t max_logit_rows_;
  std::vector<KvLayerView> kv_;  // One a layer.
  // T and R of the last Forward, and where its rows are.
  int64_t num_rows_ = 0;
  int64_t num_logit_rows_ = 0;
  DevicePtr<const int32_t> logit_rows_;

  // The copy of a step's arrays is behind the step before, whose own it writes over.
  HostArrays step_upload_;

  DeviceBuffer inv_freq_;      // [D / 2], empty without rotary positions
  DeviceBuffer cos_, sin_;     // [T, D / 2]
  DeviceBuffer residual_;      // [T, E] f32
  DeviceBuffer normed_;        // [T, E] compute type
  DeviceBuffer qkv_;           // [T, (H + 2G) D] f32
  DeviceBuffer query_;         // [T, H, D] compute type
  DeviceBuffer attended_;      // [T, H, D] compute type
  DeviceBuffer projected_;     // [T, E] f32; empty without norms behind
  DeviceBuffer ffn_act_;       // [T, F] compute type
  DeviceBuffer logit_hidden_;  // [R, E] f32
  DeviceBuffer logit_normed_;  // [R, E] compute type
  DeviceBuffer logits_;        // [R, V] f32
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_DECODER_H_
