// Linear layers of many rows by products of four warps (wgmma) without a GPU: what these products
// mean, in 8 bits and behind barriers of phases, and that layers by them have the bits of those by
// a warp's products, or do without.

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulated/block.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/emulated_sites.h"
#include "tests/kernels/emulated_warpgroups.h"
#include "tests/kernels/fp8_case.h"
#include "tests/kernels/fused_linear.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int kThreads = 128;
constexpr int kColumns = 256;
constexpr int kRowBytes = 128;
constexpr int kMatrixBytes = kColumns * kRowBytes;

// ---- products ----

TEST(EmulatedWgmmaLinearTest, ProductsOfEightBitsAreThoseOfMatrices) {
  constexpr int kRows = 64, kSteps = 4, kSummed = 32;
  Random random(5);
  static int8_t a[kRows][kSteps * kSummed], b[kColumns][kSteps * kSummed];
  for (auto& row : a) {
    for (int8_t& x : row) x = static_cast<int8_t>(random.Between(-128, 127));
  }
  for (auto& row : b) {
    for (int8_t& x : row) x = static_cast<int8_t>(random.Between(-128, 127));
  }
  std::vector<int32_t> sums(kThreads * kColumns / 2);
  emulated::TakeFault();
  ASSERT_TRUE(emulated::RunBlocks("kernel", 1, kThreads, kMatrixBytes, [&] {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kColumns * kRowBytes / 4; i += kThreads) {
      const int row = i / (kRowBytes / 4), word = i % (kRowBytes / 4);
      uint32_t four;
      std::memcpy(&four, &b[row][word * 4], sizeof(four));
      SharedCast<uint32_t>(SharedMemory() + row * kRowBytes)[(word / 4 ^ row % 8) * 4 + word % 4] =
          four;
    }
    FenceAsyncReads();
    __syncthreads();
    // Register i has of row l / 4, or 8 more, the four numbers from 4 · (l % 4), or 16 more, on.
    uint32_t words[kSteps][4];
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < 4; ++i) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
        std::memcpy(&words[step][i], &a[row][step * kSummed + thread % 4 * 4 + i / 2 * 16], 4);
      }
    }
    int32_t d[kColumns / 2];
    for (int32_t& x : d) x = 7;
    FenceProducts();
    for (int step = 0; step < kSteps; ++step) {
      WarpgroupMmaInt8<kColumns>(d, words[step], SwizzledMatrix(SharedMemory() + step * 32),
                                 step > 0);
    }
    CommitProducts();
    WaitForProducts<0>();
    std::copy(d, d + kColumns / 2, sums.begin() + thread * kColumns / 2);
  })) << emulated::TakeFault();
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      int32_t expected = 0;
      for (int k = 0; k < kSteps * kSummed; ++k) expected += a[row][k] * b[column][k];
      ASSERT_EQ(sums[thread * kColumns / 2 + i], expected) << "row " << row << ", " << column;
    }
  }
}

// A warpgroup multiplies what another one has copied, twice, with barriers of phases alone.
struct PhasedCase {
  bool waits_for_copies = true;
  bool fences = true;
  bool fences_behind = false;     // its arrival
  bool warp_meets = true;         // before one lane arrives
  bool products_are_done = true;  // when the stage is left
  int leaving_warps = 4;
  bool waits_until_free = true;
};

std::string PhasedFault(const PhasedCase& c, int orders) {
  alignas(16) static const std::byte from[kMatrixBytes] = {};
  constexpr int kFull = kMatrixBytes, kFree = kMatrixBytes + 8;
  emulated::TakeFault();
  for (int order = 0; order < orders; ++order) {
    emulated::SetSeed(order);
    emulated::RunBlocks("kernel", 1, 2 * kThreads, kMatrixBytes + 16, [&] {
      const int thread = static_cast<int>(threadIdx.x) % kThreads;
      const SharedPtr<uint64_t> full = SharedCast<uint64_t>(SharedMemory() + kFull);
      const SharedPtr<uint64_t> free = SharedCast<uint64_t>(SharedMemory() + kFree);
      if (threadIdx.x == 0) {
        InitPhases(full, 4);
        InitPhases(free, c.leaving_warps);
      }
      __syncthreads();
      const bool copies = threadIdx.x >= kThreads;
      uint32_t a[4] = {};
      float d[kColumns / 2] = {};
      for (const bool odd : {false, true}) {
        if (copies) {
          if (odd && c.waits_until_free) WaitForPhase(free, false);
          for (int at = thread * 16; at < kMatrixBytes; at += kThreads * 16) {
            CopyAsync16(SharedMemory() + at, from + at);
          }
          CommitCopies();
          if (c.waits_for_copies) WaitForCopies<0>();
          if (c.fences && !c.fences_behind) FenceAsyncReads();
          if (c.warp_meets) __syncwarp();
          if (thread % 32 == 0) Arrive(full);
          if (c.fences_behind) FenceAsyncReads();
          continue;
        }
        WaitForPhase(full, odd);
        FenceProducts();
        WarpgroupMma<kColumns>(d, a, SwizzledMatrix(SharedMemory()), true);
        CommitProducts();
        if (c.products_are_done) WaitForProducts<0>();
        __syncwarp();
        if (thread % 32 == 0 && thread / 32 < c.leaving_warps) Arrive(free);
        WaitForProducts<0>();
      }
    });
    const std::string fault = emulated::TakeFault();
    if (!fault.empty()) return fault;
  }
  return "";
}

TEST(EmulatedWgmmaLinearTest, ProductsReadBehindPhasesWhatWasFencedAndIsNotWrittenAnew) {
  constexpr int kOrders = 20;
  constexpr char kUnfenced[] = "no fence.proxy.async is behind";
  EXPECT_EQ(PhasedFault({}, kOrders), "");
  EXPECT_THAT(PhasedFault({.waits_for_copies = false}, kOrders), HasSubstr("a copy is to fill"));
  EXPECT_THAT(PhasedFault({.fences = false}, kOrders), HasSubstr(kUnfenced));
  EXPECT_THAT(PhasedFault({.fences_behind = true}, kOrders), HasSubstr(kUnfenced));
  EXPECT_NE(PhasedFault({.warp_meets = false}, kOrders), "");
  EXPECT_NE(PhasedFault({.products_are_done = false}, kOrders), "");
  EXPECT_THAT(PhasedFault({.leaving_warps = 3}, kOrders), HasSubstr("writes what"));
  EXPECT_NE(PhasedFault({.waits_until_free = false}, kOrders), "");
}

// ---- layers ----

constexpr char kOwnFile[] = "wgmma_linear.cu";

class EmulatedWgmmaLayersTest : public EmulatedWarpgroupsTest {
 protected:
  struct LayerCase {
    LinearSpec spec;
    int64_t rows;
    bool has_bias = false;
    bool adds = false;
  };
  void ExpectSameBits(const LayerCase& c);
};

void EmulatedWgmmaLayersTest::ExpectSameBits(const LayerCase& c) {
  const LinearSpec& spec = c.spec;
  const auto weights =
      AnyNumbers(DType::kBF16, spec.in_features * spec.out_features, random_.get());
  const auto input = AnyNumbers(DType::kBF16, c.rows * spec.in_features, random_.get());
  const auto bias = AnyFloats(spec.out_features, random_.get());
  const auto before = AnyNumbers(spec.output_dtype, c.rows * spec.columns(), random_.get());
  const uint64_t seed = random_->Next();
  const std::string name = absl::StrFormat(
      "%s%s%s%s%s", DescribeFused(spec, c.rows), spec.gated ? ", gated" : "",
      spec.activation ? ", activated" : "", c.has_bias ? ", bias" : "", c.adds ? ", added" : "");
  std::vector<std::byte> outputs[2];
  for (TestDevice* const device : {device_.get(), of_warps_.get()}) {
    emulated::SetSeed(seed);
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(
        MakeLayer(*device, spec, {{weights.data(), spec.out_features, DType::kBF16}}, &layer));
    std::vector<std::byte>& output = outputs[device == of_warps_.get()];
    output = before;
    TakeFiles();
    ASSERT_OK(device->Linear({.op = layer.op.get(),
                              .input = input.data(),
                              .bias = c.has_bias ? bias.data() : nullptr,
                              .output = output.data(),
                              .num_rows = c.rows,
                              .adds_to_output = c.adds}));
    const std::set<std::string> files = TakeFiles();
    const bool own = device == device_.get();
    ASSERT_EQ(files.contains(kOwnFile), own) << name;
  }
  ASSERT_EQ(emulated::TakeFault(), "") << name;
  ASSERT_EQ(outputs[0], outputs[1]) << name;
}

LinearSpec SpecOf(WeightType type, int64_t in, int64_t out, bool segmented) {
  return {.in_features = in,
          .out_features = out,
          .weight_type = type,
          .compute_dtype = DType::kBF16,
          .output_dtype = DType::kF32,
          .segmented = segmented};
}

TEST_F(EmulatedWgmmaLayersTest, ARowHasTheBitsOfAWarpsProducts) {
  for (int i = 0; i < 12; ++i) {
    LayerCase c{.spec = SpecOf(i % 2 == 0 ? WeightType::kBF16 : WeightType::kInt8,
                               random_->Between(1, 500), random_->Between(1, 300), i % 6 >= 4),
                .rows = random_->Between(257, i % 4 < 3 ? 384 : 600),
                .has_bias = random_->Chance(0.5)};
    if (c.spec.segmented) c.spec.in_features = random_->Between(1024, 1300);
    const int64_t most = 4'000'000 / (c.rows * c.spec.in_features);
    c.spec.out_features = std::min(c.spec.out_features, most);
    switch (i / 2 % 4) {
      case 0:
        c.adds = true;
        break;
      case 1:
        c.spec.gated = true;
        c.spec.out_features += c.spec.out_features % 2;
        [[fallthrough]];
      case 2:
        c.spec.activation =
            random_->Chance(0.5) ? ActivationFunction::kSilu : ActivationFunction::kGeluTanh;
        [[fallthrough]];
      default:
        c.spec.output_dtype = random_->Chance(0.7) ? DType::kBF16 : DType::kF32;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(c));
  }
}

// More tiles than processors, which the emulation has four of, and more than a group of outputs
// has; no more of both than is needed.
TEST_F(EmulatedWgmmaLayersTest, BlocksHaveTheirTilesOneAfterTheOther) {
  const LinearSpec specs[] = {SpecOf(WeightType::kBF16, 10, 17 * 128 + 9, false),
                              SpecOf(WeightType::kInt8, 1100, 30, true)};
  constexpr int64_t kRows[] = {257, 1030};
  for (size_t i = 0; i < std::size(specs); ++i) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits({.spec = specs[i], .rows = kRows[i]}));
  }
}

// Segments of any number of blocks, and, below eight times 128 inputs, empty ones, of which only a
// warp's products know. Few rows have kernels of their own.
TEST_F(EmulatedWgmmaLayersTest, SegmentsAreSummedInTheirTree) {
  constexpr int64_t kInputs[] = {1, 500, 1023, 1024, 1025, 1088, 1100, 1152, 1153, 1290, 1536};
  constexpr int64_t kRows = 257, kOutputs = 9, kFewRows = 3;
  for (const int64_t in : kInputs) {
    const WeightType type = in % 11 == 0 ? WeightType::kInt8 : WeightType::kBF16;
    const LinearSpec spec = SpecOf(type, in, kOutputs, true);
    const auto weights = AnyNumbers(DType::kBF16, in * kOutputs, random_.get());
    const auto input = AnyNumbers(DType::kBF16, kRows * in, random_.get());
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(
        MakeLayer(*device_, spec, {{weights.data(), kOutputs, DType::kBF16}}, &layer));
    TakeFiles();
    const auto all = Multiply(*device_, layer, input.data(), kRows);
    EXPECT_EQ(TakeFiles().contains(kOwnFile), in >= 1024) << in;
    for (const int64_t first : {int64_t{0}, kRows - kFewRows}) {
      const auto few = Multiply(*device_, layer, input.data() + first * in * 2, kFewRows);
      EXPECT_EQ(std::memcmp(few.data(), &all[first * kOutputs], few.size() * sizeof(float)), 0)
          << in << " inputs, rows from " << first;
    }
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

TEST_F(EmulatedWgmmaLayersTest, WeightsOf8BitFloatsHaveTheBitsOfTheirProductsInBf16) {
  std::set<std::string> met;
  for (const int i : {0, 1, 3, 6, 11, 15, 24}) {
    const Fp8Case fp8(random_.get(), i);
    const int64_t rows = random_->Between(257, 300);
    const auto input = AnyNumbers(DType::kBF16, rows * fp8.kept.in_features, random_.get());
    emulated::SetSeed(seed_ + i);
    TakeFiles();
    ASSERT_NO_FATAL_FAILURE(fp8.Check(*device_, input.data(), rows));
    ASSERT_TRUE(TakeFiles().contains(kOwnFile));
    ASSERT_EQ(emulated::TakeFault(), "");
    met.insert(fp8.kept.segmented ? "segments" : fp8.kept.gated ? "gates" : "whole");
  }
  EXPECT_EQ(met.size(), 3u);
}

TEST_F(EmulatedWgmmaLayersTest, FewRowsAndFourBitsDoWithoutThem) {
  LinearSpec spec = SpecOf(WeightType::kBF16, 64, 16, false);
  const std::vector<std::byte> zeros(300 * 64 * sizeof(float));
  for (const int64_t rows : {256, 300}) {
    spec.weight_type = rows == 256 ? WeightType::kBF16 : WeightType::kInt4;
    spec.group = rows == 256 ? 0 : 64;
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(
        MakeLayer(*device_, spec, {{zeros.data(), spec.out_features, DType::kBF16}}, &layer));
    TakeFiles();
    Multiply(*device_, layer, zeros.data(), rows);
    EXPECT_FALSE(TakeFiles().contains(kOwnFile)) << rows;
  }
}

class EmulatedWgmmaLayerSitesTest : public EmulatedWgmmaLayersTest {
 protected:
  void ExpectEachIsNeeded(std::string_view files, bool launch_waits, size_t least) {
    // Two tiles, the second of one row, and a ring that is filled more than four times.
    const LinearSpec spec = SpecOf(WeightType::kBF16, 1100, 24, true);
    constexpr int64_t kRows = 257;
    const auto weights =
        AnyNumbers(DType::kBF16, spec.in_features * spec.out_features, random_.get());
    const auto input = AnyNumbers(DType::kBF16, kRows * spec.in_features, random_.get());
    Layer layer;
    ASSERT_NO_FATAL_FAILURE(
        MakeLayer(*device_, spec, {{weights.data(), spec.out_features, DType::kBF16}}, &layer));
    const auto run = [&] {
      const auto backend = MakeDevice("cuda-tensor");
      const size_t output_bytes = kRows * spec.out_features * sizeof(float);
      const DeviceBuffer buffer = *backend->backend().Allocate(output_bytes);
      const auto* const output = static_cast<const std::byte*>(OnHost(buffer.data()));
      const absl::Status status = backend->Linear({.op = layer.op.get(),
                                                   .input = input.data(),
                                                   .output = OnHost(buffer.data()),
                                                   .num_rows = kRows});
      return std::vector<std::byte>(output, output + (status.ok() ? output_bytes : 0));
    };
    ExpectEachSiteIsNeeded(
        {.files = files, .launch_waits = launch_waits, .least = least, .seed = seed_, .run = run});
  }
};

TEST_F(EmulatedWgmmaLayerSitesTest, EachBarrierFenceAndWaitIsNeeded) {
  ExpectEachIsNeeded(kOwnFile, /*launch_waits=*/false, 10);
}
TEST_F(EmulatedWgmmaLayerSitesTest, EachBarrierOfTheirRingIsNeeded) {
  ExpectEachIsNeeded("tensor_ring.h", /*launch_waits=*/false, 8);
}
TEST_F(EmulatedWgmmaLayerSitesTest, EachWaitForTheLaunchBeforeIsNeeded) {
  ExpectEachIsNeeded(kOwnFile, /*launch_waits=*/true, 1);
}

}  // namespace
}  // namespace tandem
