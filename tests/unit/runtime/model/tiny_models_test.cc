// Tiny random checkpoints against Transformers (tools/dev/make_model_goldens.py tiny).

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/create_backend.h"
#include "tests/unit/runtime/model/model_golden.h"

namespace tandem {
namespace {

class TinyModelTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(TinyModelTest, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const auto& [isa, name] = GetParam();
  const bool is_device = isa == "reference" || isa == "fenced";
  const BackendOptions options{
      .device = is_device ? isa : "cpu", .isa = is_device ? "auto" : isa, .num_threads = 2};
  auto backend = CreateBackend(options);
  if (!backend.ok()) {
    ASSERT_TRUE(absl::IsFailedPrecondition(backend.status())) << backend.status();
    GTEST_SKIP() << isa << " is not on this machine";
  }
  const auto comparison = CompareWithGolden(std::string(TANDEM_TEST_DATA) + "/tiny_models/" + name,
                                            *std::move(backend));
  ASSERT_TRUE(comparison.ok()) << comparison.status().message();
  EXPECT_EQ(comparison->num_texts, 3);
  EXPECT_EQ(comparison->wrong_texts, 0);
  EXPECT_LE(comparison->worst_logit, kLogitTolerance);
  std::printf("%s on %s: worst |Δ logit| / max |logit| of a row: %.2e\n", name.c_str(), isa.c_str(),
              static_cast<double>(comparison->worst_logit));
}

const auto kModels = testing::Values(
    "llama_gqa16_scaled_biased", "llama_mha32_tied", "llama_gqa64_bf16_sharded",
    "llama_gqa16_scaled_f16", "llama_gqa3_head80_own_output", "llama_gqa7_head112_mixed",
    "llama_mqa_head256_buffers", "gpt2_heads16", "gpt2_heads32_unprefixed", "gpt2_head96_buffers",
    "mistral_gqa16_window5", "mistral_head20_no_window_bf16", "qwen2_gqa16_window_of_last",
    "qwen2_gqa8_bf16_sharded", "qwen3_gqa24_window_of_first", "qwen3_mqa16_biased_tied_bf16",
    "gemma2_gqa16_window7", "gemma2_mqa20_biased_bf16_sharded", "llama_gqa16_gelu");

std::string NameOfCase(const testing::TestParamInfo<std::tuple<std::string, std::string>>& test) {
  return std::get<0>(test.param) + "_" + std::get<1>(test.param);
}

INSTANTIATE_TEST_SUITE_P(All, TinyModelTest,
                         testing::Combine(testing::Values("reference", "avx512bf16", "avx512",
                                                          "avx2", "generic"),
                                          kModels),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Fenced, TinyModelTest,
                         testing::Combine(testing::Values("fenced"), kModels), NameOfCase);

}  // namespace
}  // namespace tandem
