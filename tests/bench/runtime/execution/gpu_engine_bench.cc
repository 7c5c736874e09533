// What a GPU's steps cost a worker: a model of 8B's shape and dummy weights in bf16, through the
// executor that serves.
//
//   build/cuda/bench/gpu_engine_bench [REPETITIONS [LAYERS [DEVICE]]]      (7, 32, cuda)
//
//   weights   their way to the device, beside a copy from pinned memory
//   decode    steps of so many sequences, finished before the next begins, and overlapping: what
//   the
//             second saves is the host's time; and overlapping while the host does nothing for 200
//             us a step: what of that shows is not hidden. Both give the same tokens, or it ends
//   hybrid    a chunk of a prompt with decodes beside it (SARATHI, Agrawal et al., 2023): what a
//             decode costs alone, by what it adds to the chunk; and requests whose prompts and
//             outputs fill such steps, by prompts first, decodes then

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/create_backend.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/execution/model_executor.h"
#include "runtime/model/model.h"
#include "tests/bench/kernels/bench_support.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": %d, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
  "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"
})";

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kContext = 1024;  // behind each decode
constexpr int32_t kPromptTokens = 2048;
constexpr int32_t kMostSequences = 64;
constexpr int32_t kBlocksEach = (kPromptTokens + kContext) / kBlockTokens;
constexpr int32_t kSteps = 20;  // of one measurement
constexpr auto kBusy = std::chrono::microseconds(200);

double SecondsOf(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void BeBusy(std::chrono::microseconds busy) {
  const auto until = std::chrono::steady_clock::now() + busy;
  while (std::chrono::steady_clock::now() < until) {
  }
}

class Bench {
 public:
  Bench(int repetitions, int layers, const std::string& device) : repetitions_(repetitions) {
    folder_.Write("config.json", absl::StrFormat(kConfig, layers));
    absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend({.device = device});
    if (!backend.ok()) {
      std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
      std::exit(1);
    }
    backend_ = *std::move(backend);
    std::printf("%s, %d layers, medians of %d\n", backend_->isa().c_str(), layers, repetitions);
    const double load = SecondsOf([&] {
      model_ = Must(Model::Load({.folder = folder_.path(),
                                 .load_format = LoadFormat::kDummy,
                                 .dtype = "bf16",
                                 .cache_dir = ""},
                                backend_.get()));
    });
    std::printf("%-64s %9.1f s\n", "made up, packed and loaded", load);
    executor_ = Must(ModelExecutor::Create({.block_tokens = kBlockTokens,
                                            .num_blocks = kMostSequences * kBlocksEach,
                                            .max_sequences = kMostSequences,
                                            .max_batched_tokens = kPromptTokens + kMostSequences,
                                            .max_model_tokens = kPromptTokens + kContext},
                                           model_.get(), backend_.get(), {}));
    for (int32_t i = 0; i < kPromptTokens; ++i) tokens_.push_back(16 + i * 7 % 1000);
    for (int32_t s = 0; s < kMostSequences; ++s) {
      std::vector<BlockId>& table = tables_.emplace_back();
      for (int32_t i = 0; i < kBlocksEach; ++i) table.push_back(s * kBlocksEach + i);
    }
    Step({{.sequence = 0, .tokens = kContext}});
    std::vector<BlockCopy> copies;  // No KV is what memory happened to have.
    for (BlockId block = kContext / kBlockTokens; block < kMostSequences * kBlocksEach; ++block) {
      copies.push_back({.source = block % (kContext / kBlockTokens), .destination = block});
    }
    executor_->Begin({.copies = copies, .runs = {}});
    Finish();
  }

  void Run() {
    if (executor_->overlaps_steps()) Weights();
    for (const int32_t sequences : {1, 6, 32, 64}) Decode(sequences);
    for (const int32_t chunk : {256, 512}) Hybrid(chunk, 6);
    EndToEnd(/*chunk=*/512, /*batch=*/6);
  }

 private:
  // Tokens of a sequence from a position on; it draws.
  struct Part {
    int32_t sequence;
    int32_t position = 0;
    int32_t tokens = 1;
  };
  static std::vector<Part> Decodes(int32_t first, int32_t count) {
    std::vector<Part> parts;
    for (int32_t i = 0; i < count; ++i)
      parts.push_back({.sequence = first + i, .position = kContext});
    return parts;
  }

  // What a part of a step goes on after: a prompt, the token that was drawn last, which the host
  // has seen, or the one that the step before draws.
  enum class After { kPrompt, kSeen, kUnseen };

  void Begin(const std::vector<Part>& parts, After after) {
    static const int32_t kUnseen[] = {kUnseenToken};
    runs_.clear();
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      std::span<const int32_t> ids = std::span(tokens_).first(static_cast<size_t>(part.tokens));
      if (after == After::kSeen) ids = std::span(drawn_).subspan(i, 1);
      if (after == After::kUnseen) ids = kUnseen;
      runs_.push_back({.token_ids = ids,
                       .unseen_run = after == After::kUnseen ? static_cast<int32_t>(i) : -1,
                       .first_position = part.position,
                       .block_table = tables_[static_cast<size_t>(part.sequence)],
                       .draws = {&draw_, 1}});
    }
    executor_->Begin({.runs = runs_});
  }
  void Finish() {
    drawn_.clear();
    for (const RunOutput& run : Must(executor_->Finish())->runs) {
      Must(run.status);
      drawn_.push_back(run.drawn.at(0).token);
    }
  }
  void Step(const std::vector<Part>& parts) {
    Begin(parts, After::kPrompt);
    Finish();
  }

  double Median(const std::function<void()>& run) const {
    run();
    std::vector<double> seconds;
    for (int i = 0; i < repetitions_; ++i) seconds.push_back(SecondsOf(run));
    return tandem::Median(seconds);
  }
  static void Print(const std::string& name, double seconds, const std::string& behind = "") {
    std::printf("%-64s %9.1f us%s\n", name.c_str(), seconds * 1e6, behind.c_str());
  }

  void Weights() {
    constexpr size_t kBytes = size_t{1} << 30;
    const PinnedBuffer pinned = Must(backend_->AllocatePinned(kBytes));
    const DeviceBuffer device = Must(backend_->Allocate(kBytes));
    std::fill_n(pinned.data(), kBytes, std::byte{1});
    const std::vector<std::byte> pageable(kBytes + 64, std::byte{1});
    const size_t aligned = (64 - reinterpret_cast<uintptr_t>(pageable.data()) % 64) % 64;
    const double copy = Median([&] {
      Must(backend_->Upload(device.data(), pinned.data(), kBytes));
      Must(backend_->Synchronize());
    });
    const double place =
        Median([&] { Must(backend_->PlaceWeights(std::span(pageable).subspan(aligned, kBytes))); });
    Print("weights, 1 GiB: copied from pinned memory", copy);
    Print("weights, 1 GiB: through the staging ring", place,
          absl::StrFormat("  %.2f of the copy", copy / place));
  }

  // Steps that go on after each other, for each of which the host is also `busy`: what they have
  // drawn at last.
  std::vector<int32_t> Generate(std::vector<Part> parts, bool overlaps,
                                std::chrono::microseconds busy) {
    Begin(parts, After::kPrompt);
    for (int32_t i = 1; i < kSteps; ++i) {
      BeBusy(busy);
      for (Part& part : parts) ++part.position;
      if (!overlaps) Finish();
      Begin(parts, overlaps ? After::kUnseen : After::kSeen);
      if (overlaps) Finish();
    }
    Finish();
    return drawn_;
  }
  double StepSeconds(const std::vector<Part>& parts, bool overlaps,
                     std::chrono::microseconds busy) {
    return Median([&] { Generate(parts, overlaps, busy); }) / kSteps;
  }

  void Decode(int32_t sequences) {
    const std::vector<Part> parts = Decodes(0, sequences);
    const std::string name = absl::StrCat("decode of ", sequences, " behind ", kContext);
    using std::chrono::microseconds;
    const double alone = StepSeconds(parts, false, microseconds(0));
    Print(name + ", step after step", alone);
    if (!executor_->overlaps_steps()) return;
    TANDEM_CHECK(Generate(parts, true, microseconds(0)) == Generate(parts, false, microseconds(0)))
        << sequences << " sequences have other tokens where steps overlap";
    const double overlapped = StepSeconds(parts, true, microseconds(0));
    Print(name + ", overlapping", overlapped);
    const double busy = StepSeconds(parts, true, kBusy);
    Print(name + ", overlapping, the host busy for 200 us", busy,
          absl::StrFormat("  %.3f of the step shows", (busy - overlapped) / overlapped));
  }

  void Hybrid(int32_t chunk, int32_t decodes) {
    const std::vector<Part> decode = Decodes(0, decodes);
    const std::vector<Part> prompt = {{.sequence = decodes, .position = 1024, .tokens = chunk}};
    std::vector<Part> both = decode;
    both.push_back(prompt.front());
    const double of_decode = Median([&] { Step(decode); });
    const double of_chunk = Median([&] { Step(prompt); });
    const double of_both = Median([&] { Step(both); });
    const std::string name = absl::StrCat("hybrid, ", decodes, " decodes and ", chunk);
    Print(name + ": decodes alone", of_decode);
    Print(name + ": the chunk alone", of_chunk);
    Print(name + ": both", of_both,
          absl::StrFormat("  %.1f times cheaper", of_decode / (of_both - of_chunk)));
  }

  // Each request has a prompt of kPromptTokens / chunk chunks and as many outputs as there are
  // decodes beside these, so that all steps are alike.
  void EndToEnd(int32_t chunk, int32_t batch) {
    const int32_t chunks = kPromptTokens / chunk, outputs = chunks * (batch - 1);
    const double prompts_first = Median([&] {
      for (int32_t i = 0; i < batch; ++i) Step({{.sequence = i, .tokens = kPromptTokens}});
      for (int32_t i = 0; i < outputs; ++i) Step(Decodes(0, batch));
    });
    const double hybrid = Median([&] {
      for (int32_t i = 0; i < batch * chunks; ++i) {
        std::vector<Part> parts = Decodes(0, batch - 1);
        parts.push_back({.sequence = batch, .position = i % chunks * chunk, .tokens = chunk});
        Step(parts);
      }
    });
    const std::string name =
        absl::StrCat(batch, " requests of ", kPromptTokens, " in and ", outputs, " out");
    Print(name + ": prompts first", prompts_first);
    Print(name + ": chunks of " + std::to_string(chunk) + " with decodes", hybrid,
          absl::StrFormat("  %.2f times as fast", prompts_first / hybrid));
  }

  const int repetitions_;
  TempFolder folder_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelExecutor> executor_;
  std::vector<int32_t> tokens_;
  std::vector<std::vector<BlockId>> tables_;
  const SamplingParams greedy_{.temperature = 0};
  const Draw draw_{.sampling = &greedy_, .prompt_tokens = 1};
  std::vector<SequenceRun> runs_;
  std::vector<int32_t> drawn_;  // by each part of the step that was finished last
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // Who ends it has what was measured.
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 7;
  const int layers = argc > 2 ? std::atoi(argv[2]) : 32;
  if (repetitions <= 0 || layers <= 0 || argc > 4) {
    std::fprintf(stderr,
                 "usage: gpu_engine_bench [REPETITIONS [LAYERS [DEVICE]]]   (7, 32, cuda)\n");
    return 2;
  }
  tandem::Bench(repetitions, layers, argc > 3 ? argv[3] : "cuda").Run();
  return 0;
}
