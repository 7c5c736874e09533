// Our transcendental functions: accuracy over all exponents, and the 16-lane ones against the
// scalar ones bit by bit (through operations that use them).

#include "kernels/support/vector_math.h"

#include <cmath>
#include <limits>

#include "kernels/api/rows.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Error in units of the last place of a float as large as `exact`.
double Ulps(float value, double exact) {
  return std::fabs(value - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}

// Calls body(x) for every 997th bit pattern that is a finite number.
template <typename Body>
void ForManyFloats(Body body) {
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 997) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isfinite(x)) body(x);
  }
}

TEST(VectorMathTest, ExpIsWithinOnePointOneUlp) {
  double worst = 0;
  ForManyFloats([&](float x) {
    if (x >= kExpLowest && x <= kExpHighest)
      worst = std::max(worst, Ulps(Exp(x), std::exp(double{x})));
  });
  EXPECT_LT(worst, 1.1);
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
}

TEST(VectorMathTest, ExpSaturates) {
  EXPECT_EQ(Exp(-87.01f), 0.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_EQ(Exp(88.01f), kInfinity);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(kNaN)));
}

TEST(VectorMathTest, LogIsRoundedFromDouble) {
  double worst = 0;
  ForManyFloats([&](float x) {
    if (x > 0 && x != 1.0f) worst = std::max(worst, Ulps(Log(x), std::log(double{x})));
  });
  EXPECT_LT(worst, 0.501);
  EXPECT_EQ(Log(1.0f), 0.0f);
  EXPECT_EQ(Log(0.0f), -kInfinity);
  EXPECT_EQ(Log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Log(-1.0f)));
  EXPECT_TRUE(std::isnan(Log(kNaN)));
}

TEST(VectorMathTest, SinAndCosAreRoundedFromDouble) {
  double worst = 0;
  ForManyFloats([&](float x) {
    if (std::fabs(x) > 0x1p30f) return;
    const SinCosResult result = SinCos(x);
    worst = std::max({worst, std::fabs(result.sin - std::sin(double{x})),
                      std::fabs(result.cos - std::cos(double{x}))});
  });
  EXPECT_LT(worst, 0x1p-25 * 1.001);  // half a unit in the last place below 1
}

TEST(VectorMathTest, GeluHasNoCancellation) {
  for (float x = -6.0f; x <= 6.0f; x += 0.01f) {
    const double y = std::sqrt(2 / M_PI) * (double{x} + 0.044715 * double{x} * x * x);
    EXPECT_NEAR(GeluTanh(x), 0.5 * x * (1 + std::tanh(y)), 1e-6 * std::max(1.0f, std::fabs(x)));
  }
}

TEST(VectorMathTest, TanhIsWithinTwoAndAHalfUlpOfSmallNumbersToo) {
  double worst = 0;
  ForManyFloats([&](float x) {
    if (std::isnan(x) || std::fabs(x) < 1e-35f) return;
    worst = std::max(worst, Ulps(Tanh(x), std::tanh(double{x})));
  });
  EXPECT_LT(worst, 2.5);
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(Tanh(sign * kInfinity), sign);
    EXPECT_EQ(std::bit_cast<uint32_t>(Tanh(sign * 0.0f)), std::bit_cast<uint32_t>(sign * 0.0f));
  }
  EXPECT_TRUE(std::isnan(Tanh(kNaN)));
  EXPECT_EQ(SoftCap(1e30f, 50.0f), 50.0f);
  EXPECT_NEAR(SoftCap(-1.0f, 50.0f), -50.0 * std::tanh(1.0 / 50.0), 1e-6);
}

TEST(VectorMathTest, LanesAreSummedInTheFixedTree) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i == 3 ? 0x1p24f : i == 11 ? -0x1p24f : 0.5f;
  // Lanes 3 and 11 cancel first, so nothing is lost.
  EXPECT_EQ(SumLanes(lanes), 7.0f);
}

// Rows of 16 by a layer that multiplies with one and activates, as a kernel of linear layers does.
std::vector<float> ActivatedInLanes(TestDevice& device, ActivationFunction function,
                                    const std::vector<float>& x) {
  const LinearSpec spec{.in_features = kLanes,
                        .out_features = kLanes,
                        .weight_type = WeightType::kF32,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32,
                        .activation = function};
  float one[kLanes * kLanes] = {};
  for (int i = 0; i < kLanes; ++i) one[i * kLanes + i] = 1.0f;
  Layer layer;
  MakeLayer(device, spec, {{one, kLanes, DType::kF32}}, &layer);
  if (layer.op == nullptr) return {};
  return Multiply(device, layer, x.data(), static_cast<int64_t>(x.size()) / kLanes);
}

// exp in 16 lanes, through SiLU (a division more) over every exponent.
TEST(VectorMathTest, LanesGiveTheBitsOfTheScalarFunctions) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 9973) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    // Denormal inputs and results are flushed by the kernels' float environment.
    if (std::isfinite(value) && std::fabs(value) > 1e-30f) x.push_back(value);
  }
  x.resize(x.size() / kLanes * kLanes);
  for (const std::string& name : TestedDevices()) {
    const auto device = MakeDevice(name);
    if (device == nullptr) continue;
    std::vector<float> tanh = x;
    const auto silu = ActivatedInLanes(*device, ActivationFunction::kSilu, x);
    const auto gelu = ActivatedInLanes(*device, ActivationFunction::kGeluTanh, x);
    ASSERT_EQ(silu.size(), x.size());
    ASSERT_EQ(gelu.size(), x.size());
    ASSERT_OK(device->SoftCap(
        {.values = tanh.data(), .count = static_cast<int64_t>(x.size()), .cap = 1.0f}));
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::fabs(Silu(x[i])) > 1e-30f) {
        ASSERT_EQ(silu[i], Silu(x[i])) << name << ", x " << x[i];
      }
      if (std::fabs(GeluTanh(x[i])) > 1e-30f) {
        ASSERT_EQ(gelu[i], GeluTanh(x[i])) << name << ", x " << x[i];
      }
      ASSERT_EQ(tanh[i], Tanh(x[i])) << name << ", x " << x[i];
    }
  }
}

TEST(DTypeTest, Bfloat16RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(ToBfloat16(1.0f).bits, 0x3F80);
  EXPECT_EQ(ToBfloat16(-0.0f).bits, 0x8000);
  EXPECT_EQ(ToBfloat16(std::bit_cast<float>(0x3F808000u)).bits, 0x3F80);  // tie to even, down
  EXPECT_EQ(ToBfloat16(std::bit_cast<float>(0x3F818000u)).bits, 0x3F82);  // tie to even, up
  EXPECT_EQ(ToBfloat16(std::bit_cast<float>(0x3F808001u)).bits, 0x3F81);
  EXPECT_EQ(ToBfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(ToBfloat16(kInfinity).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(ToFloat(ToBfloat16(kNaN))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBfloat16(std::bit_cast<float>(0x7F800001u)))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bfloat16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) continue;
    ASSERT_EQ(ToBfloat16(ToFloat(value)), value);
  }
}

}  // namespace
}  // namespace tandem
