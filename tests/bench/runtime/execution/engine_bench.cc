// A model's forward pass beside the machine's limits: the half of tools/dev/bench_engine that runs
// our kernels.
//
//   engine_bench FOLDER FORMAT ISA THREADS
//
// FORMAT is f32, bf16, or int8 or int4: bf16 with weights of 8 or 4 bits. Loads the checkpoint's
// shape with dummy weights, prints one JSON line (what it runs on, and each row's operations and
// bytes), then answers every row's name on a line of standard input with the seconds that it took.
// So a driver can measure several processes in turn.

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/create_backend.h"
#include "runtime/base/check.h"
#include "runtime/execution/model_executor.h"
#include "tests/bench/kernels/machine_limits.h"

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kContext = 128;  // What the decode rows have behind them.
constexpr int32_t kMaxSequences = 16;
constexpr int32_t kDecodeSteps = 8;
// A limit is as many pieces, so that a thread that loses its core delays it little: ours are, too.
constexpr int64_t kLimitPieces = 64;
constexpr int64_t kLimitIterations = 50'000;
constexpr size_t kStreamBytes = size_t{512} << 20;

template <typename T>
T Must(absl::StatusOr<T> value) {
  TANDEM_CHECK(value.ok()) << value.status().ToString();
  return *std::move(value);
}

constexpr WeightType kInt4 = WeightType::kInt4;
constexpr int64_t kInt4Group = 32;  // As weights.cc makes them.

// What a row does, or what a limit shows that can be done, by kind.
struct Amounts {
  double operations = 0;       // Products and additions, of floating point...
  double int8_operations = 0;  // ...and of 8 bits.
  double bytes = 0;            // Read from memory.
};

class Bench {
 public:
  Bench(const std::string& folder, const std::string& format, const std::string& isa, int threads)
      : threads_(threads),
        backend_(Must(CreateBackend({.isa = isa, .num_threads = threads}))),
        model_(Must(Model::Load({.folder = folder,
                                 .load_format = LoadFormat::kDummy,
                                 .dtype = format.starts_with("int") ? "bf16" : format,
                                 .weights = format.starts_with("int") ? format : "auto",
                                 .cache_dir = ""},
                                backend_.get()))),
        executor_(Must(ModelExecutor::Create({.block_tokens = kBlockTokens,
                                              .num_blocks = 4096 / kBlockTokens,
                                              .max_sequences = kMaxSequences,
                                              .max_batched_tokens = 4096,
                                              .max_model_tokens = 4096},
                                             model_.get(), backend_.get(), {}))),
        pool_(threads),
        stream_(Must(backend_->AllocatePinned(kStreamBytes))) {
    std::iota(table_.begin(), table_.end(), 0);
    for (int32_t i = 0; i < 4096; ++i) tokens_.push_back(16 + i * 7 % 1000);
    for (size_t i = 0; i < kStreamBytes; i += 64) stream_.data()[i] = std::byte{1};
    Execute(kMaxSequences, 0, kContext);
    Add("prefill_512_" + format, Operations(512), [this] { Execute(1, 0, 512); });
    for (const int32_t batch : {1, kMaxSequences}) {
      Add("decode_" + std::to_string(batch) + "_" + format,
          {.bytes = kDecodeSteps * DecodeBytes(batch)}, [this, batch] {
            for (int32_t i = 0; i < kDecodeSteps; ++i) Execute(batch, kContext, 1);
          });
    }
    AddGemm("gemm_512_" + format);
    const std::string path = backend_->isa();
    AddLimit("limit_multiply_add", {.operations = RunMultiplyAdds(path, 1) * kLimitIterations},
             [path](int64_t) { RunMultiplyAdds(path, kLimitIterations); });
    if (path == "avx512bf16" && format != "f32") {
      AddLimit("limit_vdpbf16ps", {.operations = RunVdpbf16ps(1) * kLimitIterations},
               [](int64_t) { RunVdpbf16ps(kLimitIterations); });
    }
    if (int8()) {
      const auto products = [path](int64_t iterations) {
        return path == "generic" ? RunMultiplyAdds(path, iterations)
                                 : RunInt8Products(path, iterations);
      };
      AddLimit("limit_int8", {.int8_operations = products(1) * kLimitIterations},
               [products](int64_t) { products(kLimitIterations); });
    }
    constexpr size_t kPiece = kStreamBytes / kLimitPieces;
    AddLimit("limit_read", {.bytes = static_cast<double>(kPiece)}, [this](int64_t piece) {
      sink_ = ReadMemory(stream_.data() + static_cast<size_t>(piece) * kPiece, kPiece);
    });
  }

  void Serve() {
    std::printf("{\"isa\": \"%s\", \"threads\": %d, \"rows\": {", backend_->isa().c_str(),
                threads_);
    const char* comma = "";
    for (const auto& [name, row] : rows_) {
      std::printf("%s\"%s\": {\"operations\": %.0f, \"int8_operations\": %.0f, \"bytes\": %.0f}",
                  comma, name.c_str(), row.amounts.operations, row.amounts.int8_operations,
                  row.amounts.bytes);
      comma = ", ";
    }
    std::printf("}}\n");
    std::fflush(stdout);
    for (std::string name; std::getline(std::cin, name);) {
      const auto row = rows_.find(name);
      TANDEM_CHECK(row != rows_.end()) << "no row " << name;
      const auto begin = std::chrono::steady_clock::now();
      row->second.run();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      std::printf("%.6f\n", seconds.count());
      std::fflush(stdout);
    }
  }

 private:
  struct Row {
    Amounts amounts;
    std::function<void()> run;
  };

  bool has_weights_of(WeightType type) const { return model_->types().weights == type; }
  // With either, inputs are made 8 bits.
  bool int8() const { return has_weights_of(WeightType::kInt8) || has_weights_of(kInt4); }

  void Add(const std::string& name, const Amounts& amounts, std::function<void()> run) {
    rows_[name] = {.amounts = amounts, .run = std::move(run)};
  }

  // `run` does `piece` for one of kLimitPieces.
  template <typename Run>
  void AddLimit(const std::string& name, const Amounts& piece, Run run) {
    const Amounts amounts{.operations = piece.operations * kLimitPieces,
                          .int8_operations = piece.int8_operations * kLimitPieces,
                          .bytes = piece.bytes * kLimitPieces};
    Add(name, amounts,
        [this, run] { pool_.ParallelFor(kLimitPieces, [&](int64_t i, int) { run(i); }); });
  }

  // As products with the weights are taken.
  Amounts Products(double operations) const {
    return int8() ? Amounts{.int8_operations = operations} : Amounts{.operations = operations};
  }

  // Tokens [first, first + count) of each sequence, and a greedy draw.
  void Execute(int32_t sequences, int32_t first, int32_t count) {
    const SamplingParams greedy{.temperature = 0};
    const Draw draw{.choice = 0, .sampling = &greedy, .prompt_tokens = 1};
    std::vector<SequenceRun> runs;
    for (int32_t i = 0; i < sequences; ++i) {
      // Alone, a sequence has all blocks.
      const size_t blocks = table_.size() / static_cast<size_t>(sequences);
      runs.push_back(
          {.token_ids =
               std::span(tokens_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
           .first_position = first,
           .block_table = std::span(table_).subspan(static_cast<size_t>(i) * blocks, blocks),
           .draws = {&draw, 1}});
    }
    const absl::Status status = executor_->Execute({.copies = {}, .runs = runs}, &output_);
    TANDEM_CHECK(status.ok()) << status.ToString();
    for (const RunOutput& run : output_.runs) {
      TANDEM_CHECK(run.status.ok() && run.drawn.size() == 1) << run.status.ToString();
    }
  }

  // One feed-forward projection of the model over 512 rows.
  void AddGemm(const std::string& name) {
    const ModelConfig& c = model_->config();
    const LinearSpec spec{.in_features = c.hidden_size,
                          .out_features = c.ffn_size,
                          .weight_type = model_->types().weights,
                          .compute_dtype = model_->types().compute,
                          .output_dtype = DType::kF32,
                          .group = has_weights_of(kInt4) ? kInt4Group : 0};
    const size_t bytes = Must(backend_->GetPackedFormat(spec)).size_bytes;
    gemm_weights_ = Must(backend_->Allocate(bytes));
    gemm_ = Must(backend_->PrepareLinear(spec, gemm_weights_.data(), bytes));
    gemm_input_ = Must(backend_->Allocate(512 * static_cast<size_t>(c.hidden_size) * 4));
    gemm_output_ = Must(backend_->Allocate(512 * static_cast<size_t>(c.ffn_size) * 4));
    Add(name,
        Products(2.0 * 512 * static_cast<double>(spec.in_features) *
                 static_cast<double>(spec.out_features)),
        [this] {
          const absl::Status status = backend_->Linear({.op = gemm_.get(),
                                                        .input = gemm_input_.data(),
                                                        .output = gemm_output_.data(),
                                                        .num_rows = 512});
          TANDEM_CHECK(status.ok()) << status.ToString();
        });
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
  // Attention is causal, logits are those of one token.
  Amounts Operations(double tokens) const {
    const ModelConfig& c = model_->config();
    Amounts amounts = Products(2 * tokens * LayerWeights() + 2 * HeadWeights());
    amounts.operations += 2 * tokens * (tokens + 1) * c.num_layers * c.num_heads * c.head_dim;
    return amounts;
  }
  // Weights, and K and V of the context of each.
  double DecodeBytes(int32_t batch) const {
    const ModelConfig& c = model_->config();
    const double kv = 2.0 * batch * c.num_layers * c.num_kv_heads * c.head_dim * kContext;
    const auto size = static_cast<double>(SizeOf(model_->types().compute));
    // In 4 bits a group has a scale of two bytes and a zero of one.
    const double each = has_weights_of(kInt4) ? 0.5 + 3.0 / kInt4Group : int8() ? 1 : size;
    return (LayerWeights() + HeadWeights()) * each + kv * size;
  }

  const int threads_;
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<ModelExecutor> executor_;
  ThreadPool pool_;
  const PinnedBuffer stream_;
  volatile uint64_t sink_ = 0;
  std::vector<BlockId> table_ = std::vector<BlockId>(4096 / kBlockTokens);
  std::vector<int32_t> tokens_;
  DeviceBuffer gemm_weights_, gemm_input_, gemm_output_;
  std::unique_ptr<LinearOp> gemm_;
  StepOutput output_;  // Reused, as an engine does.
  std::map<std::string, Row> rows_;
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: engine_bench FOLDER FORMAT ISA THREADS\n");
    return 2;
  }
  tandem::Bench(argv[1], argv[2], argv[3], std::atoi(argv[4])).Serve();
  return 0;
}
