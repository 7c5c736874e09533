// Same bits whatever the batch, the chunk, the threads and the block size (docs/numerics.md): the
// executor's part of the proof. Log-probabilities are compared, not only tokens, so that a change
// in the last bit of a logit shows.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/random.h"
#include "tests/unit/runtime/execution/executor_harness.h"

namespace tandem {
namespace {

constexpr size_t kGenerated = 12;
constexpr int32_t kBatch = 32;

struct Case {
  std::string folder;
  std::string format;
};

// Prompt i of the batch; prompt 0 is the one that is compared.
std::vector<int32_t> RandomPrompt(int32_t index, int64_t vocab) {
  Random random(1000 + static_cast<uint64_t>(index));
  const int64_t length = index == 0 ? 150 : random.Between(1, 60);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocab))));
  }
  return ids;
}

SamplingParams Sampling() {
  SamplingParams sampling;
  sampling.temperature = 0.8f;
  sampling.top_p = 0.95f;
  sampling.seed = 42;
  sampling.num_logprobs = 5;
  sampling.num_prompt_logprobs = 5;
  return sampling;
}

struct Outcome {
  std::vector<SampledToken> generated;
  std::vector<SampledToken> prompt_logprobs;
  bool operator==(const Outcome&) const = default;
};

Outcome RunCase(const Case& model, int32_t batch, int32_t chunk, int threads,
                int32_t block_tokens) {
  auto harness = ExecutorHarness::Create({.folder = model.folder,
                                          .format = model.format,
                                          .backend = {.device = "cpu", .num_threads = threads},
                                          .block_tokens = block_tokens,
                                          .max_sequences = kBatch,
                                          .max_batched_tokens = 4096,
                                          .max_model_tokens = 192});
  TANDEM_CHECK(harness.ok()) << harness.status().message();
  (*harness)->ReserveSequences(batch);
  const int64_t vocab = (*harness)->model().config().vocab_size;
  std::vector<TestSequence> sequences;
  for (int32_t i = 0; i < batch; ++i) {
    sequences.push_back((*harness)->NewSequence(RandomPrompt(i, vocab), Sampling()));
  }
  std::vector<TestSequence*> pointers;
  for (TestSequence& sequence : sequences) pointers.push_back(&sequence);
  (*harness)->Generate(pointers, chunk, kGenerated);
  return {sequences[0].generated, sequences[0].prompt_logprobs};
}

class BitwiseTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(BitwiseTest, BatchChunkThreadsAndBlocksChangeNoBit) {
  const auto& [name, format] = GetParam();
  const Case model{name == "demo" ? DemoModel() : TinyModel(name), format};
  const Outcome want = RunCase(model, 1, 256, 1, 16);
  ASSERT_EQ(want.generated.size(), kGenerated);
  ASSERT_EQ(want.prompt_logprobs.size(), 149u);
  for (const int32_t batch : {1, kBatch}) {
    for (const int32_t chunk : {16, 64, 100, 256}) {
      // Threads and blocks vary along with the chunk, and all of them once on their own.
      for (const auto& [threads, block] : {std::pair{1, 16}, {2, 32}, {3, 16}, {3, 32}}) {
        if (chunk != 64 && threads == 3 && block == 32) continue;
        if (kSampleOnly && (name == "demo" || chunk != 64)) continue;
        EXPECT_EQ(RunCase(model, batch, chunk, threads, block), want)
            << "batch " << batch << ", chunk " << chunk << ", threads " << threads << ", block "
            << block;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BitwiseTest,
                         testing::Combine(testing::Values("demo", "llama_gqa16_scaled_biased"),
                                          testing::Values("f32", "bf16", "bf16_int8",
                                                          "bf16_int8_outliers2", "bf16_int4")),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param);
                         });

}  // namespace
}  // namespace tandem
