// The kernels of AMX on tiles in plain C++, which any machine has: against another path's bits in 8
// bits, and in bf16 against their arithmetic, written down once more (docs/numerics.md). Where the
// machine has AMX its own tiles are compared with these.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/kernel_table_x86.h"
#include "kernels/probe/hostile_numbers.h"
#include "kernels/probe/numerics_probe.h"
#include "kernels/support/float_environment.h"
#include "tests/kernels/fused_linear.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"
#include "tests/kernels/software_amx.h"
#include "tests/kernels/software_tiles.h"

namespace tandem {
namespace {

// An operation of software tiles rounds as an instruction does where there is fused multiply-add.
bool HasFma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma") != 0;
#else
  return true;
#endif
}

class AmxTest : public testing::Test {
 protected:
  AmxTest() : random_(Seed()) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(Seed()));
  }

  static uint64_t Seed() {
    const char* const text = std::getenv("TANDEM_TEST_SEED");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  }

  // Numbers of either type; all exponents where `hostile`.
  std::vector<std::byte> Numbers(DType dtype, int64_t count, bool hostile) {
    std::vector<std::byte> bytes(count * SizeOf(dtype));
    for (int64_t i = 0; i < count; ++i) {
      const float x = hostile
                          ? HostileNumber(static_cast<int>(16 + 14 * (i / 64 % 16)), &random_)
                          : static_cast<float>(random_.Unit() * 2 - 1) * (i % 7 == 0 ? 9.0f : 1.0f);
      const Bfloat16 narrow = ToBfloat16(x);
      const void* const from = dtype == DType::kF32 ? static_cast<const void*>(&x) : &narrow;
      std::memcpy(&bytes[i * SizeOf(dtype)], from, SizeOf(dtype));
    }
    return bytes;
  }

  // K and N with and without tails of tiles.
  LinearSpec AnySpec(DType dtype, WeightType weights) {
    constexpr int64_t kInputs[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 700, 1037};
    constexpr int64_t kOutputs[] = {1, 15, 16, 17, 31, 32, 33, 48, 64, 70};
    return {.in_features = kInputs[random_.Below(std::size(kInputs))],
            .out_features = kOutputs[random_.Below(std::size(kOutputs))],
            .weight_type = weights,
            .compute_dtype = dtype,
            .output_dtype = random_.Chance(0.5) ? DType::kF32 : dtype,
            .segmented = random_.Chance(0.5)};
  }

  int64_t AnyRows() {
    return random_.Chance(0.3) ? random_.Between(1, 3) : random_.Between(1, 100);
  }

  static std::string Describe(const LinearSpec& spec, int64_t rows) {
    return absl::StrFormat("K %d, N %d, %d rows, %s to %s%s", spec.in_features, spec.out_features,
                           rows, NameOf(spec.compute_dtype), NameOf(spec.output_dtype),
                           spec.segmented ? ", segmented" : "");
  }

  static std::vector<std::byte> Run(TestDevice& device, const LinearSpec& spec,
                                    const std::vector<std::byte>& weights,
                                    const std::vector<std::byte>& input,
                                    const float* bias = nullptr) {
    return RunLinear(device, spec, {weights.data(), spec.out_features, spec.compute_dtype}, input,
                     bias);
  }

  static std::unique_ptr<TestDevice> OnTable(const KernelTable& table, int num_threads = 1) {
    return std::make_unique<TestDevice>(CreateCpuBackend(table, num_threads));
  }

  Random random_;
  const KernelTable tiles_ = WithSoftwareTiles(GenericKernels(), /*bf16=*/true,
                                               /*int8_rows_from=*/1);
};

TEST_F(AmxTest, EightBitsHaveTheBitsOfOtherPaths) {
  const auto expected = MakeDevice("cpu-generic");
  for (int i = 0; i < 60; ++i) {
    const DType dtype = random_.Chance(0.5) ? DType::kF32 : DType::kBF16;
    LinearSpec spec = AnySpec(dtype, WeightType::kInt8);
    if (random_.Chance(0.3)) spec.outlier_threshold = 0.5f;  // Not for tiles.
    const int64_t rows = AnyRows();
    const bool hostile = random_.Chance(0.2);
    const auto weights = Numbers(dtype, spec.in_features * spec.out_features, hostile);
    const auto input = Numbers(dtype, spec.in_features * rows, hostile);
    const std::vector<float> bias(spec.out_features, 0.37f);
    const float* const bias_or_null = random_.Chance(0.5) ? bias.data() : nullptr;
    const auto device = OnTable(tiles_, static_cast<int>(random_.Between(1, 3)));
    ASSERT_EQ(Run(*device, spec, weights, input, bias_or_null),
              Run(*expected, spec, weights, input, bias_or_null))
        << Describe(spec, rows);
  }
}

TEST_F(AmxTest, WhatLayersAddAndActivateHasTheBitsOfOperationsBehind) {
  ExpectAddedOutputsAreThoseOfAdd(*OnTable(tiles_), /*outliers=*/true, &random_);
  ExpectActivatedOutputsAreThoseOfTheFunctions(*OnTable(tiles_), /*outliers=*/true, &random_);
}

// Where weights are 128 too high, a sum leaves the numbers of 32 bits meanwhile.
TEST_F(AmxTest, EightBitsDoNotOverflow) { ExpectTheLargestInt8Sums(*OnTable(tiles_)); }

float Number(const std::vector<std::byte>& numbers, int64_t index) {
  return At(DType::kBF16, numbers, index);
}

// Inputs [begin, end): 32 at a time, what the last lack being zeros, in two chains.
float SumOfTiles(const std::vector<std::byte>& x, int64_t row, const std::vector<std::byte>& w,
                 int64_t output, int64_t in_features, int64_t begin, int64_t end) {
  float sum = 0.0f;
  for (int64_t tile = begin; tile < end; tile += 32) {
    float chains[2] = {};
    for (int64_t k = tile; k < tile + 32; ++k) {
      const float a = k < end ? Number(x, row * in_features + k) : 0.0f;
      const float b = k < end ? Number(w, output * in_features + k) : 0.0f;
      chains[k % 2] = std::fma(a, b, chains[k % 2]);
    }
    sum += chains[0] + chains[1];
  }
  return sum;
}

// Segments [first, end) of the tree; false if all are empty.
bool SumOfSegments(const std::vector<std::byte>& x, int64_t row, const std::vector<std::byte>& w,
                   int64_t output, int64_t in_features, int first, int end, float* sum) {
  if (end - first > 1) {
    float right = 0.0f;
    const int middle = (first + end) / 2;
    const bool has_left = SumOfSegments(x, row, w, output, in_features, first, middle, sum);
    const bool has_right = SumOfSegments(x, row, w, output, in_features, middle, end, &right);
    if (has_right) *sum = has_left ? *sum + right : right;
    return has_left || has_right;
  }
  const int64_t from = LinearSegmentBegin(in_features, first);
  const int64_t to = LinearSegmentBegin(in_features, end);
  if (from == to) return false;
  *sum = SumOfTiles(x, row, w, output, in_features, from, to);
  return true;
}

std::vector<std::byte> ByTheBook(const LinearSpec& spec, const std::vector<std::byte>& weights,
                                 const std::vector<std::byte>& input, int64_t rows,
                                 const float* bias) {
  const KernelFloatScope scope;
  std::vector<std::byte> output;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < spec.out_features; ++n) {
      float y = 0.0f;
      if (spec.segmented) {
        SumOfSegments(input, r, weights, n, spec.in_features, 0, kNumLinearSegments, &y);
      } else {
        y = SumOfTiles(input, r, weights, n, spec.in_features, 0, spec.in_features);
      }
      if (bias != nullptr) y += bias[n];
      const Bfloat16 narrow = ToBfloat16(y);
      const auto* const from = spec.output_dtype == DType::kF32
                                   ? reinterpret_cast<const std::byte*>(&y)
                                   : reinterpret_cast<const std::byte*>(&narrow);
      output.insert(output.end(), from, from + SizeOf(spec.output_dtype));
    }
  }
  return output;
}

// All NaNs as one.
std::vector<uint32_t> Bits(DType dtype, const std::vector<std::byte>& array) {
  std::vector<uint32_t> bits;
  for (size_t i = 0; i < array.size() / SizeOf(dtype); ++i) {
    bits.push_back(OneNan(std::bit_cast<uint32_t>(At(dtype, array, static_cast<int64_t>(i)))));
  }
  return bits;
}

TEST_F(AmxTest, Bf16IsTheArithmeticOfItsClass) {
  if (!HasFma()) GTEST_SKIP() << "avx2 is not on this machine";
  int denormal_or_zero = 0, infinite = 0;
  for (int i = 0; i < 80; ++i) {
    const LinearSpec spec = AnySpec(DType::kBF16, WeightType::kBF16);
    const int64_t rows = AnyRows();
    const bool hostile = i % 2 != 0;
    const auto weights = Numbers(DType::kBF16, spec.in_features * spec.out_features, hostile);
    const auto input = Numbers(DType::kBF16, spec.in_features * rows, hostile);
    const std::vector<float> bias(spec.out_features, 0.37f);
    const float* const bias_or_null = !hostile && random_.Chance(0.5) ? bias.data() : nullptr;
    const auto device = OnTable(tiles_, static_cast<int>(random_.Between(1, 3)));
    const auto actual = Run(*device, spec, weights, input, bias_or_null);
    const auto expected = ByTheBook(spec, weights, input, rows, bias_or_null);
    ASSERT_EQ(Bits(spec.output_dtype, actual), Bits(spec.output_dtype, expected))
        << Describe(spec, rows) << (hostile ? ", hostile numbers" : "");
    for (const uint32_t bits : Bits(spec.output_dtype, actual)) {
      denormal_or_zero += (bits & 0x7F800000u) == 0;
      infinite += (bits & 0x7F800000u) == 0x7F800000u;
    }
  }
  EXPECT_GT(denormal_or_zero, 0);
  EXPECT_GT(infinite, 0);
}

// Whatever tiles a row shares, and with whom.
TEST_F(AmxTest, ARowHasTheSameBitsInAnyBatch) {
  if (!HasFma()) GTEST_SKIP() << "avx2 is not on this machine";
  const LinearSpec spec{.in_features = 300,
                        .out_features = 45,
                        .weight_type = WeightType::kBF16,
                        .compute_dtype = DType::kBF16,
                        .output_dtype = DType::kF32,
                        .segmented = true};
  const auto weights = Numbers(DType::kBF16, spec.in_features * spec.out_features, false);
  constexpr int64_t kRows = 230;  // More than a block of rows.
  const auto input = Numbers(DType::kBF16, kRows * spec.in_features, false);
  const auto device = OnTable(tiles_);
  const auto together = Run(*device, spec, weights, input);
  for (const int64_t batch : {1, 2, 15, 16, 17, 31, 33, 49}) {
    const std::vector<std::byte> part(input.begin() + 70 * spec.in_features * 2,
                                      input.begin() + (70 + batch) * spec.in_features * 2);
    const std::vector<std::byte> expected(together.begin() + 70 * spec.out_features * 4,
                                          together.begin() + (70 + batch) * spec.out_features * 4);
    EXPECT_EQ(Run(*device, spec, weights, part), expected) << batch;
  }
}

TEST_F(AmxTest, FewRowsOfEightBitsTakeNoTilesAndNoneAreLeftBehind) {
  const KernelTable table = WithSoftwareTiles(GenericKernels(), /*bf16=*/false, kTileRowsFrom);
  const LinearSpec spec{.in_features = 130,
                        .out_features = 40,
                        .weight_type = WeightType::kInt8,
                        .compute_dtype = DType::kBF16,
                        .output_dtype = DType::kF32};
  const auto weights = Numbers(DType::kBF16, spec.in_features * spec.out_features, false);
  const auto expected = MakeDevice("cpu-generic");
  const auto device = OnTable(table, /*num_threads=*/3);
  for (const int64_t rows : {1, 15, 16, 192, 200}) {
    const auto input = Numbers(DType::kBF16, spec.in_features * rows, false);
    const int64_t before = SoftwareTiles::num_configurations();
    EXPECT_EQ(Run(*device, spec, weights, input), Run(*expected, spec, weights, input));
    EXPECT_EQ(SoftwareTiles::num_configurations() > before, rows >= kTileRowsFrom) << rows;
    EXPECT_EQ(SoftwareTiles::num_configured(), 0);
  }
}

// A class of its own in bf16, by what the probe measures, and in 8 bits as all of its path.
TEST_F(AmxTest, TheProbeTellsTheClass) {
#if defined(__aarch64__)
  constexpr std::string_view kFmaPath = "neon";
#else
  constexpr std::string_view kFmaPath = "avx2";
#endif
  const KernelTable* base = nullptr;
  for (const Isa& isa : KnownIsas()) {
    if (isa.name == kFmaPath) base = isa.kernels();
  }
  if (base == nullptr) GTEST_SKIP() << kFmaPath << " is not on this machine";
  const auto fma = CreateCpuBackend(*base, 1);
  const KernelTable int8 = WithSoftwareTiles(*base, /*bf16=*/false, /*int8_rows_from=*/1);
  const KernelTable both = WithSoftwareTiles(*base, /*bf16=*/true, /*int8_rows_from=*/1);
  const auto probe = [](Backend& backend) {
    const auto digest = ProbeNumerics(backend, {.int8_weights = true});
    EXPECT_TRUE(digest.ok()) << digest.status();
    return *digest;
  };
  const auto of_fma = probe(*fma);
  EXPECT_EQ(probe(*CreateCpuBackend(int8, 1)), of_fma);
  const auto of_class = probe(*CreateCpuBackend(both, 1));
  EXPECT_NE(of_class, of_fma);
  EXPECT_NE(of_class, probe(*MakeBackend("cpu-generic")));
  EXPECT_EQ(probe(*CreateCpuBackend(both, 3)), of_class);
  // What is no product of bf16 weights has the bits of the other class.
  const ProbeShape shape{.int8_weights = true};
  const auto others = ProbeOperations(*fma, shape, 1);
  const auto own = ProbeOperations(*CreateCpuBackend(both, 1), shape, 1);
  ASSERT_TRUE(others.ok() && own.ok());
  ASSERT_EQ(own->size(), others->size());
  int differ = 0;
  for (size_t o = 0; o < own->size(); ++o) {
    const std::string& name = (*own)[o].name;
    const bool is_own = name.starts_with("linear") && name.find("bf16") != std::string::npos;
    const bool differs = (*own)[o].digest != (*others)[o].digest;
    EXPECT_TRUE(is_own || !differs) << name;
    differ += differs;
  }
  EXPECT_GE(differ, 21);  // Each form of a layer, of ordinary numbers at least.
}

#if defined(__x86_64__)
// The processor's own tiles do what its manual says. Otherwise "amx" is the class that the probe
// measures all the same, but not the one that docs/numerics.md describes.
TEST_F(AmxTest, TheMachinesOwnTilesGiveTheSameBits) {
  const auto native = MakeDevice("cpu-amx");
  if (native == nullptr) GTEST_SKIP() << "cpu-amx is not on this machine";
  const auto native_int8 = MakeDevice("cpu-avx512bf16-tiles");
  ASSERT_NE(native_int8, nullptr);
  const auto software = OnTable(tiles_);
  for (int i = 0; i < 80; ++i) {
    const bool int8 = i % 4 == 3, hostile = i % 2 != 0;
    const DType dtype = int8 && random_.Chance(0.5) ? DType::kF32 : DType::kBF16;
    const LinearSpec spec = AnySpec(dtype, int8 ? WeightType::kInt8 : WeightType::kBF16);
    const int64_t rows = AnyRows();
    const auto weights = Numbers(dtype, spec.in_features * spec.out_features, hostile);
    const auto input = Numbers(dtype, spec.in_features * rows, hostile);
    TestDevice& device = int8 ? *native_int8 : *native;
    ASSERT_EQ(Bits(spec.output_dtype, Run(device, spec, weights, input)),
              Bits(spec.output_dtype, Run(*software, spec, weights, input)))
        << Describe(spec, rows) << (hostile ? ", hostile numbers" : "");
  }
}

const GemmKernels& GenericInt8() {
  return *GenericKernels().FindGemm(WeightType::kInt8, DType::kBF16);
}

TEST(Int8MethodTest, TilesArePickedIfTheyAreFasterAndHaveTheSameSums) {
  // What is slow does the same four times: whatever else the machine does, both wait for it.
  const GemmKernels& quick = GenericInt8();
  GemmKernels slow = quick;
  slow.run = [](const GemmTask& task) {
    for (int i = 0; i < 4; ++i) GenericInt8().run(task);
  };
  GemmKernels slow_tiles = SoftwareTilesInt8(DType::kBF16);
  slow_tiles.run = [](const GemmTask& task) {
    for (int i = 0; i < 4; ++i) SoftwareTilesInt8(DType::kBF16).run(task);
  };
  // Off by one unit in the last place of one output.
  GemmKernels wrong = quick;
  wrong.run = [](const GemmTask& task) {
    GenericInt8().run(task);
    static_cast<uint32_t*>(task.output)[task.num_outputs - 1] ^= 1;
  };
  EXPECT_EQ(PickInt8Method(slow, quick), Int8Method::kTiles);
  EXPECT_EQ(PickInt8Method(slow_tiles, quick), Int8Method::kTiles) << "their sums are the same";
  EXPECT_EQ(PickInt8Method(quick, slow), Int8Method::kDot);
  EXPECT_EQ(PickInt8Method(slow, wrong), Int8Method::kDot);
}

#endif  // __x86_64__

TEST(SoftwareTilesDeathTest, RefuseWhatAProcessorWould) {
  const auto with_rows = [](int tile, int rows, int row_bytes) {
    TileConfig config;
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
    SoftwareTiles tiles;
    tiles.Configure(config);
  };
  with_rows(7, 16, 64);
  EXPECT_DEATH(with_rows(0, 17, 64), "has 17 rows");
  EXPECT_DEATH(with_rows(0, 16, 65), "has rows of 65");
  EXPECT_DEATH(with_rows(0, 16, 0), "is neither");
  EXPECT_DEATH(with_rows(8, 16, 64), "there is no tile 8");
  TileConfig config;
  for (const int tile : {0, 1, 2}) {
    config.rows[tile] = 16;
    config.row_bytes[tile] = 64;
  }
  config.rows[3] = 5;
  config.row_bytes[3] = 64;
  SoftwareTiles tiles;
  EXPECT_DEATH(tiles.Zero<0>(), "no tile has been configured");
  tiles.Configure(config);
  tiles.MultiplyInt8<0, 1, 2>();
  EXPECT_DEATH(tiles.Zero<4>(), "tile 4");
  EXPECT_DEATH((tiles.MultiplyInt8<3, 1, 2>()), "5, 16");
  EXPECT_DEATH((tiles.MultiplyBf16<0, 1, 3>()), "64, 5");
}

// Weights may be 128 to 255 and inputs -128: each side has its own sign.
TEST(SoftwareTilesTest, OnlyInputsHaveASign) {
  TileConfig config;
  for (const int tile : {0, 1, 2}) {
    config.rows[tile] = 1;
    config.row_bytes[tile] = 4;
  }
  const int8_t a[4] = {-128, 127, -1, 5};
  const uint8_t b[4] = {255, 200, 128, 3};
  int32_t sum = 7;
  SoftwareTiles tiles;
  tiles.Configure(config);
  tiles.Load<0>(&sum, 4);
  tiles.Load<1>(a, 4);
  tiles.Load<2>(b, 4);
  tiles.MultiplyInt8<0, 1, 2>();
  tiles.Store<0>(&sum, 4);
  EXPECT_EQ(sum, 7 - 128 * 255 + 127 * 200 - 128 + 15);
}

}  // namespace
}  // namespace tandem
