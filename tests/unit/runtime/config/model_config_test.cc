#include "runtime/config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr char kLlama[] = R"({
  "architectures": ["LlamaForCausalLM"],
  "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
  "max_position_embeddings": 2048,
  "num_attention_heads": 32, "num_hidden_layers": 22, "num_key_value_heads": 4,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000})";

constexpr char kGpt2[] = R"({
  "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-05, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
  "vocab_size": 50257, "bos_token_id": 50256, "eos_token_id": 50256})";

// The least that a file may say: all else is a default of the family's.
constexpr char kMistral[] = R"({
  "architectures": ["MistralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_hidden_layers": 4, "vocab_size": 32000})";

constexpr char kQwen2[] = R"({
  "architectures": ["Qwen2ForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_hidden_layers": 4, "vocab_size": 32000})";

constexpr char kQwen3[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072,
  "num_attention_heads": 16, "num_hidden_layers": 4, "num_key_value_heads": 8, "vocab_size": 32000})";

constexpr char kGemma2[] = R"({
  "architectures": ["Gemma2ForCausalLM"], "hidden_size": 2304, "intermediate_size": 9216,
  "num_attention_heads": 8, "num_hidden_layers": 4, "vocab_size": 256000})";

// `base` with one field replaced (or added); the refusal, or "accepted".
absl::StatusOr<ModelConfig> Changed(const char* base, const std::string& name,
                                    const std::string& value) {
  const std::string text(base);
  const size_t at = text.find("\"" + name + "\":");
  std::string changed;
  if (at == std::string::npos) {
    changed = "{\"" + name + "\":" + value + "," + text.substr(1);
  } else {
    changed = text.substr(0, at) + "\"" + name + "\":" + value + ",\"was_" + text.substr(at + 1);
  }
  return ModelConfig::Parse(changed);
}

std::string With(const char* base, const std::string& name, const std::string& value) {
  const auto config = Changed(base, name, value);
  return config.ok() ? "accepted" : std::string(config.status().message());
}

std::vector<int64_t> WindowsWith(const char* base, const std::string& name,
                                 const std::string& value) {
  const auto config = Changed(base, name, value);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config->windows : std::vector<int64_t>();
}

TEST(ModelConfigTest, ReadsLlama) {
  const auto config = ModelConfig::Parse(kLlama);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kLlama);
  EXPECT_EQ(config->hidden_size, 2048);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->checkpoint_type, TensorType::kBF16);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_FALSE(config->rope.llama3);
}

TEST(ModelConfigTest, ReadsGpt2) {
  const auto config = ModelConfig::Parse(kGpt2);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kGpt2);
  EXPECT_EQ(config->ffn_size, 3072);
  EXPECT_EQ(config->num_kv_heads, 12);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_TRUE(config->qkv_bias && config->attention_output_bias && config->mlp_bias);
  EXPECT_EQ(config->checkpoint_type, TensorType::kF32);
}

using Windows = std::vector<int64_t>;

TEST(ModelConfigTest, ReadsMistral) {
  const auto config = ModelConfig::Parse(kMistral);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_kv_heads, 8);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->max_positions, 131'072);
  EXPECT_EQ(config->norm_epsilon, 1e-6f);
  EXPECT_FALSE(config->qkv_bias || config->attention_output_bias || config->head_norms);
  EXPECT_EQ(config->windows, Windows(4, 4'096));
  EXPECT_EQ(config->largest_window(), 4'096);
  EXPECT_EQ(WindowsWith(kMistral, "sliding_window", "7"), Windows(4, 7));
  EXPECT_EQ(Changed(kMistral, "sliding_window", "null")->largest_window(), 0);
  EXPECT_EQ(WindowsWith(kMistral, "sliding_window", "null"), Windows(4, 0));
  EXPECT_EQ(Changed(kMistral, "num_key_value_heads", "null")->num_kv_heads, 32);
  EXPECT_EQ(Changed(kMistral, "head_dim", "64")->head_dim, 64);
  // What Transformers does not read there.
  EXPECT_FALSE(Changed(kMistral, "attention_bias", "true")->qkv_bias);
}

TEST(ModelConfigTest, ReadsQwen2) {
  const auto config = ModelConfig::Parse(kQwen2);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_kv_heads, 32);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->max_positions, 32'768);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->attention_output_bias || config->mlp_bias || config->head_norms);
  EXPECT_EQ(config->windows, Windows(4, 0));
}

TEST(ModelConfigTest, ReadsQwen3) {
  const auto config = ModelConfig::Parse(kQwen3);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->query_size(), 2'048);
  EXPECT_TRUE(config->head_norms);
  EXPECT_FALSE(config->qkv_bias || config->attention_output_bias || config->mlp_bias);
  EXPECT_EQ(Changed(kQwen3, "head_dim", "64")->head_dim, 64);
  const auto biased = Changed(kQwen3, "attention_bias", "true");
  EXPECT_TRUE(biased->qkv_bias && biased->attention_output_bias);
}

TEST(ModelConfigTest, ReadsGemma2) {
  const auto config = ModelConfig::Parse(kGemma2);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->max_positions, 8'192);
  EXPECT_EQ(config->activation, Activation::kGeluTanh);
  EXPECT_TRUE(config->tied_embeddings && config->output_norms);
  EXPECT_FALSE(config->qkv_bias || config->mlp_bias || config->head_norms);
  EXPECT_EQ(config->norm_offset, 1.0f);
  EXPECT_EQ(config->embedding_scale, 48.0f);
  EXPECT_EQ(config->query_scalar, 256.0f);
  EXPECT_EQ(config->score_cap, 50.0f);
  EXPECT_EQ(config->logit_cap, 30.0f);
  EXPECT_EQ(config->windows, (Windows{4'096, 0, 4'096, 0}));
  EXPECT_EQ(config->largest_window(), 0) << "every other layer sees all";
  EXPECT_EQ(Changed(kGemma2, "query_pre_attn_scalar", "144")->query_scalar, 144.0f);
  EXPECT_EQ(Changed(kGemma2, "attn_logit_softcapping", "null")->score_cap, 0.0f);
  EXPECT_EQ(Changed(kGemma2, "final_logit_softcapping", "null")->logit_cap, 0.0f);
  EXPECT_EQ(Changed(kGemma2, "final_logit_softcapping", "7.5")->logit_cap, 7.5f);
  EXPECT_EQ(WindowsWith(kGemma2, "layer_types",
                        R"(["full_attention", "full_attention", "full_attention",
                            "sliding_attention"])"),
            (Windows{0, 0, 0, 4'096}));
  // Other families have none of it.
  const auto llama = ModelConfig::Parse(kLlama);
  EXPECT_FALSE(llama->output_norms);
  EXPECT_EQ(llama->norm_offset, 0.0f);
  EXPECT_EQ(llama->embedding_scale, 1.0f);
  EXPECT_EQ(llama->query_scalar, 64.0f);
  EXPECT_EQ(llama->score_cap + llama->logit_cap, 0.0f);
}

TEST(ModelConfigTest, RefusesWhatGemma2DoesNotCompute) {
  EXPECT_THAT(With(kGemma2, "attn_logit_softcapping", "0"),
              HasSubstr("attn_logit_softcapping is 0"));
  EXPECT_THAT(With(kGemma2, "final_logit_softcapping", "-30"),
              HasSubstr("final_logit_softcapping is -30"));
  EXPECT_THAT(With(kGemma2, "query_pre_attn_scalar", "0"), HasSubstr("query_pre_attn_scalar is 0"));
  EXPECT_THAT(With(kGemma2, "use_bidirectional_attention", "true"),
              HasSubstr("use_bidirectional_attention is true"));
  EXPECT_THAT(With(kGemma2, "hidden_activation", R"("gelu")"),
              HasSubstr("hidden_activation is \"gelu\"; silu and gelu_pytorch_tanh"));
  // Transformers reads the other field.
  EXPECT_EQ(With(kGemma2, "hidden_act", R"("gelu")"), "accepted");
  EXPECT_THAT(With(kGemma2, "head_dim", "258"), HasSubstr("head_dim"));
}

TEST(ModelConfigTest, ReadsTheActivationOfEveryFamily) {
  for (const auto& [base, field] : {std::pair{kLlama, "hidden_act"},
                                    {kQwen2, "hidden_act"},
                                    {kGemma2, "hidden_activation"},
                                    {kGpt2, "activation_function"}}) {
    for (const char* silu : {R"("silu")", R"("swish")"}) {
      EXPECT_EQ(Changed(base, field, silu)->activation, Activation::kSilu) << field;
    }
    for (const char* gelu : {R"("gelu_new")", R"("gelu_pytorch_tanh")"}) {
      EXPECT_EQ(Changed(base, field, gelu)->activation, Activation::kGeluTanh) << field;
    }
  }
}

TEST(ModelConfigTest, ReadsWhichLayersHaveAWindow) {
  for (const char* base : {kQwen2, kQwen3}) {
    const std::string used = std::string(base).insert(1, R"("use_sliding_window": true,)");
    EXPECT_EQ(WindowsWith(base, "sliding_window", "9"), Windows(4, 0)) << "not used";
    EXPECT_EQ(WindowsWith(used.c_str(), "max_window_layers", "3"), (Windows{0, 0, 0, 4'096}));
    EXPECT_EQ(WindowsWith(used.c_str(), "sliding_window", "9"), Windows(4, 0)) << "28 without";
    const std::string nine = std::string(used).insert(1, R"("sliding_window": 9,)");
    EXPECT_EQ(WindowsWith(nine.c_str(), "max_window_layers", "0"), Windows(4, 9));
    const std::string types = R"(["sliding_attention", "full_attention", "sliding_attention",
                                  "full_attention"])";
    EXPECT_EQ(WindowsWith(nine.c_str(), "layer_types", types), (Windows{9, 0, 9, 0}));
    EXPECT_THAT(With(base, "layer_types", types), HasSubstr("no window is used"));
    const std::string none = std::string(used).insert(1, R"("sliding_window": null,)");
    EXPECT_EQ(WindowsWith(none.c_str(), "max_window_layers", "0"), Windows(4, 0));
    EXPECT_THAT(With(none.c_str(), "layer_types", types), HasSubstr("no window is used"));
  }
}

TEST(ModelConfigTest, RefusesWindowsItDoesNotCompute) {
  EXPECT_THAT(With(kMistral, "sliding_window", "0"), HasSubstr("sliding_window is 0"));
  EXPECT_THAT(With(kMistral, "sliding_window", "-1"), HasSubstr("sliding_window is -1"));
  EXPECT_THAT(With(kMistral, "layer_types", R"(["full_attention"])"), HasSubstr("layer_types"));
  EXPECT_THAT(With(kQwen3, "layer_types", R"(["full_attention"])"), HasSubstr("list of 4 strings"));
  EXPECT_THAT(With(kQwen3, "layer_types", "4"), HasSubstr("list of 4 strings"));
  EXPECT_THAT(With(kQwen3, "layer_types", R"(["full_attention", "linear_attention", 1, 2])"),
              HasSubstr("names \"linear_attention\"; supported are full_attention and"));
  EXPECT_THAT(With(kQwen2, "hidden_act", R"("relu")"), HasSubstr("hidden_act"));
}

// As files were written before a field was thought of.
TEST(ModelConfigTest, WhatIsNotThereIsWhatTransformersTakesItFor) {
  const auto llama = ModelConfig::Parse(R"({
      "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100})");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->rope.theta, 10'000.0);
  EXPECT_EQ(llama->num_kv_heads, 4);
  EXPECT_EQ(llama->max_positions, 2'048);
  EXPECT_EQ(llama->activation, Activation::kSilu);
  EXPECT_FALSE(llama->tied_embeddings);
  const auto gpt2 = ModelConfig::Parse(R"({
      "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 2,
      "vocab_size": 100})");
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->norm_epsilon, 1e-5f);
  EXPECT_EQ(gpt2->max_positions, 1'024);
  EXPECT_EQ(gpt2->activation, Activation::kGeluTanh);
  const auto scaled = Changed(kLlama, "rope_scaling",
                              R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                                  "high_freq_factor": 4})");
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(scaled->rope.original_max_positions, 2'048) << "all that it has";
}

TEST(ModelConfigTest, EachFieldIsReadFromItsOwnName) {
  EXPECT_EQ(Changed(kLlama, "rms_norm_eps", "0.25")->norm_epsilon, 0.25f);
  EXPECT_EQ(Changed(kGpt2, "layer_norm_epsilon", "0.25")->norm_epsilon, 0.25f);
  EXPECT_EQ(Changed(kGpt2, "n_positions", "77")->max_positions, 77);
  EXPECT_EQ(Changed(kGpt2, "n_inner", "96")->ffn_size, 96);
  const auto mlp = Changed(kLlama, "mlp_bias", "true");
  EXPECT_TRUE(mlp->mlp_bias && !mlp->qkv_bias && !mlp->attention_output_bias);
  const auto attention = Changed(kLlama, "attention_bias", "true");
  EXPECT_TRUE(!attention->mlp_bias && attention->qkv_bias && attention->attention_output_bias);
  // The newer name of torch_dtype, which is there, too.
  EXPECT_EQ(Changed(kLlama, "dtype", R"("float16")")->checkpoint_type, TensorType::kF16);
}

TEST(ModelConfigTest, KnowsFamiliesByTheirTypeToo) {
  for (const auto& [type, architecture] : {std::pair{"llama", "LlamaForCausalLM"},
                                           {"mistral", "MistralForCausalLM"},
                                           {"qwen2", "Qwen2ForCausalLM"},
                                           {"qwen3", "Qwen3ForCausalLM"},
                                           {"gemma2", "Gemma2ForCausalLM"}}) {
    const std::string text =
        absl::StrReplaceAll(kQwen3, {{R"("architectures": ["Qwen3ForCausalLM"])",
                                      std::string(R"("model_type": ")") + type + R"(")"}});
    const auto config = ModelConfig::Parse(text);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->architecture, architecture);
  }
}

TEST(ModelConfigTest, ReadsRopeInOldAndNewKeys) {
  const std::string scaling =
      R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192)";
  const std::string base(kLlama);
  const std::string old_keys = absl::StrReplaceAll(
      base, {{R"("rope_theta": 10000.0)",
              R"("rope_theta": 500000.0, "rope_scaling": {"type": "llama3", )" + scaling + "}"}});
  const std::string new_keys = absl::StrReplaceAll(
      base,
      {{R"("rope_theta": 10000.0)",
        R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, )" + scaling + "}"}});
  for (const std::string& text : {old_keys, new_keys}) {
    const auto config = ModelConfig::Parse(text);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope.theta, 500000.0);
    EXPECT_TRUE(config->rope.llama3);
    EXPECT_EQ(config->rope.factor, 8.0);
    EXPECT_EQ(config->rope.high_freq_factor, 4.0);
    EXPECT_EQ(config->rope.original_max_positions, 8192);
  }
}

TEST(ModelConfigTest, RefusesRopeItDoesNotCompute) {
  EXPECT_THAT(With(kLlama, "rope_scaling", R"({"rope_type":"dynamic","factor":2})"),
              HasSubstr("rope_scaling: rope_type is \"dynamic\", which rotates a token"));
  EXPECT_THAT(With(kLlama, "rope_scaling", R"({"type":"longrope"})"), HasSubstr("longrope"));
  EXPECT_THAT(
      With(kLlama, "rope_parameters", R"({"rope_type":"yarn","factor":4})"),
      HasSubstr("rope_parameters: rope_type is \"yarn\"; supported are default and llama3"));
  EXPECT_THAT(With(kLlama, "rope_scaling", R"({"rope_type":"llama3","factor":0.5})"),
              HasSubstr("factor is 5E-1, want a number from 1 to 1e+06"));
  EXPECT_THAT(With(kLlama, "rope_scaling",
                   R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})"),
              HasSubstr("high_freq_factor is 4, want more than low_freq_factor"));
  EXPECT_THAT(With(kLlama, "rope_scaling", "[1]"), HasSubstr("want an object"));
  EXPECT_THAT(With(kLlama, "rope_theta", "-1"), HasSubstr("rope_theta is -1"));
  EXPECT_THAT(With(kLlama, "partial_rotary_factor", "0.5"), HasSubstr("only whole heads"));
  EXPECT_THAT(
      With(kLlama, "rope_parameters", R"({"rope_type":"default","partial_rotary_factor":0.5})"),
      HasSubstr("rope_parameters: partial_rotary_factor is 0.5; only whole heads"));
}

TEST(ModelConfigTest, RefusesUnknownArchitecturesByName) {
  EXPECT_THAT(With(kLlama, "architectures", R"(["MixtralForCausalLM"])"),
              HasSubstr("architectures names \"MixtralForCausalLM\"; supported are"));
  EXPECT_THAT(With(kLlama, "architectures", "[]"), HasSubstr("want a list of one string"));
  const auto by_type = ModelConfig::Parse(R"({"model_type": "mamba"})");
  EXPECT_EQ(by_type.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(by_type.status().message()), HasSubstr("\"mamba\""));
}

TEST(ModelConfigTest, ReadsWhatIsInFourBits) {
  const auto read = [](const std::string& value) {
    const auto config = Changed(kLlama, "quantization_config", value);
    TANDEM_CHECK(config.ok()) << config.status().message();
    return config->int4_format;
  };
  const Int4Format gptq = read(
      R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"dynamic":{},"sym":true})");
  EXPECT_EQ(gptq.method, Int4Format::Method::kGptq);
  EXPECT_EQ(gptq.group, 128);
  EXPECT_EQ(gptq.zero_less, 1);
  const Int4Format second =
      read(R"({"quant_method":"gptq","bits":4,"group_size":32,"checkpoint_format":"gptq_v2"})");
  EXPECT_EQ(second.zero_less, 0);
  const Int4Format awq =
      read(R"({"quant_method":"awq","bits":4,"group_size":64,"version":"GEMM","zero_point":true,)"
           R"("modules_to_not_convert":["lm_head"]})");
  EXPECT_EQ(awq.method, Int4Format::Method::kAwq);
  EXPECT_EQ(awq.group, 64);
  EXPECT_EQ(awq.zero_less, 0);
  EXPECT_FALSE(read("null").present());
}

TEST(ModelConfigTest, ReadsBlocksOfEightBitFloats) {
  using Sizes = std::pair<int64_t, int64_t>;
  const auto blocks = [](const std::string& value) {
    const auto config = Changed(kLlama, "quantization_config", value);
    TANDEM_CHECK(config.ok()) << config.status().message();
    EXPECT_TRUE(config->float8.present);
    EXPECT_FALSE(config->int4_format.present());
    return Sizes(config->float8.outputs, config->float8.inputs);
  };
  const auto compressed = [&](const std::string& weights) {
    return blocks(R"({"quant_method":"compressed-tensors","format":"float-quantized",)"
                  R"("config_groups":{"group_0":{"weights":{"num_bits":8,"type":"float")" +
                  weights + "}}}}");
  };
  EXPECT_EQ(blocks(R"({"quant_method":"fp8","weight_block_size":[128,64]})"), Sizes(128, 64));
  EXPECT_EQ(blocks(R"({"quant_method":"fp8","weight_block_size":null})"), Sizes(0, 0));
  EXPECT_EQ(blocks(R"({"quant_method":"fp8","activation_scheme":"static"})"), Sizes(0, 0));
  EXPECT_EQ(blocks(R"({"quant_method":"fbgemm_fp8"})"), Sizes(1, 0));
  EXPECT_EQ(compressed(""), Sizes(0, 0));
  EXPECT_EQ(compressed(R"(,"strategy":"tensor")"), Sizes(0, 0));
  EXPECT_EQ(compressed(R"(,"strategy":"channel")"), Sizes(1, 0));
  EXPECT_EQ(compressed(R"(,"strategy":"block","block_structure":[16,32])"), Sizes(16, 32));
  EXPECT_FALSE(Changed(kLlama, "quantization_config", "null")->float8.present);
}

TEST(ModelConfigTest, RefusesOtherFormatsOfEightBitFloatsByTheirField) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "fmt is \"e5m2\"; want e4m3"},
      {R"({"quant_method":"fp8","activation_scheme":"mixed"})",
       "activation_scheme is \"mixed\"; supported are dynamic and static"},
      {R"({"quant_method":"fp8","weight_block_size":[128]})",
       "weight_block_size is an array, want"},
      {R"({"quant_method":"fp8","weight_block_size":[128,0]})", "want a list of two sizes from 1"},
      {R"({"quant_method":"fp8","weight_block_size":[1e9,1]})", "want a list of two sizes from 1"},
      {R"({"quant_method":"fp8","weight_block_size":128})", "weight_block_size is 128, want"},
      {R"({"quant_method":"fp8","kv_cache_scheme":{"num_bits":8}})", "kv_cache_scheme is set"},
      {R"({"quant_method":"fbgemm_fp8","kv_cache_scheme":"static"})", "kv_cache_scheme is set"},
      {R"({"quant_method":"compressed-tensors"})", "format is missing"},
      {R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
       "format is \"pack-quantized\"; want float-quantized"}};
  for (const auto& [value, complaint] : refused) {
    EXPECT_THAT(With(kLlama, "quantization_config", value), HasSubstr(complaint)) << value;
  }
  const std::pair<const char*, const char*> compressed[] = {
      {R"("config_groups":{})", "config_groups has 0 groups; supported is one"},
      {R"("config_groups":{"a":{},"b":{}})", "config_groups has 2 groups"},
      {R"("config_groups":{"a":1})", "config_groups: a is no object"},
      {R"("config_groups":{"a":{"weights":null}})", "config_groups: a: weights is missing"},
      {R"("config_groups":{"a":{"format":"int-quantized"}})", "format is \"int-quantized\""},
      {R"("config_groups":{"a":{"output_activations":{"num_bits":8}}})",
       "output_activations is set"},
      {R"("transform_config":{"config_groups":{}})", "transform_config is set"},
      {R"("sparsity_config":{"format":"sparse-24-bitmask"})",
       "sparsity_config: format is \"sparse-24-bitmask\"; want dense"}};
  for (const auto& [fields, complaint] : compressed) {
    const std::string value = absl::StrCat(
        R"({"quant_method":"compressed-tensors","format":"float-quantized",)", fields, "}");
    EXPECT_THAT(With(kLlama, "quantization_config", value), HasSubstr(complaint)) << value;
  }
  const std::pair<const char*, const char*> weights[] = {
      {R"("num_bits":4,"type":"float")", "weights: num_bits is 4; want 8"},
      {R"("num_bits":8,"type":"int")", "weights: type is \"int\"; want float"},
      {R"("num_bits":8,"type":"float","symmetric":false)", "symmetric is false; want true"},
      {R"("num_bits":8,"type":"float","dynamic":true)", "dynamic is true"},
      {R"("num_bits":8,"type":"float","actorder":"weight")", "actorder is set"},
      {R"("num_bits":8,"type":"float","strategy":"group","group_size":128)",
       "strategy is \"group\"; supported are tensor, channel and block"},
      {R"("num_bits":8,"type":"float","strategy":"block")", "block_structure is missing, want"}};
  for (const auto& [fields, complaint] : weights) {
    const std::string value =
        absl::StrCat(R"({"quant_method":"compressed-tensors","format":"float-quantized",)",
                     R"("config_groups":{"a":{"weights":{)", fields, "}}}}");
    EXPECT_THAT(With(kLlama, "quantization_config", value), HasSubstr(complaint)) << value;
  }
}

TEST(ModelConfigTest, RefusesOtherQuantisationsByTheirField) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"bits":4})", "quant_method is missing"},
      {R"({"quant_method":"bitsandbytes","bits":4})",
       "quant_method is \"bitsandbytes\"; supported"},
      {R"({"quant_method":"gptq","bits":8,"group_size":128})", "bits is 8; want 4"},
      {R"({"quant_method":"gptq","bits":4,"group_size":-1})",
       "group_size is -1; want 32, 64 or 128"},
      {R"({"quant_method":"awq","bits":4,"group_size":256})", "group_size is 256"},
      {R"({"quant_method":"gptq","bits":4,"group_size":32,"desc_act":true})",
       "desc_act is true, which is not supported: inputs lie"},
      {R"({"quant_method":"gptq","bits":4,"group_size":32,"lm_head":true})", "lm_head is true"},
      {R"({"quant_method":"gptq","bits":4,"group_size":32,"checkpoint_format":"marlin"})",
       "checkpoint_format is \"marlin\""},
      {R"({"quant_method":"gptq","bits":4,"group_size":32,"format":"bitblas"})",
       "format is \"bitblas\""},
      {R"({"quant_method":"gptq","bits":4,"group_size":32,"dynamic":{"-:down":{}}})",
       "dynamic is set"},
      {R"({"quant_method":"awq","bits":4,"group_size":32,"version":"gemv"})",
       "version is \"gemv\""},
      {R"({"quant_method":"awq","bits":4,"group_size":32,"zero_point":false})",
       "zero_point is false"},
      {R"({"quant_method":"awq","bits":4,"group_size":32,"modules_to_not_convert":["q_proj"]})",
       "modules_to_not_convert is an array; all"}};
  for (const auto& [value, complaint] : refused) {
    EXPECT_THAT(With(kLlama, "quantization_config", value), HasSubstr(complaint)) << value;
  }
  EXPECT_THAT(With(kGpt2, "quantization_config", R"({"quant_method":"gptq"})"),
              HasSubstr("GPT2LMHeadModel has none"));
}

TEST(ModelConfigTest, RefusesWhatWouldChangeTheNumbers) {
  EXPECT_THAT(With(kLlama, "hidden_act", R"("relu")"), HasSubstr("silu and gelu_pytorch_tanh are"));
  EXPECT_THAT(With(kLlama, "torch_dtype", R"("float8_e4m3fn")"),
              HasSubstr("supported are float32, float16, bfloat16"));
  EXPECT_THAT(With(kGpt2, "activation_function", R"("relu")"), HasSubstr("is \"relu\"; silu"));
  EXPECT_THAT(With(kGpt2, "scale_attn_weights", "false"), HasSubstr("want true"));
  EXPECT_THAT(With(kGpt2, "scale_attn_by_inverse_layer_idx", "true"), HasSubstr("not supported"));
  EXPECT_THAT(With(kGpt2, "add_cross_attention", "true"), HasSubstr("add_cross_attention is true"));
  EXPECT_EQ(With(kGpt2, "reorder_and_upcast_attn", "true"), "accepted");
}

TEST(ModelConfigTest, RefusesSizesOutOfRangeNamingFieldAndLimit) {
  EXPECT_THAT(With(kLlama, "hidden_size", "-3"),
              HasSubstr("config.json: hidden_size is -3, want an integer from 1 to 65536"));
  EXPECT_THAT(With(kLlama, "hidden_size", "1e300"), HasSubstr("hidden_size"));
  EXPECT_THAT(With(kLlama, "hidden_size", "18446744073709551615"), HasSubstr("hidden_size"));
  EXPECT_THAT(With(kLlama, "hidden_size", "\"2048\""), HasSubstr("is \"2048\", want an integer"));
  EXPECT_THAT(With(kLlama, "num_hidden_layers", "0"), HasSubstr("num_hidden_layers is 0"));
  EXPECT_THAT(With(kLlama, "vocab_size", "2147483648"), HasSubstr("vocab_size"));
  EXPECT_EQ(With(kLlama, "vocab_size", "524288"), "accepted");
  EXPECT_THAT(With(kLlama, "vocab_size", "524289"), HasSubstr("524288"));
  EXPECT_THAT(With(kLlama, "num_key_value_heads", "5"), HasSubstr("does not divide the 32"));
  EXPECT_THAT(With(kLlama, "num_attention_heads", "31"), HasSubstr("do not divide"));
  EXPECT_THAT(With(kLlama, "head_dim", "63"), HasSubstr("want an even number"));
  EXPECT_THAT(With(kLlama, "head_dim", "258"), HasSubstr("want an integer from 2 to 256"));
  EXPECT_EQ(With(kLlama, "head_dim", "256"), "accepted");
  EXPECT_EQ(With(kLlama, "head_dim", "null"), "accepted");
  EXPECT_THAT(With(kLlama, "rms_norm_eps", "\"x\""), HasSubstr("want a number"));
  EXPECT_THAT(With(kLlama, "tie_word_embeddings", "1"), HasSubstr("want true or false"));
  EXPECT_THAT(With(kGpt2, "n_inner", "-1"), HasSubstr("n_inner"));
  EXPECT_EQ(With(kGpt2, "n_inner", "null"), "accepted");
}

TEST(ModelConfigTest, RefusesBrokenDeepAndHugeJson) {
  EXPECT_THAT(std::string(ModelConfig::Parse("").status().message()), HasSubstr("not JSON"));
  EXPECT_THAT(std::string(ModelConfig::Parse("[1, 2]").status().message()),
              HasSubstr("want an object"));
  EXPECT_THAT(std::string(ModelConfig::Parse("{\"a\":" + std::string(100, '[')).status().message()),
              HasSubstr("nested deeper than 16"));
  EXPECT_THAT(std::string(ModelConfig::Parse(std::string(2 << 20, ' ')).status().message()),
              HasSubstr("at most 1048576 are read"));
}

TEST(ModelConfigTest, LoadsAFolder) {
  const TempFolder folder;
  EXPECT_EQ(ModelConfig::Load(folder.path()).status().code(), absl::StatusCode::kNotFound);
  folder.Write("config.json", kLlama);
  EXPECT_TRUE(ModelConfig::Load(folder.path()).ok());
  std::filesystem::resize_file(folder.path() + "/config.json", 5 << 20);
  EXPECT_THAT(std::string(ModelConfig::Load(folder.path()).status().message()),
              HasSubstr("5242880 bytes, at most 1048576 are read"));
}

TEST(ServedNameTest, IsTheFoldersOwnWhateverWayLeadsToItUnlessOneIsGiven) {
  const TempFolder folder;
  const std::string own = folder.path() + "/own";
  std::filesystem::create_directory(own);
  std::filesystem::create_directory_symlink(own, folder.path() + "/link");
  for (const char* way : {"/own", "/own/", "/own/.", "/own/../own", "/link", "/link/"}) {
    EXPECT_EQ(*ServedName(folder.path() + way, ""), "own") << way;
  }
  EXPECT_EQ(*ServedName(own, "given"), "given");
}

TEST(ServedNameTest, IsWhatMessagesMayCarry) {
  const TempFolder folder;
  EXPECT_TRUE(ServedName(folder.path(), std::string(256, 'a')).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ServedName(folder.path(), std::string(257, 'a')).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ServedName(folder.path(), "x\xff").status()));
}

}  // namespace
}  // namespace tandem
