// Tensor cores without a GPU: what one sums, and linear layers and attention on them against the
// reference, in whatever batch and chunk a row is and in whatever order threads run.

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/api/e4m3.h"
#include "kernels/api/half.h"
#include "kernels/cuda/emulated/block.h"
#include "kernels/cuda/emulated/tensor_core.h"
#include "kernels/cuda/tensor_rows.h"
#include "kernels/probe/numerics_probe.h"
#include "tests/kernels/emulated_sites.h"
#include "tests/kernels/emulated_test.h"
#include "tests/kernels/fp8_case.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"
#include "tests/kernels/paged_case.h"

namespace tandem {
namespace {

// c + Σ a[i] · b[i], with zeros behind them.
float Sum(float c, const std::vector<float>& a, const std::vector<float>& b) {
  uint16_t of_a[16] = {};
  uint16_t of_b[16] = {};
  for (size_t i = 0; i < a.size(); ++i) of_a[i] = ToBfloat16(a[i]).bits;
  for (size_t i = 0; i < b.size(); ++i) of_b[i] = ToBfloat16(b[i]).bits;
  return emulated::TensorCoreSum(c, of_a, of_b);
}

TEST(EmulatedTensorCoreTest, SumsAreExactAndCutOffOnce) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Sum(1.0f, {2, 3}, {4, 5}), 24.0f);
  EXPECT_EQ(Sum(0.0f, {}, {}), 0.0f);
  // Rounding would give the next number: the last place of 1 is 2^-23.
  EXPECT_EQ(Sum(1.0f, {0x1.8p-12f}, {0x1p-12f}), 1.0f);
  EXPECT_EQ(Sum(-1.0f, {-0x1.8p-12f}, {0x1p-12f}), -1.0f);
  // What is too small alone is seen together, down to two places behind the last.
  EXPECT_EQ(Sum(1.0f, {0x1p-12f, 0x1p-12f}, {0x1p-12f, 0x1p-12f}), 1.0f + 0x1p-23f);
  EXPECT_EQ(
      Sum(1.0f, {0x1p-13f, 0x1p-13f, 0x1p-13f, 0x1p-13f}, {0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f}),
      1.0f + 0x1p-23f);
  EXPECT_EQ(
      Sum(1.0f, {0x1p-13f, 0x1p-13f, 0x1p-13f, 0x1p-13f}, {0x1p-13f, 0x1p-13f, 0x1p-13f, 0x1p-13f}),
      1.0f);
  // Nothing in between is rounded, or overflows.
  EXPECT_EQ(Sum(0.0f, {0x1p127f, -0x1p127f, 3}, {2, 2, 1}), 0.0f);
  EXPECT_EQ(Sum(0.0f, {0x1p100f, 0x1p100f}, {0x1p100f, 0x1p100f}), kInfinity);
  // Denormals are numbers.
  EXPECT_EQ(Sum(0x1p-149f, {0x1p-100f}, {0x1p-49f}), 0x1p-148f);
  EXPECT_EQ(Sum(0.0f, {0x1p-130f}, {0x1p3f}), 0x1p-127f);
  EXPECT_FALSE(std::signbit(Sum(0.0f, {-0x1p-100f}, {0x1p-100f})));
  EXPECT_EQ(Sum(kInfinity, {1}, {1}), kInfinity);
  EXPECT_TRUE(std::isnan(Sum(kInfinity, {-kInfinity}, {1})));
  EXPECT_TRUE(std::isnan(Sum(1.0f, {0}, {kInfinity})));
}

TEST(EmulatedTensorCoreTest, PowersOfTwoAreNearAndNoNumberStaysNone) {
  for (int i = 0; i <= 125 * 4096; ++i) {
    const float x = static_cast<float>(-i) / 4096;
    const double exact = std::exp2(static_cast<double>(x));
    ASSERT_LE(std::fabs(Exp2(x) - exact), 4e-7 * exact) << x;
    ASSERT_EQ(PowerOfTwo(std::ceil(x)), std::exp2(std::ceil(x)));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp2(0.0f), 1.0f);
  EXPECT_EQ(Exp2(std::nextafter(-125.0f, -126.0f)), 0.0f);
  EXPECT_EQ(Exp2(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(Exp2(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(PowerOfTwo(-kInfinity), 0.0f);
}

TEST(EmulatedTensorCoreTest, TheOrderOfTheProductsIsNone) {
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> a(16), b(16);
    for (int k = 0; k < 16; ++k) {
      a[k] =
          std::ldexp(static_cast<float>(random.Unit()) - 0.5f, static_cast<int>(random.Below(30)));
      b[k] = static_cast<float>(random.Unit()) - 0.5f;
    }
    const float before = Sum(0.25f, a, b);
    for (size_t k = 16; k > 1; --k) {
      const size_t other = random.Below(k);
      std::swap(a[k - 1], a[other]);
      std::swap(b[k - 1], b[other]);
    }
    ASSERT_EQ(Sum(0.25f, a, b), before);
  }
}

class EmulatedTensorTest : public EmulatedTest {
 protected:
  void SetUp() override {
    EmulatedTest::SetUp();
    device_ = MakeDevice("cuda-tensor");
    reference_ = MakeDevice("reference");
  }

  std::vector<Bfloat16> Numbers(int64_t count, float scale) {
    std::vector<Bfloat16> numbers(count);
    for (Bfloat16& x : numbers) {
      x = ToBfloat16((static_cast<float>(random_->Unit()) - 0.5f) * scale);
    }
    return numbers;
  }

  std::unique_ptr<TestDevice> device_;
  std::unique_ptr<TestDevice> reference_;
};

std::vector<WeightPart> PartsOf(const std::vector<Bfloat16>& weights, const LinearSpec& spec) {
  return {{weights.data(), spec.out_features, DType::kBF16}};
}

LinearSpec SpecOf(int64_t in, int64_t out, bool segmented) {
  return {.in_features = in,
          .out_features = out,
          .weight_type = WeightType::kBF16,
          .compute_dtype = DType::kBF16,
          .output_dtype = DType::kF32,
          .segmented = segmented};
}

TEST_F(EmulatedTensorTest, LinearLayersMatchTheReference) {
  constexpr int64_t kRows[] = {1, 3, 8, 9, 17, 40, 64, 65, 130, 257, 300};
  constexpr int64_t kInputs[] = {1, 15, 16, 17, 63, 64, 129, 384, 1025, 2048};
  constexpr int64_t kOutputs[] = {1, 16, 17, 75, 256, 270, 530};
  for (int i = 0; i < 60; ++i) {
    LinearSpec spec =
        SpecOf(kInputs[random_->Below(10)], kOutputs[random_->Below(7)], random_->Chance(0.5));
    const bool quantised = i % 2 == 0;
    if (quantised) spec.weight_type = i % 4 == 0 ? WeightType::kInt4 : WeightType::kInt8;
    if (spec.weight_type == WeightType::kInt4) spec.group = 32 << random_->Below(3);
    const int64_t rows = kRows[random_->Below(11)];
    if (rows * spec.in_features * spec.out_features > 20'000'000) continue;
    const auto weights = Numbers(spec.in_features * spec.out_features, 0.2f);
    const auto input = Numbers(rows * spec.in_features, 2.0f);
    std::vector<float> bias(spec.out_features);
    for (float& b : bias) b = static_cast<float>(random_->Unit());
    Layer layer, expected_layer;
    ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, PartsOf(weights, spec), &layer));
    ASSERT_NO_FATAL_FAILURE(MakeLayer(*reference_, spec, PartsOf(weights, spec), &expected_layer));
    emulated::SetSeed(seed_ + i);
    const auto actual = Multiply(*device_, layer, input.data(), rows, bias.data());
    const auto expected = Multiply(*reference_, expected_layer, input.data(), rows, bias.data());
    ASSERT_EQ(emulated::TakeFault(), "");
    const std::string name =
        absl::StrFormat("K %d, N %d, %d rows, %s%s", spec.in_features, spec.out_features, rows,
                        NameOf(spec.weight_type), spec.segmented ? ", segmented" : "");
    if (quantised) {  // Sums of 8 and of 4 bits are exact.
      ASSERT_EQ(actual, expected) << name;
      continue;
    }
    for (size_t at = 0; at < expected.size(); ++at) {
      ASSERT_NEAR(actual[at], expected[at], 5e-5) << name << ", element " << at;
    }
  }
}

// As checkpoints have them: any number, zero and scale, denormal and negative ones among them.
TEST_F(EmulatedTensorTest, FourBitsThatComeWithScalesAndZerosAreTheseNumbers) {
  for (int i = 0; i < 12; ++i) {
    LinearSpec spec = SpecOf(random_->Between(1, 700), random_->Between(1, 60), i % 2 == 0);
    spec.weight_type = WeightType::kInt4;
    spec.group = 32 << i % 3;
    spec.scaled = true;
    const int64_t groups = (spec.in_features + spec.group - 1) / spec.group;
    std::vector<uint8_t> q(spec.in_features * spec.out_features);
    std::vector<uint8_t> zeros(groups * spec.out_features);
    std::vector<float> scales(zeros.size());
    for (uint8_t& x : q) x = static_cast<uint8_t>(random_->Below(16));
    for (uint8_t& x : zeros) x = static_cast<uint8_t>(random_->Below(17));
    for (float& x : scales) {
      const auto bits = static_cast<uint16_t>(random_->Below(0x8000));
      const bool is_number = (bits & 0x7C00u) != 0x7C00u;
      x = is_number ? ToFloat(Half{bits}) : -0x1p-24f;
    }
    const WeightPart part{q.data(), spec.out_features, DType::kF32, scales, zeros};
    const int64_t rows = random_->Between(1, 70);
    const auto input = Numbers(rows * spec.in_features, 2.0f);
    Layer layer, expected_layer;
    ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, {part}, &layer));
    ASSERT_NO_FATAL_FAILURE(MakeLayer(*reference_, spec, {part}, &expected_layer));
    emulated::SetSeed(seed_ + i);
    ASSERT_EQ(Multiply(*device_, layer, input.data(), rows),
              Multiply(*reference_, expected_layer, input.data(), rows))
        << i;
    ASSERT_EQ(emulated::TakeFault(), "");
  }
}

// Few rows, chunks of them, and tiles.
TEST_F(EmulatedTensorTest, WeightsOf8BitFloatsHaveTheBitsOfTheirProductsInBf16) {
  constexpr int64_t kRows[] = {1, 7, 9, 40, 65, 130, 257, 300};
  auto of_warps = CreateCudaBackend("mma");
  ASSERT_TRUE(of_warps.ok()) << of_warps.status();
  TestDevice device(*std::move(of_warps));
  for (int i = 0; i < 40; ++i) {
    const Fp8Case fp8(random_.get(), i);
    const int64_t rows = kRows[random_->Below(8)];
    const auto input = Numbers(rows * fp8.kept.in_features, 2.0f);
    emulated::SetSeed(seed_ + i);
    ASSERT_NO_FATAL_FAILURE(fp8.Check(device, input.data(), rows));
    ASSERT_EQ(emulated::TakeFault(), "");
  }
}

// A broken checkpoint's, which bf16 makes infinities, and NaNs of zeros.
TEST_F(EmulatedTensorTest, WeightsOf8BitFloatsWithAnInfiniteScaleAreInfinities) {
  const float infinity = std::numeric_limits<float>::infinity();
  LinearSpec spec = SpecOf(65, 4, false);
  spec.weight_type = WeightType::kFp8;
  spec.scaled = true;
  spec.group = 65;
  std::vector<uint8_t> numbers(spec.in_features * spec.out_features, 0x30);  // 0.5
  numbers[3 * 65 + 64] = 0x80;
  const std::vector<float> scales = {infinity, 2.0f, -infinity, infinity};
  const std::vector<WeightPart> parts = {
      {.data = numbers.data(), .out_features = 4, .dtype = DType::kF32, .scales = scales}};
  const std::vector<Bfloat16> input(65, ToBfloat16(1.0f));
  Layer layer;
  ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, parts, &layer));
  const auto output = Multiply(*device_, layer, input.data(), 1);
  EXPECT_EQ(std::vector(output.begin(), output.begin() + 3),
            (std::vector<float>{infinity, 65.0f, -infinity}));
  EXPECT_TRUE(std::isnan(output[3])) << output[3];
}

TEST_F(EmulatedTensorTest, WeightsOf8BitFloatsTakeHalfTheBytes) {
  LinearSpec spec = SpecOf(4096, 512, false);
  const size_t wide = device_->backend().GetPackedFormat(spec)->size_bytes;
  spec.weight_type = WeightType::kFp8;
  spec.scaled = true;
  for (const int64_t group : {64, 128, 4096, 5000}) {
    spec.group = group;
    const auto format = device_->backend().GetPackedFormat(spec);
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(format->size_bytes, wide / 2 + wide / 32) << "a scale each 64 inputs";
  }
  // Where they cannot be kept, they are packed as bf16.
  spec.group = 96;
  const absl::Status odd = device_->backend().GetPackedFormat(spec).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(odd)) << odd;
  EXPECT_NE(odd.ToString().find("fp8 in groups of 96"), std::string::npos) << odd;
  spec.group = 128;
  EXPECT_TRUE(
      absl::IsFailedPrecondition((*CreateCudaBackend("fma"))->GetPackedFormat(spec).status()));
}

// Few rows, chunks of them, and tiles.
TEST_F(EmulatedTensorTest, ARowHasTheSameBitsInAnyBatch) {
  constexpr int64_t kRows = 301;
  for (const bool segmented : {false, true}) {
    const LinearSpec spec = SpecOf(1100, 41, segmented);
    const auto weights = Numbers(spec.in_features * spec.out_features, 0.2f);
    const auto input = Numbers(kRows * spec.in_features, 2.0f);
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, spec, PartsOf(weights, spec), &layer));
    const auto together = Multiply(*device_, layer, input.data(), kRows);
    for (const int64_t batch : {1, 2, 8, 13, 31, 64, 65, 190}) {
      const int64_t first = Random(seed_ + batch).Between(0, kRows - batch);
      const auto apart = Multiply(*device_, layer, input.data() + first * spec.in_features, batch);
      ASSERT_EQ(0, std::memcmp(apart.data(), together.data() + first * spec.out_features,
                               apart.size() * sizeof(float)))
          << batch << " rows from " << first;
    }
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

PagedSequence Sequence(const PagedShape& shape, int64_t num_tokens, Random* random) {
  PagedSequence sequence{{}, num_tokens};
  sequence.qkv.resize(num_tokens * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
  for (float& x : sequence.qkv) x = (static_cast<float>(random->Unit()) - 0.5f) * 3.5f;
  return sequence;
}

constexpr KvType kKvTypes[] = {KvType::kBF16, KvType::kInt8, KvType::kInt8G8, KvType::kFp8};

// Groups of less and of more than a product's rows; windows, caps; chunks that end anywhere.
TEST_F(EmulatedTensorTest, AttentionMatchesTheReferenceAndItselfInAnyChunk) {
  struct Case {
    int head_dim, group, kv_heads;
    int64_t tokens;
    int64_t window;
    float cap;
  };
  const Case cases[] = {
      {64, 4, 2, 150, 0, 0.0f},  {128, 1, 2, 129, 0, 0.0f}, {96, 7, 1, 77, 0, 1.5f},
      {256, 3, 1, 70, 40, 0.0f},  // on the ordinary units
      {96, 3, 1, 70, 40, 0.0f},  {128, 20, 1, 66, 0, 0.0f}, {64, 8, 1, 140, 65, 1.5f}};
  for (size_t i = 0; i < std::size(kKvTypes) * std::size(cases); ++i) {
    const Case& c = cases[i / std::size(kKvTypes)];
    const KvType kv_type = kKvTypes[i % std::size(kKvTypes)];
    const PagedShape shape{.num_heads = c.group * c.kv_heads,
                           .num_kv_heads = c.kv_heads,
                           .head_dim = c.head_dim,
                           .dtype = DType::kBF16,
                           .kv_type = kv_type,
                           .window = c.window,
                           .score_cap = c.cap};
    const std::string name =
        absl::StrFormat("D %d, group %d, %s KV", c.head_dim, c.group, NameOf(kv_type));
    const int block_tokens = random_->Chance(0.5) ? 16 : 32;
    const PagedSequence sequence = Sequence(shape, c.tokens, random_.get());
    const PagedSequence other = Sequence(shape, 40, random_.get());
    const uint64_t seed = random_->Next();
    emulated::SetSeed(seed);
    PagedCase expected(reference_.get(), shape, block_tokens, 64, seed);
    PagedCase whole(device_.get(), shape, block_tokens, 64, seed);
    PagedCase parts(device_.get(), shape, block_tokens, 64, seed + 1);
    expected.Add(&sequence);
    whole.Add(&sequence);
    parts.Add(&other);
    parts.Add(&sequence);
    const auto reference = expected.Step({0}, {c.tokens}, false);
    const auto actual = whole.Step({0}, {c.tokens}, false);
    ASSERT_TRUE(Near(DType::kBF16, actual, reference, 6e-3f, 8e-3f)) << name;
    // The last token alone, behind a part of another size, and beside another sequence.
    const int64_t row_bytes = whole.row_elements() * 2;
    const int64_t first = random_->Between(1, c.tokens - 2);
    const auto head = parts.Step({0, 1}, {39, first}, false);
    ASSERT_EQ(0, std::memcmp(head.data() + 39 * row_bytes, actual.data(), first * row_bytes))
        << name;
    const auto middle = parts.Step({1}, {c.tokens - 1 - first}, false);
    ASSERT_EQ(0, std::memcmp(middle.data(), actual.data() + first * row_bytes, middle.size()))
        << name;
    const auto last = parts.Step({0, 1}, {1, 1}, true);
    ASSERT_EQ(0, std::memcmp(last.data() + row_bytes, actual.data() + (c.tokens - 1) * row_bytes,
                             row_bytes))
        << name << ", decode";
    // Beside so many that no segment has a block of its own.
    constexpr int kOthers = 8;
    PagedCase many(device_.get(), shape, block_tokens, 64, seed + 2);
    std::vector<int> ids;
    for (int n = 0; n < kOthers; ++n) ids.push_back(many.Add(&other));
    ids.push_back(many.Add(&sequence));
    std::vector<int64_t> counts(kOthers, 2);
    counts.push_back(c.tokens - 1);
    many.Step(ids, counts, false);
    const auto of_many = many.Step(ids, std::vector<int64_t>(kOthers + 1, 1), true);
    ASSERT_EQ(0, std::memcmp(of_many.data() + kOthers * row_bytes,
                             actual.data() + (c.tokens - 1) * row_bytes, row_bytes))
        << name << ", decode beside many";
    ASSERT_EQ(emulated::TakeFault(), "") << name;
  }
}

// Outputs with KV of that type have the bits of those with KV in bf16: of a chunk, and of a token
// behind it. fill(head_dim, numbers) makes query, key and value such as both keep.
template <typename Fill>
void ExpectKvToBeOfBf16(TestDevice* device, KvType kv_type, Random* random, const Fill& fill) {
  for (const int head_dim : {64, 96, 128}) {
    PagedShape shape{.num_heads = 6,
                     .num_kv_heads = 2,
                     .head_dim = head_dim,
                     .dtype = DType::kBF16,
                     .rotary = false};
    PagedSequence sequence = Sequence(shape, 139, random);
    fill(head_dim, &sequence.qkv);
    std::vector<std::vector<std::byte>> outputs;
    for (const KvType type : {KvType::kBF16, kv_type}) {
      shape.kv_type = type;
      PagedCase paged(device, shape, 16, 16, 1);
      paged.Add(&sequence);
      outputs.push_back(paged.Step({0}, {138}, false));
      const auto last = paged.Step({0}, {1}, true);
      outputs.back().insert(outputs.back().end(), last.begin(), last.end());
    }
    EXPECT_EQ(outputs[0], outputs[1]) << head_dim;
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

// Whole numbers up to 127, times a power of two, are what they are in groups of 8 bits.
TEST_F(EmulatedTensorTest, GroupsOfEightBitsAreTheNumbersThatTheyStandFor) {
  ExpectKvToBeOfBf16(device_.get(), KvType::kInt8G8, random_.get(),
                     [&](int, std::vector<float>* numbers) {
                       for (size_t i = 0; i < numbers->size(); ++i) {
                         (*numbers)[i] = std::ldexp(static_cast<float>(random_->Between(-127, 127)),
                                                    -6 - static_cast<int>(i) / 8 % 3);
                       }
                     });
}

// All numbers in V; in K those that leave softmax more than one token.
TEST_F(EmulatedTensorTest, EightBitFloatsAreTheNumbersThatTheyStandFor) {
  ExpectKvToBeOfBf16(
      device_.get(), KvType::kFp8, random_.get(), [&](int head_dim, std::vector<float>* numbers) {
        for (size_t i = 0; i < numbers->size(); ++i) {
          const size_t head = i / head_dim % 10;
          const auto number = static_cast<uint8_t>(random_->Below(head < 8 ? 0x3C : 0x7F));
          const auto sign = static_cast<uint8_t>(random_->Below(2) << 7);
          if (head >= 6) (*numbers)[i] = ToFloat(E4m3{static_cast<uint8_t>(number | sign)});
        }
      });
}

TEST_F(EmulatedTensorTest, AttentionInF32IsThatOfTheOrdinaryUnits) {
  const auto ordinary = MakeDevice("cuda");
  for (const KvType kv_type : kKvTypes) {
    const PagedShape shape{.num_heads = 2,
                           .num_kv_heads = 1,
                           .head_dim = 64,
                           .dtype = DType::kF32,
                           .kv_type = kv_type};
    const PagedSequence sequence = Sequence(shape, 41, random_.get());
    PagedCase expected(ordinary.get(), shape, 16, 4, 1);
    PagedCase actual(device_.get(), shape, 16, 4, 2);
    expected.Add(&sequence);
    actual.Add(&sequence);
    EXPECT_EQ(actual.Step({0}, {40}, false), expected.Step({0}, {40}, false)) << NameOf(kv_type);
    EXPECT_EQ(actual.Step({0}, {1}, true), expected.Step({0}, {1}, true)) << NameOf(kv_type);
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

// Several segments: decode merges them in a launch of its own, prefill on its way.
TEST_F(EmulatedTensorTest, SegmentsAreMergedAlikeByDecodeAndPrefill) {
  for (const int64_t window : {0, 1100}) {
    const PagedShape shape{.num_heads = 2,
                           .num_kv_heads = 1,
                           .head_dim = 64,
                           .dtype = DType::kBF16,
                           .kv_type = window == 0 ? KvType::kInt8 : KvType::kBF16,
                           .window = window};
    const int64_t tokens = 2 * kAttentionSegmentTokens + 37;
    const PagedSequence sequence = Sequence(shape, tokens, random_.get());
    PagedCase expected(reference_.get(), shape, 32, 80, 1);
    PagedCase chunks(device_.get(), shape, 32, 80, 2);
    PagedCase decode(device_.get(), shape, 32, 80, 3);
    expected.Add(&sequence);
    chunks.Add(&sequence);
    decode.Add(&sequence);
    expected.Step({0}, {tokens - 2}, false);
    chunks.Step({0}, {tokens - 2}, false);
    decode.Step({0}, {tokens - 2}, false);
    const auto two = chunks.Step({0}, {2}, false);
    ASSERT_TRUE(Near(DType::kBF16, two, expected.Step({0}, {2}, false), 6e-3f, 8e-3f));
    for (int64_t i = 0; i < 2; ++i) {
      const auto one = decode.Step({0}, {1}, true);
      EXPECT_EQ(0, std::memcmp(one.data(), two.data() + i * one.size(), one.size())) << i;
    }
    EXPECT_EQ(emulated::TakeFault(), "");
  }
}

// A ring that is filled more often than it has room, and one block that has several jobs.
// What a numerics_id that knew heads of other sizes alone would not tell apart.
TEST_F(EmulatedTensorTest, OnlyHeadsOfTheirOwnSizeShowTheAttentionOfTheTensorCores) {
  const auto fma = MakeBackend("cuda");
  const auto tensor = MakeBackend("cuda-tensor");
  const auto attention_of = [&](Backend& backend, int head_dim) {
    const ProbeShape shape{.rows = 1,
                           .features = 32,
                           .outputs = 8,
                           .vocabulary = 64,
                           .head_dim = head_dim,
                           .positions = 70};
    const auto operations = ProbeOperations(backend, shape, seed_);
    EXPECT_TRUE(operations.ok()) << operations.status();
    for (const ProbedOperation& operation : *operations) {
      if (operation.name == "prefill_attention bf16") return operation.digest;
    }
    return Sha256Digest{};
  };
  for (const int head_dim : {48, 64, 80, 96, 128, 256}) {
    const bool own = head_dim == 64 || head_dim == 96 || head_dim == 128;
    EXPECT_EQ(tensor->HasOwnAttention(head_dim), own) << head_dim;
    EXPECT_FALSE(fma->HasOwnAttention(head_dim)) << head_dim;
    if (head_dim > 96) continue;
    EXPECT_EQ(attention_of(*tensor, head_dim) != attention_of(*fma, head_dim), own) << head_dim;
  }
  EXPECT_NE(*ProbeNumerics(*tensor, {.head_dim = 64}), *ProbeNumerics(*tensor, {}));
}

// Who widens them otherwise than others must not go on with their streams.
TEST_F(EmulatedTensorTest, WeightsOf8BitFloatsAreProbed) {
  const auto tensor = MakeBackend("cuda-tensor");
  const ProbeShape shape{.rows = 1,
                         .features = 130,
                         .outputs = 8,
                         .vocabulary = 64,
                         .positions = 70,
                         .fp8_weights = true};
  const auto operations = ProbeOperations(*tensor, shape, seed_);
  const auto of_warps = ProbeOperations(**CreateCudaBackend("mma"), shape, seed_);
  ASSERT_TRUE(operations.ok() && of_warps.ok()) << operations.status() << of_warps.status();
  std::set<Sha256Digest> digests;
  int met = 0;
  for (size_t i = 0; i < operations->size(); ++i) {
    const ProbedOperation& operation = (*operations)[i];
    if (operation.name.find("fp8 linear") == std::string::npos) continue;
    EXPECT_EQ(operation.digest, (*of_warps)[i].digest) << operation.name;
    digests.insert(operation.digest);
    ++met;
  }
  EXPECT_GE(met, 20);
  EXPECT_GE(digests.size(), 20u) << "each form of layer has bits of its own";
}

// Leaves out each alone: barriers, or waits for the launch before.
class EmulatedTensorSitesTest : public EmulatedTensorTest {
 protected:
  // As if products of four warps had other bits, so that many rows are multiplied without them.
  void SetUp() override {
    emulated::SumWarpgroupsByHalves(true);
    EmulatedTensorTest::SetUp();
  }
  void TearDown() override {
    EmulatedTensorTest::TearDown();
    emulated::SumWarpgroupsByHalves(false);
  }
  void ExpectEachIsNeeded(bool launch_waits);
};

void EmulatedTensorSitesTest::ExpectEachIsNeeded(bool launch_waits) {
  LinearSpec specs[] = {SpecOf(2400, 40, true), SpecOf(400, 40, false), SpecOf(800, 40, false)};
  specs[2].weight_type = WeightType::kInt4;
  specs[2].group = 64;
  const int64_t rows_of[] = {3, 257, 5};
  constexpr int kLayers = 3;
  Layer layers[kLayers];
  std::vector<Bfloat16> inputs[kLayers];
  for (int i = 0; i < kLayers; ++i) {
    const auto weights = Numbers(specs[i].in_features * specs[i].out_features, 0.2f);
    inputs[i] = Numbers(rows_of[i] * specs[i].in_features, 2.0f);
    ASSERT_NO_FATAL_FAILURE(MakeLayer(*device_, specs[i], PartsOf(weights, specs[i]), &layers[i]));
  }
  PagedShape shape{.num_heads = 8, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};
  const PagedSequence sequence = Sequence(shape, 331, random_.get());
  const PagedSequence other = Sequence(shape, 21, random_.get());
  // All outputs, one behind the other; empty if a launch failed.
  const auto run = [&] {
    auto backend = MakeDevice("cuda-tensor");
    std::vector<std::byte> all;
    for (int i = 0; i < kLayers; ++i) {
      const size_t output_bytes = rows_of[i] * specs[i].out_features * 4;
      const DeviceBuffer buffer = *backend->backend().Allocate(output_bytes);
      auto* const output = static_cast<const std::byte*>(OnHost(buffer.data()));
      const absl::Status status = backend->Linear({.op = layers[i].op.get(),
                                                   .input = inputs[i].data(),
                                                   .output = OnHost(buffer.data()),
                                                   .num_rows = rows_of[i]});
      if (!status.ok()) return std::vector<std::byte>();
      all.insert(all.end(), output, output + output_bytes);
    }
    const auto add = [&](const std::vector<std::byte>& output) {
      all.insert(all.end(), output.begin(), output.end());
    };
    for (const KvType kv_type : {KvType::kBF16, KvType::kInt8}) {
      shape.kv_type = kv_type;
      PagedCase attention(backend.get(), shape, 16, 32, 5);
      attention.Add(&sequence);
      for (int i = 0; i < 4; ++i) attention.Add(&other);
      // A segment a block, then a segment a warp.
      add(attention.Step({0, 1, 2, 3, 4}, {329, 20, 20, 20, 20}, false));
      add(attention.Step({0}, {1}, true));
      add(attention.Step({0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, true));
    }
    return all;
  };
  ExpectEachSiteIsNeeded({.files = "tensor_",
                          .launch_waits = launch_waits,
                          .least = launch_waits ? 5u : 11u,
                          .seed = seed_,
                          .run = run});
}

TEST_F(EmulatedTensorSitesTest, EachBarrierAndEachWaitIsNeeded) {
  ExpectEachIsNeeded(/*launch_waits=*/false);
}
TEST_F(EmulatedTensorSitesTest, EachWaitForTheLaunchBeforeIsNeeded) {
  ExpectEachIsNeeded(/*launch_waits=*/true);
}

}  // namespace
}  // namespace tandem
