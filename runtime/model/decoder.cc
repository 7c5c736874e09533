#include "runtime/model/decoder.h"

#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const Model* model, Backend* backend,
                                                         const KvLayout& layout,
                                                         DevicePtr<std::byte> pool,
                                                         int64_t max_tokens,
                                                         int64_t max_logit_rows) {
  TANDEM_CHECK(max_tokens > 0 && max_logit_rows > 0) << max_tokens << ", " << max_logit_rows;
  std::unique_ptr<Decoder> decoder(new Decoder(model, backend, max_tokens, max_logit_rows));
  TANDEM_RETURN_IF_ERROR(decoder->Allocate(layout, pool));
  return decoder;
}

std::vector<Decoder::Scratch> Decoder::ListScratch(const ModelConfig& config, DType compute_dtype,
                                                   int64_t max_tokens, int64_t max_logit_rows) {
  const size_t compute = SizeOf(compute_dtype);
  const int64_t rows = max_tokens;
  const int64_t hidden = config.hidden_size;
  const int64_t qkv = config.query_size() + 2 * config.kv_size();
  return {
      {&Decoder::residual_, rows, hidden, sizeof(float)},
      {&Decoder::normed_, rows, hidden, compute},
      {&Decoder::qkv_, rows, qkv, sizeof(float)},
      {&Decoder::query_, rows, config.query_size(), compute},
      {&Decoder::attended_, rows, config.query_size(), compute},
      {&Decoder::projected_, rows, config.output_norms ? hidden : 0, sizeof(float)},
      {&Decoder::ffn_act_, rows, config.ffn_size, compute},
      {&Decoder::logit_hidden_, max_logit_rows, hidden, sizeof(float)},
      {&Decoder::logit_normed_, max_logit_rows, hidden, compute},
      {&Decoder::logits_, max_logit_rows, config.vocab_size, sizeof(float)},
  };
}

int64_t Decoder::ScratchBytes(const ModelConfig& config, DType compute_dtype, int64_t max_tokens,
                              int64_t max_logit_rows) {
  // With rotary angles: what a family without them takes is less.
  int64_t bytes = max_tokens * config.head_dim * static_cast<int64_t>(sizeof(float));
  for (const Scratch& one : ListScratch(config, compute_dtype, max_tokens, max_logit_rows)) {
    bytes += one.bytes();
  }
  return bytes;
}

absl::Status Decoder::Allocate(const KvLayout& layout, DevicePtr<std::byte> pool) {
  kv_ = layout.Views(pool);
  if (model_.spec().positions == PositionKind::kRotary) {
    const std::vector<float> frequencies = RopeFrequencies(config_);
    const size_t bytes = frequencies.size() * sizeof(float);
    TANDEM_ASSIGN_OR_RETURN(inv_freq_, backend_->Allocate(bytes));
    TANDEM_RETURN_IF_ERROR(backend_->Upload(inv_freq_.data(), frequencies.data(), bytes));
    TANDEM_RETURN_IF_ERROR(backend_->Synchronize());
    const size_t angles_bytes = static_cast<size_t>(max_tokens_) * bytes;
    TANDEM_ASSIGN_OR_RETURN(cos_, backend_->Allocate(angles_bytes));
    TANDEM_ASSIGN_OR_RETURN(sin_, backend_->Allocate(angles_bytes));
  }
  for (const Scratch& one :
       ListScratch(config_, model_.types().compute, max_tokens_, max_logit_rows_)) {
    TANDEM_ASSIGN_OR_RETURN(this->*one.buffer,
                            backend_->Allocate(static_cast<size_t>(one.bytes())));
  }
  return absl::OkStatus();
}

absl::StatusOr<Decoder::StepArrays> Decoder::UploadArrays(const ForwardInput& input) {
  const auto decodes = static_cast<size_t>(input.num_decodes);
  const auto prefills = static_cast<size_t>(input.num_prefills);
  const auto width = static_cast<size_t>(input.max_blocks);
  HostArrays& upload = step_upload_;
  StepArrays arrays;
  upload.Add(input.token_ids, &arrays.token_ids);
  upload.Add(input.positions, &arrays.positions);
  upload.Add(input.slots, &arrays.slots);
  if (decodes > 0) {
    upload.Add(std::span(input.decode_blocks, decodes * width), &arrays.decode_blocks);
    upload.Add(std::span(input.decode_num_tokens, decodes), &arrays.decode_num_tokens);
  }
  if (prefills > 0) {
    upload.Add(std::span(input.prefill_blocks, prefills * width), &arrays.prefill_blocks);
    upload.Add(std::span(input.prefill_query_start, prefills + 1), &arrays.prefill_query_start);
    upload.Add(std::span(input.prefill_num_cached, prefills), &arrays.prefill_num_cached);
  }
  upload.Add(input.logit_rows, &arrays.logit_rows);  // Last: no key says how many there are.
  TANDEM_RETURN_IF_ERROR(upload.Upload());
  return arrays;
}

absl::Status Decoder::Forward(const ForwardInput& input) {
  num_rows_ = static_cast<int64_t>(input.token_ids.size());
  TANDEM_CHECK(num_rows_ <= max_tokens_) << num_rows_ << " tokens, at most " << max_tokens_;
  num_logit_rows_ = 0;  // Until its arrays are there.
  TANDEM_ASSIGN_OR_RETURN(const StepArrays arrays, UploadArrays(input));
  num_logit_rows_ = static_cast<int64_t>(input.logit_rows.size());
  logit_rows_ = arrays.logit_rows;
  if (input.num_prefills > 0) return Enqueue(input, arrays);
  // Such steps come again and again; their arrays lie one behind the other.
  const int64_t key[] = {num_rows_, input.num_decodes, input.max_blocks,
                         static_cast<int64_t>(arrays.token_ids.address()),
                         static_cast<int64_t>(input.drawn_tokens.address())};
  return backend_->Replay(key, [&] { return Enqueue(input, arrays); });
}

absl::Status Decoder::Enqueue(const ForwardInput& input, const StepArrays& arrays) {
  TANDEM_RETURN_IF_ERROR(Embed(input, arrays));
  for (size_t layer = 0; layer < kv_.size(); ++layer) {
    TANDEM_RETURN_IF_ERROR(RunLayer(layer, input, arrays));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Embed(const ForwardInput& input, const StepArrays& arrays) {
  const WeightParts& weights = model_.weights().parts();
  TANDEM_RETURN_IF_ERROR(backend_->Embedding({.ids = arrays.token_ids,
                                              .drawn_tokens = input.drawn_tokens,
                                              .table = weights.embedding,
                                              .positions = arrays.positions,
                                              .position_table = weights.position_embedding,
                                              .output = residual_.as<float>(),
                                              .num_rows = num_rows_,
                                              .features = config_.hidden_size,
                                              .table_dtype = model_.types().compute}));
  if (model_.spec().positions != PositionKind::kRotary) return absl::OkStatus();
  return backend_->RotaryTable({.positions = arrays.positions,
                                .inv_freq = inv_freq_.as<float>(),
                                .cos = cos_.as<float>(),
                                .sin = sin_.as<float>(),
                                .num_tokens = num_rows_,
                                .head_dim = static_cast<int>(config_.head_dim)});
}

absl::Status Decoder::RunLayer(size_t layer, const ForwardInput& input, const StepArrays& arrays) {
  const LayerWeights& weights = model_.weights().parts().layers[layer];
  TANDEM_RETURN_IF_ERROR(NormLinear(weights.attention_norm, residual_.as<float>(), normed_.data(),
                                    weights.qkv, qkv_.data(), num_rows_));
  TANDEM_RETURN_IF_ERROR(Attention(layer, input, arrays));
  TANDEM_RETURN_IF_ERROR(
      AddToResidual(weights.attention_output, weights.attention_output_norm, attended_.data()));
  return FeedForward(weights);
}

absl::Status Decoder::FeedForward(const LayerWeights& weights) {
  TANDEM_RETURN_IF_ERROR(NormLinear(weights.ffn_norm, residual_.as<float>(), normed_.data(),
                                    weights.ffn_in, ffn_act_.data(), num_rows_));
  return AddToResidual(weights.ffn_out, weights.ffn_output_norm, ffn_act_.data());
}

absl::Status Decoder::AddToResidual(const LinearWeights& projection, const NormWeights& norm,
                                    DevicePtr<const void> input) {
  LinearArgs layer = ArgsOf(projection, input, residual_.data(), num_rows_);
  if (norm.weight == nullptr) {
    layer.adds_to_output = true;
    return backend_->Linear(layer);
  }
  layer.output = projected_.data();
  TANDEM_RETURN_IF_ERROR(backend_->Linear(layer));
  TANDEM_RETURN_IF_ERROR(
      Norm(norm, projected_.as<float>(), projected_.data(), num_rows_, DType::kF32));
  return backend_->Add({.accumulator = residual_.as<float>(),
                        .addend = projected_.as<float>(),
                        .count = num_rows_ * config_.hidden_size});
}

absl::Status Decoder::Attention(size_t layer, const ForwardInput& input, const StepArrays& arrays) {
  const KvLayerView& kv = kv_[layer];
  const LayerWeights& weights = model_.weights().parts().layers[layer];
  const int64_t window = model_.spec().windows[layer];
  const int num_heads = static_cast<int>(config_.num_heads);
  const DevicePtr<const float> qkv = qkv_.as<float>();
  TANDEM_RETURN_IF_ERROR(
      backend_->RotaryKvWrite({.query = qkv,
                               .key = qkv + config_.query_size(),
                               .value = qkv + config_.query_size() + config_.kv_size(),
                               .input_stride = config_.query_size() + 2 * config_.kv_size(),
                               .cos = cos_.as<float>(),
                               .sin = sin_.as<float>(),
                               .query_norm = weights.query_norm.weight,
                               .key_norm = weights.key_norm.weight,
                               .norm_epsilon = config_.norm_epsilon,
                               .slots = arrays.slots,
                               .kv = kv,
                               .query_out = query_.data(),
                               .num_tokens = num_rows_,
                               .num_heads = num_heads,
                               .compute_dtype = model_.types().compute}));
  const float scale = 1.0f / std::sqrt(config_.query_scalar);
  if (input.num_decodes > 0) {
    TANDEM_RETURN_IF_ERROR(backend_->DecodeAttention({.query = query_.data(),
                                                      .kv = kv,
                                                      .block_table = arrays.decode_blocks,
                                                      .num_tokens = arrays.decode_num_tokens,
                                                      .output = attended_.data(),
                                                      .num_sequences = input.num_decodes,
                                                      .max_blocks = input.max_blocks,
                                                      .num_heads = num_heads,
                                                      .compute_dtype = model_.types().compute,
                                                      .softmax_scale = scale,
                                                      .score_cap = config_.score_cap,
                                                      .window = window}));
  }
  if (input.num_prefills == 0) return absl::OkStatus();
  const int64_t decode_bytes = input.num_decodes * config_.query_size() *
                               static_cast<int64_t>(SizeOf(model_.types().compute));
  return backend_->PrefillAttention({.query = query_.data() + decode_bytes,
                                     .kv = kv,
                                     .block_table = arrays.prefill_blocks,
                                     .query_start = arrays.prefill_query_start,
                                     .num_cached = arrays.prefill_num_cached,
                                     .output = attended_.data() + decode_bytes,
                                     .num_sequences = input.num_prefills,
                                     .max_blocks = input.max_blocks,
                                     .num_heads = num_heads,
                                     .compute_dtype = model_.types().compute,
                                     .softmax_scale = scale,
                                     .score_cap = config_.score_cap,
                                     .window = window});
}

absl::Status Decoder::Norm(const NormWeights& weights, DevicePtr<const float> input,
                           DevicePtr<void> output, int64_t rows, DType output_dtype,
                           const LinearArgs* layer) {
  if (model_.spec().norm == NormKind::kRms) {
    const RmsNormArgs norm{.input = input,
                           .weight = weights.weight,
                           .output = output,
                           .num_rows = rows,
                           .features = config_.hidden_size,
                           .epsilon = config_.norm_epsilon,
                           .output_dtype = output_dtype};
    return layer == nullptr ? backend_->RmsNorm(norm) : backend_->RmsNormLinear(norm, *layer);
  }
  const LayerNormArgs norm{.input = input,
                           .weight = weights.weight,
                           .bias = weights.bias,
                           .output = output,
                           .num_rows = rows,
                           .features = config_.hidden_size,
                           .epsilon = config_.norm_epsilon,
                           .output_dtype = output_dtype};
  return layer == nullptr ? backend_->LayerNorm(norm) : backend_->LayerNormLinear(norm, *layer);
}

absl::Status Decoder::NormLinear(const NormWeights& norm, DevicePtr<const float> input,
                                 DevicePtr<void> normed, const LinearWeights& projection,
                                 DevicePtr<void> output, int64_t rows) {
  const LinearArgs layer = ArgsOf(projection, normed, output, rows);
  return Norm(norm, input, normed, rows, model_.types().compute, &layer);
}

LinearArgs Decoder::ArgsOf(const LinearWeights& weights, DevicePtr<const void> input,
                           DevicePtr<void> output, int64_t rows) {
  return {.op = weights.op.get(),
          .input = input,
          .bias = weights.bias,
          .output = output,
          .num_rows = rows};
}

absl::StatusOr<DevicePtr<const float>> Decoder::Logits(int64_t first, int64_t count) {
  TANDEM_CHECK(count <= max_logit_rows_) << count << " rows, at most " << max_logit_rows_;
  TANDEM_CHECK(first + count <= num_logit_rows_)
      << "rows " << first << " to " << first + count << " of " << num_logit_rows_;
  TANDEM_RETURN_IF_ERROR(backend_->GatherRows({.input = residual_.data(),
                                               .rows = logit_rows_ + first,
                                               .output = logit_hidden_.data(),
                                               .num_rows = count,
                                               .num_input_rows = num_rows_,
                                               .features = config_.hidden_size,
                                               .dtype = DType::kF32}));
  const WeightParts& weights = model_.weights().parts();
  TANDEM_RETURN_IF_ERROR(NormLinear(weights.final_norm, logit_hidden_.as<float>(),
                                    logit_normed_.data(), weights.logits, logits_.data(), count));
  if (config_.logit_cap != 0) {
    TANDEM_RETURN_IF_ERROR(backend_->SoftCap({.values = logits_.as<float>(),
                                              .count = count * config_.vocab_size,
                                              .cap = config_.logit_cap}));
  }
  return logits_.as<const float>();
}

}  // namespace tandem
