// The kernels of GPUs without a GPU: every operation in every type has the bits of the CPU's class
// `fma`, in whatever order threads run, and no barrier and no wait could be left out.

#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/create_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/emulated/block.h"
#include "kernels/cuda/emulated/cuda_runtime.h"
#include "kernels/cuda/visible_gpus.h"
#include "kernels/probe/numerics_probe.h"
#include "runtime/base/crc32c.h"
#include "tests/kernels/emulated_test.h"
#include "tests/kernels/fused_linear.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/paged_case.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

ProbeShape Shape(int64_t rows, int64_t features, int head_dim, int32_t positions) {
  return {.rows = rows,
          .many_rows = 1,  // Shapes differ in rows.
          .features = features,
          .outputs = 43,
          .vocabulary = 523,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = head_dim,
          .positions = positions,
          .prefill_rows = 5,
          .window = positions / 2,
          .head_norms = true,
          .score_cap = 5.0f,
          .logit_cap = 3.0f,
          .int8_weights = true};
}

// Few rows, and more than the kernels for few take; segments of different lengths; sums that go
// through shared memory more than once; two tiles and a part; sequences that are split and merged.
std::vector<ProbeShape> Shapes() {
  return {Shape(3, 331, 48, 150), Shape(19, 200, 64, 129), Shape(40, 1100, 80, 60),
          Shape(2, 40, 144, 1100), Shape(1, 8400, 16, 65)};
}

// With KV of 8 bits and weights of 4, which have no barriers of their own.
std::vector<ProbeShape> ShapesOfAllTypes() {
  std::vector<ProbeShape> shapes = Shapes();
  shapes[0].kv_type = KvType::kInt8;
  shapes[1].kv_type = KvType::kInt8G8;
  shapes[1].int4_weights = true;
  shapes[2].int4_weights = true;
  shapes[2].kv_type = KvType::kFp8;
  return shapes;
}

class EmulatedKernelsTest : public EmulatedTest {};

// By the place of the shape.
class EmulatedShapesTest : public EmulatedTest, public testing::WithParamInterface<size_t> {};

TEST_P(EmulatedShapesTest, EveryOperationHasTheBitsOfTheCpuInAnyOrderOfThreads) {
  const ProbeShape shape = ShapesOfAllTypes()[GetParam()];
  const auto expected = ProbeOperations(*MakeBackend("cpu-avx2"), shape, seed_);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (uint64_t order = 0; order < 2; ++order) {
    emulated::SetSeed(seed_ + order);
    emulated::WatchEarlyThreads(order == 0);
    const auto gpu = MakeBackend("cuda");
    const auto actual = ProbeOperations(*gpu, shape, seed_);
    ASSERT_TRUE(actual.ok()) << actual.status() << ", " << emulated::TakeFault();
    ASSERT_EQ(actual->size(), expected->size());
    for (size_t i = 0; i < actual->size(); ++i) {
      EXPECT_EQ((*actual)[i].digest, (*expected)[i].digest)
          << (*actual)[i].name << ", order " << seed_ + order;
    }
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedShapesTest, testing::Range<size_t>(0, Shapes().size()));

TEST_F(EmulatedKernelsTest, WhatLayersAddAndActivateHasTheBitsOfOperationsBehind) {
  constexpr int64_t kTensorRows[] = {0, 1, 13, 258};  // Tiles are from 257 rows on.
  for (const char* const name : {"cuda", "cuda-tensor"}) {
    const auto device = MakeDevice(name);
    const RowCounts rows =
        name == std::string_view("cuda") ? RowCounts(kFewFusedRows) : RowCounts(kTensorRows);
    ExpectAddedOutputsAreThoseOfAdd(*device, /*outliers=*/false, random_.get(), rows);
    ExpectActivatedOutputsAreThoseOfTheFunctions(*device, /*outliers=*/false, random_.get(), rows);
    EXPECT_EQ(emulated::TakeFault(), "") << name;
  }
}

// Which the memory bill of a worker counts.
TEST_F(EmulatedKernelsTest, FormatsSayWhatTheirLayersTakeWhileTheyRun) {
  for (const char* const name : {"cuda", "cuda-tensor"}) {
    const auto gpu = MakeBackend(name);
    LinearSpec spec{.in_features = 256,
                    .out_features = 96,
                    .weight_type = WeightType::kBF16,
                    .compute_dtype = DType::kBF16,
                    .output_dtype = DType::kF32};
    const size_t plain = gpu->GetPackedFormat(spec)->row_scratch_bytes;
    spec.segmented = true;
    EXPECT_GE(gpu->GetPackedFormat(spec)->row_scratch_bytes, plain + 8 * 96 * sizeof(float))
        << name;
    spec.segmented = false;
    spec.activation = ActivationFunction::kSilu;
    spec.gated = true;
    // The ordinary units' outputs are activated by a launch of its own.
    const size_t outputs = name == std::string_view("cuda") ? 96 * sizeof(float) : 0;
    EXPECT_EQ(gpu->GetPackedFormat(spec)->row_scratch_bytes, plain + outputs) << name;
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

TEST_F(EmulatedKernelsTest, TypesThatNoKernelHasTogetherAreRefusedAndTheOthersHaveTheCpusTiles) {
  const auto cpu = MakeBackend("cpu-avx2");
  for (const char* device : {"cuda", "cuda-tensor"}) {
    const auto gpu = MakeBackend(device);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const KvType kv : kAllKvTypes) {
        for (const int head_dim : {2, 18, 96, 256}) {
          const KvTileShape shape{32, head_dim, kv};
          const auto format = gpu->GetKvTileFormat(shape, compute);
          const auto expected = cpu->GetKvTileFormat(shape, compute);
          ASSERT_EQ(format.ok(), expected.ok()) << NameOf(kv);
          if (!format.ok()) continue;
          EXPECT_EQ(format->id, expected->id);
          EXPECT_EQ(format->tile_bytes, expected->tile_bytes) << format->id << ", D " << head_dim;
        }
      }
    }
    const absl::Status tile = gpu->GetKvTileFormat({16, 64, KvType::kF32}, DType::kBF16).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(tile)) << tile;
    EXPECT_NE(tile.ToString().find("in bf16 with KV of type f32"), std::string::npos) << tile;
  }
}

// Random shapes, batches and chunks, in memory that was never zeros.
TEST_F(EmulatedKernelsTest, AttentionOverAnyKvHasTheBitsOfTheCpu) {
  constexpr int kHeadDims[] = {2, 6, 16, 18, 48, 64, 80, 96, 112, 128, 160, 256};
  constexpr int kGroups[] = {1, 2, 3, 4, 7, 16};
  constexpr KvType kKvTypes[] = {KvType::kInt8, KvType::kInt8G8, KvType::kBF16, KvType::kFp8};
  Random random(seed_);
  const auto cpu = MakeDevice("cpu-avx2");
  for (int i = 0; i < 48; ++i) {
    const int kv_heads = static_cast<int>(random.Between(1, 2));
    const PagedShape shape{.num_heads = kv_heads * kGroups[random.Below(std::size(kGroups))],
                           .num_kv_heads = kv_heads,
                           .head_dim = kHeadDims[i % std::size(kHeadDims)],
                           .dtype = random.Chance(0.5) ? DType::kBF16 : DType::kF32,
                           .kv_type = kKvTypes[i / 12],
                           .window = random.Chance(0.4) ? random.Between(1, 150) : 0,
                           .head_norms = random.Chance(0.4),
                           .score_cap = random.Chance(0.4) ? 1.5f : 0.0f};
    const int64_t row = int64_t{shape.num_heads + 2 * kv_heads} * shape.head_dim;
    std::vector<PagedSequence> sequences(2);
    for (PagedSequence& sequence : sequences) {
      sequence.num_tokens = random.Between(3, 150);
      for (int64_t n = 0; n < sequence.num_tokens * row; ++n) {
        sequence.qkv.push_back((static_cast<float>(random.Unit()) - 0.5f) * 4.0f);
      }
    }
    emulated::SetSeed(random.Next());
    const auto gpu = MakeDevice("cuda");
    PagedCase expected(cpu.get(), shape, 16, 40, seed_ + i);
    PagedCase actual(gpu.get(), shape, random.Chance(0.5) ? 16 : 32, 40, seed_ - i);
    const auto step = [&](const std::vector<int>& ids, const std::vector<int64_t>& counts) {
      const bool decode = counts.front() == 1;
      ASSERT_EQ(actual.Step(ids, counts, decode), expected.Step(ids, counts, decode))
          << "shape " << i << ", D " << shape.head_dim << ", " << NameOf(*shape.kv_type)
          << " KV in " << NameOf(shape.dtype);
    };
    for (const PagedSequence& sequence : sequences) {
      actual.Add(&sequence);
      expected.Add(&sequence);
    }
    const int64_t first = sequences[0].num_tokens - 1, second = sequences[1].num_tokens - 1;
    const int64_t chunk = random.Between(1, first);
    step({0}, {chunk});
    step({1, 0}, {second, first - chunk});
    step({0, 1}, {1, 1});
    ASSERT_EQ(emulated::TakeFault(), "") << "shape " << i;
  }
}

// A weight of zero is zero whatever the scale of its token in V is.
TEST_F(EmulatedKernelsTest, AnInfinityIsNothingToRowsThatDoNotSeeIt) {
  const PagedShape shape{.num_heads = 2,
                         .num_kv_heads = 1,
                         .head_dim = 64,
                         .dtype = DType::kBF16,
                         .kv_type = KvType::kInt8};
  constexpr int64_t kTokens = 20, kRow = 4 * 64;
  Random random(seed_);
  PagedSequence sequence{{}, kTokens};
  for (int64_t i = 0; i < kTokens * kRow; ++i) {
    sequence.qkv.push_back(static_cast<float>(random.Unit()) - 0.5f);
  }
  PagedSequence infinite = sequence;
  infinite.qkv.back() = std::numeric_limits<float>::infinity();
  for (const char* name : {"cuda", "cuda-tensor"}) {
    const auto device = MakeDevice(name);
    PagedCase expected(device.get(), shape, 16, 4, 1);
    PagedCase actual(device.get(), shape, 16, 4, 1);
    auto rows = expected.Prefill(&sequence, kTokens);
    auto seen = actual.Prefill(&infinite, kTokens);
    ASSERT_NE(seen, rows) << name;
    const size_t before = rows.size() / kTokens * (kTokens - 1);
    rows.resize(before);
    seen.resize(before);
    EXPECT_EQ(seen, rows) << name;
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

TEST_F(EmulatedKernelsTest, EachBarrierAndEachWaitIsNeeded) {
  constexpr int kOrders = 3;  // of each shape; a fault shows in almost all
  std::set<emulated::Site> caught;
  std::set<emulated::Site> all;
  std::vector<ProbeShape> shapes = Shapes();
  std::swap(shapes[2], shapes[4]);  // What takes longest comes last: all is caught by then.
  for (const ProbeShape& shape : shapes) {
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

TEST_F(EmulatedKernelsTest, EachWaitForTheLaunchBeforeIsNeeded) {
  emulated::WatchEarlyThreads(true);
  std::set<emulated::Site> caught;
  std::set<emulated::Site> all;
  for (const ProbeShape& shape : Shapes()) {
    emulated::TakeLaunchWaits();
    ASSERT_OK(ProbeOperations(*MakeBackend("cuda"), shape, seed_).status());
    for (const emulated::Site& site : emulated::TakeLaunchWaits()) {
      all.insert(site);
      if (caught.contains(site)) continue;
      emulated::LeaveOut(site);
      if (!ProbeOperations(*MakeBackend("cuda"), shape, seed_).ok()) caught.insert(site);
      emulated::TakeFault();
      emulated::LeaveOut();
    }
  }
  EXPECT_GE(all.size(), 18u);
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
    emulated::FailCall(call, cudaErrorInvalidDevice);
    EXPECT_TRUE(absl::IsInternal((*copier)->Upload(block(1), bytes.data(), kBytes).status()))
        << call;
    emulated::FailCall(call, cudaErrorInvalidDevice);
    EXPECT_TRUE(absl::IsInternal((*copier)->CopyWithin(block(0), block(1), kBytes).status()))
        << call;
  }
  emulated::FailCall(1, cudaErrorInvalidDevice);
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
  EXPECT_NE(beyond.ToString().find("GPU 3, counted from 0, is not there: "
                                   "CUDA_VISIBLE_DEVICES=5,GPU-8f6a,7 names 3"),
            std::string::npos)
      << beyond;
  EXPECT_TRUE(absl::IsInvalidArgument(NameOfGpu("", 0).status()));
}

// CUDA_VISIBLE_DEVICES, for a test.
class NarrowedTest : public testing::Test {
 protected:
  NarrowedTest() : before_(Get()) {}
  ~NarrowedTest() override { Set(before_); }

  static std::optional<std::string> Get() {
    const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }
  static void Set(const std::optional<std::string>& value) {
    if (value.has_value()) {
      setenv("CUDA_VISIBLE_DEVICES", value->c_str(), 1);
    } else {
      unsetenv("CUDA_VISIBLE_DEVICES");
    }
  }

 private:
  const std::optional<std::string> before_;
};

TEST_F(NarrowedTest, GpusHaveNamesThatNoEnvironmentChanges) {
  const std::string uuids[] = {emulated::UuidOf(0), emulated::UuidOf(1), emulated::UuidOf(2)};
  EXPECT_EQ(uuids[2], "GPU-00000000-0000-0000-0000-000000000002");
  Set(std::nullopt);
  EXPECT_THAT(VisibleGpus(), testing::ElementsAreArray(uuids));
  Set("2,0");
  EXPECT_THAT(VisibleGpus(), testing::ElementsAre(uuids[2], uuids[0]));
  Set(uuids[1] + ",2");
  EXPECT_THAT(VisibleGpus(), testing::ElementsAre(uuids[1], uuids[2]));
  Set("");
  EXPECT_THAT(VisibleGpus(), testing::IsEmpty());
}

// What CUDA shows of a list is what cuda:N takes of it.
TEST_F(NarrowedTest, AListIsReadAsCudaReadsIt) {
  const std::string uuid = emulated::UuidOf(1);
  const std::string shared = "GPU-00000000";  // How all of them begin.
  const std::tuple<std::string, std::vector<int>, std::string> cases[] = {
      {"2,0", {2, 0}, "names 2"},
      {" 2, 0 ", {2, 0}, "names 2"},
      {"0,-1,1", {0}, "names 1 before \"-1\", which is no GPU and ends the list"},
      {"-1,0", {}, "names 0 before \"-1\""},
      {"", {}, "names 0"},
      {",0", {}, "names 0 before \"\""},
      {"1,,0", {1}, "names 1 before \"\""},
      {"1,two,0", {1}, "names 1 before \"two\""},
      {"1, 99999999999 ,0", {1}, "names 1 before \"99999999999\""},
      {uuid + ",0", {1, 0}, "names 2"},
      {"0,0", {}, "names 0 twice"},
      {"1,2,1", {}, "names 1 twice"},
      {uuid + ",2," + uuid, {}, "twice, for which CUDA shows no GPU at all"},
      {"0,-1,0", {0}, "names 1 before \"-1\""},
      {"0,NoDevFiles", {0}, "names 1 before \"NoDevFiles\""},
  };
  for (const auto& [list, seen, why] : cases) {
    std::vector<std::string> uuids;
    for (const int gpu : seen) uuids.push_back(emulated::UuidOf(gpu));
    for (size_t i = 0; i <= uuids.size(); ++i) {
      Set(list);
      EXPECT_THAT(VisibleGpus(), testing::ElementsAreArray(uuids)) << list;
      const absl::Status status = SeeOneGpu(static_cast<int>(i));
      if (i < uuids.size()) {
        ASSERT_TRUE(status.ok()) << list << ": " << status;
        EXPECT_THAT(VisibleGpus(), testing::ElementsAre(uuids[i])) << list;
      } else {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << list << ": " << status;
        EXPECT_THAT(status.ToString(), testing::AllOf(testing::HasSubstr("=" + list + " names "),
                                                      testing::HasSubstr(why)));
      }
    }
  }
  // Whether other GPUs share the beginning of a UUID CUDA alone knows.
  Set(shared);
  EXPECT_THAT(VisibleGpus(), testing::IsEmpty());
  ASSERT_TRUE(SeeOneGpu(0).ok());
  const absl::Status backend = CreateCudaBackend("fma").status();
  EXPECT_THAT(backend.ToString(), testing::HasSubstr("this process sees \"" + shared + "\""));
}

// Dealt out in one environment, taken in another: the same card, or none.
TEST_F(NarrowedTest, WhoIsGivenAUuidSeesThatGpuAlone) {
  for (const char* const narrowed : {"0", "2,1", "1,GPU-gone", ""}) {
    for (int gpu = 0; gpu < emulated::kNumGpus; ++gpu) {
      Set(narrowed);
      ASSERT_TRUE(SeeOneGpu(emulated::UuidOf(gpu)).ok()) << narrowed;
      EXPECT_THAT(VisibleGpus(), testing::ElementsAre(emulated::UuidOf(gpu))) << narrowed;
    }
  }
  Set("2,1");
  ASSERT_TRUE(SeeOneGpu(1).ok());
  EXPECT_THAT(VisibleGpus(), testing::ElementsAre(emulated::UuidOf(1)));
  Set(std::nullopt);
  const absl::Status gone = SeeOneGpu(emulated::UuidOf(3));
  EXPECT_TRUE(absl::IsFailedPrecondition(gone)) << gone;
  EXPECT_THAT(gone.ToString(),
              testing::HasSubstr("000000000003 cannot be used: it is none of this machine's GPUs"));
  const absl::Status backend = CreateCudaBackend("fma").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(backend)) << backend;
  EXPECT_THAT(backend.ToString(), testing::HasSubstr("no CUDA-capable device"));
}

// A machine with a GPU, by the files that show one, whose driver does not work.
class BrokenDriverTest : public NarrowedTest {
 protected:
  BrokenDriverTest() {
    Set(std::nullopt);
    emulated::SetDriver(0);
  }
  ~BrokenDriverTest() override { emulated::SetDriver(CUDART_VERSION); }

  void AddPciDevice(const std::string& address, const char* vendor, const char* class_code) {
    const std::string device = "sys/bus/pci/devices/" + address;
    std::filesystem::create_directories(root_.path() + "/" + device);
    root_.Write(device + "/vendor", vendor);
    root_.Write(device + "/class", class_code);
  }
  void AddDriver() {
    std::filesystem::create_directories(root_.path() + "/dev");
    root_.Write("dev/nvidiactl", "");
  }
  // The backend's name, or why there is none.
  std::string Auto(const std::string& isa = "auto") const {
    const auto backend = CreateBackend({.device = "auto", .isa = isa, .root = root_.path() + "/"});
    if (backend.ok()) return (*backend)->name();
    EXPECT_TRUE(absl::IsFailedPrecondition(backend.status())) << backend.status();
    return std::string(backend.status().message());
  }

 private:
  const TempFolder root_;
};

TEST_F(BrokenDriverTest, AutoIsTheCpuWhereThereIsNoGpu) {
  EXPECT_EQ(Auto(), "cpu");
  AddPciDevice("0000:01:00.0", "0x1002\n", "0x030000\n");  // Another maker's.
  AddPciDevice("0000:02:00.0", "0x10de\n", "0x068000\n");  // A switch.
  AddPciDevice("0000:03:00.1", "0x10de\n", "0x040300\n");  // Sound.
  EXPECT_EQ(Auto(), "cpu");
  emulated::SetDriver(CUDART_VERSION);
  EXPECT_EQ((*CreateBackend({.device = "auto"}))->name(), "cuda") << "what works needs no files";
}

TEST_F(BrokenDriverTest, AutoIsNotTheCpuWhereAGpuCannotBeUsed) {
  AddPciDevice("0000:3b:00.0", "0x10de\n", "0x030200\n");
  EXPECT_EQ(Auto(),
            "no GPU can be used: CUDA driver version is insufficient for CUDA runtime version (no "
            "driver is installed; this build needs one for CUDA 13.0); but this machine has one "
            "(PCI device 0000:3b:00.0): repair it or its driver, let this process have it, or "
            "choose --device cpu");
  emulated::SetDriver(12080);
  EXPECT_THAT(Auto(), testing::HasSubstr("(the driver is for CUDA 12.8; this build needs one for "
                                         "CUDA 13.0)"));
  EXPECT_EQ(Auto("generic"), "cpu");
  Set("7");  // There are not so many.
  EXPECT_THAT(Auto(), testing::HasSubstr("0000:3b:00.0"));
  for (const char* const none : {"", " ", "-1", "NoDevFiles"}) {
    Set(none);
    EXPECT_EQ(Auto(), "cpu") << none;
  }
  for (const char* const mistaken : {",0", "0,0", "gpu0"}) {
    Set(mistaken);
    EXPECT_THAT(Auto(), testing::HasSubstr("0000:3b:00.0")) << mistaken;
  }
}

TEST_F(BrokenDriverTest, ADriversFileShowsAGpuWhereNoBusDoes) {
  AddDriver();
  EXPECT_THAT(Auto(), testing::HasSubstr("this machine has one (/dev/nvidiactl)"));
}

// As nvidia-smi, exporters and the kernel's log name it.
TEST_F(NarrowedTest, AGpuSaysWhichOneItIs) {
  Set("2,1");
  const auto backend = CreateCudaBackend("fma");
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::optional<GpuIdentity> gpu = (*backend)->gpu();
  ASSERT_TRUE(gpu.has_value());
  EXPECT_EQ(gpu->model, "emulated GPU");
  EXPECT_EQ(gpu->uuid, emulated::UuidOf(2));
  EXPECT_EQ(gpu->pci_address, "0000:3d:00.0");
  EXPECT_EQ(gpu->compute_capability, "9.0");
  EXPECT_EQ(gpu->newest_cuda, "13.0");
  EXPECT_EQ(gpu->memory_bytes, (*(*backend)->MeasureMemory())->total_bytes);
}

TEST_F(EmulatedKernelsTest, BlocksAreCopiedAndHaveTheirCrc32c) {
  constexpr size_t kBytes = 64 * 83;
  constexpr int64_t kBlocks = 520;  // more than a launch takes
  const auto gpu = MakeBackend("cuda");
  emulated::TakeLaunchWaits();
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
  ASSERT_OK(gpu->Synchronize());
  std::vector<int32_t> blocks(kBlocks);
  for (int64_t i = 0; i < kBlocks; ++i) blocks[i] = static_cast<int32_t>(kBlocks - 1 - i);
  std::vector<uint32_t> checksums(kBlocks);
  ASSERT_OK(gpu->ChecksumBlocks({.base = pool->data(),
                                 .block_stride_bytes = kBytes,
                                 .blocks = blocks.data(),
                                 .checksums = checksums.data(),
                                 .count = kBlocks}));
  EXPECT_EQ(checksums[0], Crc32c(bytes.data() + source * kBytes, kBytes));
  for (int64_t i = 1; i < kBlocks; ++i) {
    ASSERT_EQ(checksums[i], Crc32c(bytes.data() + blocks[i] * kBytes, kBytes)) << i;
  }
  EXPECT_EQ(emulated::TakeFault(), "");
  emulated::WatchEarlyThreads(true);
  const auto waits = emulated::TakeLaunchWaits();
  ASSERT_EQ(waits.size(), 1u);
  emulated::LeaveOut(*waits.begin());
  EXPECT_FALSE(gpu->ChecksumBlocks({.base = pool->data(),
                                    .block_stride_bytes = kBytes,
                                    .blocks = blocks.data(),
                                    .checksums = checksums.data(),
                                    .count = 1})
                   .ok());
  EXPECT_NE(emulated::TakeFault(), "");
}

TEST(CudaStatusTest, ErrorsThatStayAreALostDevice) {
  for (const cudaError_t stays :
       {cudaErrorECCUncorrectable, cudaErrorContained, cudaErrorIllegalAddress,
        cudaErrorLaunchTimeout, cudaErrorAssert, cudaErrorHardwareStackError,
        cudaErrorIllegalInstruction, cudaErrorMisalignedAddress, cudaErrorInvalidAddressSpace,
        cudaErrorInvalidPc, cudaErrorLaunchFailure, cudaErrorTensorMemoryLeak,
        cudaErrorMpsClientTerminated, cudaErrorExternalDevice, cudaErrorNvlinkUncorrectable,
        cudaErrorContextIsDestroyed, cudaErrorUnknown}) {
    EXPECT_TRUE(absl::IsDataLoss(CudaStatus(stays, "computing"))) << static_cast<int>(stays);
  }
  for (const cudaError_t passes :
       {cudaErrorInvalidValue, cudaErrorStreamCaptureUnsupported, cudaErrorInvalidDevice}) {
    EXPECT_TRUE(absl::IsInternal(CudaStatus(passes, "computing"))) << static_cast<int>(passes);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(CudaStatus(cudaErrorMemoryAllocation, "allocating")));
  EXPECT_TRUE(CudaStatus(cudaSuccess, "computing").ok());
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
    emulated::FailCall(call, call % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorInvalidDevice);
    const auto gpu = CreateCudaBackend("tensor");
    const bool ok = gpu.ok() && ProbeOperations(**gpu, shape, seed_).ok();
    failed = !emulated::FailedCall().empty();
    EXPECT_TRUE(ok || failed) << call;
    emulated::FailCall(0, cudaSuccess);
    ASSERT_LT(call, 5000);
  }
  EXPECT_GT(call, 100);
}

}  // namespace
}  // namespace tandem
