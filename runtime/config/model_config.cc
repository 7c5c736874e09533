#include "runtime/config/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/config/json.h"

namespace tandem {
namespace {

namespace json = boost::json;

absl::Status Unsupported(const JsonFields& fields, std::string_view name,
                         std::string_view complaint) {
  return absl::FailedPreconditionError(
      absl::StrCat(fields.what(), ": ", std::string(name), " ", std::string(complaint)));
}

struct Family {
  const char* architecture;
  const char* model_type;
  absl::Status (*read)(const JsonFields& fields, ModelConfig* config);
};
std::span<const Family> Families();

absl::StatusOr<std::string> ReadArchitecture(const JsonFields& fields) {
  const json::value* list = fields.Find("architectures");
  if (list != nullptr) {
    if (!list->is_array() || list->get_array().size() != 1 || !list->get_array()[0].is_string()) {
      return fields.Wrong("architectures",
                          absl::StrCat("is ", ShortJson(*list), ", want a list of one string"));
    }
    const json::string& name = list->get_array()[0].get_string();
    return std::string(name.data(), name.size());
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string type, fields.String("model_type"));
  std::string known;
  for (const Family& family : Families()) {
    if (type == family.model_type) return family.architecture;
    absl::StrAppend(&known, known.empty() ? "" : ", ", family.model_type);
  }
  return Unsupported(fields, "model_type",
                     absl::StrFormat("is \"%s\"; supported are %s", type.substr(0, 60), known));
}

absl::StatusOr<TensorType> ReadCheckpointType(const JsonFields& fields) {
  const char* const name = fields.Has("dtype") ? "dtype" : "torch_dtype";
  TANDEM_ASSIGN_OR_RETURN(const std::string type, fields.StringOr(name, "float32"));
  if (type == "float32") return TensorType::kF32;
  if (type == "float16") return TensorType::kF16;
  if (type == "bfloat16") return TensorType::kBF16;
  return Unsupported(
      fields, name,
      absl::StrFormat("is \"%s\"; supported are float32, float16, bfloat16", type.substr(0, 60)));
}

// A field of `quantization_config` that must be false, or not be there.
absl::Status RefuseIfTrue(const JsonFields& fields, std::string_view name,
                          std::string_view instead = "") {
  TANDEM_ASSIGN_OR_RETURN(const bool is_true, fields.BoolOr(name, false));
  if (!is_true) return absl::OkStatus();
  return Unsupported(fields, name,
                     absl::StrCat("is true, which is not supported", std::string(instead)));
}

absl::Status ReadGptq(const JsonFields& fields, Int4Format* int4_format) {
  int4_format->method = Int4Format::Method::kGptq;
  TANDEM_RETURN_IF_ERROR(RefuseIfTrue(
      fields, "desc_act",
      ": inputs lie in another order; take a checkpoint that was quantised with desc_act false, or "
      "the one in 16 bits with --weights int4"));
  const char* const key = fields.Has("checkpoint_format") ? "checkpoint_format" : "format";
  TANDEM_ASSIGN_OR_RETURN(const std::string format, fields.StringOr(key, "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    return Unsupported(
        fields, key,
        absl::StrFormat("is \"%s\"; supported are gptq and gptq_v2", format.substr(0, 60)));
  }
  int4_format->zero_less = format == "gptq" ? 1 : 0;
  if (const json::value* dynamic = fields.Find("dynamic");
      dynamic != nullptr && !(dynamic->is_object() && dynamic->get_object().empty())) {
    return Unsupported(fields, "dynamic", "is set; all matrices of layers have one format");
  }
  return absl::OkStatus();
}

absl::Status ReadAwq(const JsonFields& fields, Int4Format* int4_format) {
  int4_format->method = Int4Format::Method::kAwq;
  TANDEM_ASSIGN_OR_RETURN(const std::string version, fields.StringOr("version", "gemm"));
  if (version != "gemm" && version != "GEMM") {
    return Unsupported(fields, "version",
                       absl::StrFormat("is \"%s\"; supported is gemm", version.substr(0, 60)));
  }
  TANDEM_ASSIGN_OR_RETURN(const bool zeros, fields.BoolOr("zero_point", true));
  if (!zeros) return Unsupported(fields, "zero_point", "is false; want true");
  const json::value* const kept = fields.Find("modules_to_not_convert");
  if (kept == nullptr || (kept->is_array() && kept->get_array().empty())) return absl::OkStatus();
  if (kept->is_array() && kept->get_array().size() == 1 && kept->get_array()[0] == "lm_head") {
    return absl::OkStatus();
  }
  return Unsupported(fields, "modules_to_not_convert",
                     absl::StrCat("is ", ShortJson(*kept),
                                  "; all matrices of layers, and no others, have 4 bits"));
}

// A field that must be null, empty, false, or not be there.
absl::Status RefuseIfSet(const JsonFields& fields, std::string_view name) {
  const json::value* const value = fields.Find(name);
  if (value == nullptr) return absl::OkStatus();
  const bool is_empty = value->is_object() && value->get_object().empty();
  if (is_empty || (value->is_bool() && !value->get_bool())) return absl::OkStatus();
  return Unsupported(fields, name, "is set, which is not supported");
}

// "is "e5m2"; want e4m3", unless it is that or not there.
absl::Status WantString(const JsonFields& fields, std::string_view name, std::string_view wanted) {
  TANDEM_ASSIGN_OR_RETURN(const std::string value, fields.StringOr(name, wanted));
  if (value == wanted) return absl::OkStatus();
  return Unsupported(
      fields, name,
      absl::StrFormat("is \"%s\"; want %s", value.substr(0, 60), std::string(wanted)));
}

absl::Status ReadBlocks(const JsonFields& fields, std::string_view name, Float8Blocks* float8) {
  const json::value* const value = fields.Find(name);
  if (value != nullptr && value->is_array() && value->get_array().size() == 2) {
    const auto outputs = ExactInteger(value->get_array()[0]);
    const auto inputs = ExactInteger(value->get_array()[1]);
    float8->outputs = outputs.value_or(0);
    float8->inputs = inputs.value_or(0);
    const auto fits = [](int64_t size) { return size >= 1 && size <= kMaxFfnSize; };
    if (fits(float8->outputs) && fits(float8->inputs)) return absl::OkStatus();
  }
  return fields.Wrong(
      name, absl::StrFormat("is %s, want a list of two sizes from 1 to %d",
                            value == nullptr ? "missing" : ShortJson(*value), kMaxFfnSize));
}

// DeepSeek's and Transformers' format, of blocks or of whole matrices, and AutoFP8's.
absl::Status ReadFp8(const JsonFields& fields, Float8Blocks* float8) {
  TANDEM_RETURN_IF_ERROR(WantString(fields, "fmt", "e4m3"));
  TANDEM_ASSIGN_OR_RETURN(const std::string scheme,
                          fields.StringOr("activation_scheme", "dynamic"));
  if (scheme != "dynamic" && scheme != "static") {
    return Unsupported(
        fields, "activation_scheme",
        absl::StrFormat("is \"%s\"; supported are dynamic and static", scheme.substr(0, 60)));
  }
  if (!fields.Has("weight_block_size")) return absl::OkStatus();
  return ReadBlocks(fields, "weight_block_size", float8);
}

absl::Status ReadFloatScheme(const JsonFields& weights, Float8Blocks* float8) {
  TANDEM_ASSIGN_OR_RETURN(const int64_t bits, weights.Integer("num_bits", 1, 64));
  if (bits != 8) return Unsupported(weights, "num_bits", absl::StrFormat("is %d; want 8", bits));
  TANDEM_RETURN_IF_ERROR(WantString(weights, "type", "float"));
  TANDEM_ASSIGN_OR_RETURN(const bool symmetric, weights.BoolOr("symmetric", true));
  if (!symmetric) return Unsupported(weights, "symmetric", "is false; want true");
  TANDEM_RETURN_IF_ERROR(RefuseIfTrue(weights, "dynamic"));
  TANDEM_RETURN_IF_ERROR(RefuseIfSet(weights, "actorder"));
  TANDEM_ASSIGN_OR_RETURN(const std::string strategy, weights.StringOr("strategy", "tensor"));
  if (strategy == "block") return ReadBlocks(weights, "block_structure", float8);
  if (strategy != "tensor" && strategy != "channel") {
    return Unsupported(weights, "strategy",
                       absl::StrFormat("is \"%s\"; supported are tensor, channel and block",
                                       strategy.substr(0, 60)));
  }
  if (strategy == "channel") float8->outputs = 1;
  return absl::OkStatus();
}

// Which matrices have the scheme is seen by their tensors: `targets` and `ignore` are not read.
absl::Status ReadCompressedTensors(const JsonFields& fields, Float8Blocks* float8) {
  constexpr const char* kFormat = "float-quantized";
  TANDEM_RETURN_IF_ERROR(fields.String("format").status());
  TANDEM_RETURN_IF_ERROR(WantString(fields, "format", kFormat));
  TANDEM_RETURN_IF_ERROR(RefuseIfSet(fields, "transform_config"));
  TANDEM_ASSIGN_OR_RETURN(const json::object* const sparsity,
                          fields.ObjectOrNull("sparsity_config"));
  if (sparsity != nullptr) {
    const JsonFields sparse(*sparsity, absl::StrCat(fields.what(), ": sparsity_config"));
    TANDEM_RETURN_IF_ERROR(WantString(sparse, "format", "dense"));
  }
  TANDEM_ASSIGN_OR_RETURN(const json::object* const groups, fields.ObjectOrNull("config_groups"));
  if (groups == nullptr || groups->size() != 1) {
    const size_t count = groups == nullptr ? 0 : groups->size();
    return Unsupported(fields, "config_groups",
                       absl::StrFormat("has %d groups; supported is one", count));
  }
  const json::key_value_pair& first = *groups->begin();
  const std::string name = absl::StrCat(fields.what(), ": config_groups");
  if (!first.value().is_object()) {
    return JsonFields(*groups, name).Wrong(first.key(), "is no object");
  }
  const JsonFields group(
      first.value().get_object(),
      absl::StrCat(name, ": ", std::string(first.key().data(), first.key().size()).substr(0, 60)));
  TANDEM_RETURN_IF_ERROR(WantString(group, "format", kFormat));
  TANDEM_RETURN_IF_ERROR(RefuseIfSet(group, "output_activations"));
  TANDEM_ASSIGN_OR_RETURN(const json::object* const weights, group.ObjectOrNull("weights"));
  if (weights == nullptr) {
    return Unsupported(group, "weights", "is missing; want a float of 8 bits");
  }
  return ReadFloatScheme(JsonFields(*weights, absl::StrCat(group.what(), ": weights")), float8);
}

absl::Status ReadFloat8(const std::string& method, const JsonFields& fields, Float8Blocks* float8) {
  float8->present = true;
  TANDEM_RETURN_IF_ERROR(RefuseIfSet(fields, "kv_cache_scheme"));
  if (method == "fp8") return ReadFp8(fields, float8);
  if (method == "compressed-tensors") return ReadCompressedTensors(fields, float8);
  float8->outputs = 1;  // FBGEMM's.
  return absl::OkStatus();
}

absl::Status ReadQuantisation(const JsonFields& fields, ModelConfig* config) {
  constexpr const char* kName = "quantization_config";
  TANDEM_ASSIGN_OR_RETURN(const json::object* const object, fields.ObjectOrNull(kName));
  if (object == nullptr) return absl::OkStatus();
  if (config->family != ModelFamily::kLlama) {
    return Unsupported(fields, kName, absl::StrCat("is set; ", config->architecture, " has none"));
  }
  const JsonFields quantised(*object, absl::StrCat(fields.what(), ": ", kName));
  TANDEM_ASSIGN_OR_RETURN(const std::string method, quantised.String("quant_method"));
  if (method == "fp8" || method == "compressed-tensors" || method == "fbgemm_fp8") {
    return ReadFloat8(method, quantised, &config->float8);
  }
  if (method != "gptq" && method != "awq") {
    return Unsupported(quantised, "quant_method",
                       absl::StrFormat("is \"%s\"; supported are gptq, awq, fp8, fbgemm_fp8 and "
                                       "compressed-tensors",
                                       method.substr(0, 60)));
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t bits, quantised.Integer("bits", 1, 64));
  if (bits != 4) return Unsupported(quantised, "bits", absl::StrFormat("is %d; want 4", bits));
  Int4Format& int4_format = config->int4_format;
  TANDEM_ASSIGN_OR_RETURN(int4_format.group, quantised.Integer("group_size", -1, 1 << 20));
  if (int4_format.group != 32 && int4_format.group != 64 && int4_format.group != 128) {
    return Unsupported(quantised, "group_size",
                       absl::StrFormat("is %d; want 32, 64 or 128", int4_format.group));
  }
  TANDEM_RETURN_IF_ERROR(RefuseIfTrue(quantised, "lm_head"));
  return method == "gptq" ? ReadGptq(quantised, &int4_format) : ReadAwq(quantised, &int4_format);
}

// Rope scaling as `rope_scaling` (type under "type" or "rope_type") or `rope_parameters`.
absl::Status ReadLlama3Scaling(const JsonFields& scaling, int64_t max_positions, RopeConfig* rope) {
  rope->llama3 = true;
  TANDEM_ASSIGN_OR_RETURN(rope->factor, scaling.Number("factor", 1.0, 1e6));
  TANDEM_ASSIGN_OR_RETURN(rope->low_freq_factor, scaling.Number("low_freq_factor", 1e-6, 1e6));
  TANDEM_ASSIGN_OR_RETURN(rope->high_freq_factor, scaling.Number("high_freq_factor", 1e-6, 1e6));
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    return scaling.Wrong("high_freq_factor",
                         absl::StrFormat("is %g, want more than low_freq_factor, %g",
                                         rope->high_freq_factor, rope->low_freq_factor));
  }
  TANDEM_ASSIGN_OR_RETURN(
      rope->original_max_positions,
      scaling.IntegerOr("original_max_position_embeddings", 1, kMaxPositions, max_positions));
  return absl::OkStatus();
}

absl::Status ReadRopeObject(const JsonFields& scaling, int64_t max_positions, RopeConfig* rope) {
  TANDEM_ASSIGN_OR_RETURN(rope->theta, scaling.NumberOr("rope_theta", 1.0, 1e12, rope->theta));
  TANDEM_ASSIGN_OR_RETURN(const double rotated, scaling.NumberOr("partial_rotary_factor", 0, 1, 1));
  if (rotated != 1) {
    return Unsupported(scaling, "partial_rotary_factor",
                       absl::StrFormat("is %g; only whole heads are rotated", rotated));
  }
  const char* const key = scaling.Has("rope_type") ? "rope_type" : "type";
  TANDEM_ASSIGN_OR_RETURN(const std::string type, scaling.StringOr(key, "default"));
  if (type == "default") return absl::OkStatus();
  if (type == "llama3") return ReadLlama3Scaling(scaling, max_positions, rope);
  const bool by_length = type == "dynamic" || type == "longrope";
  return Unsupported(
      scaling, key,
      absl::StrFormat("is \"%s\"%s; supported are default and llama3", type.substr(0, 60),
                      by_length ? ", which rotates a token differently as the text "
                                  "grows, so that cached blocks would go stale"
                                : ""));
}

absl::Status ReadRope(const JsonFields& fields, int64_t max_positions, RopeConfig* rope) {
  TANDEM_ASSIGN_OR_RETURN(rope->theta, fields.NumberOr("rope_theta", 1.0, 1e12, rope->theta));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    TANDEM_ASSIGN_OR_RETURN(const json::object* object, fields.ObjectOrNull(name));
    if (object == nullptr) continue;
    const JsonFields scaling(*object, absl::StrCat(fields.what(), ": ", name));
    TANDEM_RETURN_IF_ERROR(ReadRopeObject(scaling, max_positions, rope));
  }
  TANDEM_ASSIGN_OR_RETURN(const double rotated, fields.NumberOr("partial_rotary_factor", 0, 1, 1));
  if (rotated != 1) {
    return Unsupported(fields, "partial_rotary_factor",
                       absl::StrFormat("is %g; only whole heads are rotated", rotated));
  }
  return absl::OkStatus();
}

// Head counts and sizes that all families share, once their fields are read.
absl::Status CheckHeads(const JsonFields& fields, const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return fields.Wrong("num_key_value_heads",
                        absl::StrFormat("is %d, which does not divide the %d attention heads",
                                        config.num_kv_heads, config.num_heads));
  }
  if (config.head_dim % 2 != 0) {
    return fields.Wrong("head_dim", absl::StrFormat("is %d, want an even number", config.head_dim));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> DividedHeadDim(const JsonFields& fields, const char* hidden_name,
                                       const char* heads_name, const ModelConfig& config) {
  if (config.hidden_size % config.num_heads != 0) {
    return fields.Wrong(
        hidden_name, absl::StrFormat("is %d, which the %d of %s do not divide", config.hidden_size,
                                     config.num_heads, heads_name));
  }
  const int64_t head_dim = config.hidden_size / config.num_heads;
  if (head_dim > kMaxHeadDim) {
    return fields.Wrong(hidden_name, absl::StrFormat("/ %s is a head size of %d, at most %d",
                                                     heads_name, head_dim, kMaxHeadDim));
  }
  return head_dim;
}

// Where fields are not there.
struct LlamaDefaults {
  int64_t num_kv_heads = 0;  // 0: as many as heads.
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads.
  int64_t max_positions = 2'048;
  const char* activation_field = "hidden_act";
  const char* activation = "silu";
  bool tied_embeddings = false;
};

absl::Status ReadActivation(const JsonFields& fields, std::string_view field,
                            std::string_view fallback, ModelConfig* config) {
  TANDEM_ASSIGN_OR_RETURN(const std::string name, fields.StringOr(field, fallback));
  if (name == "silu" || name == "swish") {
    config->activation = Activation::kSilu;
  } else if (name == "gelu_pytorch_tanh" || name == "gelu_new") {
    config->activation = Activation::kGeluTanh;
  } else {
    return Unsupported(
        fields, field,
        absl::StrFormat("is \"%s\"; silu and gelu_pytorch_tanh are computed", name.substr(0, 60)));
  }
  return absl::OkStatus();
}

// What Llama and its relatives have in common.
absl::Status ReadLlamaSizes(const JsonFields& fields, const LlamaDefaults& defaults,
                            ModelConfig* config) {
  config->family = ModelFamily::kLlama;
  TANDEM_ASSIGN_OR_RETURN(config->hidden_size, fields.Integer("hidden_size", 1, kMaxHiddenSize));
  TANDEM_ASSIGN_OR_RETURN(config->ffn_size, fields.Integer("intermediate_size", 1, kMaxFfnSize));
  TANDEM_ASSIGN_OR_RETURN(config->num_layers, fields.Integer("num_hidden_layers", 1, kMaxLayers));
  TANDEM_ASSIGN_OR_RETURN(config->num_heads, fields.Integer("num_attention_heads", 1, kMaxHeads));
  constexpr const char* kKvHeads = "num_key_value_heads";
  const bool as_heads = defaults.num_kv_heads == 0 || fields.IsNull(kKvHeads);
  TANDEM_ASSIGN_OR_RETURN(config->num_kv_heads,
                          fields.IntegerOr(kKvHeads, 1, kMaxHeads,
                                           as_heads ? config->num_heads : defaults.num_kv_heads));
  if (fields.Has("head_dim") || defaults.head_dim != 0) {
    TANDEM_ASSIGN_OR_RETURN(config->head_dim,
                            fields.IntegerOr("head_dim", 2, kMaxHeadDim, defaults.head_dim));
  } else {
    TANDEM_ASSIGN_OR_RETURN(config->head_dim,
                            DividedHeadDim(fields, "hidden_size", "num_attention_heads", *config));
  }
  TANDEM_RETURN_IF_ERROR(CheckHeads(fields, *config));
  TANDEM_ASSIGN_OR_RETURN(config->vocab_size, fields.Integer("vocab_size", 1, kMaxVocabSize));
  TANDEM_ASSIGN_OR_RETURN(
      config->max_positions,
      fields.IntegerOr("max_position_embeddings", 1, kMaxPositions, defaults.max_positions));
  TANDEM_ASSIGN_OR_RETURN(const double epsilon, fields.NumberOr("rms_norm_eps", 0, 1, 1e-6));
  config->norm_epsilon = static_cast<float>(epsilon);
  TANDEM_RETURN_IF_ERROR(
      ReadActivation(fields, defaults.activation_field, defaults.activation, config));
  TANDEM_ASSIGN_OR_RETURN(config->tied_embeddings,
                          fields.BoolOr("tie_word_embeddings", defaults.tied_embeddings));
  return ReadRope(fields, config->max_positions, &config->rope);
}

absl::Status ReadAttentionBias(const JsonFields& fields, ModelConfig* config) {
  TANDEM_ASSIGN_OR_RETURN(config->qkv_bias, fields.BoolOr("attention_bias", false));
  config->attention_output_bias = config->qkv_bias;
  return absl::OkStatus();
}

absl::Status ReadLlama(const JsonFields& fields, ModelConfig* config) {
  TANDEM_RETURN_IF_ERROR(ReadLlamaSizes(fields, {}, config));
  TANDEM_RETURN_IF_ERROR(ReadAttentionBias(fields, config));
  TANDEM_ASSIGN_OR_RETURN(config->mlp_bias, fields.BoolOr("mlp_bias", false));
  return absl::OkStatus();
}

// 0 if the field is null, which differs from not being there.
absl::StatusOr<int64_t> ReadWindow(const JsonFields& fields) {
  constexpr const char* kName = "sliding_window";
  if (fields.IsNull(kName)) return 0;
  return fields.IntegerOr(kName, 1, kMaxPositions, 4'096);
}

absl::Status ReadMistral(const JsonFields& fields, ModelConfig* config) {
  TANDEM_RETURN_IF_ERROR(
      ReadLlamaSizes(fields, {.num_kv_heads = 8, .max_positions = 131'072}, config));
  if (fields.Has("layer_types")) {
    return Unsupported(fields, "layer_types", "is set; Mistral's layers have one window");
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t window, ReadWindow(fields));
  config->windows.assign(static_cast<size_t>(config->num_layers), window);
  return absl::OkStatus();
}

// Which layers have the window: those that `layer_types` names, else those that the family says.
template <typename IsWindowed>
absl::Status ReadWindowedLayers(const JsonFields& fields, int64_t window, IsWindowed is_windowed,
                                ModelConfig* config) {
  const size_t num_layers = static_cast<size_t>(config->num_layers);
  config->windows.assign(num_layers, 0);
  const json::value* const types = fields.Find("layer_types");
  if (types != nullptr && (!types->is_array() || types->get_array().size() != num_layers)) {
    const std::string is = types->is_array()
                               ? absl::StrFormat("is a list of %d", types->get_array().size())
                               : absl::StrCat("is ", ShortJson(*types));
    return fields.Wrong("layer_types",
                        absl::StrFormat("%s, want a list of %d strings", is, num_layers));
  }
  for (size_t i = 0; i < num_layers; ++i) {
    bool windowed = is_windowed(static_cast<int64_t>(i));
    if (types != nullptr) {
      const json::value& type = types->get_array()[i];
      windowed = type == "sliding_attention";
      if (!windowed && type != "full_attention") {
        return Unsupported(fields, "layer_types",
                           absl::StrFormat("names %s; supported are full_attention and "
                                           "sliding_attention",
                                           ShortJson(type)));
      }
      if (windowed && window == 0) {
        return fields.Wrong("layer_types", "names sliding_attention, but no window is used");
      }
    }
    if (windowed) config->windows[i] = window;
  }
  return absl::OkStatus();
}

absl::Status ReadQwenWindows(const JsonFields& fields, ModelConfig* config) {
  TANDEM_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", false));
  int64_t window = 0;
  if (used) {
    TANDEM_ASSIGN_OR_RETURN(window, ReadWindow(fields));
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t first,
                          fields.IntegerOr("max_window_layers", 0, kMaxPositions, 28));
  return ReadWindowedLayers(
      fields, window, [first](int64_t layer) { return layer >= first; }, config);
}

absl::Status ReadQwen2(const JsonFields& fields, ModelConfig* config) {
  TANDEM_RETURN_IF_ERROR(
      ReadLlamaSizes(fields, {.num_kv_heads = 32, .max_positions = 32'768}, config));
  config->qkv_bias = true;
  return ReadQwenWindows(fields, config);
}

absl::Status ReadQwen3(const JsonFields& fields, ModelConfig* config) {
  TANDEM_RETURN_IF_ERROR(ReadLlamaSizes(
      fields, {.num_kv_heads = 32, .head_dim = 128, .max_positions = 32'768}, config));
  TANDEM_RETURN_IF_ERROR(ReadAttentionBias(fields, config));
  config->head_norms = true;
  return ReadQwenWindows(fields, config);
}

// 0 if the field is null, which differs from not being there.
absl::StatusOr<float> ReadCap(const JsonFields& fields, std::string_view name, double fallback) {
  if (fields.IsNull(name)) return 0.0f;
  TANDEM_ASSIGN_OR_RETURN(const double cap, fields.NumberOr(name, 1e-3, 1e6, fallback));
  return static_cast<float>(cap);
}

absl::Status ReadGemma2(const JsonFields& fields, ModelConfig* config) {
  TANDEM_RETURN_IF_ERROR(ReadLlamaSizes(fields,
                                        {.num_kv_heads = 4,
                                         .head_dim = 256,
                                         .max_positions = 8'192,
                                         .activation_field = "hidden_activation",
                                         .activation = "gelu_pytorch_tanh",
                                         .tied_embeddings = true},
                                        config));
  TANDEM_RETURN_IF_ERROR(ReadAttentionBias(fields, config));
  config->output_norms = true;
  config->norm_offset = 1;
  config->embedding_scale = std::sqrt(static_cast<float>(config->hidden_size));
  TANDEM_ASSIGN_OR_RETURN(const double scalar,
                          fields.NumberOr("query_pre_attn_scalar", 1e-3, 1e6, 256));
  config->query_scalar = static_cast<float>(scalar);
  TANDEM_ASSIGN_OR_RETURN(config->score_cap, ReadCap(fields, "attn_logit_softcapping", 50));
  TANDEM_ASSIGN_OR_RETURN(config->logit_cap, ReadCap(fields, "final_logit_softcapping", 30));
  constexpr const char* kBothWays = "use_bidirectional_attention";
  TANDEM_ASSIGN_OR_RETURN(const bool both_ways, fields.BoolOr(kBothWays, false));
  if (both_ways) return Unsupported(fields, kBothWays, "is true, which is not supported");
  TANDEM_ASSIGN_OR_RETURN(const int64_t window, ReadWindow(fields));
  return ReadWindowedLayers(
      fields, window, [](int64_t layer) { return layer % 2 == 0; }, config);
}

absl::Status ReadGpt2(const JsonFields& fields, ModelConfig* config) {
  config->family = ModelFamily::kGpt2;
  TANDEM_ASSIGN_OR_RETURN(config->hidden_size, fields.Integer("n_embd", 1, kMaxHiddenSize));
  TANDEM_ASSIGN_OR_RETURN(config->ffn_size,
                          fields.IntegerOr("n_inner", 1, kMaxFfnSize, 4 * config->hidden_size));
  TANDEM_ASSIGN_OR_RETURN(config->num_layers, fields.Integer("n_layer", 1, kMaxLayers));
  TANDEM_ASSIGN_OR_RETURN(config->num_heads, fields.Integer("n_head", 1, kMaxHeads));
  config->num_kv_heads = config->num_heads;
  TANDEM_ASSIGN_OR_RETURN(config->head_dim, DividedHeadDim(fields, "n_embd", "n_head", *config));
  TANDEM_RETURN_IF_ERROR(CheckHeads(fields, *config));
  TANDEM_ASSIGN_OR_RETURN(config->vocab_size, fields.Integer("vocab_size", 1, kMaxVocabSize));
  TANDEM_ASSIGN_OR_RETURN(config->max_positions,
                          fields.IntegerOr("n_positions", 1, kMaxPositions, 1'024));
  TANDEM_ASSIGN_OR_RETURN(const double epsilon, fields.NumberOr("layer_norm_epsilon", 0, 1, 1e-5));
  config->norm_epsilon = static_cast<float>(epsilon);
  TANDEM_RETURN_IF_ERROR(ReadActivation(fields, "activation_function", "gelu_new", config));
  config->qkv_bias = true;
  config->attention_output_bias = true;
  config->mlp_bias = true;
  TANDEM_ASSIGN_OR_RETURN(config->tied_embeddings, fields.BoolOr("tie_word_embeddings", true));
  TANDEM_ASSIGN_OR_RETURN(const bool scaled, fields.BoolOr("scale_attn_weights", true));
  if (!scaled) return Unsupported(fields, "scale_attn_weights", "is false; want true");
  for (const char* name : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    TANDEM_ASSIGN_OR_RETURN(const bool set, fields.BoolOr(name, false));
    if (set) return Unsupported(fields, name, "is true, which is not supported");
  }
  return absl::OkStatus();
}

std::span<const Family> Families() {
  static constexpr Family kFamilies[] = {
      {"LlamaForCausalLM", "llama", ReadLlama},    {"MistralForCausalLM", "mistral", ReadMistral},
      {"Qwen2ForCausalLM", "qwen2", ReadQwen2},    {"Qwen3ForCausalLM", "qwen3", ReadQwen3},
      {"Gemma2ForCausalLM", "gemma2", ReadGemma2}, {"GPT2LMHeadModel", "gpt2", ReadGpt2},
  };
  return kFamilies;
}

absl::Status ReadFamily(const JsonFields& fields, ModelConfig* config) {
  std::string known;
  for (const Family& family : Families()) {
    if (config->architecture == family.architecture) return family.read(fields, config);
    absl::StrAppend(&known, known.empty() ? "" : ", ", family.architecture);
  }
  return Unsupported(
      fields, "architectures",
      absl::StrFormat("names \"%s\"; supported are %s", config->architecture.substr(0, 60), known));
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::Parse(std::string_view config_text) {
  TANDEM_ASSIGN_OR_RETURN(const json::object object,
                          ParseJsonObject(config_text, "config.json", kConfigLimits));
  const JsonFields fields(object, "config.json");
  ModelConfig config;
  TANDEM_ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(fields));
  TANDEM_RETURN_IF_ERROR(ReadFamily(fields, &config));
  TANDEM_RETURN_IF_ERROR(ReadQuantisation(fields, &config));
  config.windows.resize(static_cast<size_t>(config.num_layers), 0);
  if (config.query_scalar == 0) config.query_scalar = static_cast<float>(config.head_dim);
  TANDEM_ASSIGN_OR_RETURN(config.checkpoint_type, ReadCheckpointType(fields));
  return config;
}

absl::StatusOr<ModelConfig> ModelConfig::Load(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(const std::string config,
                          ReadSmallFile(folder + "/config.json", kConfigLimits.max_bytes));
  return Parse(config);
}

int64_t ModelConfig::largest_window() const {
  const auto sees_all = std::find(windows.begin(), windows.end(), 0);
  return sees_all != windows.end() ? 0 : *std::max_element(windows.begin(), windows.end());
}

absl::StatusOr<std::string> ServedName(const std::string& folder, std::string_view given) {
  std::error_code error;
  std::string name = given.empty() ? std::filesystem::canonical(folder, error).filename().string()
                                   : std::string(given);
  if (!IsValidUtf8(name) || name.size() > kMaxServedNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the model's name has %d bytes, want at most %d of UTF-8: name it with "
                        "--served-model-name",
                        name.size(), kMaxServedNameBytes));
  }
  return name;
}

}  // namespace tandem
