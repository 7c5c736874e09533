#include "runtime/model/model_spec.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr char kOutputProjection[] = "lm_head.weight";

ModelSpec LlamaSpec(const ModelConfig& config) {
  ModelSpec spec;
  spec.norm = NormKind::kRms;
  spec.ffn = FfnKind::kSwiGlu;
  spec.positions = PositionKind::kRotary;
  spec.layers_prefix = "model.layers.";
  spec.embedding = "model.embed_tokens.weight";
  spec.final_norm = {.weight = "model.norm.weight"};
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = absl::StrCat(spec.layers_prefix, i, ".");
    const auto part = [&](const char* name, int64_t out_features, bool biased) {
      return LinearPart{.weight = absl::StrCat(layer, name, ".weight"),
                        .bias = biased ? absl::StrCat(layer, name, ".bias") : "",
                        .out_features = out_features};
    };
    const bool attention_bias = config.attention_bias;
    const bool mlp_bias = config.mlp_bias;
    spec.layers.push_back(LayerDecl{
        .attention_norm = {.weight = layer + "input_layernorm.weight"},
        .qkv = {.parts = {part("self_attn.q_proj", config.query_size(), attention_bias),
                          part("self_attn.k_proj", config.kv_size(), attention_bias),
                          part("self_attn.v_proj", config.kv_size(), attention_bias)},
                .in_features = config.hidden_size},
        .attention_output = {.parts = {part("self_attn.o_proj", config.hidden_size,
                                            attention_bias)},
                             .in_features = config.query_size(),
                             .segmented = true},
        .ffn_norm = {.weight = layer + "post_attention_layernorm.weight"},
        .ffn_in = {.parts = {part("mlp.gate_proj", config.ffn_size, mlp_bias),
                             part("mlp.up_proj", config.ffn_size, mlp_bias)},
                   .in_features = config.hidden_size},
        .ffn_out = {.parts = {part("mlp.down_proj", config.hidden_size, mlp_bias)},
                    .in_features = config.ffn_size,
                    .segmented = true},
    });
  }
  return spec;
}

ModelSpec Gpt2Spec(const ModelConfig& config, const WeightSource& source) {
  const std::string root = source.Contains("transformer.wte.weight") ? "transformer." : "";
  ModelSpec spec;
  spec.norm = NormKind::kLayer;
  spec.ffn = FfnKind::kGelu;
  spec.positions = PositionKind::kLearned;
  spec.layers_prefix = root + "h.";
  spec.embedding = root + "wte.weight";
  spec.position_embedding = root + "wpe.weight";
  spec.final_norm = {.weight = root + "ln_f.weight", .bias = root + "ln_f.bias"};
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = absl::StrCat(spec.layers_prefix, i, ".");
    const auto linear = [&](const char* name, int64_t in_features, int64_t out_features,
                            bool segmented) {
      return LinearDecl{.parts = {{.weight = absl::StrCat(layer, name, ".weight"),
                                   .bias = absl::StrCat(layer, name, ".bias"),
                                   .out_features = out_features}},
                        .in_features = in_features,
                        .layout = WeightLayout::kInOut,
                        .segmented = segmented};
    };
    const int64_t hidden = config.hidden_size;
    spec.layers.push_back(LayerDecl{
        .attention_norm = {layer + "ln_1.weight", layer + "ln_1.bias"},
        .qkv = linear("attn.c_attn", hidden, 3 * hidden, false),
        .attention_output = linear("attn.c_proj", hidden, hidden, true),
        .ffn_norm = {layer + "ln_2.weight", layer + "ln_2.bias"},
        .ffn_in = linear("mlp.c_fc", hidden, config.ffn_size, false),
        .ffn_out = linear("mlp.c_proj", config.ffn_size, hidden, true),
    });
  }
  return spec;
}

// Low frequencies are divided by `factor`, high ones kept, those between blended by how many
// turns they make in the original context.
double ScaledLlama3(double frequency, const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_positions);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double blend = (original / wavelength - rope.low_freq_factor) /
                       (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - blend) * frequency / rope.factor + blend * frequency;
}

}  // namespace

std::vector<std::string> ModelSpec::Matrices() const {
  std::vector<std::string> names = {embedding};
  if (!position_embedding.empty()) names.push_back(position_embedding);
  const auto add = [&names](const LinearDecl& linear) {
    for (const LinearPart& part : linear.parts) names.push_back(part.weight);
  };
  for (const LayerDecl& layer : layers) {
    for (const auto* linear :
         {&layer.qkv, &layer.attention_output, &layer.ffn_in, &layer.ffn_out}) {
      add(*linear);
    }
  }
  add(logits);
  return names;
}

std::vector<std::string> ModelSpec::Vectors() const {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (!name.empty()) names.push_back(name);
  };
  const auto add_norm = [&add](const NormDecl& decl) {
    add(decl.weight);
    add(decl.bias);
  };
  for (const LayerDecl& layer : layers) {
    add_norm(layer.attention_norm);
    add_norm(layer.ffn_norm);
    for (const auto* linear :
         {&layer.qkv, &layer.attention_output, &layer.ffn_in, &layer.ffn_out}) {
      for (const LinearPart& part : linear->parts) add(part.bias);
    }
  }
  add_norm(final_norm);
  return names;
}

int64_t LinearDecl::out_features() const {
  int64_t sum = 0;
  for (const LinearPart& part : parts) sum += part.out_features;
  return sum;
}

ModelSpec MakeModelSpec(const ModelConfig& config, const WeightSource& source) {
  ModelSpec spec =
      config.family == ModelFamily::kLlama ? LlamaSpec(config) : Gpt2Spec(config, source);
  const bool tied = config.tied_embeddings && !source.Contains(kOutputProjection);
  spec.logits = {.parts = {{.weight = tied ? spec.embedding : kOutputProjection,
                            .out_features = config.vocab_size}},
                 .in_features = config.hidden_size};
  return spec;
}

std::vector<float> RopeFrequencies(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (int64_t d = 0; d < config.head_dim; d += 2) {
    const float exponent = static_cast<float>(d) / static_cast<float>(config.head_dim);
    const double frequency = 1.0 / std::pow(config.rope.theta, static_cast<double>(exponent));
    frequencies.push_back(
        static_cast<float>(config.rope.llama3 ? ScaledLlama3(frequency, config.rope) : frequency));
  }
  return frequencies;
}

}  // namespace tandem
