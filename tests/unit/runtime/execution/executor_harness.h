// Drives a ModelExecutor as an engine would, with nothing but what a test needs: sequences with
// blocks of their own, chunked prompts, batched decodes.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_EXECUTION_EXECUTOR_HARNESS_H_
#define TANDEM_TESTS_UNIT_RUNTIME_EXECUTION_EXECUTOR_HARNESS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/create_backend.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "runtime/execution/model_executor.h"
#include "runtime/model/model.h"
#include "tests/support/model_format.h"
#include "tests/support/sample_only.h"

namespace tandem {

struct TestSequence {
  std::vector<int32_t> tokens;  // Prompt, then what was generated.
  int32_t prompt_tokens = 0;
  int32_t computed = 0;  // KV exists for tokens[0 .. computed).
  SamplingParams sampling;
  std::vector<int32_t> blocks;
  std::vector<SampledToken> generated;
  std::vector<SampledToken> prompt_logprobs;
};

class ExecutorHarness {
 public:
  struct Options {
    std::string folder;
    std::string format = "f32";  // model_format.h
    LoadFormat load_format = LoadFormat::kSafetensors;
    BackendOptions backend;
    int32_t block_tokens = 16;
    int32_t max_sequences = 32;
    int32_t max_batched_tokens = 2048;
    int32_t max_model_tokens = 256;
    KvPoolMemory memory;
  };

  static absl::StatusOr<std::unique_ptr<ExecutorHarness>> Create(const Options& options) {
    std::unique_ptr<ExecutorHarness> harness(new ExecutorHarness());
    harness->block_tokens_ = options.block_tokens;
    TANDEM_ASSIGN_OR_RETURN(harness->backend_, CreateBackend(options.backend));
    ModelOptions model = InFormat(options.folder, options.format);
    model.load_format = options.load_format;
    TANDEM_ASSIGN_OR_RETURN(harness->model_, Model::Load(model, harness->backend_.get()));
    harness->blocks_per_sequence_ = CeilDiv(options.max_model_tokens, options.block_tokens);
    TANDEM_ASSIGN_OR_RETURN(
        harness->executor_,
        ModelExecutor::Create({.block_tokens = options.block_tokens,
                               .num_blocks = harness->blocks_per_sequence_ * options.max_sequences,
                               .max_sequences = options.max_sequences,
                               .max_batched_tokens = options.max_batched_tokens,
                               .max_model_tokens = options.max_model_tokens},
                              harness->model_.get(), harness->backend_.get(), options.memory));
    return harness;
  }

  // Blocks of a sequence are scattered over the pool, so that a table that is ignored shows.
  TestSequence NewSequence(std::vector<int32_t> prompt, SamplingParams sampling = {}) {
    TestSequence sequence;
    sequence.prompt_tokens = static_cast<int32_t>(prompt.size());
    sequence.tokens = std::move(prompt);
    sequence.sampling = std::move(sampling);
    for (int32_t i = 0; i < blocks_per_sequence_; ++i) {
      sequence.blocks.push_back(i * num_sequences_stride_ + num_sequences_);
    }
    ++num_sequences_;
    return sequence;
  }
  // Before the first NewSequence: how many there will be, at most max_sequences.
  void ReserveSequences(int32_t count) {
    num_sequences_stride_ = count;
    num_sequences_ = 0;
  }

  // One step over all sequences: each computes up to `chunk` of the tokens it lacks, and draws when
  // it has caught up. Prompt logprobs come along where sampling asks for them.
  void Step(std::span<TestSequence* const> sequences, int32_t chunk) {
    std::vector<SequenceRun> runs;
    std::vector<Draw> draws(sequences.size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      TestSequence& sequence = *sequences[i];
      const int32_t total = static_cast<int32_t>(sequence.tokens.size());
      const int32_t end = std::min(total, sequence.computed + chunk);
      SequenceRun run;
      run.token_ids = std::span<const int32_t>(sequence.tokens)
                          .subspan(static_cast<size_t>(sequence.computed),
                                   static_cast<size_t>(end - sequence.computed));
      run.first_position = sequence.computed;
      run.block_table = sequence.blocks;
      if (end == total) {
        draws[i] = {.sampling = &sequence.sampling, .prompt_tokens = sequence.prompt_tokens};
        run.draws = {&draws[i], 1};
      }
      if (sequence.computed < sequence.prompt_tokens) {
        run.num_prompt_logprobs = sequence.sampling.num_prompt_logprobs;
        run.next_token_id =
            end < sequence.prompt_tokens ? sequence.tokens[static_cast<size_t>(end)] : -1;
      }
      runs.push_back(run);
    }
    const absl::Status status = executor_->Execute({.runs = runs}, &output_);
    TANDEM_CHECK(status.ok()) << status.message();
    for (size_t i = 0; i < sequences.size(); ++i) {
      TestSequence& sequence = *sequences[i];
      const RunOutput& out = output_.runs[i];
      TANDEM_CHECK(out.status.ok()) << out.status.message();
      sequence.computed += static_cast<int32_t>(runs[i].token_ids.size());
      sequence.prompt_logprobs.insert(sequence.prompt_logprobs.end(), out.prompt_logprobs.begin(),
                                      out.prompt_logprobs.end());
      for (const SampledToken& token : out.drawn) {
        sequence.generated.push_back(token);
        sequence.tokens.push_back(token.token);
      }
    }
  }

  // Until each has `count` generated tokens.
  void Generate(std::span<TestSequence* const> sequences, int32_t chunk, size_t count) {
    while (true) {
      std::vector<TestSequence*> unfinished;
      for (TestSequence* sequence : sequences) {
        if (sequence->generated.size() < count) unfinished.push_back(sequence);
      }
      if (unfinished.empty()) return;
      Step(unfinished, chunk);
    }
  }

  ModelExecutor& executor() { return *executor_; }
  Backend& backend() { return *backend_; }
  const Model& model() const { return *model_; }

 private:
  ExecutorHarness() = default;

  int32_t block_tokens_ = 0;
  int32_t blocks_per_sequence_ = 0;
  int32_t num_sequences_stride_ = 1;
  int32_t num_sequences_ = 0;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelExecutor> executor_;
  StepOutput output_;
};

inline std::string TinyModel(const std::string& name) {
  return std::string(TANDEM_TEST_DATA) + "/tiny_models/" + name;
}
inline std::string DemoModel() { return std::string(TANDEM_TEST_DATA) + "/demo_model"; }

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_EXECUTION_EXECUTOR_HARNESS_H_
