#include "runtime/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "absl/strings/str_cat.h"
#include "runtime/base/math.h"
#include "runtime/model/int4_matrix.h"

namespace tandem {
namespace {

constexpr char kOutputProjection[] = "lm_head.weight";

// [out, in], and [out] if it is biased.
LinearPart OutIn(const std::string& name, int64_t in_features, int64_t out_features, bool biased) {
  LinearPart part{.out_features = out_features,
                  .weight = {name + ".weight", {out_features, in_features}},
                  .scales = {},
                  .bias = {}};
  if (biased) part.bias = {name + ".bias", {out_features}};
  return part;
}

// The same in 4 bits. Quantisers leave a bias of zeros where there is none.
LinearPart Int4OutIn(const std::string& name, int64_t in_features, int64_t out_features,
                     bool biased, const Int4Format& int4_format, const WeightSource& source) {
  biased = biased || source.Contains(name + ".bias");
  LinearPart part = OutIn(name, in_features, out_features, biased);
  const bool gptq = int4_format.method == Int4Format::Method::kGptq;
  const int64_t groups = CeilDiv(in_features, int4_format.group);
  part.weight = {name + ".qweight", {in_features, out_features}};
  part.weight.shape[gptq ? 0 : 1] /= kInt4PerWord;
  part.scales = {name + ".scales", {groups, out_features}};
  part.zeros = {name + ".qzeros", {groups, out_features / kInt4PerWord}};
  if (gptq && source.Contains(name + ".g_idx")) part.group_index = {name + ".g_idx", {in_features}};
  return part;
}

// Scales, if the checkpoint has `part` in 8-bit floats. Whether it has, its tensor says: lists of
// what is left as it was name modules in many ways.
void AddFloat8Scales(const Float8Blocks& float8, const std::string& name, int64_t in_features,
                     const WeightSource& source, LinearPart* part) {
  if (!float8.present || source.TypeOf(part->weight.name) != TensorType::kF8E4M3) return;
  const std::string of_transformers = name + ".weight_scale_inv";
  const std::string scales =
      source.Contains(of_transformers) ? of_transformers : name + ".weight_scale";
  part->float8 = float8;
  if (float8.outputs == 0) part->float8.outputs = part->out_features;
  if (float8.inputs == 0) part->float8.inputs = in_features;
  part->float8_scales = {scales,
                         {CeilDiv(part->out_features, part->float8.outputs),
                          CeilDiv(in_features, part->float8.inputs)}};
  if (float8.outputs != 0) return;
  // A matrix's only scale is a vector of one, or no vector.
  const auto shape = source.ShapeOf(scales);
  part->float8_scales.shape = shape && shape->empty() ? *shape : std::vector<int64_t>{1};
}

ModelSpec LlamaSpec(const ModelConfig& config, const WeightSource& source) {
  ModelSpec spec;
  spec.layers_prefix = "model.layers.";
  const int64_t hidden = config.hidden_size;
  const auto norm = [&](const std::string& name, int64_t features) {
    return NormDecl{
        .weight = {name + ".weight", {features}}, .bias = {}, .offset = config.norm_offset};
  };
  const auto head_norm = [&](const std::string& name) {
    return config.head_norms ? norm(name, config.head_dim) : NormDecl{};
  };
  const auto output_norm = [&](const std::string& name) {
    return config.output_norms ? norm(name, hidden) : NormDecl{};
  };
  const Int4Format& int4_format = config.int4_format;
  const auto matrix = [&](const std::string& name, int64_t in_features, int64_t out_features,
                          bool biased) {
    if (int4_format.present()) {
      return Int4OutIn(name, in_features, out_features, biased, int4_format, source);
    }
    LinearPart part = OutIn(name, in_features, out_features, biased);
    AddFloat8Scales(config.float8, name, in_features, source, &part);
    return part;
  };
  // With norms behind, the one behind attention has the name of the one before the feed-forward.
  const char* const ffn_norm =
      config.output_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm";
  spec.embedding = {.table = {"model.embed_tokens.weight", {config.vocab_size, hidden}},
                    .scale = config.embedding_scale};
  spec.final_norm = norm("model.norm", hidden);
  const bool qkv_bias = config.qkv_bias;
  const bool mlp_bias = config.mlp_bias;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string name = absl::StrCat(spec.layers_prefix, i, ".");
    spec.layers.push_back({
        .attention_norm = norm(name + "input_layernorm", hidden),
        .qkv = {.in_features = hidden,
                .parts = {matrix(name + "self_attn.q_proj", hidden, config.query_size(), qkv_bias),
                          matrix(name + "self_attn.k_proj", hidden, config.kv_size(), qkv_bias),
                          matrix(name + "self_attn.v_proj", hidden, config.kv_size(), qkv_bias)},
                .int4_format = int4_format},
        .query_norm = head_norm(name + "self_attn.q_norm"),
        .key_norm = head_norm(name + "self_attn.k_norm"),
        .attention_output = {.in_features = config.query_size(),
                             .parts = {matrix(name + "self_attn.o_proj", config.query_size(),
                                              hidden, config.attention_output_bias)},
                             .segmented = true,
                             .int4_format = int4_format},
        .attention_output_norm = output_norm(name + "post_attention_layernorm"),
        .ffn_norm = norm(name + ffn_norm, hidden),
        .ffn_in = {.in_features = hidden,
                   .parts = {matrix(name + "mlp.gate_proj", hidden, config.ffn_size, mlp_bias),
                             matrix(name + "mlp.up_proj", hidden, config.ffn_size, mlp_bias)},
                   .int4_format = int4_format,
                   .gated = true},
        .ffn_out = {.in_features = config.ffn_size,
                    .parts = {matrix(name + "mlp.down_proj", config.ffn_size, hidden, mlp_bias)},
                    .segmented = true,
                    .int4_format = int4_format},
        .ffn_output_norm = output_norm(name + "post_feedforward_layernorm"),
    });
  }
  return spec;
}

ModelSpec Gpt2Spec(const ModelConfig& config, const WeightSource& source) {
  const std::string root = source.Contains("transformer.wte.weight") ? "transformer." : "";
  ModelSpec spec;
  spec.norm = NormKind::kLayer;
  spec.positions = PositionKind::kLearned;
  spec.layers_prefix = root + "h.";
  const int64_t hidden = config.hidden_size;
  const auto norm = [hidden](const std::string& name) {
    return NormDecl{.weight = {name + ".weight", {hidden}}, .bias = {name + ".bias", {hidden}}};
  };
  const auto linear = [](const std::string& name, int64_t in_features, int64_t out_features,
                         bool segmented) {
    return LinearDecl{.in_features = in_features,
                      .parts = {{.out_features = out_features,
                                 .weight = {name + ".weight", {in_features, out_features}},
                                 .scales = {},
                                 .bias = {name + ".bias", {out_features}}}},
                      .layout = WeightLayout::kInOut,
                      .segmented = segmented};
  };
  spec.embedding = {{root + "wte.weight", {config.vocab_size, hidden}}};
  spec.position_embedding = {{root + "wpe.weight", {config.max_positions, hidden}}};
  spec.final_norm = norm(root + "ln_f");
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string name = absl::StrCat(spec.layers_prefix, i, ".");
    spec.layers.push_back({
        .attention_norm = norm(name + "ln_1"),
        .qkv = linear(name + "attn.c_attn", hidden, 3 * hidden, false),
        .query_norm = {},
        .key_norm = {},
        .attention_output = linear(name + "attn.c_proj", hidden, hidden, true),
        .attention_output_norm = {},
        .ffn_norm = norm(name + "ln_2"),
        .ffn_in = linear(name + "mlp.c_fc", hidden, config.ffn_size, false),
        .ffn_out = linear(name + "mlp.c_proj", config.ffn_size, hidden, true),
        .ffn_output_norm = {},
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

// Appends what a part of a declaration consists of.
struct TensorLister {
  std::vector<TensorDecl>* tensors;

  absl::Status operator()(const TableDecl& decl) const { return Add(decl.table); }
  absl::Status operator()(const NormDecl& decl) const {
    TANDEM_RETURN_IF_ERROR(Add(decl.weight));
    return Add(decl.bias);
  }
  absl::Status operator()(const LinearDecl& decl) const {
    for (const LinearPart& part : decl.parts) {
      TANDEM_RETURN_IF_ERROR(Add(part.weight));
      TANDEM_RETURN_IF_ERROR(Add(part.scales));
      TANDEM_RETURN_IF_ERROR(Add(part.zeros));
      TANDEM_RETURN_IF_ERROR(Add(part.group_index));
      TANDEM_RETURN_IF_ERROR(Add(part.float8_scales));
    }
    for (const LinearPart& part : decl.parts) TANDEM_RETURN_IF_ERROR(Add(part.bias));
    return absl::OkStatus();
  }
  absl::Status Add(const TensorDecl& tensor) const {
    if (tensor.present()) tensors->push_back(tensor);
    return absl::OkStatus();
  }
};

// Appends the matrices of a part.
struct MatrixLister {
  std::vector<TensorDecl>* matrices;

  absl::Status operator()(const TableDecl& decl) const {
    if (decl.present()) matrices->push_back(decl.table);
    return absl::OkStatus();
  }
  absl::Status operator()(const NormDecl&) const { return absl::OkStatus(); }
  absl::Status operator()(const LinearDecl& decl) const {
    if (decl.int4_format.present()) return absl::OkStatus();
    for (const LinearPart& part : decl.parts) {
      if (!part.float8.present) matrices->push_back(part.weight);
    }
    return absl::OkStatus();
  }
};

}  // namespace

int64_t LinearDecl::out_features() const {
  int64_t sum = 0;
  for (const LinearPart& part : parts) sum += part.out_features;
  return sum;
}

bool ModelSpec::has_windows() const {
  return std::any_of(windows.begin(), windows.end(), [](int64_t window) { return window != 0; });
}

bool ModelSpec::has_head_norms() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const Layer& layer) { return layer.query_norm.present(); });
}

bool ModelSpec::comes_in_int4() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const Layer& layer) { return layer.qkv.int4_format.present(); });
}

std::vector<TensorDecl> ModelSpec::Tensors() const {
  std::vector<TensorDecl> tensors;
  VisitParts(TensorLister{&tensors}, *this).IgnoreError();
  return tensors;
}

std::vector<TensorDecl> ModelSpec::Matrices() const {
  std::vector<TensorDecl> matrices;
  VisitParts(MatrixLister{&matrices}, *this).IgnoreError();
  return matrices;
}

int64_t ModelSpec::NumParameters() const {
  std::set<std::string> counted;
  int64_t sum = 0;
  for (const TensorDecl& tensor : Tensors()) {
    if (!counted.insert(tensor.name).second) continue;
    int64_t count = 1;
    for (const int64_t dimension : tensor.shape) count *= dimension;
    sum += count;
  }
  return sum;
}

ModelSpec MakeModelSpec(const ModelConfig& config, const WeightSource& source) {
  ModelSpec spec =
      config.family == ModelFamily::kLlama ? LlamaSpec(config, source) : Gpt2Spec(config, source);
  spec.windows = config.windows;
  for (ModelSpec::Layer& layer : spec.layers) {
    layer.ffn_in.activation = config.activation == Activation::kSilu
                                  ? ActivationFunction::kSilu
                                  : ActivationFunction::kGeluTanh;
  }
  const bool tied = config.tied_embeddings && !source.Contains(kOutputProjection);
  spec.logits = {.in_features = config.hidden_size,
                 .parts = {{.out_features = config.vocab_size,
                            .weight = {tied ? spec.embedding.table.name : kOutputProjection,
                                       {config.vocab_size, config.hidden_size}},
                            .scales = {},
                            .bias = {}}},
                 .is_output = true};
  AddFloat8Scales(config.float8, "lm_head", config.hidden_size, source, &spec.logits.parts[0]);
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
