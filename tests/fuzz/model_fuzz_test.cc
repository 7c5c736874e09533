#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fuzz/model_fuzzer.h"
#include "tests/fuzz/mutation.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 20260302;
constexpr int kCount = 20'000;

struct Corpus {
  const char* name;
  ModelFile file;
  std::vector<std::string> documents;
};

std::string File(const std::string& header, size_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return text + header + std::string(data_bytes, 'x');
}

class ModelFuzzTest : public testing::TestWithParam<Corpus> {};

TEST_P(ModelFuzzTest, ChangedDocumentsAreRefusedOrKeepTheirPromises) {
  SCOPED_TRACE(kSeed);
  std::vector<std::string> inputs;
  for (const std::string& document : GetParam().documents) {
    inputs.push_back(static_cast<char>(GetParam().file) + document);
  }
  const auto num_accepted = [&](int count) {
    const int64_t before = NumAcceptedModelFiles();
    RunFuzzer(inputs, count, kSeed);
    return NumAcceptedModelFiles() - before;
  };
  EXPECT_EQ(num_accepted(0), std::ssize(inputs));
  // Edits must reach behind the JSON parser: some documents stay good, most do not.
  const int64_t accepted = num_accepted(kCount);
  EXPECT_GT(accepted, kCount / 100);
  EXPECT_LT(accepted, kCount * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(
    All, ModelFuzzTest,
    testing::Values(
        Corpus{"safetensors",
               ModelFile::kSafetensors,
               {File(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                     R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
                     32),
                File(R"({"__metadata__":{"format":"pt"},"e":{"dtype":"U8","shape":[0],)"
                     R"("data_offsets":[0,0]}}        )",
                     0),
                File(R"({"w":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]},)"
                     R"("w_scale_inv":{"dtype":"F32","shape":[],"data_offsets":[6,10]}})",
                     10)}},
        Corpus{"safetensors_index",
               ModelFile::kSafetensorsIndex,
               {R"({"metadata":{"total_size":9},"weight_map":{"a":"m-1.safetensors",)"
                R"("b":"m-2.safetensors"}})"}},
        Corpus{"config",
               ModelFile::kConfig,
               {R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
                R"("vocab_size":128,"eos_token_id":[2,5],"rope_theta":1e4,"rope_scaling":)"
                R"({"type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,)"
                R"("original_max_position_embeddings":64},"torch_dtype":"float16"})",
                R"({"model_type":"gpt2","n_embd":64,"n_head":4,"n_layer":2,"n_positions":128,)"
                R"("vocab_size":128,"bos_token_id":1,"layer_norm_epsilon":1e-5})",
                R"({"model_type":"mistral","hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":8,"vocab_size":128,)"
                R"("sliding_window":null})",
                R"({"model_type":"gemma2","hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"vocab_size":128,)"
                R"("hidden_activation":"gelu_pytorch_tanh","query_pre_attn_scalar":32,)"
                R"("attn_logit_softcapping":50.0,"final_logit_softcapping":null})",
                R"({"model_type":"qwen3","hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
                R"("vocab_size":128,"head_dim":32,"use_sliding_window":true,"sliding_window":9,)"
                R"("max_window_layers":1,"layer_types":["full_attention","sliding_attention"]})",
                R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"vocab_size":128,)"
                R"("quantization_config":{"quant_method":"gptq","bits":4,"group_size":128,)"
                R"("desc_act":false,"checkpoint_format":"gptq","dynamic":null}})",
                R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"vocab_size":128,)"
                R"("quantization_config":{"quant_method":"awq","bits":4,"group_size":64,)"
                R"("version":"gemm","zero_point":true,"modules_to_not_convert":["lm_head"]}})",
                R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"vocab_size":128,)"
                R"("quantization_config":{"quant_method":"fp8","activation_scheme":"dynamic",)"
                R"("fmt":"e4m3","weight_block_size":[128,128]}})",
                R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"vocab_size":128,)"
                R"("quantization_config":{"quant_method":"compressed-tensors",)"
                R"("format":"float-quantized","kv_cache_scheme":null,"ignore":["lm_head"],)"
                R"("config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":8,)"
                R"("type":"float","strategy":"block","block_structure":[128,128],)"
                R"("symmetric":true,"dynamic":false}}}}})"}},
        Corpus{"generation_config",
               ModelFile::kGenerationConfig,
               {R"({"bos_token_id":1,"eos_token_id":[2,5],"temperature":0.6})",
                R"({"eos_token_id":63})"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem
