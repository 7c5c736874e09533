// A short seeded run of the model fuzzers within the tests: valid documents, changed by a few
// random edits. Every change is reproducible from the seed that a failure prints.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/random.h"
#include "tests/fuzz/model_targets.h"

namespace tandem {
namespace {

constexpr int kRounds = 20'000;

constexpr std::string_view kSpice[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"",
                                       "\\",
                                       "null",
                                       "true",
                                       "-1",
                                       "0",
                                       "1e999",
                                       "0.5",
                                       "18446744073709551615",
                                       "9223372036854775807",
                                       "-9223372036854775808",
                                       "4294967296",
                                       "[[[[[",
                                       "\"../x.safetensors\"",
                                       "\"x.safetensors\"",
                                       "\"F32\"",
                                       "\"BOOL\"",
                                       "\"rope_type\":\"llama3\",",
                                       "\"dtype\"",
                                       "\"shape\"",
                                       "\"data_offsets\":[0,8]",
                                       "\"eos_token_id\":[1,2],",
                                       "\xFF",
                                       "\0"};

void MutateOnce(Random* random, std::string* text) {
  const size_t at = static_cast<size_t>(random->Below(text->size() + 1));
  switch (random->Below(7)) {
    case 0:  // A byte becomes another.
      if (at < text->size()) (*text)[at] = static_cast<char>(random->Next());
      return;
    case 1:  // A bit flips.
      if (at < text->size()) (*text)[at] = static_cast<char>((*text)[at] ^ 1 << random->Below(8));
      return;
    case 2:  // A stretch disappears.
      text->erase(at, static_cast<size_t>(random->Below(16)));
      return;
    case 3:  // A stretch appears twice.
      text->insert(at, text->substr(at, static_cast<size_t>(random->Below(32))));
      return;
    case 4:  // The end is cut off.
      if (random->Chance(0.2)) text->resize(at);
      return;
    case 5:  // Something meaningful at the wrong place.
      text->insert(at, kSpice[random->Below(std::size(kSpice))]);
      return;
    default: {  // A number becomes another one.
      const size_t digit = text->find_first_of("0123456789", at);
      if (digit == std::string::npos) return;
      size_t end = digit;
      while (end < text->size() && (*text)[end] >= '0' && (*text)[end] <= '9') ++end;
      text->replace(digit, end - digit, std::to_string(random->Next() >> random->Below(64)));
      return;
    }
  }
}

struct Corpus {
  const char* name;
  FuzzTarget target;
  std::vector<std::string> seeds;
};

std::string File(const std::string& header, size_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return text + header + std::string(data_bytes, 'x');
}

class ModelMutationsTest : public testing::TestWithParam<Corpus> {};

TEST_P(ModelMutationsTest, ChangedDocumentsAreRefusedOrKeepTheirPromises) {
  const Corpus& corpus = GetParam();
  const auto run = [&](const std::string& text) {
    return corpus.target({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  for (const std::string& seed : corpus.seeds) ASSERT_TRUE(run(seed)) << seed;
  int accepted = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << round);
    Random random(static_cast<uint64_t>(round));
    std::string text = corpus.seeds[random.Below(corpus.seeds.size())];
    for (uint64_t edits = 1 + random.Below(4); edits > 0; --edits) MutateOnce(&random, &text);
    accepted += run(text);
  }
  // Edits must reach behind the JSON parser: some documents stay good, most do not.
  EXPECT_GT(accepted, kRounds / 100);
  EXPECT_LT(accepted, kRounds * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(
    All, ModelMutationsTest,
    testing::Values(
        Corpus{"safetensors",
               FuzzSafetensors,
               {File(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                     R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
                     32),
                File(R"({"__metadata__":{"format":"pt"},"e":{"dtype":"U8","shape":[0],)"
                     R"("data_offsets":[0,0]}}        )",
                     0)}},
        Corpus{"safetensors_index",
               FuzzSafetensorsIndex,
               {R"({"metadata":{"total_size":9},"weight_map":{"a":"m-1.safetensors",)"
                R"("b":"m-2.safetensors"}})"}},
        Corpus{"config",
               FuzzModelConfig,
               {R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":96,)"
                R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
                R"("vocab_size":128,"eos_token_id":[2,5],"rope_theta":1e4,"rope_scaling":)"
                R"({"type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,)"
                R"("original_max_position_embeddings":64},"torch_dtype":"float16"})",
                R"({"model_type":"gpt2","n_embd":64,"n_head":4,"n_layer":2,"n_positions":128,)"
                R"("vocab_size":128,"bos_token_id":1,"layer_norm_epsilon":1e-5})"}},
        Corpus{"generation_config",
               FuzzGenerationConfig,
               {R"({"bos_token_id":1,"eos_token_id":[2,5],"temperature":0.6})",
                R"({"eos_token_id":63})"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem
