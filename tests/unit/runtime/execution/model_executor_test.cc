#include "runtime/execution/model_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/fenced/fenced_backend.h"
#include "kernels/support/host_args.h"
#include "runtime/base/crc32c.h"
#include "tests/unit/runtime/execution/executor_harness.h"

namespace tandem {
namespace {

constexpr char kModel[] = "llama_gqa16_scaled_biased";

// On a device of that name.
class ModelExecutorTest : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<ExecutorHarness> MakeHarness(ExecutorHarness::Options options = {}) {
    if (options.folder.empty()) options.folder = TinyModel(kModel);
    options.backend.device = GetParam();
    auto harness = ExecutorHarness::Create(options);
    TANDEM_CHECK(harness.ok()) << harness.status().message();
    return *std::move(harness);
  }
};

SamplingParams Greedy() {
  SamplingParams sampling;
  sampling.temperature = 0;
  return sampling;
}

std::vector<int32_t> Prompt(int32_t length, int32_t step = 7) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back((5 + i * step) % 96);
  return ids;
}

// Workers leave that much beside their pool.
TEST_P(ModelExecutorTest, ScratchIsToldBeforeItIsAllocated) {
  ModelConfig config;
  config.hidden_size = 8;
  config.ffn_size = 16;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.vocab_size = 32;
  // Rotations of half a head; residual and norm; query, key and value; query and what it attends
  // to; the product of gate and up.
  const int64_t floats = 2 + 2 + 2 * 8 + (8 + 4 + 4) + 2 * 8 + 16;
  EXPECT_EQ(ModelExecutor::TokenScratchBytes(config, DType::kF32), 4 * floats);
  config.output_norms = true;  // What has a norm before it is added.
  EXPECT_EQ(ModelExecutor::TokenScratchBytes(config, DType::kF32), 4 * (floats + 8));
  EXPECT_EQ(ModelExecutor::LogitScratchBytes(config, DType::kF32), 64 * 4 * (8 + 8 + 32));
}

// Steps that decode are replayed (Backend::Replay), and their tables grow with the sequences.
TEST_P(ModelExecutorTest, DecodesOfLongTextsGiveTheLogprobsOfTheirPrefill) {
  const auto harness =
      MakeHarness({.folder = TinyModel("qwen3_gqa24_window_of_first"), .max_model_tokens = 1100});
  harness->ReserveSequences(3);
  SamplingParams sampling = Greedy();
  sampling.num_logprobs = 1;
  TestSequence generated = harness->NewSequence(Prompt(1018, 5), sampling);
  TestSequence beside = harness->NewSequence(Prompt(9), sampling);
  TestSequence* const both[] = {&generated, &beside};
  harness->Generate(both, 300, 14);
  sampling.num_prompt_logprobs = 1;
  TestSequence prefilled = harness->NewSequence(generated.tokens, sampling);
  TestSequence* const again[] = {&prefilled};
  harness->Step(again, 1100);
  const std::vector<SampledToken> tail(prefilled.prompt_logprobs.end() - 14,
                                       prefilled.prompt_logprobs.end());
  EXPECT_EQ(tail, generated.generated);
}

TEST_P(ModelExecutorTest, LogprobsOfGeneratedTokensEqualPromptLogprobsOfTheSameText) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(2);
  SamplingParams sampling = Greedy();
  sampling.num_logprobs = 3;
  TestSequence generated = harness->NewSequence(Prompt(20), sampling);
  TestSequence* const first[] = {&generated};
  harness->Generate(first, 64, 40);

  sampling.num_prompt_logprobs = 3;
  TestSequence scored = harness->NewSequence(generated.tokens, sampling);
  TestSequence* const second[] = {&scored};
  harness->Step(second, 128);
  ASSERT_EQ(scored.prompt_logprobs.size(), generated.tokens.size() - 1);
  const std::vector<SampledToken> tail(scored.prompt_logprobs.end() - 40,
                                       scored.prompt_logprobs.end());
  EXPECT_EQ(tail, generated.generated);
  EXPECT_EQ(tail[0].rank, 1);
  EXPECT_EQ(tail[0].top.size(), 3u);
}

TEST_P(ModelExecutorTest, PromptLogprobsDoNotDependOnChunks) {
  SamplingParams sampling = Greedy();
  sampling.num_prompt_logprobs = 2;
  std::vector<std::vector<SampledToken>> results;
  for (const int32_t chunk : {1, 16, 23, 256}) {
    const auto harness = MakeHarness();
    harness->ReserveSequences(1);
    TestSequence sequence = harness->NewSequence(Prompt(150), sampling);
    TestSequence* const sequences[] = {&sequence};
    harness->Generate(sequences, chunk, 1);
    results.push_back(sequence.prompt_logprobs);
  }
  ASSERT_EQ(results[0].size(), 149u);
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST_P(ModelExecutorTest, ACopiedBlockContinuesLikeItsSource) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(2);
  TestSequence source = harness->NewSequence(Prompt(20), Greedy());
  TestSequence copy = harness->NewSequence(Prompt(20), Greedy());
  TestSequence* const first[] = {&source};
  harness->Step(first, 64);

  StepOutput output;
  const std::vector<BlockCopy> copies = {{source.blocks[0], copy.blocks[5]},
                                         {copy.blocks[5], copy.blocks[0]},  // In order.
                                         {source.blocks[1], copy.blocks[5]},
                                         {source.blocks[1], copy.blocks[1]}};
  ASSERT_TRUE(harness->executor().Execute({.copies = copies}, &output).ok());
  uint32_t checksums[3] = {};
  const BlockId read[] = {source.blocks[0], source.blocks[1], copy.blocks[0]};
  ASSERT_TRUE(harness->executor().BlockChecksums(read, checksums).ok());
  EXPECT_EQ(checksums[0], checksums[2]);
  EXPECT_NE(checksums[0], checksums[1]);
  copy.tokens = source.tokens;
  copy.computed = source.computed;
  TestSequence* const both[] = {&source, &copy};
  for (int i = 0; i < 10; ++i) harness->Step(both, 64);
  EXPECT_EQ(copy.tokens, source.tokens);
  EXPECT_EQ(copy.tokens.size(), 31u);
}

TEST_P(ModelExecutorTest, EachDrawOfAPromptHasARandomStreamOfItsOwn) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(1);
  SamplingParams sampling;
  sampling.temperature = 2.0f;
  sampling.seed = 11;
  TestSequence sequence = harness->NewSequence(Prompt(20), sampling);
  std::vector<Draw> draws;
  for (int32_t choice = 0; choice < 32; ++choice) {
    draws.push_back({.choice = choice, .sampling = &sequence.sampling, .prompt_tokens = 20});
  }
  const SequenceRun run{
      .token_ids = sequence.tokens, .block_table = sequence.blocks, .draws = draws};
  StepOutput once, again;
  ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &once).ok());
  ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &again).ok());
  ASSERT_EQ(once.runs[0].drawn.size(), 32u);
  EXPECT_EQ(once.runs[0].drawn, again.runs[0].drawn);
  EXPECT_THAT(once.runs[0].drawn,
              testing::Contains(
                  testing::Field(&SampledToken::token, testing::Ne(once.runs[0].drawn[0].token))));
}

TEST_P(ModelExecutorTest, EachOfItsParametersAndItsPositionDecideADraw) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(1);
  const TestSequence sequence = harness->NewSequence(Prompt(20));
  const auto drawn = [&](const SamplingParams& sampling, size_t num_tokens = 20) {
    std::vector<Draw> draws;
    for (int32_t choice = 0; choice < 32; ++choice) {
      draws.push_back({.choice = choice, .sampling = &sampling, .prompt_tokens = 20});
    }
    const SequenceRun run{.token_ids = std::span(sequence.tokens).first(num_tokens),
                          .block_table = sequence.blocks,
                          .draws = draws};
    StepOutput output;
    EXPECT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &output).ok());
    std::vector<int32_t> tokens;
    for (const SampledToken& token : output.runs[0].drawn) tokens.push_back(token.token);
    return tokens;
  };
  SamplingParams flat;
  flat.temperature = 1e6f;  // All are as likely: chance alone decides.
  flat.seed = 11;
  const std::vector<int32_t> tokens = drawn(flat);
  EXPECT_EQ(drawn(flat), tokens);
  EXPECT_NE(drawn(flat, 19), tokens) << "where the token will be";
  SamplingParams changed = flat;
  changed.seed = 12;
  EXPECT_NE(drawn(changed), tokens);
  const std::vector<int32_t> best = drawn(Greedy());
  changed = flat;
  changed.top_k = 1;
  EXPECT_EQ(drawn(changed), best);
  changed = flat;
  changed.top_p = 1e-6f;
  EXPECT_EQ(drawn(changed), best);
}

TEST_P(ModelExecutorTest, ADrawTakesWhatItsMaskAllows) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(1);
  TestSequence sequence = harness->NewSequence(Prompt(20), Greedy());
  sequence.sampling.num_logprobs = 5;
  const Draw free_draw{.sampling = &sequence.sampling, .prompt_tokens = 20};
  SequenceRun run{
      .token_ids = sequence.tokens, .block_table = sequence.blocks, .draws = {&free_draw, 1}};
  StepOutput output;
  ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &output).ok());
  const SampledToken best = output.runs[0].drawn.at(0);
  // The fourth and the fifth best alone, and nothing.
  std::vector<uint32_t> words(static_cast<size_t>(harness->model().config().vocab_size + 31) / 32);
  Draw draws[] = {free_draw, free_draw, free_draw};
  const auto allow = [&](int32_t id) { words[static_cast<size_t>(id) / 32] |= 1u << id % 32; };
  allow(best.top[3].token);
  allow(best.top[4].token);
  draws[1].mask = {words};
  run.draws = draws;
  ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &output).ok());
  EXPECT_EQ(output.runs[0].drawn.at(0), best);
  EXPECT_EQ(output.runs[0].drawn.at(1).token, best.top[3].token);
  EXPECT_EQ(output.runs[0].drawn.at(1).rank, 4);
  EXPECT_EQ(output.runs[0].drawn.at(2), best);
  words.assign(words.size(), 0);
  ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &output).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(output.runs[0].status)) << "nothing is allowed";
}

TEST_P(ModelExecutorTest, StopTokensAreMaskedUntilMinTokens) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(2);
  TestSequence free_run = harness->NewSequence(Prompt(20), Greedy());
  TestSequence* const first[] = {&free_run};
  harness->Generate(first, 64, 3);
  SamplingParams sampling = Greedy();
  sampling.stop_token_ids = {free_run.generated[0].token};
  sampling.min_tokens = 2;
  sampling.logit_bias = {{sampling.stop_token_ids[0], 100.0f}};
  TestSequence masked = harness->NewSequence(Prompt(20), sampling);
  TestSequence* const second[] = {&masked};
  harness->Generate(second, 64, 3);
  EXPECT_NE(masked.generated[0].token, free_run.generated[0].token);
  EXPECT_NE(masked.generated[1].token, free_run.generated[0].token);
  EXPECT_EQ(masked.generated[2].token, free_run.generated[0].token) << "no longer than that";
}

TEST_P(ModelExecutorTest, ABiasChangesWhatIsDrawnAndNotItsLogprobs) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(3);
  SamplingParams sampling = Greedy();
  sampling.num_logprobs = 2;
  TestSequence free_run = harness->NewSequence(Prompt(20), sampling);
  TestSequence* const first[] = {&free_run};
  harness->Generate(first, 64, 1);
  const SampledToken& best = free_run.generated[0];
  sampling.logit_bias = {{best.token, -100.0f}};
  TestSequence banned = harness->NewSequence(Prompt(20), sampling);
  sampling.logit_bias = {{77, 100.0f}};
  TestSequence forced = harness->NewSequence(Prompt(20), sampling);
  TestSequence* const both[] = {&banned, &forced};
  harness->Generate(both, 64, 1);
  EXPECT_EQ(banned.generated[0].token, best.top[1].token);
  EXPECT_EQ(banned.generated[0].logprob, best.top[1].logprob);
  EXPECT_EQ(banned.generated[0].rank, 2);
  EXPECT_EQ(forced.generated[0].token, 77);
  EXPECT_EQ(banned.generated[0].top, best.top);
  EXPECT_EQ(forced.generated[0].top, best.top);
}

TEST_P(ModelExecutorTest, ARunWithoutDrawsGivesNoTokens) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(1);
  TestSequence sequence = harness->NewSequence(Prompt(40), Greedy());
  const SequenceRun run{.token_ids = sequence.tokens, .block_table = sequence.blocks};
  StepOutput output;
  ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &output).ok());
  EXPECT_TRUE(output.runs[0].drawn.empty());
  EXPECT_TRUE(output.runs[0].prompt_logprobs.empty());
  EXPECT_TRUE(output.runs[0].status.ok());
}

TEST_P(ModelExecutorTest, ASequenceWithBrokenNumbersFailsAlone) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(2);
  TestSequence good = harness->NewSequence(Prompt(20), Greedy());
  TestSequence broken = harness->NewSequence(Prompt(20), Greedy());
  TestSequence* const both[] = {&good, &broken};
  harness->Step(both, 64);
  const SampledToken want = good.generated[0];
  // NaNs in every number of the broken one's first block.
  const std::vector<float> nans(harness->executor().block_bytes() / sizeof(float), NAN);
  Backend& backend = harness->backend();
  ASSERT_TRUE(backend
                  .Upload(harness->executor().BlockAddress(broken.blocks[0]), nans.data(),
                          harness->executor().block_bytes())
                  .ok());
  ASSERT_TRUE(backend.Synchronize().ok());
  const Draw draw{.sampling = &good.sampling, .prompt_tokens = 20};
  std::vector<SequenceRun> runs;
  for (const TestSequence* sequence : {&good, &broken}) {
    runs.push_back({.token_ids = std::span<const int32_t>(sequence->tokens).subspan(19, 1),
                    .first_position = 19,
                    .block_table = sequence->blocks,
                    .draws = {&draw, 1}});
  }
  StepOutput output;
  ASSERT_TRUE(harness->executor().Execute({.runs = runs}, &output).ok());
  ASSERT_TRUE(output.runs[0].status.ok()) << output.runs[0].status.message();
  EXPECT_EQ(output.runs[0].drawn, std::vector<SampledToken>{want});
  EXPECT_EQ(output.runs[1].status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(output.runs[1].drawn.empty());
}

TEST_P(ModelExecutorTest, ASequenceOfWhichOneDrawFailsFails) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(1);
  SamplingParams broken = Greedy();
  broken.temperature = -1;
  TestSequence sequence = harness->NewSequence(Prompt(20), Greedy());
  const std::vector<Draw> draws = {{.choice = 0, .sampling = &broken, .prompt_tokens = 20},
                                   {.choice = 1, .sampling = &sequence.sampling}};
  const SequenceRun run{
      .token_ids = sequence.tokens, .block_table = sequence.blocks, .draws = draws};
  StepOutput output;
  ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &output).ok());
  EXPECT_EQ(output.runs[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(output.runs[0].drawn.empty());
}

// What the fenced device's poison is for: a table with a block that is no longer its sequence's.
TEST(ModelExecutorFencedTest, AReadOfADiscardedBlockIsCaught) {
  const auto harness =
      ExecutorHarness::Create({.folder = TinyModel(kModel), .backend = {.device = "fenced"}});
  ASSERT_TRUE(harness.ok()) << harness.status();
  ExecutorHarness& on = **harness;
  on.ReserveSequences(2);
  TestSequence kept = on.NewSequence(Prompt(20), Greedy());
  TestSequence freed = on.NewSequence(Prompt(20), Greedy());
  TestSequence* const both[] = {&kept, &freed};
  on.Step(both, 64);
  on.executor().Discard(freed.blocks[0]);
  const Draw draw{.sampling = &kept.sampling, .prompt_tokens = 20};
  std::vector<SequenceRun> runs;
  for (const TestSequence* sequence : both) {
    runs.push_back({.token_ids = std::span<const int32_t>(sequence->tokens).subspan(20, 1),
                    .first_position = 20,
                    .block_table = sequence->blocks,
                    .draws = {&draw, 1}});
  }
  StepOutput output;
  ASSERT_TRUE(on.executor().Execute({.runs = runs}, &output).ok());
  EXPECT_TRUE(output.runs[0].status.ok()) << output.runs[0].status;
  EXPECT_EQ(output.runs[1].status.code(), absl::StatusCode::kInternal);
}

// Each call of a step fails once: nothing of the step happens after it has returned, or in a later
// one, and the next is computed as if it had not been.
TEST(ModelExecutorFencedTest, AStepThatFailsAtAnyCallLeavesNothingBehind) {
  const auto harness =
      ExecutorHarness::Create({.folder = TinyModel(kModel), .backend = {.device = "fenced"}});
  ASSERT_TRUE(harness.ok()) << harness.status();
  ExecutorHarness& on = **harness;
  Backend& backend = on.backend();
  const size_t block_bytes = on.executor().block_bytes();
  const std::byte* const pool = OnHost(AcrossFence(on.executor().BlockAddress(0)));
  const std::span<const std::byte> all(pool, block_bytes * 16 * 32);
  on.ReserveSequences(3);
  TestSequence prompt = on.NewSequence(Prompt(40), Greedy());
  TestSequence* const one[] = {&prompt};
  on.Generate(one, 64, 2);
  const SampledToken want = prompt.generated.back();
  const BlockId copied = 1, chained = 2;  // Others' blocks, in a step's copies.
  const std::vector<std::byte> content(block_bytes, std::byte{3});  // What their next owners write.

  const Draw draw{.sampling = &prompt.sampling, .prompt_tokens = 40};
  const std::vector<SequenceRun> runs = {
      {.token_ids = std::span<const int32_t>(prompt.tokens).first(20),
       .block_table = prompt.blocks},
      {.token_ids = std::span<const int32_t>(prompt.tokens).subspan(40, 1),
       .first_position = 40,
       .block_table = prompt.blocks,
       .draws = {&draw, 1}}};
  const std::vector<BlockCopy> copies = {{.source = prompt.blocks[0], .destination = copied},
                                         {.source = copied, .destination = chained}};
  StepOutput output;
  int failed = 0;
  for (bool ok = false; !ok;) {
    FailCall(&backend, failed + 1);
    const absl::Status status = on.executor().Execute({.copies = copies, .runs = runs}, &output);
    FailCall(&backend, 0);
    const std::vector<std::byte> after(all.begin(), all.end());
    ok = status.ok();
    if (!ok) ++failed;
    ASSERT_TRUE(backend.Synchronize().ok());
    EXPECT_TRUE(std::equal(all.begin(), all.end(), after.begin())) << "call " << failed;
    for (const BlockId block : {copied, chained}) {
      ASSERT_TRUE(
          backend.Upload(on.executor().BlockAddress(block), content.data(), block_bytes).ok());
    }
    ASSERT_TRUE(on.executor().Execute({.runs = runs}, &output).ok());
    ASSERT_EQ(output.runs[1].drawn.size(), 1u) << "call " << failed;
    EXPECT_EQ(output.runs[1].drawn[0], want) << "call " << failed;
    for (const BlockId block : {copied, chained}) {
      uint32_t checksum = 0;
      ASSERT_TRUE(on.executor().BlockChecksums({&block, 1}, &checksum).ok());
      EXPECT_EQ(checksum, Crc32c(content.data(), block_bytes))
          << "block " << block << " after call " << failed;
    }
  }
  EXPECT_GT(failed, 20) << "calls of a step";
}

TEST_P(ModelExecutorTest, ShowsWorkInEveryLayer) {
  const auto harness = MakeHarness();
  harness->ReserveSequences(1);
  const uint64_t before = harness->executor().work_done();
  TestSequence sequence = harness->NewSequence(Prompt(40), Greedy());
  TestSequence* const sequences[] = {&sequence};
  harness->Step(sequences, 64);
  EXPECT_GE(harness->executor().work_done() - before,
            static_cast<uint64_t>(harness->model().config().num_layers));
}

TEST_P(ModelExecutorTest, UsesMemoryThatItIsGiven) {
  const auto own = MakeHarness();
  const size_t bytes = own->executor().block_bytes() * 16 * 32;
  void* const base = std::aligned_alloc(64, bytes);
  ExecutorHarness::Options options;
  options.memory = {base, bytes};
  {
    const auto harness = MakeHarness(options);
    harness->ReserveSequences(1);
    TestSequence sequence = harness->NewSequence(Prompt(16), Greedy());
    TestSequence* const sequences[] = {&sequence};
    harness->Step(sequences, 64);
    const BlockId block = sequence.blocks[0];
    const std::byte* const at = static_cast<std::byte*>(base) +
                                harness->executor().block_bytes() * static_cast<size_t>(block);
    std::vector<std::byte> bytes_there(harness->executor().block_bytes());
    Backend& backend = harness->backend();
    ASSERT_TRUE(backend
                    .Download(bytes_there.data(), harness->executor().BlockAddress(block),
                              bytes_there.size())
                    .ok());
    ASSERT_TRUE(backend.Synchronize().ok());
    EXPECT_EQ(0, std::memcmp(at, bytes_there.data(), bytes_there.size()));
    uint32_t checksum = 0;
    ASSERT_TRUE(harness->executor().BlockChecksums({&block, 1}, &checksum).ok());
    EXPECT_EQ(checksum, Crc32c(at, harness->executor().block_bytes()));
  }
  std::free(base);
}

// Whoever ends with a step under way has waited for it: its memory is others' then.
TEST_P(ModelExecutorTest, WhatIsBegunIsOverWhenTheExecutorIsGone) {
  const auto own = MakeHarness();
  const size_t block_bytes = own->executor().block_bytes();
  const size_t bytes = block_bytes * 16 * 2;
  auto* const base = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
  const TestSequence prompt = own->NewSequence(Prompt(200), Greedy());
  std::vector<BlockId> blocks;
  for (BlockId block = 0; block < 16; ++block) blocks.push_back(block);
  for (int i = 0; i < 20; ++i) {
    auto executor = ModelExecutor::Create(
        {.num_blocks = 32, .max_sequences = 1, .max_batched_tokens = 200, .max_model_tokens = 256},
        &own->model(), &own->backend(), {base, bytes});
    ASSERT_TRUE(executor.ok()) << executor.status();
    std::fill_n(base, bytes, std::byte{0xFF});
    const SequenceRun run{.token_ids = prompt.tokens, .block_table = blocks};
    (*executor)->Begin({.runs = {&run, 1}});
    executor->reset();
    const std::byte* const last = base + 12 * block_bytes;
    ASSERT_TRUE(std::any_of(last, last + block_bytes, [](std::byte x) {
      return x != std::byte{0xFF};
    })) << i;
  }
  std::free(base);
}

// Transports read it as soon as a step is done, whether somebody has waited for logits or not.
TEST_P(ModelExecutorTest, BlocksAreWrittenWhenAStepIsDone) {
  const auto own = MakeHarness();
  const size_t block_bytes = own->executor().block_bytes();
  const size_t bytes = block_bytes * 16 * 32;
  auto* const base = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
  std::fill_n(base, bytes, std::byte{0xFF});
  ExecutorHarness::Options options;
  options.memory = {base, bytes};
  const auto written = [&](BlockId block) {
    const std::byte* const at = base + block_bytes * static_cast<size_t>(block);
    return std::any_of(at, at + block_bytes, [](std::byte x) { return x != std::byte{0xFF}; });
  };
  {
    const auto harness = MakeHarness(options);
    harness->ReserveSequences(1);
    const TestSequence sequence = harness->NewSequence(Prompt(16), Greedy());
    const SequenceRun run{.token_ids = sequence.tokens, .block_table = sequence.blocks};
    StepOutput output;
    ASSERT_TRUE(harness->executor().Execute({.runs = {&run, 1}}, &output).ok());
    EXPECT_TRUE(written(sequence.blocks[0]));
    EXPECT_FALSE(written(sequence.blocks[1]));
    const BlockCopy copy{.source = sequence.blocks[0], .destination = sequence.blocks[1]};
    ASSERT_TRUE(harness->executor().Execute({.copies = {&copy, 1}}, &output).ok());
    EXPECT_TRUE(written(sequence.blocks[1]));
  }
  std::free(base);
}

TEST_P(ModelExecutorTest, RefusesOptionsThatDoNotFit) {
  const auto harness = MakeHarness();
  const auto create = [&](ModelExecutorOptions options, KvPoolMemory memory) {
    return ModelExecutor::Create(options, &harness->model(), &harness->backend(), memory).status();
  };
  const ModelExecutorOptions good{.block_tokens = 16,
                                  .num_blocks = 4,
                                  .max_sequences = 2,
                                  .max_batched_tokens = 32,
                                  .max_model_tokens = 64};
  EXPECT_TRUE(create(good, {}).ok());
  ModelExecutorOptions bad = good;
  bad.max_model_tokens = 100'000;
  EXPECT_THAT(std::string(create(bad, {}).message()),
              testing::HasSubstr("max_model_tokens: 100000, want 1 to 256"));
  bad = good;
  bad.max_batched_tokens = 1;
  EXPECT_THAT(std::string(create(bad, {}).message()),
              testing::HasSubstr("max_batched_tokens: 1, want 2 to"));
  bad = good;
  bad.block_tokens = 24;
  EXPECT_EQ(create(bad, {}).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.num_blocks = 0;
  EXPECT_EQ(create(bad, {}).code(), absl::StatusCode::kInvalidArgument);
  alignas(64) std::byte little[64];
  EXPECT_THAT(std::string(create(good, {little, sizeof(little)}).message()),
              testing::HasSubstr("KV memory of 64 bytes"));
}

INSTANTIATE_TEST_SUITE_P(Reference, ModelExecutorTest, testing::Values("reference"));
INSTANTIATE_TEST_SUITE_P(Fenced, ModelExecutorTest, testing::Values("fenced"));

}  // namespace
}  // namespace tandem
