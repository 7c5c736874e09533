// What weights and KV are kept in, and what operations compute in, are types of their own. The
// reference has every pair of them, and shows what a pair means: what is kept is rounded to its
// type once, and then as good a number as any.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/api/e4m3.h"
#include "kernels/api/half.h"
#include "kernels/support/int8.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/paged_case.h"
#include "tests/support/e4m3_definition.h"

namespace tandem {
namespace {

std::vector<float> Numbers(int64_t count, Random* random) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<float>(random->Unit()) - 0.5f);
  }
  return numbers;
}

std::vector<float> InBf16(std::vector<float> numbers) {
  for (float& number : numbers) number = ToFloat(ToBfloat16(number));
  return numbers;
}

// x Wᵀ, computed in f32, of weights [out_features, K].
std::vector<float> Multiply(WeightType weight_type, const std::vector<float>& weights,
                            const std::vector<float>& x) {
  const auto device = MakeDevice("reference");
  Backend& backend = device->backend();
  const auto inputs = static_cast<int64_t>(x.size());
  const auto outputs = static_cast<int64_t>(weights.size()) / inputs;
  const LinearSpec spec{.in_features = inputs,
                        .out_features = outputs,
                        .weight_type = weight_type,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32};
  const size_t bytes = backend.GetPackedFormat(spec)->size_bytes;
  const PinnedBuffer packed = *backend.AllocatePinned(bytes);
  const WeightPart part{weights.data(), outputs, DType::kF32};
  EXPECT_TRUE(backend.PackLinear(spec, {&part, 1}, {packed.data(), bytes}).ok());
  const DeviceBuffer placed = *backend.PlaceWeights({packed.data(), bytes});
  const auto op = *backend.PrepareLinear(spec, placed.data(), bytes);
  std::vector<float> y(outputs);
  EXPECT_TRUE(
      device->Linear({.op = op.get(), .input = x.data(), .output = y.data(), .num_rows = 1}).ok());
  return y;
}

TEST(TypesTest, LinearLayersComputeInTheirTypeWhateverWeightsAreKeptIn) {
  Random random(11);
  const std::vector<float> weights = Numbers(9 * 70, &random);
  const std::vector<float> x = Numbers(70, &random);
  const std::vector<float> y = Multiply(WeightType::kBF16, weights, x);
  EXPECT_EQ(y, Multiply(WeightType::kF32, InBf16(weights), x));
  EXPECT_NE(y, Multiply(WeightType::kBF16, weights, InBf16(x)));
  EXPECT_NE(y, Multiply(WeightType::kF32, weights, x));
}

// Attention of 2 heads on 1 over 70 tokens, the last 3 of them as one run.
std::vector<std::byte> Attend(DType dtype, KvType kv_type, const std::vector<float>& qkv) {
  const auto device = MakeDevice("reference");
  PagedCase paged(device.get(),
                  {.num_heads = 2,
                   .num_kv_heads = 1,
                   .head_dim = 16,
                   .dtype = dtype,
                   .kv_type = kv_type,
                   .rotary = false},
                  /*block_tokens=*/16, /*num_blocks=*/8, /*seed=*/1);
  const PagedSequence sequence{qkv, 70};
  const int id = paged.Add(&sequence);
  paged.Step({id}, {67}, /*decode=*/false);
  return paged.Step({id}, {3}, /*decode=*/false);
}

TEST(TypesTest, AttentionComputesInItsTypeWhateverKvIsKeptIn) {
  Random random(12);
  constexpr int kRow = (2 + 2) * 16, kQuery = 2 * 16;
  const std::vector<float> qkv = Numbers(70 * kRow, &random);
  std::vector<float> narrow_kv = InBf16(qkv), narrow_query = qkv;
  for (int64_t i = 0; i < 70 * kRow; ++i) {
    if (i % kRow < kQuery) {
      narrow_query[i] = narrow_kv[i];
      narrow_kv[i] = qkv[i];
    }
  }
  const auto bf16_kv = Attend(DType::kF32, KvType::kBF16, qkv);
  EXPECT_EQ(bf16_kv, Attend(DType::kF32, KvType::kF32, narrow_kv));
  EXPECT_NE(bf16_kv, Attend(DType::kF32, KvType::kBF16, narrow_query));
  EXPECT_EQ(Attend(DType::kBF16, KvType::kF32, narrow_kv),
            Attend(DType::kBF16, KvType::kBF16, qkv));
  EXPECT_NE(Attend(DType::kBF16, KvType::kF32, qkv), Attend(DType::kBF16, KvType::kBF16, qkv));
}

float NextPowerOfTwo(float x) {
  int exponent = 0;
  return std::ldexp(1.0f, std::frexp(x, &exponent) == 0.5f ? exponent - 1 : exponent);
}

// What numbers kept in 8 bits are: runs of `length` have a scale.
std::vector<float> InInt8(const std::vector<float>& numbers, int length, bool grouped) {
  std::vector<float> kept;
  for (size_t begin = 0; begin < numbers.size(); begin += length) {
    float absmax = 0;
    for (int i = 0; i < length; ++i) absmax = std::max(absmax, std::fabs(numbers[begin + i]));
    float scale = absmax / 127.0f;
    if (grouped) scale = NextPowerOfTwo(scale);
    for (int i = 0; i < length; ++i) {
      const float number = std::clamp(numbers[begin + i] / scale, -127.0f, 127.0f);
      kept.push_back(std::nearbyint(number) * scale);
    }
  }
  return kept;
}

TEST(TypesTest, KvOf8BitsIsWithinTheRoundingOfItsScaledNumbers) {
  Random random(13);
  constexpr int kRow = (2 + 2) * 16, kQuery = 2 * 16;
  const std::vector<float> qkv = Numbers(70 * kRow, &random);
  for (const bool grouped : {false, true}) {
    std::vector<float> kept = InInt8(qkv, grouped ? 8 : 16, grouped);
    for (int64_t i = 0; i < 70 * kRow; ++i) {
      if (i % kRow < kQuery) kept[i] = qkv[i];
    }
    const auto actual = Attend(DType::kF32, grouped ? KvType::kInt8G8 : KvType::kInt8, qkv);
    EXPECT_TRUE(Near(DType::kF32, actual, Attend(DType::kF32, KvType::kF32, kept), 1e-6f, 1e-6f));
    EXPECT_FALSE(Near(DType::kF32, actual, Attend(DType::kF32, KvType::kF32, qkv), 1e-6f, 1e-6f));
  }
}

// A number of KV in fp8 is as good as the same number kept wide, whatever is computed in.
TEST(TypesTest, KvInFp8IsTheNumbersThatItsAreRoundedTo) {
  Random random(14);
  constexpr int kRow = (2 + 2) * 16, kQuery = 2 * 16;
  std::vector<float> qkv = Numbers(70 * kRow, &random);
  for (float& x : qkv) x *= 6;
  std::vector<float> kept = qkv;
  for (int64_t i = 0; i < 70 * kRow; ++i) {
    if (i % kRow >= kQuery) kept[i] = ToFloat(ToE4m3(qkv[i]));
  }
  EXPECT_NE(kept, qkv);
  EXPECT_EQ(Attend(DType::kF32, KvType::kFp8, qkv), Attend(DType::kF32, KvType::kF32, kept));
  EXPECT_EQ(Attend(DType::kBF16, KvType::kFp8, qkv), Attend(DType::kBF16, KvType::kBF16, kept));
}

TEST(TypesTest, TheScaleOfAGroupIsAPowerOfTwoAndHidesNothingThatIsNoNumber) {
  const auto scale = [](float absmax) { return Int8GroupScaleToFloat(Int8GroupScale(absmax)); };
  EXPECT_EQ(scale(127.0f), 1.0f);
  EXPECT_EQ(scale(127.1f), 2.0f);
  EXPECT_EQ(scale(3.0f), 0.03125f);
  EXPECT_EQ(scale(0x1p-120f), 0.0f);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float absmax : {infinity, std::nanf("")}) {
    for (const float x : {1.0f, -infinity, std::nanf("")}) {
      const int32_t q = ToInt8OfGroup(x, Int8GroupScale(absmax));
      EXPECT_TRUE(std::isnan(static_cast<float>(q) * scale(absmax))) << x << " of " << absmax;
    }
  }
}

// What is stored and what is computed in are two types, and a backend has kernels for some pairs of
// them. A model of another pair is refused when its layers are declared.
TEST(TypesTest, TypesThatNoKernelHasTogetherAreRefused) {
  for (const char* device : {"cpu", "fenced"}) {
    const auto backend = MakeBackend(device);
    ASSERT_NE(backend, nullptr);
    const absl::Status tile =
        backend->GetKvTileFormat({16, 64, KvType::kF32}, DType::kBF16).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(tile)) << tile;
    EXPECT_NE(tile.ToString().find("in bf16 with KV of type f32"), std::string::npos) << tile;
    for (const KvType kv : {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        EXPECT_TRUE(backend->GetKvTileFormat({16, 64, kv}, compute).ok()) << NameOf(kv);
      }
    }
    const absl::Status linear = backend
                                    ->GetPackedFormat({.in_features = 8,
                                                       .out_features = 4,
                                                       .weight_type = WeightType::kF32,
                                                       .compute_dtype = DType::kBF16,
                                                       .output_dtype = DType::kF32})
                                    .status();
    EXPECT_TRUE(absl::IsFailedPrecondition(linear)) << linear;
    EXPECT_NE(linear.ToString().find("in bf16 with weights of type f32"), std::string::npos)
        << linear;
  }
}

// The upper halves of what ml_dtypes 0.6.0 makes of each float8_e4m3fn in float32; all lower halves
// are zero.
constexpr uint16_t kE4m3InMlDtypes[256] = {
    0x0000, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60, 0x3C80, 0x3C90, 0x3CA0, 0x3CB0,
    0x3CC0, 0x3CD0, 0x3CE0, 0x3CF0, 0x3D00, 0x3D10, 0x3D20, 0x3D30, 0x3D40, 0x3D50, 0x3D60, 0x3D70,
    0x3D80, 0x3D90, 0x3DA0, 0x3DB0, 0x3DC0, 0x3DD0, 0x3DE0, 0x3DF0, 0x3E00, 0x3E10, 0x3E20, 0x3E30,
    0x3E40, 0x3E50, 0x3E60, 0x3E70, 0x3E80, 0x3E90, 0x3EA0, 0x3EB0, 0x3EC0, 0x3ED0, 0x3EE0, 0x3EF0,
    0x3F00, 0x3F10, 0x3F20, 0x3F30, 0x3F40, 0x3F50, 0x3F60, 0x3F70, 0x3F80, 0x3F90, 0x3FA0, 0x3FB0,
    0x3FC0, 0x3FD0, 0x3FE0, 0x3FF0, 0x4000, 0x4010, 0x4020, 0x4030, 0x4040, 0x4050, 0x4060, 0x4070,
    0x4080, 0x4090, 0x40A0, 0x40B0, 0x40C0, 0x40D0, 0x40E0, 0x40F0, 0x4100, 0x4110, 0x4120, 0x4130,
    0x4140, 0x4150, 0x4160, 0x4170, 0x4180, 0x4190, 0x41A0, 0x41B0, 0x41C0, 0x41D0, 0x41E0, 0x41F0,
    0x4200, 0x4210, 0x4220, 0x4230, 0x4240, 0x4250, 0x4260, 0x4270, 0x4280, 0x4290, 0x42A0, 0x42B0,
    0x42C0, 0x42D0, 0x42E0, 0x42F0, 0x4300, 0x4310, 0x4320, 0x4330, 0x4340, 0x4350, 0x4360, 0x4370,
    0x4380, 0x4390, 0x43A0, 0x43B0, 0x43C0, 0x43D0, 0x43E0, 0x7FC0, 0x8000, 0xBB00, 0xBB80, 0xBBC0,
    0xBC00, 0xBC20, 0xBC40, 0xBC60, 0xBC80, 0xBC90, 0xBCA0, 0xBCB0, 0xBCC0, 0xBCD0, 0xBCE0, 0xBCF0,
    0xBD00, 0xBD10, 0xBD20, 0xBD30, 0xBD40, 0xBD50, 0xBD60, 0xBD70, 0xBD80, 0xBD90, 0xBDA0, 0xBDB0,
    0xBDC0, 0xBDD0, 0xBDE0, 0xBDF0, 0xBE00, 0xBE10, 0xBE20, 0xBE30, 0xBE40, 0xBE50, 0xBE60, 0xBE70,
    0xBE80, 0xBE90, 0xBEA0, 0xBEB0, 0xBEC0, 0xBED0, 0xBEE0, 0xBEF0, 0xBF00, 0xBF10, 0xBF20, 0xBF30,
    0xBF40, 0xBF50, 0xBF60, 0xBF70, 0xBF80, 0xBF90, 0xBFA0, 0xBFB0, 0xBFC0, 0xBFD0, 0xBFE0, 0xBFF0,
    0xC000, 0xC010, 0xC020, 0xC030, 0xC040, 0xC050, 0xC060, 0xC070, 0xC080, 0xC090, 0xC0A0, 0xC0B0,
    0xC0C0, 0xC0D0, 0xC0E0, 0xC0F0, 0xC100, 0xC110, 0xC120, 0xC130, 0xC140, 0xC150, 0xC160, 0xC170,
    0xC180, 0xC190, 0xC1A0, 0xC1B0, 0xC1C0, 0xC1D0, 0xC1E0, 0xC1F0, 0xC200, 0xC210, 0xC220, 0xC230,
    0xC240, 0xC250, 0xC260, 0xC270, 0xC280, 0xC290, 0xC2A0, 0xC2B0, 0xC2C0, 0xC2D0, 0xC2E0, 0xC2F0,
    0xC300, 0xC310, 0xC320, 0xC330, 0xC340, 0xC350, 0xC360, 0xC370, 0xC380, 0xC390, 0xC3A0, 0xC3B0,
    0xC3C0, 0xC3D0, 0xC3E0, 0xFFC0};

TEST(E4m3Test, AllNumbersAreThoseOfTheDefinitionAndOfAnotherLibrary) {
  for (int i = 0; i < 256; ++i) {
    const float number = ToFloat(E4m3{static_cast<uint8_t>(i)});
    EXPECT_EQ(std::signbit(number), i >= 128) << i;
    EXPECT_EQ(ToBfloat16(number).bits, kE4m3InMlDtypes[i]) << i;
    if (i % 128 == 127) {
      EXPECT_TRUE(std::isnan(number)) << i;
    } else {
      EXPECT_EQ(number, E4m3ByDefinition(i)) << i;
      EXPECT_EQ(ToE4m3(number).bits, i);
    }
  }
}

// The nearest of all numbers; of two that are as near the one whose last bit is 0.
int NearestE4m3(float x) {
  const int sign = std::signbit(x) ? 128 : 0;
  int nearest = sign;
  for (int i = sign; i < sign + 127; ++i) {
    const double distance = std::fabs(E4m3ByDefinition(i) - x);
    const double least = std::fabs(E4m3ByDefinition(nearest) - x);
    if (distance < least || (distance == least && i % 2 == 0)) nearest = i;
  }
  return nearest;
}

TEST(E4m3Test, RoundsToTheNearestNumberTiesToEven) {
  const auto check = [](float x) { EXPECT_EQ(ToE4m3(x).bits, NearestE4m3(x)) << x; };
  for (int i = 0; i < 126; ++i) {
    const auto half_way = static_cast<float>((E4m3ByDefinition(i) + E4m3ByDefinition(i + 1)) / 2);
    for (const float x :
         {half_way, std::nextafter(half_way, 1e3f), std::nextafter(half_way, 0.0f)}) {
      check(x);
      check(-x);
    }
  }
  for (const float x : {448.0f, 463.0f, 464.0f, 480.0f, 1e4f, 3.4e38f, 1e-40f, 0.0f}) {
    check(x);
    check(-x);
  }
  Random random(15);
  for (int i = 0; i < 20000; ++i) {
    const auto exponent = static_cast<int>(random.Between(-14, 10));
    check(std::ldexp(static_cast<float>(random.Unit()) * 2 - 1, exponent));
  }
}

// NaNs have one sign: that of a sum's depends on the machine.
TEST(E4m3Test, WhatIsNoNumberIsOneNan) {
  for (const float x : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_EQ(ToE4m3(x).bits, 0x7F);
    EXPECT_EQ(ToE4m3(-x).bits, 0x7F);
  }
}

TEST(HalfTest, EveryValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = ToFloat(Half{static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE((bits & 0x7C00u) == 0x7C00u && (bits & 0x3FFu) != 0) << bits;
      continue;
    }
    EXPECT_EQ(ToHalf(value).bits, bits);
  }
}

TEST(HalfTest, HasTheValuesOfItsDefinition) {
  EXPECT_EQ(ToFloat(Half{0x3C00}), 1.0f);
  EXPECT_EQ(ToFloat(Half{0xC000}), -2.0f);
  EXPECT_EQ(ToFloat(Half{0x7BFF}), 65504.0f);
  EXPECT_EQ(ToFloat(Half{0x0001}), 0x1p-24f);
  EXPECT_EQ(ToFloat(Half{0x03FF}), 1023 * 0x1p-24f);
  EXPECT_TRUE(std::isinf(ToFloat(Half{0x7C00})));
  EXPECT_TRUE(std::signbit(ToFloat(Half{0x8000})));
}

TEST(HalfTest, RoundsToNearestEven) {
  EXPECT_EQ(ToHalf(1.0f + 0x1p-11f).bits, 0x3C00);      // Half way: to even.
  EXPECT_EQ(ToHalf(1.0f + 3 * 0x1p-11f).bits, 0x3C02);  // Half way: to even.
  EXPECT_EQ(ToHalf(1.0f + 0x1p-11f + 0x1p-20f).bits, 0x3C01);
  EXPECT_EQ(ToHalf(65520.0f).bits, 0x7C00);
  EXPECT_EQ(ToHalf(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(ToHalf(0x1.8p-24f).bits, 0x0002);
}

}  // namespace
}  // namespace tandem
