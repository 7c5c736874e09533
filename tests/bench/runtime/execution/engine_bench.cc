// A model's forward pass beside the machine's limits: the half of tools/dev/bench_engine that runs
// our kernels.
//
//   engine_bench FOLDER WEIGHTS KV ISA THREADS NICENESS
//
// WEIGHTS is f32, bf16, or int8 or int4: bf16 with weights of 8 or 4 bits. KV is "auto" or what KV
// is kept in, NICENESS that of threads that compute (kernels/create_backend.h). Loads the
// checkpoint's shape with dummy weights and prints one JSON line: what it runs on, and the names of
// its limits. Then answers each line of standard input with one:
//
//   NAME          the seconds that the row takes
//   about NAME    JSON: its tokens, operations and bytes
//   profile NAME  JSON: the seconds by kind of operation, "all" of them together
//   each NAME     JSON: the seconds of each of its steps
//
// Rows are named by sizes: prefill_512; decode_16 or decode_16_at_8192 (behind so many tokens, 128
// where it is not said); shared_16_at_2048 (decoding with so many tokens in common and 128 of each
// behind them) and apart_16_at_2048 (the same with a copy of them each); gemm_512 (one projection);
// sampling_16 (draws of 128k logits, half greedy, half of top-p 0.95). So a driver can measure
// several processes in turn.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/cpu/kernel_table_x86.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/create_backend.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/execution/model_executor.h"
#include "tests/bench/kernels/bench_support.h"
#include "tests/bench/kernels/machine_limits.h"
#include "tests/bench/runtime/execution/timed_backend.h"

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kContext = 128;  // What decode rows have behind them, or each of its own.
constexpr int32_t kMaxSequences = 16;
constexpr int32_t kMaxPrompt = 2048;
constexpr int32_t kDecodeSteps = 8;
constexpr int64_t kSampledVocabulary = 128256;
// A limit is as many pieces, so that a thread that loses its core delays it little: ours are, too.
constexpr int64_t kLimitPieces = 64;
constexpr int64_t kLimitIterations = 50'000;
constexpr size_t kStreamBytes = size_t{512} << 20;

constexpr WeightType kInt4 = WeightType::kInt4;
constexpr int64_t kInt4Group = 32;  // As weights.cc makes them.

// What a row does, or what a limit shows that can be done, by kind.
struct Amounts {
  double operations = 0;       // Products and additions, of floating point...
  double int8_operations = 0;  // ...and of 8 bits.
  double bytes = 0;            // Read from memory.
};

struct Row {
  int32_t tokens = 0;  // 0: it is no forward pass.
  Amounts amounts;
  std::function<void()> run_step;
  int32_t steps = 1;
};

// Sequences that decode behind `shared` tokens in common and `own` ones each.
struct DecodeCase {
  int32_t sequences = 1;
  int32_t shared = 0;
  int32_t own = kContext;
  int32_t context() const { return shared + own; }
};

// "gate and up" and the like; "other" is gemm_512's.
std::string NameProjection(const ModelConfig& c, const LinearSpec& spec) {
  const int64_t outputs = spec.out_features;
  if (spec.in_features == c.ffn_size) return "down";
  if (outputs == 2 * c.ffn_size) return "gate and up";
  if (outputs == c.query_size() + 2 * c.kv_size()) return "qkv";
  if (outputs == c.vocab_size) return "logits";
  return outputs == c.hidden_size ? "output" : "other";
}

std::string ToJson(const std::map<std::string, double>& values) {
  return "{" +
         absl::StrJoin(values, ", ",
                       [](std::string* out, const auto& value) {
                         absl::StrAppendFormat(out, "\"%s\": %.9g", value.first, value.second);
                       }) +
         "}";
}

class Bench {
 public:
  Bench(const std::string& folder, const std::string& weights, const std::string& kv,
        const std::string& isa, int threads, int niceness)
      : backend_(Must(CreateBackend({.isa = isa, .num_threads = threads, .niceness = niceness})),
                 [this](const LinearSpec& spec) { return NameProjection(model_->config(), spec); }),
        model_(Must(Model::Load({.folder = folder,
                                 .load_format = LoadFormat::kDummy,
                                 .dtype = weights.starts_with("int") ? "bf16" : weights,
                                 .weights = weights.starts_with("int") ? weights : "auto",
                                 .kv = kv,
                                 .cache_dir = ""},
                                &backend_))),
        pool_(threads),
        stream_(Must(backend_.AllocatePinned(kStreamBytes))) {
    for (int32_t i = 0; i < kMaxPrompt; ++i) tokens_.push_back(16 + i * 7 % 1000);
    for (size_t i = 0; i < kStreamBytes; i += 64) stream_.data()[i] = std::byte{1};
    AddLimits();
  }

  void Serve() {
    const auto limit_name = [](std::string* out, const auto& limit) {
      absl::StrAppendFormat(out, "\"%s\"", limit.first);
    };
    Answer(absl::StrFormat(R"({"isa": "%s", "limits": [%s]})", backend_.isa(),
                           absl::StrJoin(rows_, ", ", limit_name)));
    for (std::string line; std::getline(std::cin, line);) {
      const size_t space = line.find(' ');  // Or npos, and the name is all of it.
      const std::string what = space == std::string::npos ? "" : line.substr(0, space);
      const Row& row = RowOf(line.substr(space + 1));
      if (what == "about") {
        Answer(ToJson({{"tokens", row.tokens},
                       {"operations", row.amounts.operations},
                       {"int8_operations", row.amounts.int8_operations},
                       {"bytes", row.amounts.bytes}}));
        continue;
      }
      backend_.TakeSeconds();
      const std::vector<double> seconds = TimeSteps(row);
      std::map<std::string, double> kinds = backend_.TakeSeconds();
      kinds["all"] = std::accumulate(seconds.begin(), seconds.end(), 0.0);
      if (what == "profile") {
        Answer(ToJson(kinds));
      } else if (what == "each") {
        Answer("[" + absl::StrJoin(seconds, ", ") + "]");
      } else {
        Answer(absl::StrFormat("%.6f", kinds["all"]));
      }
    }
  }

 private:
  // In seconds.
  static std::vector<double> TimeSteps(const Row& row) {
    std::vector<double> seconds;
    for (int32_t step = 0; step < row.steps; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      row.run_step();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      seconds.push_back(took.count());
    }
    return seconds;
  }

  static void Answer(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  const Row& RowOf(const std::string& name) {
    if (!rows_.contains(name)) rows_[name] = MakeRow(name);
    return rows_[name];
  }

  Row MakeRow(const std::string& name) {
    const std::vector<std::string> words = absl::StrSplit(name, '_');
    const std::string& what = words[0];
    int32_t size = 0, context = 0;
    TANDEM_CHECK(words.size() >= 2 && absl::SimpleAtoi(words[1], &size)) << "no row " << name;
    const bool at = words.size() == 4 && words[2] == "at" && absl::SimpleAtoi(words[3], &context);
    if (what == "decode" && at) return MakeDecode({.sequences = size, .own = context});
    if (what == "shared" && at) return MakeDecode({.sequences = size, .shared = context});
    if (what == "apart" && at) return MakeDecode({.sequences = size, .own = context + kContext});
    TANDEM_CHECK(words.size() == 2) << "no row " << name;
    if (what == "prefill") return MakePrefill(size);
    if (what == "decode") return MakeDecode({.sequences = size});
    if (what == "gemm") return MakeGemm(size);
    TANDEM_CHECK(what == "sampling") << "no row " << name;
    return MakeSampling(size);
  }

  bool has_weights_of(WeightType type) const { return model_->types().weights == type; }
  // With either, inputs are made 8 bits.
  bool int8() const { return has_weights_of(WeightType::kInt8) || has_weights_of(kInt4); }

  void AddLimits() {
    const std::string path = backend_.isa();
    AddLimit("limit_multiply_add", {.operations = RunMultiplyAdds(path, 1) * kLimitIterations},
             [path](int64_t) { RunMultiplyAdds(path, kLimitIterations); });
    if (path == "avx512bf16" && !has_weights_of(WeightType::kF32)) {
      AddLimit("limit_vdpbf16ps", {.operations = RunVdpbf16ps(1) * kLimitIterations},
               [](int64_t) { RunVdpbf16ps(kLimitIterations); });
    }
    if (path == "amx" && !has_weights_of(WeightType::kF32)) {
      AddLimit("limit_tdpbf16ps", {.operations = RunBf16Tiles(1) * kLimitIterations},
               [](int64_t) { RunBf16Tiles(kLimitIterations); });
    }
    if (int8()) {
      const bool tiles = has_weights_of(WeightType::kInt8) &&
                         (path == "amx" || path == "avx512bf16") &&
                         PickedInt8Method() == Int8Method::kTiles;
      const auto products = [path, tiles](int64_t iterations) {
        return tiles ? RunInt8Tiles(iterations) : RunInt8Products(path, iterations);
      };
      AddLimit("limit_int8", {.int8_operations = products(1) * kLimitIterations},
               [products](int64_t) { products(kLimitIterations); });
    }
    constexpr size_t kPiece = kStreamBytes / kLimitPieces;
    AddLimit("limit_read", {.bytes = static_cast<double>(kPiece)}, [this](int64_t piece) {
      sink_ = ReadMemory(stream_.data() + static_cast<size_t>(piece) * kPiece, kPiece);
    });
  }

  // `run` does `piece` for one of kLimitPieces.
  template <typename Run>
  void AddLimit(const std::string& name, const Amounts& piece, Run run) {
    rows_[name] = {.amounts = {.operations = piece.operations * kLimitPieces,
                               .int8_operations = piece.int8_operations * kLimitPieces,
                               .bytes = piece.bytes * kLimitPieces},
                   .run_step = [this, run] {
                     pool_.ParallelFor(kLimitPieces, [&](int64_t i, int) { run(i); });
                   }};
  }

  // At least as many blocks, all of them with the KV of some prompt.
  void Reserve(int32_t blocks) {
    if (blocks <= num_blocks_) return;
    num_blocks_ = blocks;
    executor_ = nullptr;  // Its pool first.
    executor_ =
        Must(ModelExecutor::Create({.block_tokens = kBlockTokens,
                                    .num_blocks = blocks,
                                    .max_sequences = kMaxSequences,
                                    .max_batched_tokens = kMaxPrompt,
                                    .max_model_tokens = std::min<int32_t>(
                                        blocks * kBlockTokens, model_->config().max_positions)},
                                   model_.get(), &backend_, {}));
    Execute({.own = 0}, kContext);
    std::vector<BlockCopy> copies;
    for (int32_t i = kContext / kBlockTokens; i < blocks; ++i) {
      copies.push_back({.source = i % (kContext / kBlockTokens), .destination = i});
    }
    Must(executor_->Execute({.copies = copies, .runs = {}}, &output_));
  }

  // `count` tokens of each sequence, and a greedy draw.
  void Execute(const DecodeCase& c, int32_t count) {
    const SamplingParams greedy{.temperature = 0};
    const Draw draw{.choice = 0, .sampling = &greedy, .prompt_tokens = 1};
    const int32_t shared_blocks = c.shared / kBlockTokens;
    const int32_t own_blocks = CeilDiv(c.own + count, kBlockTokens);
    std::vector<std::vector<BlockId>> tables(static_cast<size_t>(c.sequences));
    std::vector<SequenceRun> runs;
    BlockId next = shared_blocks;
    for (std::vector<BlockId>& table : tables) {
      for (BlockId i = 0; i < shared_blocks; ++i) table.push_back(i);
      for (int32_t i = 0; i < own_blocks; ++i) table.push_back(next++);
      runs.push_back({.token_ids = std::span(tokens_).first(static_cast<size_t>(count)),
                      .first_position = c.context(),
                      .block_table = table,
                      .draws = {&draw, 1}});
    }
    Must(executor_->Execute({.copies = {}, .runs = runs}, &output_));
    for (const RunOutput& run : output_.runs) {
      TANDEM_CHECK(run.status.ok() && run.drawn.size() == 1) << run.status.ToString();
    }
  }

  Row MakePrefill(int32_t tokens) {
    Reserve(CeilDiv(tokens, kBlockTokens));
    // Attention is causal, logits are those of one token.
    Amounts amounts = Products(2.0 * tokens * LayerWeights() + 2 * HeadWeights());
    amounts.operations += AttentionOperations(tokens * (tokens + 1.0) / 2);
    amounts.bytes = WeightBytes();
    return {tokens, amounts, [this, tokens] { Execute({.own = 0}, tokens); }};
  }

  Row MakeDecode(const DecodeCase& c) {
    Reserve(c.shared / kBlockTokens + c.sequences * CeilDiv(c.own + 1, kBlockTokens));
    const double token_bytes = static_cast<double>(executor_->block_bytes()) / kBlockTokens;
    Amounts amounts = Products(2.0 * c.sequences * (LayerWeights() + HeadWeights()));
    amounts.operations += AttentionOperations(1.0 * c.sequences * c.context());
    amounts.bytes = WeightBytes() + token_bytes * (c.shared + 1.0 * c.sequences * c.own);
    for (double* part : {&amounts.operations, &amounts.int8_operations, &amounts.bytes}) {
      *part *= kDecodeSteps;
    }
    return {kDecodeSteps * c.sequences, amounts, [this, c] { Execute(c, 1); }, kDecodeSteps};
  }

  // One feed-forward projection of the model.
  Row MakeGemm(int32_t rows) {
    const ModelConfig& c = model_->config();
    const LinearSpec spec{.in_features = c.hidden_size,
                          .out_features = c.ffn_size,
                          .weight_type = model_->types().weights,
                          .compute_dtype = model_->types().compute,
                          .output_dtype = DType::kF32,
                          .group = has_weights_of(kInt4) ? kInt4Group : 0};
    const size_t bytes = Must(backend_.GetPackedFormat(spec)).size_bytes;
    gemm_weights_ = Must(backend_.Allocate(bytes));
    gemm_ = Must(backend_.PrepareLinear(spec, gemm_weights_.data(), bytes));
    const auto allocate = [&](int64_t features) {
      return Must(backend_.Allocate(static_cast<size_t>(rows * features) * sizeof(float)));
    };
    gemm_input_ = allocate(c.hidden_size);
    gemm_output_ = allocate(c.ffn_size);
    return {0,
            Products(2.0 * rows * static_cast<double>(spec.in_features) *
                     static_cast<double>(spec.out_features)),
            [this, rows] {
              Must(backend_.Linear({.op = gemm_.get(),
                                    .input = gemm_input_.data(),
                                    .output = gemm_output_.data(),
                                    .num_rows = rows}));
            }};
  }

  Row MakeSampling(int32_t rows) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal(0.0f, 2.5f);
    std::vector<float> logits(static_cast<size_t>(rows * kSampledVocabulary));
    for (float& logit : logits) logit = normal(random);
    const size_t bytes = logits.size() * sizeof(float);
    logits_ = Must(backend_.Allocate(bytes));
    Must(backend_.Upload(logits_.data(), logits.data(), bytes));
    for (int32_t row = 0; row < rows; ++row) {
      const bool greedy = row % 2 == 0;
      queries_.push_back({.row = row,
                          .temperature = greedy ? 0.0f : 1.0f,
                          .top_p = greedy ? 1.0f : 0.95f,
                          .seed = static_cast<uint64_t>(row)});
    }
    drawn_.resize(queries_.size());
    return {0, {.bytes = static_cast<double>(bytes)}, [this, rows] {
              for (SampleQuery& query : queries_) ++query.position;
              Must(backend_.Sample({.logits = logits_.as<float>(),
                                    .num_rows = rows,
                                    .vocabulary = kSampledVocabulary,
                                    .queries = queries_.data(),
                                    .results = drawn_.data(),
                                    .count = rows}));
              Must(backend_.Synchronize());
              for (const auto& drawn : drawn_) Must(drawn.status());
            }};
  }

  // As products with the weights are taken.
  Amounts Products(double operations) const {
    return int8() ? Amounts{.int8_operations = operations} : Amounts{.operations = operations};
  }
  double LayerWeights() const {
    const ModelConfig& c = model_->config();
    const double hidden = c.hidden_size, head = c.head_dim;
    return c.num_layers * hidden *
           (2.0 * c.num_heads * head + 2.0 * c.num_kv_heads * head + 3.0 * c.ffn_size);
  }
  double HeadWeights() const {
    return static_cast<double>(model_->config().hidden_size) * model_->config().vocab_size;
  }
  double WeightBytes() const {
    const auto size = static_cast<double>(SizeOf(model_->types().compute));
    // In 4 bits a group has a scale of two bytes and a zero of one.
    const double each = has_weights_of(kInt4) ? 0.5 + 3.0 / kInt4Group : int8() ? 1 : size;
    return (LayerWeights() + HeadWeights()) * each;
  }
  // What attention does for so many pairs of a token and one that it sees.
  double AttentionOperations(double pairs) const {
    const ModelConfig& c = model_->config();
    return 4 * pairs * c.num_layers * c.num_heads * c.head_dim;
  }

  TimedBackend backend_;
  const std::unique_ptr<Model> model_;
  ThreadPool pool_;
  const PinnedBuffer stream_;
  volatile uint64_t sink_ = 0;
  int32_t num_blocks_ = 0;
  std::unique_ptr<ModelExecutor> executor_;
  std::vector<int32_t> tokens_;
  StepOutput output_;  // Reused, as an engine does.
  DeviceBuffer gemm_weights_, gemm_input_, gemm_output_;
  std::unique_ptr<LinearOp> gemm_;
  DeviceBuffer logits_;
  std::vector<SampleQuery> queries_;
  std::vector<absl::StatusOr<SampleResult>> drawn_;
  std::map<std::string, Row> rows_;  // Limits, and what has been asked for.
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: engine_bench FOLDER WEIGHTS KV ISA THREADS NICENESS\n");
    return 2;
  }
  tandem::Bench(argv[1], argv[2], argv[3], argv[4], std::atoi(argv[5]), std::atoi(argv[6])).Serve();
  return 0;
}
