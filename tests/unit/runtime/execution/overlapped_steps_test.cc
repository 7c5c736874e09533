// Steps that are begun before the tokens of the last ones are seen: each token is the one that its
// sequence has alone, on a device that computes while it is waited for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kernels/fenced/fenced_backend.h"
#include "runtime/base/random.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/runtime/execution/executor_harness.h"

namespace tandem {
namespace {

// Its weights are made up, so that the test needs no file, as on a machine that has nothing but a
// GPU.
constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
  "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 256,
  "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"
})";
constexpr int32_t kVocabulary = 96;
constexpr int32_t kBlockTokens = 16;

// What may follow `token`, where a sequence has a mask: about half of all, whatever is asked.
std::vector<uint32_t> AllowedAfter(int32_t token) {
  std::vector<uint32_t> words(kVocabulary / 32);
  for (int32_t id = 0; id < kVocabulary; ++id) {
    if ((id * 7 + token * 5) % 11 < 6) words[static_cast<size_t>(id) / 32] |= 1u << id % 32;
  }
  return words;
}

struct Sequence {
  std::vector<int32_t> tokens;  // as far as they are seen
  int32_t prompt_tokens = 0;
  SamplingParams sampling;
  bool masked = false;
  std::vector<BlockId> blocks;

  int32_t computed = 0;  // and begun: one less than there will be
  int32_t run = -1;      // of the step begun last; it draws what is not seen
  bool draws_wait = false;
  std::vector<SampledToken> generated;
};

// On a device of that name.
class OverlappedStepsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    seed_ = testing::UnitTest::GetInstance()->random_seed();
    if (seed_ == 0) seed_ = std::random_device()();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
    random_ = std::make_unique<Random>(seed_);
    folder_.Write("config.json", kConfig);
    auto harness = MakeHarness({.device = GetParam(), .isa = IsaOf(GetParam())});
    if (absl::IsFailedPrecondition(harness.status())) GTEST_SKIP() << harness.status();
    ASSERT_TRUE(harness.ok()) << harness.status();
    harness_ = *std::move(harness);
    ASSERT_TRUE(executor().overlaps_steps());
  }

  absl::StatusOr<std::unique_ptr<ExecutorHarness>> MakeHarness(const BackendOptions& backend) {
    return ExecutorHarness::Create({.folder = folder_.path(),
                                    .load_format = LoadFormat::kDummy,
                                    .backend = backend,
                                    .max_model_tokens = 128});
  }
  // With the host's bits.
  static std::string IsaOf(const std::string& device) { return device == "cuda" ? "fma" : "auto"; }

  ModelExecutor& executor() { return harness_->executor(); }
  int32_t Between(int32_t low, int32_t high) {
    return static_cast<int32_t>(random_->Between(low, high));
  }

  Sequence AnySequence(int32_t index, int32_t count) {
    Sequence sequence;
    sequence.prompt_tokens = Between(1, 40);
    for (int32_t i = 0; i < sequence.prompt_tokens; ++i) {
      sequence.tokens.push_back(Between(0, kVocabulary - 1));
    }
    sequence.sampling.temperature = random_->Chance(0.4) ? 0.0f : 1.0f;
    sequence.sampling.seed = random_->Next();
    if (random_->Chance(0.3)) sequence.sampling.num_logprobs = 2;
    if (random_->Chance(0.3)) sequence.sampling.top_k = 5;
    if (random_->Chance(0.3)) sequence.sampling.logit_bias = {{3, 4.0f}, {70, -2.0f}};
    if (random_->Chance(0.3)) {
      sequence.sampling.min_tokens = 4;
      sequence.sampling.stop_token_ids = {Between(0, 95), Between(0, 95)};
    }
    sequence.masked = random_->Chance(0.4);
    for (int32_t i = 0; i < 128 / kBlockTokens; ++i) sequence.blocks.push_back(i * count + index);
    return sequence;
  }

  // Begins a step of some of the sequences; each has its turn sooner or later.
  void Begin(std::vector<Sequence>* sequences) {
    const size_t number = begun_++;
    Step& step = steps_[number % 2];
    step.clear();
    std::vector<SequenceRun> runs;
    std::deque<Draw> draws;
    std::deque<std::vector<uint32_t>> masks;
    static const int32_t kUnseen[] = {kUnseenToken};
    for (Sequence& sequence : *sequences) {
      const bool unseen = sequence.run >= 0;
      if (!unseen && random_->Chance(0.2)) continue;
      SequenceRun run{.first_position = sequence.computed, .block_table = sequence.blocks};
      if (unseen) {
        run.token_ids = kUnseen;
        run.unseen_run = sequence.run;
      } else {
        run.token_ids = std::span<const int32_t>(sequence.tokens)
                            .subspan(static_cast<size_t>(sequence.computed));
      }
      run.last_position = sequence.computed + static_cast<int32_t>(run.token_ids.size());
      run.draws_wait = unseen && sequence.masked;
      if (!run.draws_wait) {
        Draw& draw = draws.emplace_back(
            Draw{.sampling = &sequence.sampling, .prompt_tokens = sequence.prompt_tokens});
        if (sequence.masked) {
          draw.mask.words = masks.emplace_back(AllowedAfter(sequence.tokens.back()));
        }
        run.draws = {&draw, 1};
      }
      sequence.computed += static_cast<int32_t>(run.token_ids.size());
      step.push_back(&sequence);
      runs.push_back(run);
    }
    for (Sequence& sequence : *sequences) sequence.run = -1;
    for (size_t i = 0; i < step.size(); ++i) {
      step[i]->run = static_cast<int32_t>(i);
      step[i]->draws_wait = runs[i].draws_wait;
    }
    executor().Begin({.runs = runs});
  }

  // Finishes the oldest step, and begins draws of the next one that waited for it.
  void Finish(double chance_of_a_late_mask) {
    const absl::StatusOr<StepOutput*> output = executor().Finish();
    ASSERT_TRUE(output.ok()) << output.status();
    const Step& step = steps_[finished_++ % 2];
    for (size_t i = 0; i < step.size(); ++i) {
      Sequence& sequence = *step[i];
      const RunOutput& run = (*output)->runs[i];
      ASSERT_TRUE(run.status.ok()) << run.status;
      for (const SampledToken& token : run.drawn) {
        sequence.tokens.push_back(token.token);
        sequence.generated.push_back(token);
      }
      // Nobody was to draw, so the next run computes this token once more.
      if (run.drawn.empty()) --sequence.computed;
      if (begun_ == finished_) sequence.run = -1;
    }
    if (begun_ == finished_) return;
    const Step& next = steps_[finished_ % 2];
    for (size_t i = 0; i < next.size(); ++i) {
      Sequence& sequence = *next[i];
      if (!sequence.draws_wait || random_->Chance(chance_of_a_late_mask)) continue;
      const std::vector<uint32_t> words = AllowedAfter(sequence.tokens.back());
      const SamplingParams sampling = sequence.sampling;  // Gone when this returns.
      const Draw draw{
          .sampling = &sampling, .prompt_tokens = sequence.prompt_tokens, .mask = {words}};
      executor().BeginDraws(static_cast<int32_t>(i), {&draw, 1});
    }
  }

  // The tokens of a sequence alone, on the host.
  std::vector<SampledToken> Alone(const Sequence& of, size_t count) {
    if (host_ == nullptr) {
      host_ = *MakeHarness({});
      EXPECT_FALSE(host_->executor().overlaps_steps());
    }
    std::vector<int32_t> tokens(of.tokens.begin(), of.tokens.begin() + of.prompt_tokens);
    std::vector<SampledToken> generated;
    size_t computed = 0;
    while (generated.size() < count) {
      const std::vector<uint32_t> words = AllowedAfter(tokens.back());
      const Draw draw{.sampling = &of.sampling,
                      .prompt_tokens = of.prompt_tokens,
                      .mask = {of.masked ? std::span(words) : std::span<const uint32_t>()}};
      const SequenceRun run{.token_ids = std::span<const int32_t>(tokens).subspan(computed),
                            .first_position = static_cast<int32_t>(computed),
                            .block_table = of.blocks,
                            .draws = {&draw, 1}};
      StepOutput output;
      EXPECT_TRUE(host_->executor().Execute({.runs = {&run, 1}}, &output).ok());
      computed = tokens.size();
      generated.push_back(output.runs.at(0).drawn.at(0));
      tokens.push_back(generated.back().token);
    }
    return generated;
  }

  using Step = std::vector<Sequence*>;

  TempFolder folder_;
  uint64_t seed_ = 0;
  std::unique_ptr<Random> random_;
  std::unique_ptr<ExecutorHarness> harness_, host_;
  Step steps_[2];
  size_t begun_ = 0, finished_ = 0;
};

TEST_P(OverlappedStepsTest, EachTokenIsTheOneOfItsSequenceAlone) {
  for (int round = 0; round < 6; ++round) {
    const int32_t count = Between(1, 12);
    std::vector<Sequence> sequences;
    for (int32_t i = 0; i < count; ++i) sequences.push_back(AnySequence(i, count));
    const double late = random_->Chance(0.5) ? 0.0 : 0.4;
    const int steps = Between(5, 40);
    for (int step = 0; step < steps; ++step) {
      Begin(&sequences);
      // Now and then the device runs dry, and everything is seen.
      if (begun_ - finished_ == 2) Finish(late);
      if (random_->Chance(0.1)) Finish(late);
      // Nothing to compute is a step, too, and takes turns with the others.
      StepOutput none;
      if (begun_ == finished_) {
        ASSERT_TRUE(executor().Execute({}, &none).ok());
      }
      ASSERT_FALSE(HasFailure());
    }
    while (begun_ > finished_) Finish(late);
    size_t generated = 0;
    for (const Sequence& sequence : sequences) {
      ASSERT_EQ(sequence.generated, Alone(sequence, sequence.generated.size()))
          << "temperature " << sequence.sampling.temperature << ", masked " << sequence.masked;
      generated += sequence.generated.size();
    }
    EXPECT_GT(generated, 0u);
  }
}

// Whatever call of a step fails: the next one, which stands on it, computes something and touches
// nothing that is not there; the one after that is as if neither had been.
using OverlappedFailuresTest = OverlappedStepsTest;
TEST_P(OverlappedFailuresTest, AStepThatFailsAtAnyCallDoesNoHarmToTheNext) {
  std::vector<Sequence> sequences;
  for (int32_t i = 0; i < 2; ++i) sequences.push_back(AnySequence(i, 2));
  sequences[0].masked = sequences[1].masked = false;
  const std::vector<SampledToken> want[] = {Alone(sequences[0], 1), Alone(sequences[1], 1)};
  static const int32_t kUnseen[] = {kUnseenToken};
  int failed = 0;
  for (bool ok = false; !ok;) {
    std::vector<Draw> draws;
    std::vector<SequenceRun> first, second;
    for (const Sequence& sequence : sequences) {
      draws.push_back({.sampling = &sequence.sampling, .prompt_tokens = sequence.prompt_tokens});
    }
    for (size_t i = 0; i < 2; ++i) {
      const Sequence& sequence = sequences[i];
      first.push_back(
          {.token_ids = sequence.tokens, .block_table = sequence.blocks, .draws = {&draws[i], 1}});
      second.push_back({.token_ids = kUnseen,
                        .unseen_run = static_cast<int32_t>(i),
                        .first_position = sequence.prompt_tokens,
                        .block_table = sequence.blocks,
                        .draws = {&draws[i], 1}});
    }
    FailCall(&harness_->backend(), failed + 1);
    executor().Begin({.runs = first});
    FailCall(&harness_->backend(), 0);
    executor().Begin({.runs = second});
    ok = executor().Finish().ok();
    if (!ok) ++failed;
    EXPECT_TRUE(executor().Finish().ok()) << "after call " << failed;
    StepOutput output;
    ASSERT_TRUE(executor().Execute({.runs = first}, &output).ok());
    for (size_t i = 0; i < 2; ++i) ASSERT_EQ(output.runs[i].drawn, want[i]) << "call " << failed;
  }
  EXPECT_GT(failed, 20) << "calls of a step";
}

// The same of a step whose draw waits: nobody knows yet that it has failed when that comes.
TEST_P(OverlappedFailuresTest, ADrawThatWaitedForAStepThatFailsIsNone) {
  const Sequence sequence = AnySequence(0, 1);
  const Draw draw{.sampling = &sequence.sampling, .prompt_tokens = sequence.prompt_tokens};
  static const int32_t kUnseen[] = {kUnseenToken};
  const SequenceRun first{
      .token_ids = sequence.tokens, .block_table = sequence.blocks, .draws = {&draw, 1}};
  const SequenceRun second{.token_ids = kUnseen,
                           .unseen_run = 0,
                           .first_position = sequence.prompt_tokens,
                           .block_table = sequence.blocks,
                           .draws_wait = true};
  int failed = 0;
  for (bool ok = false; !ok;) {
    executor().Begin({.runs = {&first, 1}});
    FailCall(&harness_->backend(), failed + 1);
    executor().Begin({.runs = {&second, 1}});
    const absl::StatusOr<StepOutput*> output = executor().Finish();
    ASSERT_TRUE(output.ok()) << output.status();
    const std::vector<uint32_t> words = AllowedAfter((*output)->runs.at(0).drawn.at(0).token);
    const Draw waited{
        .sampling = &sequence.sampling, .prompt_tokens = sequence.prompt_tokens, .mask = {words}};
    executor().BeginDraws(0, {&waited, 1});
    const absl::StatusOr<StepOutput*> over = executor().Finish();
    FailCall(&harness_->backend(), 0);
    ok = over.ok();
    if (!ok) ++failed;
    if (ok) {
      EXPECT_EQ((*over)->runs.at(0).drawn.size(), 1u);
    }
  }
  EXPECT_GT(failed, 20) << "calls of a step";
}

INSTANTIATE_TEST_SUITE_P(Devices, OverlappedStepsTest,
                         testing::Values(
#if defined(TANDEM_CUDA)
                             "cuda",
#endif
                             "fenced"),
                         [](const auto& device) { return device.param; });
INSTANTIATE_TEST_SUITE_P(Fenced, OverlappedFailuresTest, testing::Values("fenced"));

}  // namespace
}  // namespace tandem
