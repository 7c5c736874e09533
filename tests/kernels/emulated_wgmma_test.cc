// Products of four warps (wgmma) without a GPU: what the emulation of them means and finds wrong,
// and prefill attention by them, which has the bits of a warp's products or is not used.

#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "kernels/create_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulated/block.h"
#include "kernels/cuda/emulated/tensor_core.h"
#include "kernels/cuda/simt.h"
#include "kernels/probe/numerics_probe.h"
#include "tests/kernels/emulated_sites.h"
#include "tests/kernels/emulated_warpgroups.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/paged_case.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int kThreads = 128;
constexpr int kOrders = 20;
constexpr int kRows = 64;
constexpr int kSteps = 4;  // of 16 numbers: a row of B is 128 bytes
constexpr int kColumns = 96;

// Numbers of A and B of `steps` products, and what threads have of A.
struct Factors {
  float a[kRows][kSteps * 16];
  float b[128][kSteps * 16];

  explicit Factors(uint64_t seed) {
    Random random(seed);
    for (auto& row : a) {
      for (float& x : row) x = static_cast<float>(random.Between(-8, 8));
    }
    for (auto& row : b) {
      for (float& x : row) x = static_cast<float>(random.Between(-8, 8));
    }
  }
  float Sum(int row, int column, int steps) const {
    float sum = 0;
    for (int k = 0; k < steps * 16; ++k) sum += a[row][k] * b[column][k];
    return sum;
  }
  void OfThread(int step, uint32_t (&words)[4]) const {
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    for (int i = 0; i < 4; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
      const int k = step * 16 + thread % 4 * 2 + i / 2 * 8;
      words[i] = PackBf16(a[row][k], a[row][k + 1]);
    }
  }
  // Where the PTX manual has it, swizzled by 128 bytes.
  void StoreB(SharedPtr<std::byte> to) const {
    for (int i = static_cast<int>(threadIdx.x); i < 128 * kSteps * 16; i += blockDim.x) {
      const int row = i / (kSteps * 16);
      const int k = i % (kSteps * 16);
      if (k % 2 != 0) continue;
      const int chunk = (k / 8) ^ (row % 8);
      SharedCast<uint32_t>(to + row * 128 + chunk * 16)[k % 8 / 2] =
          PackBf16(b[row][k], b[row][k + 1]);
    }
  }
};

// A kernel's body, with all that it needs unless it is left out.
struct Case {
  int threads = kThreads;
  bool fences_memory = true;
  bool fences_early = false;  // before B is there
  bool meets = true;
  bool fences_registers = true;
  bool commits = true;
  bool waits = true;
  int writes_at = -1;      // of B, between a product and its wait
  bool changes_a = false;  // there
  int absent_warp = -1;    // begins no product
  int other_warp = -1;     // begins another
  uint64_t flips = 0;      // bits of the descriptor
  size_t shared_bytes = 16 * 1024;
};

const Factors& TheFactors() {
  static const Factors* const factors = new Factors(11);
  return *factors;
}

// What one product of kColumns columns gives each thread.
std::string FaultOf(const Case& c, std::vector<float>* sums, int orders = kOrders) {
  emulated::TakeFault();
  sums->assign(c.threads * kColumns / 2, 0.0f);
  const auto kernel = [&] {
    const int thread = static_cast<int>(threadIdx.x);
    if (c.fences_early) FenceAsyncReads();
    TheFactors().StoreB(SharedMemory());
    if (c.fences_memory) FenceAsyncReads();
    if (c.meets) __syncthreads();
    uint32_t a[kSteps][4];
    for (int step = 0; step < kSteps; ++step) TheFactors().OfThread(step, a[step]);
    float d[kColumns / 2];
    for (float& x : d) x = 1.0f;
    if (c.fences_registers) FenceProducts();
    if (thread / 32 == c.absent_warp) return;
    for (int step = 0; step < kSteps; ++step) {
      const int moved = thread / 32 == c.other_warp ? 32 : 0;
      WarpgroupMma<kColumns>(
          d, a[step], SwizzledMatrix(SharedMemory() + step * 32 + moved) ^ c.flips, step > 0);
    }
    if (c.commits) CommitProducts();
    if (thread == 0 && c.writes_at >= 0) SharedCast<uint32_t>(SharedMemory() + c.writes_at)[0] = 0;
    if (c.changes_a) a[1][0] = 0;
    if (c.waits) WaitForProducts<0>();
    std::copy(d, d + kColumns / 2, sums->begin() + thread * kColumns / 2);
  };
  for (int order = 0; order < orders; ++order) {
    emulated::SetSeed(order);
    emulated::RunBlocks("kernel", 1, c.threads, c.shared_bytes, kernel);
    const std::string fault = emulated::TakeFault();
    if (!fault.empty()) return fault;
  }
  return "";
}

// Whether each thread has what the PTX manual says it has of D (m64nNk16).
bool AreSums(const std::vector<float>& sums, int steps) {
  for (int thread = 0; thread < static_cast<int>(sums.size()) / (kColumns / 2); ++thread) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = thread % kThreads / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      if (sums[thread * kColumns / 2 + i] != TheFactors().Sum(row, column, steps)) return false;
    }
  }
  return true;
}

TEST(EmulatedWgmmaTest, ProductsAreThoseOfMatrices) {
  std::vector<float> sums;
  EXPECT_EQ(FaultOf({}, &sums), "");
  EXPECT_TRUE(AreSums(sums, kSteps));
  // Two warpgroups, each for itself.
  EXPECT_EQ(FaultOf({.threads = 2 * kThreads}, &sums), "");
  EXPECT_TRUE(AreSums(sums, kSteps));
  // Start, an unused leading distance, 1,024 bytes between eight rows, swizzle of 128 bytes.
  EXPECT_EQ(SwizzledMatrix(SharedMemory() + 3 * 1024 + 32), 0x4000004000010000u | 194u);
}

TEST(EmulatedWgmmaTest, WhatIsLeftOutIsMissed) {
  std::vector<float> sums;
  constexpr char kUnfenced[] = "no fence.proxy.async is behind";
  EXPECT_THAT(FaultOf({.fences_memory = false}, &sums), HasSubstr(kUnfenced));
  EXPECT_THAT(FaultOf({.fences_memory = false, .fences_early = true}, &sums), HasSubstr(kUnfenced));
  EXPECT_THAT(FaultOf({.meets = false}, &sums), HasSubstr("has a product read what"));
  EXPECT_THAT(FaultOf({.fences_registers = false}, &sums), HasSubstr("without wgmma.fence"));
  EXPECT_THAT(FaultOf({.waits = false}, &sums), HasSubstr("has not waited for its products"));
  EXPECT_THAT(FaultOf({.commits = false}, &sums), HasSubstr("has not waited for its products"));
  EXPECT_THAT(FaultOf({.writes_at = 0}, &sums), HasSubstr("what a product is to read"));
  EXPECT_THAT(FaultOf({.writes_at = kColumns * 128 - 4}, &sums), HasSubstr("is to read"));
  EXPECT_EQ(FaultOf({.writes_at = kColumns * 128}, &sums), "");  // Behind the last row.
  EXPECT_THAT(FaultOf({.absent_warp = 2}, &sums), HasSubstr("never come"));
  EXPECT_THAT(FaultOf({.other_warp = 3}, &sums), HasSubstr("than its warpgroup"));
  EXPECT_THAT(FaultOf({.flips = uint64_t{1} << 63}, &sums), HasSubstr("another layout"));
  EXPECT_THAT(FaultOf({.flips = uint64_t{1} << 50}, &sums), HasSubstr("another layout"));
  EXPECT_THAT(FaultOf({.flips = uint64_t{1} << 12}, &sums), HasSubstr("out of bounds"));
  EXPECT_EQ(FaultOf({.changes_a = true}, &sums), "");
  EXPECT_FALSE(AreSums(sums, kSteps));
}

TEST(EmulatedWgmmaTest, GroupsLandWhenTheyAreWaitedForAndNoSooner) {
  std::vector<float> early(kThreads), first(kThreads), second(kThreads), last(kThreads);
  emulated::SetSeed(3);
  EXPECT_TRUE(emulated::RunBlocks("kernel", 1, kThreads, 16 * 1024, [&] {
    TheFactors().StoreB(SharedMemory());
    FenceAsyncReads();
    __syncthreads();
    uint32_t a[4];
    TheFactors().OfThread(0, a);
    float x[kColumns / 2] = {}, y[kColumns / 2] = {};
    y[0] = 1.0f;
    FenceProducts();
    const uint64_t b = SwizzledMatrix(SharedMemory());
    WarpgroupMma<kColumns>(x, a, b, false);
    CommitProducts();
    WarpgroupMma<kColumns>(y, a, b, true);
    CommitProducts();
    early[threadIdx.x] = x[0];
    WaitForProducts<1>();
    first[threadIdx.x] = x[0];
    second[threadIdx.x] = y[0];
    WaitForProducts<0>();
    last[threadIdx.x] = y[0];
  }));
  for (int thread = 0; thread < kThreads; ++thread) {
    EXPECT_TRUE(std::isnan(early[thread]));
    EXPECT_TRUE(std::isnan(second[thread]));
    EXPECT_FALSE(std::isnan(first[thread]));
    EXPECT_EQ(last[thread], first[thread] + 1.0f);
  }
}

TEST(EmulatedWgmmaTest, SmallCopiesAreFilledWithZeros) {
  alignas(4) static const uint8_t from[4] = {1, 2, 3, 4};
  std::vector<uint32_t> seen(kThreads);
  const auto copy = [&](bool waits) {
    return emulated::RunBlocks("kernel", 1, kThreads, 4 * kThreads, [&, waits] {
      const int thread = static_cast<int>(threadIdx.x);
      CopyAsync4(SharedMemory() + thread * 4, from, thread % 3 * 2);
      CommitCopies();
      if (waits) WaitForCopies<0>();
      seen[thread] = SharedCast<uint32_t>(SharedMemory())[thread];
    });
  };
  EXPECT_TRUE(copy(true));
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(seen[i], i % 3 == 0 ? 0u : i % 3 == 1 ? 0x0201u : 0x04030201u);
  }
  EXPECT_FALSE(copy(false));
  EXPECT_THAT(emulated::TakeFault(), HasSubstr("a copy is to fill"));
}

// ---- attention ----

constexpr char kOwn[] = "sm_90-tensor-wgmma";
constexpr char kOfWarps[] = "sm_90-tensor";

class EmulatedWgmmaAttentionTest : public EmulatedWarpgroupsTest {
 protected:
  void SetUp() override {
    EmulatedWarpgroupsTest::SetUp();
    if (!IsSkipped()) reference_ = MakeDevice("reference");
  }

  PagedSequence Sequence(const PagedShape& shape, int64_t num_tokens, float scale = 3.5f) {
    PagedSequence sequence{{}, num_tokens};
    sequence.qkv.resize(num_tokens * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
    for (float& x : sequence.qkv) x = (static_cast<float>(random_->Unit()) - 0.5f) * scale;
    return sequence;
  }

  std::unique_ptr<TestDevice> reference_;
};

TEST_F(EmulatedWgmmaAttentionTest, AreUsedWhereTheTrialFindsTheirBitsAlone) {
  EXPECT_EQ(device_->backend().isa(), kOwn);
  EXPECT_EQ(of_warps_->backend().isa(), kOfWarps);
  EXPECT_EQ(MakeBackend("cuda")->isa(), "sm_90");
  const PagedShape shape{.num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kBF16};
  const PagedSequence sequence = Sequence(shape, 20);
  auto without = CreateBackend({.device = "cuda", .isa = "mma"});  // Though the trial finds them.
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->isa(), kOfWarps);
  TestDevice not_tried(*std::move(without));
  std::vector<std::vector<std::byte>> outputs;
  for (TestDevice* const device : {device_.get(), of_warps_.get(), &not_tried}) {
    PagedCase paged(device, shape, 16, 4, 1);
    paged.Add(&sequence);
    emulated::TakeSites();
    outputs.push_back(paged.Step({0}, {20}, false));
    const std::set<std::string> files = TakeFiles();
    EXPECT_EQ(files.contains("wgmma_prefill.cu"), device == device_.get());
    EXPECT_EQ(files.contains("tensor_prefill.cu"), device != device_.get());
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_EQ(outputs[0], outputs[2]);
  // Where the trial itself fails, as any other call, there is no backend.
  std::string failed;
  int call = 0;
  do {
    emulated::FailCall(++call, cudaErrorInvalidDevice);
    const auto backend = CreateCudaBackend("tensor");
    failed = emulated::FailedCall();  // Before the backend goes, which has calls, too.
    emulated::FailCall(0, cudaSuccess);
    EXPECT_EQ(backend.ok(), failed.empty()) << failed;
  } while (!failed.empty());
  EXPECT_GT(call, 7);
}

// Whoever wonders at slow prompts finds it in the log; who is tried nothing says nothing.
TEST_F(EmulatedWgmmaAttentionTest, TheTrialIsALineOfTheLog) {
  const auto said = [](const char* isa) {
    testing::internal::CaptureStderr();
    EXPECT_TRUE(CreateCudaBackend(isa).ok());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said("tensor"), testing::AllOf(HasSubstr("\"level\":\"info\""),
                                             HasSubstr("it sums as mma.sync does, and is used")));
  emulated::SumWarpgroupsByHalves(true);
  EXPECT_THAT(said("tensor"),
              testing::AllOf(HasSubstr("\"level\":\"warning\""),
                             HasSubstr("and is left out: its sums are not all mma.sync's"),
                             testing::ContainsRegex("\"compared\":[1-9].*\"different\":[1-9]")));
  for (const char* const isa : {"mma", "fma"}) EXPECT_EQ(said(isa), "");
}

// What a worker measures of its numbers is the same, infinities and NaNs among them.
TEST_F(EmulatedWgmmaAttentionTest, NumericsIdsAreThoseOfAWarpsProducts) {
  EXPECT_EQ(*ProbeNumerics(device_->backend(), {.head_dim = 64}),
            *ProbeNumerics(of_warps_->backend(), {.head_dim = 64}));
}

// Windows, caps, cached prefixes, groups that end anywhere, several sequences.
TEST_F(EmulatedWgmmaAttentionTest, ARowHasTheBitsOfAWarpsProducts) {
  constexpr int kHeadDims[] = {64, 96, 128};
  constexpr int kGroups[] = {1, 2, 3, 4, 7, 8};
  for (int i = 0; i < 12; ++i) {
    const int kv_heads = static_cast<int>(random_->Between(1, 2));
    const int group = kGroups[random_->Below(6)];
    const PagedShape shape{
        .num_heads = group * kv_heads,
        .num_kv_heads = kv_heads,
        .head_dim = kHeadDims[i % 3],
        .dtype = DType::kBF16,
        .window = random_->Chance(0.5) ? 0 : static_cast<int64_t>(random_->Between(1, 90)),
        .score_cap = random_->Chance(0.3) ? 1.5f : 0.0f};
    const int block_tokens = 16 << random_->Below(3);
    const float scale = random_->Chance(0.5) ? 3.5f : 12.0f;
    const int64_t tokens = random_->Between(30, 700 / shape.num_heads + 40);
    const int64_t other_tokens = random_->Between(3, 80);
    const PagedSequence sequence = Sequence(shape, tokens, scale);
    const PagedSequence other = Sequence(shape, other_tokens, scale);
    const int64_t first = random_->Between(1, tokens - 2);
    const uint64_t seed = random_->Next();
    const auto run = [&](TestDevice* device) {
      emulated::SetSeed(seed);
      PagedCase paged(device, shape, block_tokens, 64, seed);
      paged.Add(&sequence);
      paged.Add(&other);
      auto all = paged.Step({0, 1}, {first, 0}, false);
      const auto rest = paged.Step({1, 0}, {other_tokens, tokens - first}, false);
      all.insert(all.end(), rest.begin(), rest.end());
      return all;
    };
    const auto actual = run(device_.get());
    ASSERT_EQ(emulated::TakeFault(), "");
    const std::string name =
        absl::StrFormat("D %d, group %d, %d tokens, then %d, window %d, cap %g", shape.head_dim,
                        group, first, tokens - first, shape.window, shape.score_cap);
    ASSERT_EQ(actual, run(of_warps_.get())) << name;
    if (scale < 4) {
      ASSERT_TRUE(Near(DType::kBF16, actual, run(reference_.get()), 6e-3f, 8e-3f)) << name;
    }
  }
}

TEST_F(EmulatedWgmmaAttentionTest, SegmentsAreMergedAsByAWarpsProducts) {
  const PagedShape shape{.num_heads = 1, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kBF16};
  const int64_t tokens = 2 * kAttentionSegmentTokens + 70;
  const int64_t last = 9;
  const PagedSequence sequence = Sequence(shape, tokens);
  const auto run = [&](TestDevice* device) {
    emulated::SetSeed(seed_);
    PagedCase paged(device, shape, 64, 40, 1);
    paged.Add(&sequence);
    paged.Step({0}, {tokens - last - 1}, false);
    auto all = paged.Step({0}, {last}, false);
    const auto decoded = paged.Step({0}, {1}, true);
    all.insert(all.end(), decoded.begin(), decoded.end());
    return all;
  };
  EXPECT_EQ(run(device_.get()), run(of_warps_.get()));
  EXPECT_EQ(emulated::TakeFault(), "");
}

class EmulatedWgmmaSitesTest : public EmulatedWgmmaAttentionTest {
 protected:
  void ExpectEachIsNeeded(bool launch_waits, size_t least) {
    const PagedShape shape{
        .num_heads = 4, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kBF16};
    const PagedSequence sequence = Sequence(shape, 350, 8.0f);
    const auto run = [&] {
      const auto backend = MakeDevice("cuda-tensor");
      if (backend == nullptr || backend->backend().isa() != kOwn) return std::vector<std::byte>();
      PagedCase paged(backend.get(), shape, 32, 16, 5);
      paged.Add(&sequence);
      auto all = paged.Step({0}, {20}, false);
      const auto rest = paged.Step({0}, {330}, false);
      all.insert(all.end(), rest.begin(), rest.end());
      return all;
    };
    ExpectEachSiteIsNeeded({.files = "wgmma_",
                            .launch_waits = launch_waits,
                            .least = least,
                            .seed = seed_,
                            .run = run});
  }
};

TEST_F(EmulatedWgmmaSitesTest, EachBarrierFenceAndWaitIsNeeded) {
  ExpectEachIsNeeded(/*launch_waits=*/false, 18);
}
TEST_F(EmulatedWgmmaSitesTest, EachWaitForTheLaunchBeforeIsNeeded) {
  ExpectEachIsNeeded(/*launch_waits=*/true, 2);
}

}  // namespace
}  // namespace tandem
