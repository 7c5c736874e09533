// Whole models on an emulated GPU (kernels/cuda/emulated): what Transformers computes, and the
// proof of docs/numerics.md in short, in fleets with the CPU and of GPUs alone.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/random.h"
#include "tests/integration/bitwise_proof.h"
#include "tests/integration/proof_requests.h"
#include "tests/support/test_backend.h"
#include "tests/unit/runtime/model/model_golden.h"

namespace tandem {
namespace {

constexpr int32_t kTinyVocabulary = 96;

std::string Tiny(const std::string& name) {
  return std::string(TANDEM_TEST_DATA) + "/tiny_models/" + name;
}

bool HasEmulatedGpu() { return CreateTestBackend({.device = kEmulatedDevice}).ok(); }

class EmulatedGoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(EmulatedGoldenTest, LogitsAndGreedyTokensAreThoseOfTransformers) {
  if (!HasEmulatedGpu()) GTEST_SKIP() << "this machine lacks AVX2 or FMA";
  const auto comparison = CompareWithGolden(
      Tiny(GetParam()), *CreateTestBackend({.device = kEmulatedDevice, .isa = "fma"}));
  ASSERT_TRUE(comparison.ok()) << comparison.status().message();
  EXPECT_EQ(comparison->num_texts, 3);
  EXPECT_EQ(comparison->wrong_texts, 0);
  EXPECT_LE(comparison->worst_logit, kLogitTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedGoldenTest,
                         testing::Values("llama_gqa16_scaled_biased", "llama_gqa64_bf16_sharded",
                                         "llama_mqa_head256_buffers", "gpt2_heads32_unprefixed",
                                         "mistral_gqa16_window5", "qwen3_gqa24_window_of_first",
                                         "gemma2_gqa16_window7"),
                         [](const auto& test) { return test.param; });

class EmulatedProofTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasEmulatedGpu()) GTEST_SKIP() << "this machine lacks AVX2 or FMA";
    const char* const given = std::getenv("TANDEM_SEED");
    seed_ = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("TANDEM_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  // So many variants of the product, the workers of each beginning with another path.
  void Check(const std::string& model, const std::string& format,
             const std::vector<std::string>& paths, size_t variants) {
    BitwiseProof proof(Tiny(model), format, ShortSet(kTinyVocabulary), paths);
    Random random(seed_);
    const std::vector<ProofVariant> all = AllProofVariants();
    for (size_t i = 0; i < variants; ++i) {
      ProofVariant variant = all[random.Below(all.size())];
      variant.first_path = i;
      variant.overlap_steps = i % 2 == 0;
      EXPECT_EQ(proof.Check(variant), "") << variant.ToString();
    }
    EXPECT_GT(proof.comparisons(), 0);
  }

  uint64_t seed_ = 0;
};

TEST_F(EmulatedProofTest, GpusAndCpusGiveTheSameBits) {
  const std::vector<std::string> paths = {PathsOfOneClass().front(), kGpuPath};
  Check("llama_gqa16_scaled_biased", "f32", paths, 2);
  Check("qwen3_gqa24_window_of_first", "bf16_kvint8g8", paths, 2);
  Check("gemma2_gqa16_window7", "bf16_int8", paths, 1);
  Check("mistral_gqa16_window5", "bf16_kvint8", paths, 1);
  Check("llama_gqa64_bf16_sharded", "bf16_kvfp8", paths, 1);
  Check("llama_gqa16_scaled_biased", "bf16_int4", paths, 1);
}

// Heads of 64 numbers have kernels of their own there.
TEST_F(EmulatedProofTest, TensorCoresGiveTheSameBits) {
  Check("llama_gqa64_bf16_sharded", "bf16", {kTensorPath}, 2);
}

}  // namespace
}  // namespace tandem
