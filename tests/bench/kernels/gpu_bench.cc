// Operations of the backend `cuda` at the shapes of an 8B model (32 heads of 128 numbers, 8 KV
// heads, 4,096 features, 14,336 in the feed-forward) beside what the GPU's memory gives at most,
// interleaved in one run.
//
//   build/cuda/bench/gpu_bench [repetitions [words [isa]]]      (7, "" for all rows, auto)
//
// With words only rows that have one of them in their names, as in "down,decode"; isa is "tensor"
// or "fma". Layers whose weights a GPU's caches could keep are there several times, and take turns.
//
// Prints one line a row: the median of a repetition, what that is a second, and the share of the
// limit's median.

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/api/backend.h"
#include "kernels/create_backend.h"
#include "kernels/support/host_args.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/bench/kernels/bench_support.h"
#include "tests/bench/kernels/gpu_limits.h"

namespace tandem {
namespace {

constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kFeatures = 4096, kHidden = 14336;
constexpr int kBlockTokens = 64;
constexpr int kLayers = 32, kVocabulary = 128'256, kStepTokens = 1024;
constexpr size_t kBeyondCaches = size_t{256} << 20;

// One measured row: `enqueue` does `amount` each time, bytes or operations.
struct Row {
  std::string name;
  double amount;
  bool is_bytes;
  std::function<void()> enqueue;
  int calls = 1;  // of one repetition
  std::vector<double> seconds;
};

class Bench {
 public:
  Bench(std::vector<std::string> words, const std::string& isa)
      : words_(std::move(words)), backend_(Must(CreateBackend({.device = "cuda", .isa = isa}))) {
    Random random(1);
    for (Bfloat16& x : pattern_) x = ToBfloat16(static_cast<float>(random.Unit() * 2 - 1));
  }

  Backend& backend() { return *backend_; }

  // Random bf16 numbers; lives as long as the bench.
  DevicePtr<std::byte> Numbers(size_t bytes) {
    buffers_.push_back(Must(backend_->Allocate(bytes)));
    const DevicePtr<std::byte> data = buffers_.back().data();
    const size_t pattern_bytes = pattern_.size() * sizeof(Bfloat16);
    for (size_t at = 0; at < bytes; at += pattern_bytes) {
      Must(backend_->Upload(data + static_cast<std::ptrdiff_t>(at), pattern_.data(),
                            std::min(pattern_bytes, bytes - at)));
    }
    Must(backend_->Synchronize());
    return data;
  }
  template <typename T>
  DevicePtr<T> Values(const std::vector<T>& values) {
    buffers_.push_back(Must(backend_->Allocate(values.size() * sizeof(T))));
    Must(backend_->Upload(buffers_.back().data(), values.data(), values.size() * sizeof(T)));
    Must(backend_->Synchronize());
    return buffers_.back().as<T>();
  }

  void Add(std::string name, double amount, bool is_bytes, std::function<void()> enqueue) {
    rows_.push_back({std::move(name), amount, is_bytes, std::move(enqueue)});
  }

  void AddLinear(const char* name, int64_t in, int64_t out, bool segmented, WeightType type) {
    const LinearSpec spec{.in_features = in,
                          .out_features = out,
                          .weight_type = type,
                          .compute_dtype = DType::kBF16,
                          .output_dtype = DType::kF32,
                          .segmented = segmented,
                          .scaled = type == WeightType::kFp8,
                          .group = type == WeightType::kInt4 || type == WeightType::kFp8 ? 128 : 0};
    if (type == WeightType::kFp8 && !backend_->GetPackedFormat(spec).ok()) return;
    if (!Wanted(absl::StrCat(NameOf(type), " ", name))) return;
    const size_t weight_bytes = Must(backend_->GetPackedFormat(spec)).size_bytes;
    std::vector<const LinearOp*> ops((kBeyondCaches - 1) / weight_bytes + 1);
    for (const LinearOp*& op : ops) op = Op(spec);
    for (const int64_t rows : {1, 8, 32, 64, 128, 256, 512, 4096}) {
      const DevicePtr<std::byte> input = Numbers(static_cast<size_t>(rows * in) * 2);
      const DevicePtr<std::byte> output = Numbers(static_cast<size_t>(rows * out) * 4);
      const bool reads = rows <= 64;
      Add(absl::StrCat(NameOf(type), " ", name, " M=", rows),
          reads ? static_cast<double>(weight_bytes)
                : 2.0 * static_cast<double>(rows) * static_cast<double>(in * out),
          reads, [this, ops, input, output, rows, turn = size_t{0}]() mutable {
            const LinearOp* const op = ops[turn++ % ops.size()];
            Must(backend_->Linear({.op = op, .input = input, .output = output, .num_rows = rows}));
          });
    }
  }

  // `sequences` of `tokens` each: decode attention, or prefill attention of the last `queries`.
  void AddAttention(int64_t sequences, int32_t tokens, int32_t queries, KvType type) {
    if (!Wanted(queries == 0 ? "decode attention" : "prefill attention")) return;
    const DType dtype = type == KvType::kF32 ? DType::kF32 : DType::kBF16;
    const int64_t blocks_each = (tokens + kBlockTokens - 1) / kBlockTokens;
    const int64_t num_blocks = sequences * blocks_each;
    const KvLayerView kv = Kv(num_blocks, type);
    const int64_t rows = sequences * std::max(queries, 1);
    const DevicePtr<std::byte> query = Numbers(rows * kHeads * kHeadDim * SizeOf(dtype));
    const DevicePtr<std::byte> output = Numbers(rows * kHeads * kHeadDim * SizeOf(dtype));
    const DevicePtr<int32_t> blocks = Shuffled(num_blocks);
    const float scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
    if (queries == 0) {
      const DevicePtr<int32_t> counts = Values(std::vector<int32_t>(sequences, tokens));
      Add(absl::StrCat("decode attention ", sequences, " x ", tokens, " ", NameOf(type)),
          static_cast<double>(kv.block_stride_bytes) * static_cast<double>(num_blocks), true,
          [=, this] {
            Must(backend_->DecodeAttention({.query = query,
                                            .kv = kv,
                                            .block_table = blocks,
                                            .num_tokens = counts,
                                            .output = output,
                                            .num_sequences = sequences,
                                            .max_blocks = blocks_each,
                                            .num_heads = kHeads,
                                            .compute_dtype = dtype,
                                            .softmax_scale = scale}));
          });
      return;
    }
    std::vector<int32_t> starts(sequences + 1);
    for (int64_t s = 0; s <= sequences; ++s) starts[s] = static_cast<int32_t>(s * queries);
    const DevicePtr<int32_t> query_start = Values(starts);
    const DevicePtr<int32_t> cached = Values(std::vector<int32_t>(sequences, tokens - queries));
    const double seen = queries * (static_cast<double>(tokens - queries) + (queries + 1) / 2.0);
    Add(absl::StrCat("prefill attention ", sequences, " x ", queries, " of ", tokens, " ",
                     NameOf(type)),
        4.0 * static_cast<double>(sequences) * kHeads * kHeadDim * seen, false, [=, this] {
          Must(backend_->PrefillAttention({.query = query,
                                           .kv = kv,
                                           .block_table = blocks,
                                           .query_start = query_start,
                                           .num_cached = cached,
                                           .output = output,
                                           .num_sequences = sequences,
                                           .max_blocks = blocks_each,
                                           .num_heads = kHeads,
                                           .compute_dtype = dtype,
                                           .softmax_scale = scale}));
        });
  }

  // Tokens of so many rows of logits, which are bell-shaped: flatter than a model's.
  void AddSampling(int64_t num_rows) {
    if (!Wanted("sampling")) return;
    Random random(3);
    std::vector<float> values(static_cast<size_t>(num_rows * kVocabulary));
    for (float& value : values) {
      value = 0.0f;
      for (int i = 0; i < 12; ++i) value += 2.5f * (static_cast<float>(random.Unit()) - 0.5f);
    }
    const DevicePtr<float> logits = Values(values);
    const std::vector<std::pair<std::string, SampleQuery>> kinds = {
        {"greedy", {.temperature = 0}},
        {"plain", {}},
        {"top-k 50", {.top_k = 50}},
        {"top-p 0.95", {.top_p = 0.95f}},
        {"both", {.top_k = 50, .top_p = 0.95f}},
        {"greedy, 20 logprobs", {.temperature = 0, .num_top_logprobs = 20}},
        {"greedy, mask", {.temperature = 0, .allowed_tokens = {mask_}}},
    };
    for (const auto& [name, query] : kinds) {
      std::vector<SampleQuery> queries(num_rows, query);
      for (int64_t i = 0; i < num_rows; ++i) {
        queries[i].row = static_cast<int32_t>(i);
        queries[i].seed = random.Next();
      }
      Add(absl::StrCat("sampling ", num_rows, " rows, ", name),
          static_cast<double>(values.size() * sizeof(float)), true,
          [=, this, results = std::vector<absl::StatusOr<SampleResult>>(num_rows)]() mutable {
            Must(backend_->Sample({.logits = logits,
                                   .num_rows = num_rows,
                                   .vocabulary = kVocabulary,
                                   .queries = queries.data(),
                                   .results = results.data(),
                                   .count = num_rows}));
          });
    }
  }

  // A decode step of an 8B model: `sequences` of kStepTokens each, of one layer's weights and KV so
  // often as there are layers, which are more than caches keep; then logits.
  void AddStep(int64_t sequences) {
    if (!Wanted("decode step")) return;
    const DType dtype = DType::kBF16;
    size_t weight_bytes = 0;
    const auto linear = [&](int64_t in, int64_t out, bool segmented, bool gated = false) {
      LinearSpec spec{.in_features = in,
                      .out_features = out,
                      .weight_type = WeightType::kBF16,
                      .compute_dtype = dtype,
                      .output_dtype = gated ? dtype : DType::kF32,
                      .segmented = segmented,
                      .gated = gated};
      if (gated) spec.activation = ActivationFunction::kSilu;
      weight_bytes += Must(backend_->GetPackedFormat(spec)).size_bytes;
      return Op(spec);
    };
    constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;
    const LinearOp* const qkv = linear(kFeatures, kQkv, false);
    const LinearOp* const out = linear(kFeatures, kFeatures, true);
    const LinearOp* const gate_up = linear(kFeatures, 2 * kHidden, false, /*gated=*/true);
    const LinearOp* const down = linear(kHidden, kFeatures, true);
    const size_t layer_bytes = std::exchange(weight_bytes, 0);
    const LinearOp* const logits = linear(kFeatures, kVocabulary, false);

    constexpr int64_t kBlocksEach = kStepTokens / kBlockTokens;
    const int64_t num_blocks = sequences * kBlocksEach;
    const KvLayerView kv = Kv(num_blocks, KvType::kBF16);
    std::vector<int64_t> slots(sequences);
    for (int64_t s = 0; s < sequences; ++s) slots[s] = (s + 1) * kStepTokens - 1;
    const DevicePtr<int32_t> blocks = Shuffled(num_blocks);
    const DevicePtr<int64_t> last_slots = Values(slots);
    const DevicePtr<int32_t> counts = Values(std::vector<int32_t>(sequences, kStepTokens));
    const auto floats = [&](int64_t each) {
      return Numbers(static_cast<size_t>(sequences * each) * 4).as<float>();
    };
    const DevicePtr<float> residual = floats(kFeatures), wide = floats(kVocabulary),
                           weight = floats(kFeatures), angle = floats(kHeadDim);
    const DevicePtr<std::byte> narrow = Numbers(sequences * 2 * kHidden * 2);
    const DevicePtr<std::byte> query = Numbers(sequences * kFeatures * 2);
    const DevicePtr<std::byte> gates = Numbers(sequences * kHidden * 2);
    const auto norm = [=, this] {
      Must(backend_->RmsNorm({.input = residual,
                              .weight = weight,
                              .output = narrow,
                              .num_rows = sequences,
                              .features = kFeatures,
                              .epsilon = 1e-5f,
                              .output_dtype = dtype}));
    };
    const auto apply = [=, this](const LinearOp* op, DevicePtr<void> to) {
      Must(backend_->Linear({.op = op, .input = narrow, .output = to, .num_rows = sequences}));
    };
    const auto add = [=, this] {
      Must(
          backend_->Add({.accumulator = residual, .addend = wide, .count = sequences * kFeatures}));
    };
    const auto rotary = [=, this] {
      Must(backend_->RotaryKvWrite({.query = wide,
                                    .key = wide + kHeads * kHeadDim,
                                    .value = wide + (kHeads + kKvHeads) * kHeadDim,
                                    .input_stride = kQkv,
                                    .cos = angle,
                                    .sin = angle,
                                    .slots = last_slots,
                                    .kv = kv,
                                    .query_out = query,
                                    .num_tokens = sequences,
                                    .num_heads = kHeads,
                                    .compute_dtype = dtype}));
    };
    const auto attention = [=, this] {
      Must(backend_->DecodeAttention({.query = query,
                                      .kv = kv,
                                      .block_table = blocks,
                                      .num_tokens = counts,
                                      .output = narrow,
                                      .num_sequences = sequences,
                                      .max_blocks = kBlocksEach,
                                      .num_heads = kHeads,
                                      .compute_dtype = dtype,
                                      .softmax_scale = 0.09f}));
    };
    const std::vector<std::pair<std::string, std::function<void()>>> layer = {
        {"norms", norm},
        {"qkv", [=] { apply(qkv, wide); }},
        {"rotary", rotary},
        {"attention", attention},
        {"output", [=] { apply(out, wide); }},
        {"additions", add},
        {"norms", norm},
        {"gate and up", [=] { apply(gate_up, gates); }},
        {"down", [=] { apply(down, wide); }},
        {"additions", add},
    };
    const size_t kv_bytes = kv.block_stride_bytes * static_cast<size_t>(num_blocks);
    const auto bytes = static_cast<double>(kLayers * (layer_bytes + kv_bytes) + weight_bytes);
    const std::string name = absl::StrCat("decode step of 8B, ", sequences, " x ", kStepTokens);
    const auto step = [=](const std::string& without) {
      for (int i = 0; i < kLayers; ++i) {
        for (const auto& [what, enqueue] : layer) {
          if (what != without) enqueue();
        }
      }
      norm();
      apply(logits, wide);
    };
    const auto add_step = [&](const std::string& suffix, const std::string& without) {
      Add(name + suffix, bytes, true, [=, this, key = static_cast<int64_t>(rows_.size())] {
        Must(backend_->Replay(std::array{key}, [&] {
          step(without);
          return absl::OkStatus();
        }));
      });
    };
    add_step("", "");
    Add(name + ", launch by launch", bytes, true, [=] { step(""); });
    // What each of its operations adds.
    std::set<std::string> parts;
    for (const auto& [what, enqueue] : layer) {
      if (parts.insert(what).second) add_step(absl::StrCat(", without ", what), what);
    }
  }

  // Launches so many of each row that a repetition lasts about a millisecond and a half.
  void Measure(int repetitions) {
    for (Row& row : rows_) {
      row.enqueue();
      Must(backend_->Synchronize());
      const double once = Seconds(row);
      row.calls = static_cast<int>(std::clamp(1.5e-3 / once, 1.0, 200.0));
    }
    for (int i = 0; i < repetitions; ++i) {
      for (Row& row : rows_) row.seconds.push_back(Seconds(row));
    }
    const auto rate = [](const Row& row) { return row.amount / Median(row.seconds); };
    for (const Row& row : rows_) {
      std::printf("%-52s %9.2f us  %8.1f %s", row.name.c_str(), Median(row.seconds) * 1e6,
                  rate(row) / (row.is_bytes ? 1e9 : 1e12), row.is_bytes ? "GB/s" : "TFLOP/s");
      if (row.is_bytes) std::printf("  %5.2f of read", rate(row) / rate(rows_[0]));
      std::printf("\n");
    }
  }

 private:
  const LinearOp* Op(const LinearSpec& spec) {
    const size_t bytes = Must(backend_->GetPackedFormat(spec)).size_bytes;
    ops_.push_back(Must(backend_->PrepareLinear(spec, Numbers(bytes), bytes)));
    return ops_.back().get();
  }
  KvLayerView Kv(int64_t num_blocks, KvType type) {
    const DType dtype = type == KvType::kF32 ? DType::kF32 : DType::kBF16;
    const KvTileShape shape{kBlockTokens, kHeadDim, type};
    const size_t tile_bytes = Must(backend_->GetKvTileFormat(shape, dtype)).tile_bytes;
    const size_t block_bytes = KvLayerBytes(tile_bytes, kKvHeads);
    return {.base = Numbers(block_bytes * static_cast<size_t>(num_blocks)),
            .block_stride_bytes = block_bytes,
            .layer_offset_bytes = 0,
            .tile_bytes = tile_bytes,
            .num_kv_heads = kKvHeads,
            .shape = shape};
  }
  // Indices of blocks, in random order.
  DevicePtr<int32_t> Shuffled(int64_t num_blocks) {
    std::vector<int32_t> table(static_cast<size_t>(num_blocks));
    std::iota(table.begin(), table.end(), 0);
    Random random(2);
    for (size_t i = table.size(); i > 1; --i) std::swap(table[i - 1], table[random.Below(i)]);
    return Values(table);
  }

  double Seconds(const Row& row) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < row.calls; ++i) row.enqueue();
    Must(backend_->Synchronize());
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(end - start).count() / row.calls;
  }

  bool Wanted(const std::string& name) const {
    return words_.empty() || std::any_of(words_.begin(), words_.end(), [&](const auto& word) {
             return name.find(word) != std::string::npos;
           });
  }

  const std::vector<std::string> words_;
  const std::unique_ptr<Backend> backend_;
  const std::vector<uint32_t> mask_ = std::vector<uint32_t>((kVocabulary + 31) / 32, 0xFFFF7FFFu);
  std::vector<Bfloat16> pattern_ = std::vector<Bfloat16>(1 << 20);
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::unique_ptr<LinearOp>> ops_;
  std::vector<Row> rows_;
};

int Main(int repetitions, const std::string& words, const std::string& isa) {
  cudaDeviceProp properties;
  TANDEM_CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  Bench bench(absl::StrSplit(words, ',', absl::SkipEmpty()), isa);
  Backend& backend = bench.backend();
  std::printf("%s, %s, medians of %d\n", properties.name, backend.isa().c_str(), repetitions);
  constexpr size_t kStreamBytes = size_t{2} << 30;
  const DevicePtr<std::byte> stream = bench.Numbers(kStreamBytes);
  const DevicePtr<std::byte> sink = bench.Numbers(64);
  bench.Add("limit: read", kStreamBytes, true, [=] {
    TANDEM_CHECK(ReadStream(OnHost(stream), kStreamBytes, OnHost(sink), nullptr) == cudaSuccess);
    TANDEM_CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
  });
  const DevicePtr<float> row = bench.Numbers(kHidden * 4).as<float>();
  bench.Add("rms norm of a row of 4096", kFeatures * 8, true, [=, &backend] {
    Must(backend.RmsNorm({.input = row,
                          .weight = row,
                          .output = sink,
                          .num_rows = 0,
                          .features = kFeatures,
                          .epsilon = 1e-5f,
                          .output_dtype = DType::kBF16}));
    Must(backend.RmsNorm({.input = row,
                          .weight = row,
                          .output = row,
                          .num_rows = 1,
                          .features = kFeatures,
                          .epsilon = 1e-5f,
                          .output_dtype = DType::kF32}));
  });
  for (const KvType type :
       {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8, KvType::kF32}) {
    bench.AddAttention(32, 4096, 0, type);
    bench.AddAttention(4, 32768, 0, type);
    bench.AddAttention(1, 131072, 0, type);
    bench.AddAttention(128, 1024, 0, type);
  }
  bench.AddAttention(1, 4096, 4096, KvType::kBF16);
  for (const KvType type : {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8}) {
    bench.AddAttention(1, 16384, 16384, type);
  }
  bench.AddAttention(16, 1024, 1024, KvType::kBF16);
  for (const WeightType type :
       {WeightType::kBF16, WeightType::kInt8, WeightType::kInt4, WeightType::kFp8}) {
    bench.AddLinear("qkv", kFeatures, (kHeads + 2 * kKvHeads) * kHeadDim, false, type);
    bench.AddLinear("output, segmented", kFeatures, kFeatures, true, type);
    bench.AddLinear("gate and up", kFeatures, 2 * kHidden, false, type);
    bench.AddLinear("down, segmented", kHidden, kFeatures, true, type);
  }
  for (const int64_t sequences : {1, 8, 32, 64}) bench.AddStep(sequences);
  for (const int64_t rows : {1, 8, 64}) bench.AddSampling(rows);
  bench.Measure(repetitions);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc > 1 ? std::atoi(argv[1]) : 7, argc > 2 ? argv[2] : "",
                      argc > 3 ? argv[3] : "auto");
}
