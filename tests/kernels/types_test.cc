// What weights and KV are kept in, and what operations compute in, are types of their own. The
// reference has every pair of them, and shows what a pair means: what is kept is rounded to its
// type once, and then as good a number as any.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/api/half.h"
#include "kernels/support/int8.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/paged_case.h"

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
    for (const KvType kv : {KvType::kBF16, KvType::kInt8, KvType::kInt8G8}) {
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
