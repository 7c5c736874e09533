// GEMM and decode attention beside the limits of the machine, measured in the same run and
// interleaved, after their results have been checked.
//
//   build/release/bench/kernels_bench [isa [threads [repetitions [rows]]]]      (auto, 2, 7, all)
//
// Prints one line a row: median, and its share of each limit's median. `rows` is what names of rows
// have in them, beside the limits.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table_x86.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/support/host_args.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/bench/kernels/bench_support.h"
#include "tests/bench/kernels/machine_limits.h"

namespace tandem {
namespace {

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Which limits a row's share is of.
enum class Limit : uint8_t { kRead, kFloat, kInt8 };

// One measured row: `work` does `amount` (operations or bytes) each time.
struct Row {
  std::string name;
  double amount;
  std::function<void()> work;
  Limit limit;
  std::vector<double> seconds;
  std::string beside = "";  // A row whose time is printed as a multiple of this one's.
};

// Memory that the host and the operations share: a mirror of a backend that is the host.
MirrorBuffer RandomNumbers(Backend& backend, DType dtype, int64_t count, float scale) {
  MirrorBuffer buffer = Must(backend.AllocateMirror(count * SizeOf(dtype)));
  std::byte* const data = buffer.host.data();
  Random random(count);
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(random.Unit() * 2 - 1) * scale;
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(data)[i] = x;
    } else {
      reinterpret_cast<Bfloat16*>(data)[i] = ToBfloat16(x);
    }
  }
  return buffer;
}

float Get(DType dtype, const MirrorBuffer& buffer, int64_t index) {
  const std::byte* const data = buffer.host.data();
  return dtype == DType::kF32 ? reinterpret_cast<const float*>(data)[index]
                              : ToFloat(reinterpret_cast<const Bfloat16*>(data)[index]);
}

// A chain of layers too big for the caches, or one that fits, and rows to run through it.
class GemmCase {
 public:
  GemmCase(Backend& backend, WeightType weights, DType dtype, int64_t k, int64_t n, int num_layers,
           bool segmented, int64_t group = 0)
      : backend_(backend),
        spec_{.in_features = k,
              .out_features = n,
              .weight_type = weights,
              .compute_dtype = dtype,
              .output_dtype = DType::kF32,
              .segmented = segmented,
              .group = group},
        weights_(RandomNumbers(backend, dtype, k * n, 0.05f)),
        input_(RandomNumbers(backend, dtype, 512 * k, 1.0f)),
        output_(Must(backend.AllocateMirror(512 * n * sizeof(float)))) {
    packed_bytes_ = Must(backend.GetPackedFormat(spec_)).size_bytes;
    for (int i = 0; i < num_layers; ++i) {
      packed_.push_back(Must(backend.AllocatePinned(packed_bytes_)));
      const WeightPart part{weights_.host.data(), n, dtype};
      Must(backend.PackLinear(spec_, {&part, 1}, {packed_.back().data(), packed_bytes_}));
      placed_.push_back(Must(backend.PlaceWeights({packed_.back().data(), packed_bytes_})));
      ops_.push_back(Must(backend.PrepareLinear(spec_, placed_.back().data(), packed_bytes_)));
    }
  }

  void Run(int64_t rows) {
    for (const auto& op : ops_) {
      Must(backend_.Linear({.op = op.get(),
                            .input = input_.device.data(),
                            .output = output_.device.as<float>(),
                            .num_rows = rows}));
    }
  }

  // Some outputs against sums in double, but for what 8 and 4 bits lose.
  void Check(int64_t rows) {
    const bool int4 = spec_.weight_type == WeightType::kInt4;
    const double tolerance = int4 ? 0.3 : spec_.weight_type == WeightType::kInt8 ? 0.1 : 1e-3;
    Run(rows);
    for (const int64_t r : {int64_t{0}, rows - 1}) {
      for (const int64_t n : {int64_t{0}, spec_.out_features / 3, spec_.out_features - 1}) {
        double sum = 0;
        for (int64_t k = 0; k < spec_.in_features; ++k) {
          sum += double{Get(spec_.compute_dtype, input_, r * spec_.in_features + k)} *
                 Get(spec_.compute_dtype, weights_, n * spec_.in_features + k);
        }
        const float got = Get(DType::kF32, output_, r * spec_.out_features + n);
        TANDEM_CHECK(std::fabs(got - sum) < tolerance)
            << "row " << r << " output " << n << ": " << got << ", expected " << sum;
      }
    }
  }

  double Operations(int64_t rows) const {
    return 2.0 * static_cast<double>(rows * spec_.in_features * spec_.out_features) *
           static_cast<double>(ops_.size());
  }
  double Bytes() const { return static_cast<double>(packed_bytes_ * ops_.size()); }

 private:
  Backend& backend_;
  const LinearSpec spec_;
  MirrorBuffer weights_, input_, output_;
  size_t packed_bytes_;
  std::vector<PinnedBuffer> packed_;
  std::vector<DeviceBuffer> placed_;
  std::vector<std::unique_ptr<LinearOp>> ops_;
};

// Sequences of one length over bf16 KV, 32 query heads on 8 KV heads of 128.
class AttentionCase {
 public:
  static constexpr int kKvHeads = 8, kHeadDim = 128, kBlockTokens = 16;

  AttentionCase(Backend& backend, KvType kv_type, int num_heads, int num_sequences,
                int32_t num_tokens, int32_t num_shared = 0)
      : backend_(backend),
        num_heads_(num_heads),
        num_sequences_(num_sequences),
        num_tokens_(num_tokens) {
    const KvTileShape tile{kBlockTokens, kHeadDim, kv_type};
    const KvTileFormat format = Must(backend.GetKvTileFormat(tile, DType::kBF16));
    const int blocks_each = (num_tokens + kBlockTokens - 1) / kBlockTokens;
    const size_t block_bytes = KvLayerBytes(format.tile_bytes, kKvHeads);
    pool_ = Must(backend.Allocate(block_bytes * blocks_each * num_sequences));
    kv_ = {.base = pool_.data(),
           .block_stride_bytes = block_bytes,
           .layer_offset_bytes = 0,
           .tile_bytes = format.tile_bytes,
           .num_kv_heads = kKvHeads,
           .shape = tile};
    max_blocks_ = blocks_each;
    table_.resize(static_cast<size_t>(blocks_each) * num_sequences);
    std::iota(table_.begin(), table_.end(), 0);
    Random random(7);
    for (size_t i = table_.size(); i > 1; --i) {
      std::swap(table_[i - 1], table_[random.Below(i)]);
    }
    for (int s = 1; s < num_sequences; ++s) {
      std::copy_n(table_.begin(), num_shared / kBlockTokens, table_.begin() + s * max_blocks_);
    }
    lengths_.assign(num_sequences, num_tokens);
    const int64_t row = (num_heads_ + 2 * kKvHeads) * kHeadDim;
    const MirrorBuffer qkv = RandomNumbers(backend, DType::kF32, num_tokens * row, 1.0f);
    query_ = Must(backend.AllocateMirror(int64_t{num_tokens} * num_heads * kHeadDim * 2));
    output_ = Must(backend.AllocateMirror(int64_t{num_tokens} * num_heads * kHeadDim * 2));
    for (int s = 0; s < num_sequences; ++s) {
      std::vector<int64_t> slots;
      for (int64_t t = 0; t < num_tokens; ++t) {
        slots.push_back(int64_t{table_[s * max_blocks_ + t / kBlockTokens]} * kBlockTokens +
                        t % kBlockTokens);
      }
      Must(backend.RotaryKvWrite(
          {.query = qkv.device.as<float>(),
           .key = qkv.device.as<float>() + num_heads_ * kHeadDim,
           .value = qkv.device.as<float>() + (num_heads_ + kKvHeads) * kHeadDim,
           .input_stride = row,
           .slots = OfHost<const int64_t>(slots.data()),
           .kv = kv_,
           .query_out = query_.device.data(),
           .num_tokens = num_tokens,
           .num_heads = num_heads_,
           .compute_dtype = DType::kBF16}));
    }
  }

  void Decode(float score_cap = 0.0f) {
    Must(backend_.DecodeAttention({.query = query_.device.data(),
                                   .kv = kv_,
                                   .block_table = OfHost<const int32_t>(table_.data()),
                                   .num_tokens = OfHost<const int32_t>(lengths_.data()),
                                   .output = output_.device.data(),
                                   .num_sequences = num_sequences_,
                                   .max_blocks = max_blocks_,
                                   .num_heads = num_heads_,
                                   .compute_dtype = DType::kBF16,
                                   .softmax_scale = 0.09f,
                                   .score_cap = score_cap}));
  }

  void Prefill() {
    const int32_t starts[] = {0, num_tokens_};
    const int32_t cached = 0;
    Must(backend_.PrefillAttention({.query = query_.device.data(),
                                    .kv = kv_,
                                    .block_table = OfHost<const int32_t>(table_.data()),
                                    .query_start = OfHost(starts + 0),
                                    .num_cached = OfHost(&cached),
                                    .output = output_.device.data(),
                                    .num_sequences = 1,
                                    .max_blocks = max_blocks_,
                                    .num_heads = num_heads_,
                                    .compute_dtype = DType::kBF16,
                                    .softmax_scale = 0.09f}));
  }

  // The last query decoded has the bits that prefill gives it, and all weights sum to one: with V
  // as random numbers below 1 every output is below 1.
  void Check() {
    Prefill();
    const int64_t row = int64_t{num_heads_} * kHeadDim;
    const std::vector<std::byte> last(output_.host.data() + (num_tokens_ - 1) * row * 2,
                                      output_.host.data() + num_tokens_ * row * 2);
    std::memcpy(query_.host.data(), query_.host.data() + (num_tokens_ - 1) * row * 2, row * 2);
    Decode();
    TANDEM_CHECK(std::memcmp(output_.host.data(), last.data(), last.size()) == 0)
        << "decode and prefill differ";
    for (int64_t i = 0; i < row; ++i) {
      TANDEM_CHECK(std::fabs(Get(DType::kBF16, output_, i)) <= 1.0f) << i;
    }
  }

  double Bytes() const { return static_cast<double>(table_.size() * kv_.block_stride_bytes); }
  // Causal: half of the square.
  double PrefillOperations() const {
    return 2.0 * num_tokens_ * (num_tokens_ + 1) * num_heads_ * kHeadDim;
  }

 private:
  Backend& backend_;
  const int num_heads_;
  const int64_t num_sequences_;
  const int32_t num_tokens_;
  DeviceBuffer pool_;
  MirrorBuffer query_, output_;
  KvLayerView kv_;
  int64_t max_blocks_;
  std::vector<int32_t> table_, lengths_;
};

// A way to keep weights; a chain of num_layers has about the bytes of the stream.
struct Format {
  const char* name;
  WeightType weights;
  DType dtype;
  int64_t group;
  int num_layers;
  Limit limit;
};
constexpr Format kFormats[] = {
    {"bf16", WeightType::kBF16, DType::kBF16, 0, 24, Limit::kFloat},
    {"f32", WeightType::kF32, DType::kF32, 0, 12, Limit::kFloat},
    {"int8", WeightType::kInt8, DType::kBF16, 0, 48, Limit::kInt8},
    {"int4, groups of 32,", WeightType::kInt4, DType::kBF16, 32, 80, Limit::kInt8},
    {"int4, groups of 128,", WeightType::kInt4, DType::kBF16, 128, 88, Limit::kInt8}};
constexpr int64_t kBenchInputs = 2048, kBenchOutputs = 5632;

std::string SizedName(const std::string& name, int64_t m) {
  return name + " M=" + std::to_string(m) + " 2048x5632";
}

// Products of `m` rows with one layer, in cache.
void AddOneLayer(Backend& backend, const Format& format, bool segmented, int64_t m,
                 std::vector<std::unique_ptr<GemmCase>>* cases, std::vector<Row>* rows,
                 const std::string& name) {
  cases->push_back(std::make_unique<GemmCase>(backend, format.weights, format.dtype, kBenchInputs,
                                              kBenchOutputs, 1, segmented, format.group));
  GemmCase& gemm = *cases->back();
  gemm.Check(m);
  rows->push_back(
      {SizedName(name, m), gemm.Operations(m), [&gemm, m] { gemm.Run(m); }, format.limit, {}});
}

// Products of each format: with layers read from memory, and with one.
void AddProducts(Backend& backend, std::vector<std::unique_ptr<GemmCase>>* cases,
                 std::vector<Row>* rows) {
  const size_t first_chain = cases->size();
  for (const Format& format : kFormats) {
    cases->push_back(std::make_unique<GemmCase>(backend, format.weights, format.dtype, kBenchInputs,
                                                kBenchOutputs, format.num_layers, false,
                                                format.group));
  }
  for (const int64_t m : {1, 4, 8, 16}) {
    for (size_t i = 0; i < std::size(kFormats); ++i) {
      GemmCase& gemm = *(*cases)[first_chain + i];
      gemm.Check(m);
      rows->push_back({SizedName(kFormats[i].name, m),
                       gemm.Bytes(),
                       [&gemm, m] { gemm.Run(m); },
                       Limit::kRead,
                       {}});
    }
  }
  for (const int64_t m : {16, 64, 512}) {
    for (const Format& format : kFormats) {
      AddOneLayer(backend, format, false, m, cases, rows, format.name);
    }
  }
  for (const Format& format : kFormats) {
    if (format.dtype == DType::kF32) continue;
    AddOneLayer(backend, format, true, 512, cases, rows,
                std::string(format.name) + " in 8 segments");
  }
}

// The same product by each method of "avx512bf16" that this machine has.
void AddMethods(int num_threads, std::vector<std::unique_ptr<Backend>>* methods,
                std::vector<std::unique_ptr<GemmCase>>* cases, std::vector<Row>* rows) {
  const auto add = [&](Bf16Method bf16, Int8Method int8, const Format& format, const char* name) {
    const KernelTable* const table = Avx512Bf16Kernels(bf16, int8);
    if (table == nullptr) return;
    methods->push_back(CreateCpuBackend(*table, num_threads));
    AddOneLayer(*methods->back(), format, false, 512, cases, rows, name);
  };
  add(Bf16Method::kDot, Int8Method::kDot, kFormats[0], "bf16 by vdpbf16ps");
  add(Bf16Method::kFma, Int8Method::kDot, kFormats[0], "bf16 by multiply-add");
  add(Bf16Method::kDot, Int8Method::kDot, kFormats[2], "int8 by vpdpbusd");
  add(Bf16Method::kDot, Int8Method::kTiles, kFormats[2], "int8 by tdpbsud");
}

// The first rows are the limits: multiply-add, read, products of 8 bits, and what `dot` names if it
// is there: vdpbf16ps, or tdpbf16ps.
void MeasureAndPrint(int repetitions, const std::string& dot, std::vector<Row>* rows_to_measure) {
  std::vector<Row>& rows = *rows_to_measure;
  for (int i = 0; i < repetitions; ++i) {
    for (Row& row : rows) row.seconds.push_back(Seconds(row.work));
  }
  const auto rate = [](const Row& row) { return row.amount / Median(row.seconds) / 1e9; };
  const double fma_limit = rate(rows[0]), read_limit = rate(rows[1]), int8_limit = rate(rows[2]);
  for (const Row& row : rows) {
    const bool reads = row.limit == Limit::kRead;
    std::printf("%-36s %8.1f %s", row.name.c_str(), rate(row), reads ? "GB/s   " : "GFLOP/s");
    if (reads) std::printf(" %5.2f of read", rate(row) / read_limit);
    if (row.limit == Limit::kInt8) std::printf(" %5.2f of 8 bits", rate(row) / int8_limit);
    if (row.limit == Limit::kFloat) std::printf(" %5.2f of multiply-add", rate(row) / fma_limit);
    if (row.limit == Limit::kFloat && !dot.empty()) {
      std::printf(" %5.2f of %s", rate(row) / rate(rows[3]), dot.c_str());
    }
    for (const Row& other : rows) {
      if (other.name == row.beside) {
        std::printf(" %5.2f times as fast as \"%s\"", Median(other.seconds) / Median(row.seconds),
                    other.name.c_str());
      }
    }
    std::printf("\n");
  }
}

int Main(const std::string& wanted, int num_threads, int repetitions,
         const std::string& rows_with) {
  const auto backend = Must(CreateCpuBackend({.isa = wanted, .num_threads = num_threads}));
  const std::string isa = backend->isa();
  const bool has_dot = isa == "avx512bf16", is_amx = isa == "amx";
  const bool int8_tiles = (has_dot || is_amx) && PickedInt8Method() == Int8Method::kTiles;
  std::printf("%s, %d threads, medians of %d\n", isa.c_str(), num_threads, repetitions);

  ThreadPool pool(num_threads);
  // In pieces, so that a thread that loses its core delays little: the kernels' own are small, too.
  static constexpr int64_t kLimitPieces = 64, kLimitIterations = 30'000;
  constexpr size_t kStreamBytes = size_t{512} << 20;
  const MirrorBuffer stream = RandomNumbers(*backend, DType::kF32, kStreamBytes / 4, 1.0f);
  std::vector<Row> rows;
  const auto add_limit = [&](const char* name, Limit limit, auto run) {
    rows.push_back({name,
                    run(1) * kLimitIterations * kLimitPieces,
                    [&pool, run] {
                      pool.ParallelFor(kLimitPieces, [&](int64_t, int) { run(kLimitIterations); });
                    },
                    limit,
                    {}});
  };
  add_limit("limit: multiply-add", Limit::kFloat,
            [isa](int64_t n) { return RunMultiplyAdds(isa, n); });
  volatile uint64_t sink = 0;
  rows.push_back({"limit: read",
                  static_cast<double>(kStreamBytes),
                  [&] {
                    const size_t piece = kStreamBytes / kLimitPieces;
                    pool.ParallelFor(kLimitPieces, [&](int64_t i, int) {
                      sink = ReadMemory(stream.host.data() + i * piece, piece);
                    });
                  },
                  Limit::kRead,
                  {}});
  add_limit("limit: products of 8 bits", Limit::kInt8,
            [=](int64_t n) { return int8_tiles ? RunInt8Tiles(n) : RunInt8Products(isa, n); });
  if (has_dot) add_limit("limit: vdpbf16ps", Limit::kFloat, RunVdpbf16ps);
  if (is_amx) add_limit("limit: tdpbf16ps", Limit::kFloat, RunBf16Tiles);

  std::vector<std::unique_ptr<Backend>> methods;
  std::vector<std::unique_ptr<GemmCase>> cases;
  AddProducts(*backend, &cases, &rows);
  if (has_dot) AddMethods(num_threads, &methods, &cases, &rows);

  AttentionCase batch(*backend, KvType::kBF16, 32, 16, 1024);
  AttentionCase prompt(*backend, KvType::kBF16, 32, 1, 1024);
  batch.Check();
  prompt.Check();
  std::vector<std::unique_ptr<AttentionCase>> long_contexts;
  for (const int heads : {32, 8}) {
    const std::string suffix = heads == 8 ? ", 8 heads" : "";
    for (const KvType type : {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8}) {
      AttentionCase* const c =
          long_contexts
              .emplace_back(std::make_unique<AttentionCase>(*backend, type, heads, 4, 8192))
              .get();
      c->Check();
      const std::string name = "decode attention 4 x 8192" + suffix;
      rows.push_back({type == KvType::kBF16 ? name : NameOf(type) + (" " + name),
                      c->Bytes(),
                      [c] { c->Decode(); },
                      Limit::kRead,
                      {},
                      type == KvType::kBF16 ? "" : name});
    }
  }
  AttentionCase apart(*backend, KvType::kBF16, 8, 16, 2176);
  AttentionCase shared(*backend, KvType::kBF16, 8, 16, 2176, 2048);
  rows.push_back({"decode attention 16 x 2176, 8 heads",
                  apart.Bytes(),
                  [&] { apart.Decode(); },
                  Limit::kRead,
                  {}});
  rows.push_back({"the same, 2048 of them shared",
                  apart.Bytes(),
                  [&] { shared.Decode(); },
                  Limit::kRead,
                  {},
                  rows.back().name});
  rows.push_back(
      {"decode attention 16 x 1024", batch.Bytes(), [&] { batch.Decode(); }, Limit::kRead, {}});
  rows.push_back({"decode attention 16 x 1024, capped",
                  batch.Bytes(),
                  [&] { batch.Decode(50.0f); },
                  Limit::kRead,
                  {}});
  rows.push_back({"prefill attention 1024",
                  prompt.PrefillOperations(),
                  [&] { prompt.Prefill(); },
                  Limit::kFloat,
                  {}});
  std::vector<std::unique_ptr<AttentionCase>> prompts;
  for (const KvType type : {KvType::kInt8, KvType::kInt8G8, KvType::kFp8}) {
    AttentionCase* const c =
        prompts.emplace_back(std::make_unique<AttentionCase>(*backend, type, 32, 1, 1024)).get();
    rows.push_back({NameOf(type) + std::string(" prefill attention 1024"),
                    c->PrefillOperations(),
                    [c] { c->Prefill(); },
                    Limit::kFloat,
                    {},
                    "prefill attention 1024"});
  }
  std::erase_if(rows, [&](const Row& row) {
    return row.name.find("limit: ") == std::string::npos &&
           row.name.find(rows_with) == std::string::npos;
  });

  MeasureAndPrint(repetitions, has_dot ? "vdpbf16ps" : is_amx ? "tdpbf16ps" : "", &rows);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc > 1 ? argv[1] : "auto", argc > 2 ? std::atoi(argv[2]) : 2,
                      argc > 3 ? std::atoi(argv[3]) : 7, argc > 4 ? argv[4] : "");
}
