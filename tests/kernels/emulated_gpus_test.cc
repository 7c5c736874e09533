// GPUs that are not Hopper's: with less shared memory, with copies of a lane each, without products
// of four warps. Rows have the same bits on all of them, in as much memory as a block may have.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/emulated/block.h"
#include "kernels/probe/numerics_probe.h"
#include "tests/kernels/emulated_test.h"
#include "tests/kernels/fp8_case.h"
#include "tests/kernels/fused_linear.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {
namespace {

struct NamedGpu {
  const char* name;
  emulated::Gpu gpu;
};

// CUDA's programming guide, "Technical Specifications per Compute Capability".
constexpr NamedGpu kGpus[] = {
    {"sm_80", {.major = 8, .minor = 0, .max_shared_bytes = 163 * 1024}},
    {"sm_89", {.major = 8, .minor = 9, .max_shared_bytes = 99 * 1024}},
    {"sm_120", {.major = 12, .minor = 0, .max_shared_bytes = 99 * 1024}},
};

class EmulatedGpusTest : public EmulatedTest, public testing::WithParamInterface<NamedGpu> {
 protected:
  // What `run` gives on the GPU and on Hopper's.
  template <typename Run>
  void ExpectTheSame(const std::string& what, const Run& run) {
    emulated::SetGpu({});
    const auto expected = run();
    emulated::SetGpu(GetParam().gpu);
    const auto actual = run();
    EXPECT_EQ(emulated::TakeFault(), "") << what;
    ASSERT_FALSE(expected.empty());
    ASSERT_TRUE(actual == expected) << what << " has other bits than on sm_90";
  }
};

TEST_P(EmulatedGpusTest, EveryOperationHasTheBitsOfHopper) {
  constexpr std::pair<int, KvType> kHeads[] = {{48, KvType::kBF16},
                                               {64, KvType::kInt8},
                                               {96, KvType::kInt8G8},
                                               {128, KvType::kBF16},
                                               {128, KvType::kFp8}};
  for (const auto& [head_dim, kv_type] : kHeads) {
    const ProbeShape shape{.rows = 3,
                           .many_rows = 1,
                           .features = 130,
                           .outputs = 21,
                           .vocabulary = 64,
                           .head_dim = head_dim,
                           .positions = 90,
                           .prefill_rows = 7,
                           .window = 70,
                           .head_norms = true,
                           .score_cap = 5.0f,
                           .kv_type = kv_type};
    ExpectTheSame(absl::StrCat("heads of ", head_dim, ", KV in ", NameOf(kv_type)), [&] {
      const auto operations = ProbeOperations(*MakeBackend("cuda-tensor"), shape, seed_);
      EXPECT_TRUE(operations.ok()) << operations.status();
      std::vector<Sha256Digest> digests;
      if (!operations.ok()) return digests;
      for (const ProbedOperation& operation : *operations) digests.push_back(operation.digest);
      return digests;
    });
  }
}

// Few rows, some more, and tiles; of enough outputs that a block of the ordinary units has four
// panels.
TEST_P(EmulatedGpusTest, LayersHaveTheBitsOfHopper) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kBF16, WeightType::kInt8, WeightType::kInt4}) {
    for (const int64_t rows : {1, 3, 64, 300}) {
      const bool is_wide = rows <= 4 && (type == WeightType::kF32 || type == WeightType::kBF16);
      const LinearSpec spec{.in_features = is_wide ? 9 : random_->Between(64, 200),
                            .out_features = is_wide      ? 16'400
                                            : rows == 64 ? random_->Between(500, 600)
                                                         : random_->Between(20, 60),
                            .weight_type = type,
                            .compute_dtype = type == WeightType::kF32 ? DType::kF32 : DType::kBF16,
                            .output_dtype = DType::kF32,
                            .group = type == WeightType::kInt4 ? 64 : 0};
      const auto weights =
          AnyNumbers(spec.compute_dtype, spec.in_features * spec.out_features, random_.get());
      const auto input = AnyNumbers(spec.compute_dtype, rows * spec.in_features, random_.get());
      for (const char* const device : {"cuda", "cuda-tensor"}) {
        // The same kernels in both, but for bf16.
        if (type != WeightType::kBF16 && device == std::string_view("cuda")) continue;
        ExpectTheSame(absl::StrCat(device, ", ", DescribeFused(spec, rows)), [&] {
          const auto gpu = MakeDevice(device);
          Layer layer;
          MakeLayer(*gpu, spec, {{weights.data(), spec.out_features, spec.compute_dtype}}, &layer);
          return Multiply(*gpu, layer, input.data(), rows);
        });
      }
    }
  }
}

TEST_P(EmulatedGpusTest, LayersOf8BitFloatsHaveTheBitsOfTheirProductsInBf16) {
  emulated::SetGpu(GetParam().gpu);
  const auto gpu = MakeDevice("cuda-tensor");
  for (int index = 1; index < 6; ++index) {
    const Fp8Case layer(random_.get(), index);
    const int64_t rows = index % 2 == 0 ? 3 : 290;
    const auto input = AnyNumbers(DType::kBF16, rows * layer.wide.in_features, random_.get());
    ASSERT_NO_FATAL_FAILURE(layer.Check(*gpu, input.data(), rows));
  }
  EXPECT_EQ(emulated::TakeFault(), "");
}

TEST_P(EmulatedGpusTest, AttentionIsOnTheTensorCores) {
  emulated::SetGpu(GetParam().gpu);
  const auto gpu = MakeBackend("cuda-tensor");
  for (const int head_dim : {64, 96, 128}) EXPECT_TRUE(gpu->HasOwnAttention(head_dim)) << head_dim;
  // One unit of the ordinary units' ring has room, or none.
  const auto format = [&](int head_dim) {
    return gpu->GetKvTileFormat({.block_tokens = 16, .head_dim = head_dim, .type = KvType::kF32},
                                DType::kF32);
  };
  EXPECT_TRUE(format(160).ok()) << format(160).status();
  EXPECT_EQ(format(168).ok(), GetParam().gpu.max_shared_bytes > 99 * 1024) << format(168).status();
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedGpusTest, testing::ValuesIn(kGpus),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace tandem
