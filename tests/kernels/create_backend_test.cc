#include "kernels/create_backend.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "kernels/cpu/kernel_table.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/support/count_of.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

TEST(CreateBackendTest, RefusesUnknownNamesAndThreadCountsWithTheNumbers) {
  const auto device = CreateBackend({.device = "abacus"});
  EXPECT_TRUE(absl::IsInvalidArgument(device.status()));
  EXPECT_NE(device.status().ToString().find("abacus"), std::string::npos);
  const auto isa = CreateBackend({.device = "cpu", .isa = "mmx"});
  EXPECT_TRUE(absl::IsInvalidArgument(isa.status()));
  EXPECT_NE(isa.status().ToString().find("mmx"), std::string::npos);
  for (const int threads : {-1, 0, 1025}) {
    const auto backend = CreateBackend({.device = "cpu", .num_threads = threads});
    EXPECT_TRUE(absl::IsInvalidArgument(backend.status())) << threads;
    EXPECT_NE(backend.status().ToString().find(std::to_string(threads)), std::string::npos);
  }
}

TEST(CreateBackendTest, NamesWhatItMade) {
  EXPECT_EQ((*CreateBackend({.device = "reference"}))->isa(), "reference");
  const auto generic = CreateBackend({.device = "cpu", .isa = "generic"});
  ASSERT_TRUE(generic.ok()) << generic.status();
  EXPECT_EQ((*generic)->name(), "cpu");
  EXPECT_EQ((*generic)->isa(), "generic");
  // "auto" is the best that can be had by name.
  const auto best = CreateBackend({});
  ASSERT_TRUE(best.ok()) << best.status();
  for (const Isa& isa : KnownIsas()) {
    const auto named = CreateBackend({.isa = isa.name});
    if (named.ok()) {
      EXPECT_EQ((*best)->isa(), isa.name);
      break;
    }
    EXPECT_TRUE(absl::IsFailedPrecondition(named.status())) << named.status();
    EXPECT_THAT(named.status().ToString(), testing::ContainsRegex("needs (AVX|NEON)"));
  }
}

TEST(CreateBackendTest, OnlyWhatNamesADeviceIsOne) {
  for (const char* const device : {"auto", "cpu", "cuda", "cuda:0", "cuda:15",
                                   "cuda:GPU-8f6a1234-0000-abcd-EF01-0123456789ab"}) {
    EXPECT_TRUE(CheckDevice(device).ok()) << device;
  }
  for (const char* const device :
       {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999", "cuda:GPU-8f6a",
        "GPU-8f6a1234-0000-abcd-ef01-0123456789ab", "cuda:GPU-8f6a1234-0000-abcd-ef01-0123456789ag",
        "cuda:GPU-8f6a1234-0000-abcd-ef01-0123456789ab0"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckDevice(device))) << device;
    EXPECT_TRUE(absl::IsInvalidArgument(CreateBackend({.device = device}).status())) << device;
  }
}

TEST(CreateBackendTest, AnInstructionSetOfTheCpuAsksForTheCpu) {
  EXPECT_EQ((*CreateBackend({.device = "auto", .isa = "generic"}))->name(), "cpu");
}

TEST(CreateBackendTest, AnInstructionSetOfAnotherDeviceIsRefusedAsThat) {
  const auto why = [](const char* device, const char* isa) {
    const absl::Status status = CreateBackend({.device = device, .isa = isa}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << device << ", " << isa << ": " << status;
    return status.ToString();
  };
  for (const char* const device : {"cpu", "fenced", "fenced_pool"}) {
    for (const char* const isa : {"tensor", "mma", "fma"}) {
      EXPECT_THAT(why(device, isa), testing::HasSubstr(std::string("set \"") + isa +
                                                       "\": that is a GPU's; the cpu has auto, "));
    }
    EXPECT_THAT(why(device, "mmx"), testing::HasSubstr("there is no such; the cpu has auto, "));
  }
  for (const char* const device : {"cuda", "cuda:0"}) {
    for (const Isa& isa : KnownIsas()) {
      EXPECT_THAT(why(device, isa.name),
                  testing::HasSubstr("that is the cpu's; a GPU has auto, tensor, mma, fma"));
    }
  }
  EXPECT_THAT(why("cpu", "mma"), testing::HasSubstr(KnownIsas().back().name));
  EXPECT_THAT(why("auto", "mmx"), testing::HasSubstr("there is no such"));
}

#if !defined(TANDEM_CUDA)
TEST(CreateBackendTest, AGpuNeedsABuildWithCuda) {
  for (const BackendOptions& options :
       {BackendOptions{.device = "cuda"}, BackendOptions{.device = "cuda:1"},
        BackendOptions{.device = "auto", .isa = "tensor"},
        BackendOptions{.device = "auto", .isa = "mma"},
        BackendOptions{.device = "auto", .isa = "fma"}}) {
    const absl::Status status = CreateBackend(options).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.ToString().find("built without CUDA"), std::string::npos) << status;
  }
  EXPECT_EQ((*CreateBackend({.device = "auto"}))->name(), "cpu");
}

// Nobody asked for a CPU's speed.
TEST(CreateBackendTest, AGpuThatABuildWithoutCudaLeavesAloneIsAWarning) {
  const auto warning = [](const BackendOptions& options) {
    testing::internal::CaptureStderr();
    const auto backend = CreateBackend(options);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ((*backend)->name(), "cpu");
    return said;
  };
  const TempFolder machine;
  const std::string root = machine.path() + "/";
  EXPECT_EQ(warning({.device = "auto", .root = root}), "");
  std::filesystem::create_directories(root + "dev");
  machine.Write("dev/nvidiactl", "");
  const std::string said = warning({.device = "auto", .root = root});
  EXPECT_THAT(said, testing::HasSubstr("this machine has a GPU (/dev/nvidiactl)"));
  EXPECT_THAT(said, testing::HasSubstr("the preset cuda (the image tandem-worker-cuda)"));
  EXPECT_EQ(CountOf("\n", said), 1);
  EXPECT_EQ(warning({.device = "auto", .isa = "generic", .root = root}), "");
  EXPECT_EQ(warning({.device = "cpu", .root = root}), "");
}
#endif

std::vector<std::byte> Packed(Backend& backend, DType dtype, const std::vector<float>& weights,
                              int64_t in_features) {
  const auto outputs = static_cast<int64_t>(weights.size()) / in_features;
  const LinearSpec spec{.in_features = in_features,
                        .out_features = outputs,
                        .weight_type = WeightTypeOf(dtype),
                        .compute_dtype = dtype,
                        .output_dtype = DType::kF32};
  auto packed = *backend.AllocatePinned(backend.GetPackedFormat(spec)->size_bytes);
  const WeightPart part{weights.data(), outputs, DType::kF32};
  EXPECT_TRUE(backend.PackLinear(spec, {&part, 1}, {packed.data(), packed.size_bytes()}).ok());
  return {packed.data(), packed.data() + packed.size_bytes()};
}

std::string PackFormat(Backend& backend, DType dtype) {
  return backend
      .GetPackedFormat({.in_features = 131,
                        .out_features = 75,
                        .weight_type = WeightTypeOf(dtype),
                        .compute_dtype = dtype,
                        .output_dtype = DType::kF32})
      ->id;
}

// A fleet of old and new machines shares packed weights and KV blocks. (That the bytes of blocks
// are equal, too, numerics_probe_test shows.)
TEST(CreateBackendTest, EveryInstructionSetPacksAlike) {
  const auto generic = MakeBackend("cpu-generic");
  std::vector<float> weights;  // An odd number of inputs, and a panel that is not full.
  for (int i = 0; i < 131 * 75; ++i) weights.push_back(0.37f * static_cast<float>(i % 1009 - 500));
  for (const std::string& name : FmaDevices()) {
    const auto device = MakeBackend(name);
    if (device == nullptr) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      EXPECT_EQ(PackFormat(*device, dtype), PackFormat(*generic, dtype)) << name;
      EXPECT_EQ(Packed(*device, dtype, weights, 131), Packed(*generic, dtype, weights, 131))
          << name << ", " << NameOf(dtype);
      const KvTileShape tile{16, 64, KvTypeOf(dtype)};
      EXPECT_EQ(device->GetKvTileFormat(tile, dtype)->id, generic->GetKvTileFormat(tile, dtype)->id)
          << name;
    }
  }
}

TEST(KernelTableTest, KernelsTakeThePlaceOfThoseOfTheirTypes) {
  GemmKernels other = *GenericKernels().FindGemm(WeightType::kInt8, DType::kBF16);
  other.run = nullptr;
  const KernelTable table = GenericKernels().With("other", {&other, 1});
  EXPECT_STREQ(table.isa, "other");
  for (const GemmKernels& generic : GenericKernels().gemm) {
    const bool is_replaced =
        generic.weight_type == WeightType::kInt8 && generic.compute_dtype == DType::kBF16;
    const GemmKernels* const found = table.FindGemm(generic.weight_type, generic.compute_dtype);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->run, is_replaced ? nullptr : generic.run);
  }
}

TEST(KernelTableTest, EveryInstructionSetMultipliesWeightsOfAllTypes) {
  for (const Isa& isa : KnownIsas()) {
    const KernelTable* const table = isa.kernels();
    if (table == nullptr) continue;
    EXPECT_STREQ(table->isa, isa.name);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const WeightType type : {WeightTypeOf(dtype), WeightType::kInt8, WeightType::kInt4}) {
        EXPECT_NE(table->FindGemm(type, dtype), nullptr) << isa.name;
      }
    }
  }
}

TEST(CreateBackendTest, MemoryIsAlignedAndMovable) {
  const auto backend = MakeBackend("cpu-generic");
  for (const size_t size : {0u, 1u, 1000u, 300000u}) {
    auto buffer = backend->Allocate(size);
    ASSERT_TRUE(buffer.ok());
    const DeviceBuffer moved = *std::move(buffer);
    EXPECT_EQ(moved.data().address() % 64, 0u);
    EXPECT_EQ(moved.size_bytes(), size);
    auto pinned = backend->AllocatePinned(size);
    ASSERT_TRUE(pinned.ok());
    const PinnedBuffer moved_pinned = *std::move(pinned);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(moved_pinned.data()) % 64, 0u);
    EXPECT_EQ(moved_pinned.size_bytes(), size);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(backend->Allocate(size_t{1} << 60).status()));
}

}  // namespace
}  // namespace tandem
