#include "kernels/probe/numerics_probe.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "kernels/cpu/kernel_table.h"
#include "kernels/probe/hostile_numbers.h"
#include "kernels/support/float_environment.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/support/forwarding_backend.h"

namespace tandem {
namespace {

std::string Probe(Backend& backend, const ProbedOptions& options = {}) {
  const auto digest = ProbeNumerics(backend, options);
  EXPECT_TRUE(digest.ok()) << digest.status();
  return HexOf(digest->data(), digest->size());
}

constexpr ProbedOptions kAllOptions{.window = true,
                                    .head_norms = true,
                                    .score_cap = true,
                                    .logit_cap = true,
                                    .int8_weights = true,
                                    .int8_outliers = true,
                                    .int4_weights = true};

class NumericsProbeTest : public testing::TestWithParam<std::string> {};

TEST_P(NumericsProbeTest, IsTheSameOnAnyNumberOfThreadsAndEveryTime) {
  std::set<std::string> probes;
  for (const int threads : {1, 2, 3}) {
    const auto backend = MakeBackend(GetParam(), threads);
    if (backend == nullptr) GTEST_SKIP() << GetParam() << " is not on this machine";
    probes.insert(Probe(*backend));
    probes.insert(Probe(*backend));
  }
  EXPECT_EQ(probes.size(), 1u) << *probes.begin();
}

INSTANTIATE_TEST_SUITE_P(All, NumericsProbeTest, testing::ValuesIn(TestedDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Fenced, NumericsProbeTest, testing::Values("fenced"), DeviceName);

// The devices of the class that this machine has.
std::vector<std::pair<std::string, std::unique_ptr<Backend>>> FmaClass() {
  std::vector<std::pair<std::string, std::unique_ptr<Backend>>> present;
  for (const std::string& name : FmaDevices()) {
    if (auto backend = MakeBackend(name)) present.emplace_back(name, std::move(backend));
  }
  return present;
}

TEST(NumericsProbeOptionsTest, WhatAModelHasNoneOfChangesNothingForIt) {
  const auto backend = MakeBackend("cpu-generic");
  std::set<std::string> probes;
  for (const bool window : {false, true}) {
    for (const bool head_norms : {false, true}) {
      probes.insert(Probe(*backend, {.window = window, .head_norms = head_norms}));
    }
  }
  probes.insert(Probe(*backend, {.score_cap = true}));
  probes.insert(Probe(*backend, {.logit_cap = true}));
  probes.insert(Probe(*backend, {.int8_weights = true}));
  probes.insert(Probe(*backend, {.int8_outliers = true}));
  probes.insert(Probe(*backend, {.int4_weights = true}));
  for (const KvType kv : {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8}) {
    probes.insert(Probe(*backend, {.kv_type = kv}));
  }
  EXPECT_EQ(probes.size(), 13u);
  const auto plain = ProbeOperations(*backend, {}, 1);
  const ProbeShape with_all{.window = 50,
                            .head_norms = true,
                            .score_cap = 1,
                            .logit_cap = 1,
                            .int8_weights = true,
                            .int8_outliers = 1.5f,
                            .int4_weights = true,
                            .kv_type = KvType::kInt8};
  const auto more = ProbeOperations(*backend, with_all, 1);
  ASSERT_TRUE(plain.ok() && more.ok());
  ASSERT_GT(more->size(), plain->size());
  for (size_t o = 0; o < plain->size(); ++o) EXPECT_EQ((*more)[o].digest, (*plain)[o].digest);
}

TEST(NumericsProbeOptionsTest, LayersWithOutliersHaveSome) {
  const auto backend = MakeBackend("cpu-generic");
  const auto with = ProbeOperations(*backend, {.int8_outliers = 1.5f}, 1);
  const auto without = ProbeOperations(*backend, {.int8_outliers = 2.5f}, 1);
  ASSERT_TRUE(with.ok() && without.ok());
  ASSERT_EQ(with->size(), without->size());
  int differ = 0;
  for (size_t o = 0; o < with->size(); ++o) {
    const bool is_ordinary = (*with)[o].name.find("hostile") == std::string::npos;
    const bool has_outliers = (*with)[o].name.starts_with("int8 linear with outliers");
    if (!is_ordinary) continue;  // Numbers of all sizes: some are outliers of either.
    const bool differs = (*with)[o].digest != (*without)[o].digest;
    differ += differs;
    EXPECT_EQ(differs, has_outliers) << (*with)[o].name;
  }
  EXPECT_EQ(differ, 42);
}

// Workers whose kernels differ where nobody looks would continue each other's streams.
TEST(NumericsProbeOptionsTest, EveryOperationIsProbedInEveryTypeAndOnBothKindsOfNumbers) {
  const auto backend = MakeBackend("cpu-generic");
  const ProbeShape with_all{.window = 50,
                            .logit_cap = 1,
                            .int8_weights = true,
                            .int8_outliers = 1.5f,
                            .int4_weights = true,
                            .kv_type = KvType::kInt8};
  const auto operations = ProbeOperations(*backend, with_all, 1);
  ASSERT_TRUE(operations.ok()) << operations.status();
  std::multiset<std::string> names;
  for (const ProbedOperation& operation : *operations) names.insert(operation.name);
  const auto expect = [&](const std::string& name, size_t f32, size_t bf16) {
    for (const char* kind : {"", ", hostile numbers"}) {
      EXPECT_EQ(names.count(name + " f32" + kind), f32) << name << kind;
      EXPECT_EQ(names.count(name + " bf16" + kind), bf16) << name << kind;
    }
  };
  for (const char* name : {"rms_norm", "layer_norm"}) expect(name, 1, 1);
  for (const std::string name : {"linear", "int8 linear", "int8 linear with outliers",
                                 "int4 linear of 32", "int4 linear of 64", "int4 linear of 128"}) {
    for (const char* form : {"", " in segments", " in segments, added", " with silu",
                             " with gated silu", " with gelu", " with gated gelu"}) {
      for (const char* call : {"", ", without bias", ", many rows"})
        expect(name + form + call, 1, 1);
    }
  }
  // Without options, and with those of the model.
  for (const char* name : {"query", "kv blocks", "prefill_attention", "decode_attention"}) {
    expect(name, 2, 2);
    expect("int8 kv: " + std::string(name), 1, 1);
  }
  for (const char* name : {"cos", "sin"}) expect(name, 3, 3);
  expect("soft_cap", 1, 1);
  for (const char* name : {"embedding", "gather"}) {
    for (const char* kind : {"", ", hostile numbers"}) {
      EXPECT_EQ(names.count(name + std::string(" f32") + kind) +
                    names.count(name + std::string(" bf16") + kind),
                1u)
          << name << kind;
    }
  }
}

// Multiplies as the cpu does, but for the last output of the layers that `is_wrong` tells.
class WrongLayers final : public ForwardingBackend {
 public:
  using IsWrong = std::function<bool(const LinearSpec& spec, const LinearArgs& args)>;

  explicit WrongLayers(IsWrong is_wrong)
      : ForwardingBackend(MakeBackend("cpu-generic")), is_wrong_(std::move(is_wrong)) {}

  absl::Status Linear(const LinearArgs& args) override {
    TANDEM_RETURN_IF_ERROR(backend().Linear(args));
    const LinearSpec& spec = args.op->spec();
    if (args.num_rows * spec.columns() < 2 || !is_wrong_(spec, args)) return absl::OkStatus();
    const size_t size = SizeOf(spec.output_dtype);
    const size_t last = static_cast<size_t>(args.num_rows * spec.columns() - 1) * size;
    std::vector<std::byte> outputs(last + size);
    TANDEM_RETURN_IF_ERROR(backend().Download(outputs.data(), args.output, outputs.size()));
    TANDEM_RETURN_IF_ERROR(backend().Synchronize());
    outputs[last] ^= std::byte{1};
    TANDEM_RETURN_IF_ERROR(backend().Upload(args.output, outputs.data(), outputs.size()));
    return backend().Synchronize();
  }

 private:
  const IsWrong is_wrong_;
};

// What models run is measured: whichever form of a layer is wrong, and in one bit, it shows.
TEST(NumericsProbeOptionsTest, AWrongKernelOfAnyFormOfALayerChangesTheDigest) {
  constexpr int64_t kTileRows = 16;  // AMX's, from which on other kernels multiply.
  const auto activated = [](ActivationFunction function, bool gated) {
    return [=](const LinearSpec& spec, const LinearArgs&) {
      return spec.activation == function && spec.gated == gated;
    };
  };
  const std::pair<const char*, WrongLayers::IsWrong> kinds[] = {
      {"silu", activated(ActivationFunction::kSilu, false)},
      {"gated silu", activated(ActivationFunction::kSilu, true)},
      {"gelu", activated(ActivationFunction::kGeluTanh, false)},
      {"gated gelu", activated(ActivationFunction::kGeluTanh, true)},
      {"added", [](const LinearSpec&, const LinearArgs& args) { return args.adds_to_output; }},
      {"segmented", [](const LinearSpec& spec, const LinearArgs&) { return spec.segmented; }},
      {"without bias",
       [](const LinearSpec&, const LinearArgs& args) { return args.bias == nullptr; }},
      {"many rows of any form",
       [](const LinearSpec& spec, const LinearArgs& args) {
         return args.num_rows >= kTileRows && !spec.segmented && !spec.activation;
       }},
      {"many rows that are added",
       [](const LinearSpec&, const LinearArgs& args) {
         return args.num_rows >= kTileRows && args.adds_to_output;
       }},
      {"many rows with a gate",
       [](const LinearSpec& spec, const LinearArgs& args) {
         return args.num_rows >= kTileRows && spec.gated;
       }},
  };
  ProbedOptions options;
  const std::string plain = Probe(*MakeBackend("cpu-generic"), options);
  options.int8_weights = true;
  const std::string int8 = Probe(*MakeBackend("cpu-generic"), options);
  for (const auto& [name, is_wrong] : kinds) {
    WrongLayers wrong(is_wrong);
    EXPECT_NE(Probe(wrong), plain) << name;
    WrongLayers wrong_in_8_bits([&](const LinearSpec& spec, const LinearArgs& args) {
      return spec.weight_type == WeightType::kInt8 && is_wrong(spec, args);
    });
    EXPECT_NE(Probe(wrong_in_8_bits, options), int8) << name;
  }
  WrongLayers none([](const LinearSpec&, const LinearArgs&) { return false; });
  EXPECT_EQ(Probe(none), plain);
}

// Random numbers hardly ever have a product that shows it, and yet such machines are another class.
TEST(NumericsProbeClassesTest, WhoFlushesBeforeRoundingHasAnOperationForIt) {
  volatile float product = 0x1.000002p-63f;
  {
    const KernelFloatScope scope;
    product = product * 0x1.fffffcp-64f;
  }
  for (const std::string& name : TestedDevices()) {
    const auto backend = MakeBackend(name);
    if (backend == nullptr || !name.starts_with("cpu")) continue;
    const auto operations = ProbeOperations(*backend, {}, 1);
    ASSERT_TRUE(operations.ok()) << operations.status();
    int count = 0;
    for (const ProbedOperation& operation : *operations) {
      count += operation.name.starts_with(kFlushesBeforeRounding);
    }
    EXPECT_EQ(count, product == 0.0f) << name;
  }
}

TEST(NumericsProbeClassesTest, FencedMemoryChangesNoBit) {
  const auto cpu = CreateBackend({});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(Probe(*MakeBackend("fenced"), kAllOptions), Probe(**cpu, kAllOptions));
}

TEST(NumericsProbeClassesTest, PathsWithFusedMultiplyAddAreOneClassAndTheOthersAreNot) {
  const std::string generic = Probe(*MakeBackend("cpu-generic"));
  EXPECT_EQ(generic.size(), 64u);
  EXPECT_NE(generic, Probe(*MakeBackend("reference")));
  const auto paths = FmaClass();
  if (paths.empty()) GTEST_SKIP() << "avx2 is not on this machine";
  EXPECT_NE(Probe(*paths.front().second), generic);
  for (const auto& [name, backend] : paths) {
    EXPECT_EQ(Probe(*backend), Probe(*paths.front().second)) << name;
    ProbedOptions options = kAllOptions;
    options.int8_outliers = HasOutliers(name);
    EXPECT_EQ(Probe(*backend, options), Probe(*paths.front().second, options)) << name;
  }
}

// Every operation of every path on the same numbers, KV blocks included. TANDEM_TEST_SEED, or 1.
TEST(NumericsProbeClassesTest, PathsOfTheClassGiveTheSameBitsOverRandomShapes) {
  const auto paths = FmaClass();
  if (paths.size() < 2) GTEST_SKIP() << "fewer than two paths of a class are on this machine";
  const char* const text = std::getenv("TANDEM_TEST_SEED");
  const uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  constexpr int kHeadDims[] = {2, 6, 16, 18, 48, 64, 80, 96, 112, 128, 256};
  constexpr int kGroups[] = {1, 2, 3, 4, 7, 8, 16};
  for (int i = 0; i < 24; ++i) {
    ProbeShape shape{.rows = random.Between(1, 40),
                     .many_rows = random.Between(1, 70),
                     .features = random.Between(1, 700),
                     .outputs = random.Between(1, 200),
                     .vocabulary = random.Between(1, 9000),
                     .kv_heads = static_cast<int>(random.Between(1, 2)),
                     .head_dim = kHeadDims[random.Below(std::size(kHeadDims))],
                     .block_tokens = random.Chance(0.5) ? 16 : 32,
                     .positions = static_cast<int32_t>(random.Between(1, i % 5 == 0 ? 1300 : 200))};
    shape.heads = shape.kv_heads * kGroups[random.Below(std::size(kGroups))];
    shape.prefill_rows = random.Between(1, std::min(shape.positions, 60));
    shape.window = random.Chance(0.6) ? random.Between(1, shape.positions) : 0;
    shape.head_norms = random.Chance(0.5);
    shape.score_cap = random.Chance(0.5) ? 3.0f : 0.0f;
    shape.logit_cap = 20.0f;
    shape.int8_weights = true;
    shape.int4_weights = true;
    constexpr float kThresholds[] = {1.5f, 0x1p-50f, 0x1p15f};
    const bool have_outliers = std::all_of(
        paths.begin(), paths.end(), [](const auto& path) { return HasOutliers(path.first); });
    if (have_outliers) shape.int8_outliers = kThresholds[i % 3];
    constexpr KvType kKvTypes[] = {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8};
    shape.kv_type = kKvTypes[i % 4];
    const uint64_t numbers = random.Next();
    const auto expected = ProbeOperations(*paths.front().second, shape, numbers);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t p = 1; p < paths.size(); ++p) {
      const auto actual = ProbeOperations(*paths[p].second, shape, numbers);
      ASSERT_TRUE(actual.ok()) << actual.status();
      ASSERT_EQ(actual->size(), expected->size());
      for (size_t o = 0; o < actual->size(); ++o) {
        EXPECT_EQ((*actual)[o].digest, (*expected)[o].digest)
            << (*actual)[o].name << " of " << paths[p].first << " and " << paths.front().first
            << ", shape " << i << ": " << shape.rows << " rows, " << shape.features << " features, "
            << shape.outputs << " outputs, " << shape.heads << " / " << shape.kv_heads
            << " heads of " << shape.head_dim << ", " << shape.positions << " positions";
      }
    }
  }
}

// Bits of products over hostile numbers, in an environment that flushes denormals or does not.
std::vector<float> Products(const GemmKernels& gemm, bool flush) {
  constexpr int kInputs = 64, kOutputs = 32;
  const int num_rows = gemm.max_tile_rows;
  Random random(3);
  std::vector<uint16_t> rows, panel;
  const auto add = [&random](int exponent, std::vector<uint16_t>* to) {
    to->push_back(ToBfloat16(HostileNumber(exponent, &random)).bits);
  };
  for (int r = 0; r < num_rows * kInputs; ++r) add(40 + 20 * (r / kInputs), &rows);
  for (int k = 0; k < kInputs * kOutputs; ++k) add(127 - 4 * (k / 2 % kOutputs), &panel);
  std::vector<std::byte> packed(num_rows * kInputs / gemm.k_per_unit * gemm.activation_unit_bytes);
  gemm.pack_rows({.input = rows.data(),
                  .in_features = kInputs,
                  .segmented = false,
                  .segment = 0,
                  .group = 0,
                  .rows = num_rows,
                  .packed = packed.data(),
                  .outliers = {}});
  std::vector<float> output(num_rows * kOutputs);
  const uint32_t saved = FloatEnvironment();
  if (flush) SetKernelFloatEnvironment();
  gemm.run({.activations = packed.data(),
            .num_rows = num_rows,
            .panels = reinterpret_cast<const std::byte*>(panel.data()),
            .in_features = kInputs,
            .group = 0,
            .segmented = false,
            .bias = nullptr,
            .output = output.data(),
            .output_stride = kOutputs,
            .num_outputs = kOutputs,
            .output_dtype = DType::kF32});
  SetFloatEnvironment(saved);
  return output;
}

TEST(HostileNumbersTest, SumsUnderflowWhereTheyAreFlushedOrNot) {
  const GemmKernels& gemm = *GenericKernels().FindGemm(WeightType::kBF16, DType::kBF16);
  const std::vector<float> flushed = Products(gemm, true), kept = Products(gemm, false);
  int denormal = 0, differ = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    denormal += std::fpclassify(kept[i]) == FP_SUBNORMAL;
    differ += std::bit_cast<uint32_t>(kept[i]) != std::bit_cast<uint32_t>(flushed[i]);
    EXPECT_NE(std::fpclassify(flushed[i]), FP_SUBNORMAL) << i;
  }
  EXPECT_GT(denormal, 0);
  EXPECT_GT(differ, denormal) << "denormal terms of normal sums are flushed, too";
}

}  // namespace
}  // namespace tandem
