// A loaded model with a decoder and a pool for a few sequences, driven token by token or chunk by
// chunk: what the tests of numbers stand on.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_MODEL_DECODER_HARNESS_H_
#define TANDEM_TESTS_UNIT_RUNTIME_MODEL_DECODER_HARNESS_H_

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/create_backend.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/decoder.h"
#include "runtime/model/model.h"
#include "tests/support/model_format.h"

namespace tandem {

class DecoderHarness {
 public:
  static constexpr int kBlockTokens = 16;

  static absl::StatusOr<std::unique_ptr<DecoderHarness>> Create(const std::string& folder,
                                                                const std::string& format,
                                                                const BackendOptions& options,
                                                                int64_t max_tokens) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, CreateBackend(options));
    return Create(folder, format, std::move(backend), max_tokens);
  }
  static absl::StatusOr<std::unique_ptr<DecoderHarness>> Create(const std::string& folder,
                                                                const std::string& format,
                                                                std::unique_ptr<Backend> backend,
                                                                int64_t max_tokens) {
    return Create(InFormat(folder, format), std::move(backend), max_tokens);
  }
  static absl::StatusOr<std::unique_ptr<DecoderHarness>> Create(const ModelOptions& options,
                                                                std::unique_ptr<Backend> backend,
                                                                int64_t max_tokens) {
    std::unique_ptr<DecoderHarness> harness(new DecoderHarness());
    harness->backend_ = std::move(backend);
    TANDEM_ASSIGN_OR_RETURN(harness->model_, Model::Load(options, harness->backend_.get()));
    const Model& model = *harness->model_;
    TANDEM_ASSIGN_OR_RETURN(
        const KvLayout layout,
        KvLayout::Make(model.config(), *harness->backend_, model.types(), kBlockTokens));
    const int64_t blocks = CeilDiv<int64_t>(max_tokens, kBlockTokens);
    TANDEM_ASSIGN_OR_RETURN(harness->pool_, harness->backend_->Allocate(
                                                layout.block_bytes * static_cast<size_t>(blocks)));
    TANDEM_ASSIGN_OR_RETURN(harness->decoder_,
                            Decoder::Create(harness->model_.get(), harness->backend_.get(), layout,
                                            harness->pool_.data(), max_tokens, max_tokens));
    harness->blocks_.resize(static_cast<size_t>(blocks));
    std::iota(harness->blocks_.begin(), harness->blocks_.end(), 0);
    return harness;
  }

  void Reset() { num_tokens_ = 0; }

  // Appends `tokens` to the sequence; the logits of each, [tokens, vocabulary].
  std::vector<float> Feed(std::span<const int32_t> tokens) {
    std::vector<int32_t> positions, rows;
    std::vector<int64_t> slots;
    for (size_t i = 0; i < tokens.size(); ++i) {
      positions.push_back(num_tokens_ + static_cast<int32_t>(i));
      slots.push_back(positions.back());  // Block b is the sequence's b-th.
      rows.push_back(static_cast<int32_t>(i));
    }
    const bool decode = tokens.size() == 1;
    const int32_t count = static_cast<int32_t>(tokens.size());
    const int32_t cached = num_tokens_;
    num_tokens_ += count;
    const std::vector<int32_t> query_start = {0, count};
    const absl::Status status =
        decoder_->Forward({.token_ids = tokens,
                           .positions = positions,
                           .slots = slots,
                           .logit_rows = rows,
                           .num_decodes = decode ? 1 : 0,
                           .num_prefills = decode ? 0 : 1,
                           .max_blocks = static_cast<int64_t>(blocks_.size()),
                           .decode_blocks = blocks_.data(),
                           .decode_num_tokens = &num_tokens_,
                           .prefill_blocks = blocks_.data(),
                           .prefill_query_start = query_start.data(),
                           .prefill_num_cached = &cached});
    TANDEM_CHECK(status.ok()) << status.message();
    const absl::StatusOr<DevicePtr<const float>> logits = decoder_->Logits(0, count);
    TANDEM_CHECK(logits.ok()) << logits.status().message();
    std::vector<float> on_host(rows.size() * vocab_size());
    const absl::Status downloaded =
        backend_->Download(on_host.data(), *logits, on_host.size() * sizeof(float));
    TANDEM_CHECK(downloaded.ok() && backend_->Synchronize().ok()) << downloaded.message();
    return on_host;
  }

  const Model& model() const { return *model_; }
  size_t vocab_size() const { return static_cast<size_t>(model_->config().vocab_size); }

 private:
  DecoderHarness() = default;

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  DeviceBuffer pool_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<int32_t> blocks_;
  int32_t num_tokens_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_MODEL_DECODER_HARNESS_H_
