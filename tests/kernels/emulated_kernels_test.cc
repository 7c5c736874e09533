// The kernels of GPUs without a GPU: every operation in every type has the bits of the CPU's class
// `fma`, in whatever order threads run, and no barrier and no wait could be left out.

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/emulated/block.h"
#include "kernels/cuda/emulated/cuda_runtime.h"
#include "kernels/cuda/visible_gpus.h"
#include "kernels/probe/numerics_probe.h"
#include "runtime/base/crc32c.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

ProbeShape Shape(int64_t rows, int64_t features, int head_dim, int32_t positions) {
  return {.rows = rows,
          .features = features,
          .outputs = 75,
          .vocabulary = 4096 + 523,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = head_dim,
          .positions = positions,
          .prefill_rows = 5,
          .window = positions / 2,
          .head_norms = true,
          .score_cap = 5.0f,
          .gated_gelu = true,
          .logit_cap = 3.0f,
          .int8_weights = true};
}

// Few rows, and more than the kernels for few take; segments of different lengths; sums that go
// through shared memory more than once; two tiles and a part; sequences that are split and merged.
std::vector<ProbeShape> Shapes() {
  std::vector<ProbeShape> shapes = {Shape(3, 331, 48, 150), Shape(19, 200, 64, 129),
                                    Shape(40, 1100, 80, 60), Shape(2, 40, 144, 1100),
                                    Shape(1, 8400, 16, 65)};
  shapes.back().vocabulary = 64 * kVocabularyPiece + 5000;
  return shapes;
}

class EmulatedKernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* text = std::getenv("TANDEM_TEST_SEED");
    seed_ = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
    if (MakeBackend("cuda") == nullptr || MakeBackend("cpu-avx2") == nullptr) {
      GTEST_SKIP() << "this machine lacks AVX2 or FMA";
    }
    emulated::TakeFault();
  }
  void TearDown() override { emulated::LeaveOut(); }

  uint64_t seed_ = 1;
};

TEST_F(EmulatedKernelsTest, EveryOperationHasTheBitsOfTheCpuInAnyOrderOfThreads) {
  const auto cpu = MakeBackend("cpu-avx2");
  for (const ProbeShape& shape : Shapes()) {
    const auto expected = ProbeOperations(*cpu, shape, seed_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (uint64_t order = 0; order < 2; ++order) {
      emulated::SetSeed(seed_ + order);
      const auto gpu = MakeBackend("cuda");
      const auto actual = ProbeOperations(*gpu, shape, seed_);
      ASSERT_TRUE(actual.ok()) << actual.status() << ", " << emulated::TakeFault();
      ASSERT_EQ(actual->size(), expected->size());
      for (size_t i = 0; i < actual->size(); ++i) {
        EXPECT_EQ((*actual)[i].digest, (*expected)[i].digest)
            << (*actual)[i].name << ", order " << seed_ + order << ", " << shape.features
            << " features";
      }
    }
    EXPECT_EQ(emulated::TakeFault(), "");
  }
}

TEST_F(EmulatedKernelsTest, OutliersOfEightBitsAreRefusedByName) {
  LinearSpec spec{.in_features = 64,
                  .out_features = 64,
                  .weight_type = WeightType::kInt8,
                  .compute_dtype = DType::kBF16,
                  .output_dtype = DType::kF32};
  for (const char* device : {"cuda", "cuda-tensor"}) {
    const auto gpu = MakeBackend(device);
    spec.outlier_threshold = 0;
    EXPECT_TRUE(gpu->GetPackedFormat(spec).ok());
    spec.outlier_threshold = 6;
    const absl::Status refused = gpu->GetPackedFormat(spec).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_NE(refused.ToString().find("of 6 and more out of 8 bits (int8-outliers)"),
              std::string::npos)
        << refused;
  }
}

TEST_F(EmulatedKernelsTest, EachBarrierAndEachWaitIsNeeded) {
  constexpr int kOrders = 3;  // of each shape; a fault shows in almost all
  std::set<emulated::Site> caught;
  std::set<emulated::Site> all;
  for (const ProbeShape& shape : Shapes()) {
    emulated::TakeSites();
    emulated::SetSeed(seed_);
    const auto expected = ProbeOperations(*MakeBackend("cuda"), shape, seed_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const emulated::Site& site : emulated::TakeSites()) {
      all.insert(site);
      if (caught.contains(site)) continue;
      emulated::LeaveOut(site);
      for (int order = 0; order < kOrders && !caught.contains(site); ++order) {
        emulated::SetSeed(seed_ + order);
        const auto actual = ProbeOperations(*MakeBackend("cuda"), shape, seed_);
        bool same = actual.ok();
        for (size_t i = 0; same && i < actual->size(); ++i) {
          same = (*actual)[i].digest == (*expected)[i].digest;
        }
        if (!same) caught.insert(site);
      }
      emulated::TakeFault();
      emulated::LeaveOut();
    }
  }
  EXPECT_GT(all.size(), 10u);
  for (const emulated::Site& site : all) {
    EXPECT_TRUE(caught.contains(site)) << site.file << ":" << site.line << " was not missed";
  }
}

TEST_F(EmulatedKernelsTest, ATransportCopiesBlocksBesideTheStepsAndKnowsWhatLiesThere) {
  constexpr size_t kBytes = 64 * 83;
  const auto gpu = MakeBackend("cuda");
  const auto pool = gpu->AllocatePool(3 * kBytes, {});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto copier = gpu->CreateCopier();
  ASSERT_TRUE(copier.ok()) << copier.status();
  Random random(seed_);
  std::vector<std::byte> bytes(kBytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
  const auto block = [&](int i) {
    return reinterpret_cast<void*>(pool->data().address() + static_cast<size_t>(i) * kBytes);
  };
  // The backend's own stream has work that nobody waits for.
  const int32_t source = 2, destination = 0;
  ASSERT_OK(gpu->CopyBlocks({.base = pool->data(),
                             .block_stride_bytes = kBytes,
                             .sources = &source,
                             .destinations = &destination,
                             .count = 1}));
  const auto crc32c = (*copier)->Upload(block(1), bytes.data(), kBytes);
  ASSERT_TRUE(crc32c.ok()) << crc32c.status();
  EXPECT_EQ(*crc32c, Crc32c(bytes.data(), kBytes));
  std::vector<std::byte> back(kBytes);
  ASSERT_OK((*copier)->Download(back.data(), block(1), kBytes));
  EXPECT_EQ(back, bytes);
  ASSERT_OK(gpu->Synchronize());
  const auto moved = (*copier)->CopyWithin(block(0), block(1), kBytes);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(*moved, *crc32c);
  back.assign(kBytes, std::byte{0});
  ASSERT_OK((*copier)->Download(back.data(), block(0), kBytes));
  EXPECT_EQ(back, bytes);
  for (int call = 1; call <= 3; ++call) {
    emulated::FailCall(call, cudaErrorUnknown);
    EXPECT_TRUE(absl::IsInternal((*copier)->Upload(block(1), bytes.data(), kBytes).status()))
        << call;
    emulated::FailCall(call, cudaErrorUnknown);
    EXPECT_TRUE(absl::IsInternal((*copier)->CopyWithin(block(0), block(1), kBytes).status()))
        << call;
  }
  emulated::FailCall(1, cudaErrorUnknown);
  EXPECT_TRUE(absl::IsInternal((*copier)->Download(back.data(), block(1), kBytes)));
  EXPECT_EQ(emulated::TakeFault(), "");
}

TEST_F(EmulatedKernelsTest, MemoryIsMeasuredAndCannotBeHadTwice) {
  const auto gpu = MakeBackend("cuda");
  const auto before = gpu->MeasureMemory();
  ASSERT_TRUE(before.ok() && before->has_value());
  EXPECT_LE((*before)->free_bytes, (*before)->total_bytes);
  constexpr int64_t kBytes = 1 << 20;
  auto memory = gpu->Allocate(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*gpu->MeasureMemory())->free_bytes, (*before)->free_bytes - kBytes);
  EXPECT_TRUE(absl::IsResourceExhausted(
      gpu->Allocate(static_cast<size_t>((*before)->free_bytes)).status()));
  memory = DeviceBuffer();
  EXPECT_EQ((*gpu->MeasureMemory())->free_bytes, (*before)->free_bytes);
}

TEST(VisibleGpusTest, ANumberIsOneOfThoseThatTheProcessSees) {
  EXPECT_EQ(*NameOfGpu(nullptr, 3), "3");
  EXPECT_EQ(*NameOfGpu("5,GPU-8f6a,7", 0), "5");
  EXPECT_EQ(*NameOfGpu("5,GPU-8f6a,7", 1), "GPU-8f6a");
  const absl::Status beyond = NameOfGpu("5,GPU-8f6a,7", 3).status();
  EXPECT_TRUE(absl::IsInvalidArgument(beyond));
  EXPECT_NE(beyond.ToString().find("GPU 3, counted from 0, of the 3 that "
                                   "CUDA_VISIBLE_DEVICES=5,GPU-8f6a,7 names"),
            std::string::npos)
      << beyond;
  EXPECT_TRUE(absl::IsInvalidArgument(NameOfGpu("", 0).status()));
}

TEST_F(EmulatedKernelsTest, BlocksAreCopiedAndHaveTheirCrc32c) {
  constexpr size_t kBytes = 64 * 83;
  constexpr int64_t kBlocks = 520;  // more than a launch takes
  const auto gpu = MakeBackend("cuda");
  Random random(seed_);
  std::vector<std::byte> bytes(kBlocks * kBytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
  const auto pool = gpu->AllocatePool(bytes.size(), {});
  ASSERT_TRUE(pool.ok()) << pool.status();
  ASSERT_OK(gpu->Upload(pool->data(), bytes.data(), bytes.size()));
  const int32_t source = 3, destination = 519;
  ASSERT_OK(gpu->CopyBlocks({.base = pool->data(),
                             .block_stride_bytes = kBytes,
                             .sources = &source,
                             .destinations = &destination,
                             .count = 1}));
  std::vector<int32_t> blocks(kBlocks);
  for (int64_t i = 0; i < kBlocks; ++i) blocks[i] = static_cast<int32_t>(kBlocks - 1 - i);
  std::vector<uint32_t> checksums(kBlocks);
  ASSERT_OK(gpu->ChecksumBlocks({.base = pool->data(),
                                 .block_stride_bytes = kBytes,
                                 .blocks = blocks.data(),
                                 .checksums = checksums.data(),
                                 .count = kBlocks}));
  ASSERT_OK(gpu->Synchronize());
  EXPECT_EQ(checksums[0], Crc32c(bytes.data() + source * kBytes, kBytes));
  for (int64_t i = 1; i < kBlocks; ++i) {
    ASSERT_EQ(checksums[i], Crc32c(bytes.data() + blocks[i] * kBytes, kBytes)) << i;
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

TEST_F(EmulatedKernelsTest, WorkIsDoneOnceSomebodyHasWaited) {
  const auto gpu = MakeBackend("cuda");
  EXPECT_TRUE(gpu->Synchronize().ok());
  const uint64_t before = gpu->work_done();
  EXPECT_TRUE(gpu->Wait(gpu->Record()).ok());
  EXPECT_GT(gpu->work_done(), before);
}

// A call of the runtime fails once, wherever the backend makes it: that is an error, no crash.
TEST_F(EmulatedKernelsTest, AnyCallOfTheRuntimeMayFail) {
  const ProbeShape shape = Shape(2, 130, 16, 20);
  int call = 1;
  for (bool failed = true; failed; call += 1 + call / 10) {
    emulated::FailCall(call, call % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorUnknown);
    const auto gpu = CreateCudaBackend(CudaProducts::kTensorCores);
    failed = !gpu.ok() || !ProbeOperations(**gpu, shape, seed_).ok();
    emulated::FailCall(0, cudaSuccess);
    ASSERT_LT(call, 5000);
  }
  EXPECT_GT(call, 100);
}

}  // namespace
}  // namespace tandem
