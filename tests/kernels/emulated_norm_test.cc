// Norms in front of layers that multiply 8 bits, which they make themselves (RmsNormLinear).

#include <string_view>
#include <vector>

#include "kernels/cuda/emulated/block.h"
#include "tests/kernels/emulated_sites.h"
#include "tests/kernels/emulated_test.h"
#include "tests/kernels/fused_linear.h"
#include "tests/kernels/kernel_test_support.h"
#include "tests/kernels/linear_layer.h"

namespace tandem {
namespace {

class EmulatedNormTest : public EmulatedTest {};

TEST_F(EmulatedNormTest, LayersBehindNormsHaveTheBitsOfBothOneByOne) {
  constexpr int64_t kTensorRows[] = {0, 1, 13, 258};  // Tiles are from 257 rows on.
  for (const char* const name : {"cuda", "cuda-tensor"}) {
    const RowCounts rows =
        name == std::string_view("cuda") ? RowCounts(kFewFusedRows) : RowCounts(kTensorRows);
    ExpectNormedInputsAreThoseOfTheNorm(*MakeDevice(name), random_.get(), rows);
    EXPECT_EQ(emulated::TakeFault(), "") << name;
  }
}

TEST_F(EmulatedNormTest, EachBarrierAndEachWaitOfANormThatMakes8BitsIsNeeded) {
  // A row that is in shared memory, and one that is too long for that.
  const auto run = [&] {
    std::vector<std::byte> all;
    for (const int64_t features : {331, 8400}) {
      Random random(features);
      const auto gpu = MakeDevice("cuda");
      const LinearSpec spec{.in_features = features,
                            .out_features = 5,
                            .weight_type = WeightType::kInt8,
                            .compute_dtype = DType::kBF16,
                            .output_dtype = DType::kF32};
      const auto weights = AnyNumbers(DType::kBF16, features * spec.out_features, &random);
      const auto input = AnyFloats(2 * features, &random), weight = AnyFloats(features, &random);
      Layer layer;
      MakeLayer(*gpu, spec, {{weights.data(), spec.out_features, DType::kBF16}}, &layer);
      std::vector<std::byte> normed(2 * features * sizeof(Bfloat16)), output(2 * 5 * sizeof(float));
      const HostLinearArgs args{
          .op = layer.op.get(), .input = normed.data(), .output = output.data(), .num_rows = 2};
      const absl::Status status = gpu->LayerNormLinear({.input = input.data(),
                                                        .weight = weight.data(),
                                                        .bias = weight.data(),
                                                        .output = normed.data(),
                                                        .num_rows = 2,
                                                        .features = features,
                                                        .epsilon = 1e-5f,
                                                        .output_dtype = DType::kBF16},
                                                       args);
      if (!status.ok()) return std::vector<std::byte>();
      all.insert(all.end(), output.begin(), output.end());
    }
    return all;
  };
  const auto expect = [&](std::string_view files, bool launch_waits, size_t least) {
    ExpectEachSiteIsNeeded(
        {.files = files, .launch_waits = launch_waits, .least = least, .seed = seed_, .run = run});
  };
  expect("cuda_rows", /*launch_waits=*/false, 4);
  expect("numbers", /*launch_waits=*/false, 1);
  expect("cuda_rows", /*launch_waits=*/true, 1);
}

}  // namespace
}  // namespace tandem
