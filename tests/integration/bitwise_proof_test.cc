// Same bits, whatever the way (docs/numerics.md). Every test here runs variants of the product
// {alone, batch of 32} x {chunk 16, 64, 100, whole} x {threads 1, 2, 3} x {block 16, 32} x
// {cold, prefix hit, preempted, resumed} x {hybrid, disaggregated}, 384 of them:
//   - the whole product in F32 and BF16, with a few short requests (demo model) or on tiny
//     checkpoints, each worker of a variant with another instruction set of the class
//     (PathsOfOneClass); a random sample of it in the formats with quantised numbers;
//   - a random sample of it, with prompts of 1 to 1,100 tokens, which cross every border that there
//     is (blocks, tiles of 64, segments of 1,024). TANDEM_FULL=1: the whole product with these.
// The seed of the sample is printed; TANDEM_SEED sets it.

#include "tests/integration/bitwise_proof.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_replace.h"
#include "runtime/base/math.h"
#include "runtime/base/random.h"
#include "runtime/base/small_file.h"
#include "tests/integration/proof_requests.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

constexpr int32_t kDemoVocabulary = 4096, kTinyVocabulary = 96;
constexpr size_t kSampleSize = 12, kQuantizedSampleSize = 6;

std::string Demo() { return std::string(TANDEM_TEST_DATA) + "/demo_model"; }
std::string Tiny(const std::string& name) {
  return std::string(TANDEM_TEST_DATA) + "/tiny_models/" + name;
}

class BitwiseProofTest : public testing::TestWithParam<std::string> {
 protected:
  static bool Full() {
    const char* const full = std::getenv("TANDEM_FULL");
    return full != nullptr && std::string(full) == "1";
  }

  static Random NewRandom() {
    const char* const given = std::getenv("TANDEM_SEED");
    const uint64_t seed =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("TANDEM_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return Random(seed);
  }

  static bool Quantizes() { return GetParam().find('_') != std::string::npos; }

  // The product, its variants on paths drawn from the seed, half of them with steps that overlap.
  // What a format does not change is proven with the others, so those that quantise have a sample.
  static std::vector<ProofVariant> All() {
    if (Quantizes() && !Full()) return Sample();
    Random random = NewRandom();
    std::vector<ProofVariant> all = AllProofVariants();
    for (ProofVariant& variant : all) {
      variant.first_path = random.Below(12);
      variant.overlap_steps = random.Chance(0.5);
    }
    return all;
  }

  static std::vector<ProofVariant> Sample() {
    Random random = NewRandom();
    const std::vector<ProofVariant> all = AllProofVariants();
    std::vector<ProofVariant> sample;
    for (size_t i = 0; i < (Quantizes() ? kQuantizedSampleSize : kSampleSize); ++i) {
      sample.push_back(all[random.Below(all.size())]);
      sample.back().first_path = i;
      sample.back().overlap_steps = i % 2 == 0;
    }
    return sample;
  }

  static void CheckAll(BitwiseProof* proof, const std::vector<ProofVariant>& variants) {
    const auto begin = std::chrono::steady_clock::now();
    int failures = 0;
    for (const ProofVariant& variant : variants) {
      const std::string error = proof->Check(variant);
      EXPECT_EQ(error, "") << variant.ToString();
      ASSERT_LT(failures += !error.empty(), 10) << "no more of them";
    }
    std::printf(
        "%zu variants, %lld sampled tokens compared, %lld KV frames, %lld tokens recomputed after "
        "preemption, %.1f s\n",
        variants.size(), static_cast<long long>(proof->comparisons()),
        static_cast<long long>(proof->frames()), static_cast<long long>(proof->recomputed()),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
};

TEST_P(BitwiseProofTest, DemoModelGivesTheSameBitsInTheWholeProduct) {
  BitwiseProof proof(Demo(), GetParam(), ShortSet(kDemoVocabulary));
  CheckAll(&proof, All());
}

TEST_P(BitwiseProofTest, DemoModelGivesTheSameBitsForLongPrompts) {
  BitwiseProof proof(Demo(), GetParam(), LongSet(kDemoVocabulary));
  CheckAll(&proof, Full() ? All() : Sample());
}

TEST_P(BitwiseProofTest, TinyLlamaGivesTheSameBits) {
  BitwiseProof proof(Tiny("llama_gqa16_scaled_biased"), GetParam(), ShortSet(kTinyVocabulary));
  CheckAll(&proof, All());
}

TEST_P(BitwiseProofTest, TinyGpt2GivesTheSameBits) {
  BitwiseProof proof(Tiny("gpt2_heads32_unprefixed"), GetParam(), ShortSet(kTinyVocabulary));
  CheckAll(&proof, All());
}

// Windows of 5 tokens in all layers; of 7 in one of two, with norms of heads.
TEST_P(BitwiseProofTest, TinyMistralGivesTheSameBits) {
  BitwiseProof proof(Tiny("mistral_gqa16_window5"), GetParam(), ShortSet(kTinyVocabulary));
  CheckAll(&proof, All());
}

TEST_P(BitwiseProofTest, TinyQwen3GivesTheSameBits) {
  BitwiseProof proof(Tiny("qwen3_gqa24_window_of_first"), GetParam(), ShortSet(kTinyVocabulary));
  CheckAll(&proof, All());
}

// Caps of scores and logits, norms behind, a window of every other layer.
TEST_P(BitwiseProofTest, TinyGemma2GivesTheSameBits) {
  BitwiseProof proof(Tiny("gemma2_gqa16_window7"), GetParam(), ShortSet(kTinyVocabulary));
  CheckAll(&proof, All());
}

TEST_P(BitwiseProofTest, WindowsGiveTheSameBitsForLongPrompts) {
  const TempFolder folder;  // With a window over several tiles, and a border of segments.
  folder.CopyFrom(Tiny("qwen3_gqa24_window_of_first"));
  const std::string path = folder.path() + "/config.json";
  const std::string config = ReadSmallFile(path, 1 << 20).value();
  folder.Write(
      "config.json",
      absl::StrReplaceAll(config, {{R"("sliding_window": 7)", R"("sliding_window": 200)"}}));
  BitwiseProof proof(folder.path(), GetParam(), LongSet(kTinyVocabulary));
  CheckAll(&proof, Full() ? All() : Sample());
}

// A text of 1,100 tokens where there is memory for a window of 200 and a chunk.
TEST_P(BitwiseProofTest, WindowsGiveTheSameBitsInAPoolThatNoLongTextFits) {
  const TempFolder folder;
  folder.CopyFrom(Tiny("mistral_gqa16_window5"));
  const std::string path = folder.path() + "/config.json";
  const std::string config = ReadSmallFile(path, 1 << 20).value();
  folder.Write(
      "config.json",
      absl::StrReplaceAll(config, {{R"("sliding_window": 5)", R"("sliding_window": 200)"}}));
  BitwiseProof proof(folder.path(), GetParam(), LongSet(kTinyVocabulary),
                     {PathsOfOneClass().front(), kFencedPath});
  for (ProofVariant variant : AllProofVariants()) {
    if (variant.state != KvState::kCold || variant.chunk == 0) continue;
    variant.overlap_steps = variant.batch;
    const int32_t step_tokens = variant.chunk + (variant.batch ? ProofRun::kBatch : 0);
    const int32_t blocks = CeilDiv(200 + step_tokens, variant.block_tokens) + 2;
    EXPECT_EQ(proof.CheckInPool(variant, blocks), "") << variant.ToString();
  }
}

TEST_P(BitwiseProofTest, GeneratedTokensScoreAsTheSameTextInAPrompt) {
  BitwiseProof proof(Demo(), GetParam(), LongSet(kDemoVocabulary));
  for (const ProofVariant& variant :
       {ProofVariant{.first_path = 1},
        ProofVariant{.chunk = 64, .num_threads = 2, .disaggregated = true},
        ProofVariant{.batch = true, .chunk = 16, .num_threads = 3, .block_tokens = 32},
        ProofVariant{
            .batch = true, .chunk = 100, .num_threads = 2, .disaggregated = true, .first_path = 1},
        ProofVariant{.batch = true, .block_tokens = 32, .first_path = 2}}) {
    EXPECT_EQ(proof.CheckScores(variant), "") << variant.ToString();
  }
  EXPECT_GT(proof.comparisons(), 0);
}

// The class of machines without fused multiply-add has its own bits, and keeps them as well.
TEST_P(BitwiseProofTest, TheGenericPathGivesTheSameBits) {
  BitwiseProof proof(Tiny("llama_gqa16_scaled_biased"), GetParam(), ShortSet(kTinyVocabulary),
                     {"generic"});
  CheckAll(&proof, Sample());
}

// Fleets of a worker on the cpu and one on a device whose memory is elsewhere, which give each
// other blocks and have the bits of a cpu alone.
TEST_P(BitwiseProofTest, FencedAndCpuWorkersGiveTheSameBits) {
  const std::vector<std::string> paths = {PathsOfOneClass().front(), kFencedPath};
  for (const char* const name : {"llama_gqa16_scaled_biased", "gpt2_heads32_unprefixed",
                                 "qwen3_gqa24_window_of_first", "gemma2_gqa16_window7"}) {
    BitwiseProof proof(Tiny(name), GetParam(), ShortSet(kTinyVocabulary), paths);
    CheckAll(&proof, All());
  }
  BitwiseProof proof(Demo(), GetParam(), ShortSet(kDemoVocabulary), paths);
  CheckAll(&proof, Sample());
}

TEST_P(BitwiseProofTest, AFencedWorkerAloneGivesTheSameBits) {
  BitwiseProof proof(Tiny("mistral_gqa16_window5"), GetParam(), ShortSet(kTinyVocabulary),
                     {PathsOfOneClass().front(), kFencedPath});
  std::vector<ProofVariant> variants = Sample();
  for (ProofVariant& variant : variants) {
    variant.first_path = 1;
    variant.disaggregated = false;
  }
  CheckAll(&proof, variants);
}

// The comparison can fail: each format computes other numbers.
TEST(BitwiseProofItselfTest, DifferentNumbersAreSeen) {
  std::set<float> logprobs;
  for (const char* const format : {"f32", "bf16", "bf16_int8", "bf16_int8_outliers2", "bf16_int4",
                                   "bf16_kvint8", "bf16_kvint8g8", "bf16_kvfp8"}) {
    const BitwiseProof proof(Demo(), format, ShortSet(kDemoVocabulary));
    logprobs.insert(proof.reference(0).choices[0][0].logprob);
  }
  EXPECT_EQ(logprobs.size(), 8u);
}

INSTANTIATE_TEST_SUITE_P(All, BitwiseProofTest,
                         testing::Values("f32", "bf16", "bf16_int8", "bf16_int8_outliers2",
                                         "bf16_int4", "f32_kvbf16", "bf16_kvint8", "f32_kvint8g8",
                                         "bf16_kvfp8"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tandem
