// The products of "avx2vnni" beside those of "avx2", on a machine that has their instruction in one
// encoding at least (avx2vnni_evex.cc). Where it has AVX-VNNI, the tests of every path try that,
// too.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/kernel_tables_isa.h"
#include "kernels/support/host_args.h"
#include "runtime/base/random.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {

extern const std::array<GemmKernels, 4> kEvexGemm;

namespace {

std::vector<float> Multiply(const GemmKernels& gemm, const LinearSpec& spec,
                            const std::vector<float>& weights, const std::vector<float>& input,
                            int64_t rows) {
  const WeightPart part{weights.data(), spec.out_features, DType::kF32};
  Scratch memory;
  std::byte* const packed = memory.Get(CpuPackedFormat(gemm, spec).size_bytes).value();
  CpuPack(gemm, spec, {&part, 1}, packed);
  const std::unique_ptr<LinearOp> op = CpuPrepare(gemm, spec, packed);
  std::vector<Bfloat16> narrow;
  for (const float x : input) narrow.push_back(ToBfloat16(x));
  std::vector<float> output(rows * spec.out_features);
  ThreadPool pool(1);
  Scratch scratch;
  const bool is_f32 = spec.compute_dtype == DType::kF32;
  EXPECT_TRUE(CpuLinear({.op = op.get(),
                         .input = is_f32 ? static_cast<const void*>(input.data()) : narrow.data(),
                         .output = output.data(),
                         .num_rows = rows},
                        &pool, &scratch)
                  .ok());
  return output;
}

TEST(Avx2VnniTest, HasTheBitsOfAvx2) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vl")) {
    GTEST_SKIP() << "this machine has no AVX-512 VNNI";
  }
  Random random(5);
  const KernelTable table = GenericKernels().With("avx2", kAvx2Gemm);
  for (const GemmKernels& evex : kEvexGemm) {
    const GemmKernels& avx2 = *table.FindGemm(evex.weight_type, evex.compute_dtype);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 30}) {
      for (const int64_t inputs : {1, 31, 130, 1100, 2048}) {
        const LinearSpec spec{.in_features = inputs,
                              .out_features = 33 + 32 * static_cast<int64_t>(random.Below(5)),
                              .weight_type = evex.weight_type,
                              .compute_dtype = evex.compute_dtype,
                              .output_dtype = DType::kF32,
                              .segmented = random.Below(2) == 0,
                              .group = evex.weight_type == WeightType::kInt4 ? 32 : 0};
        std::vector<float> weights(spec.in_features * spec.out_features);
        for (float& x : weights) x = static_cast<float>(random.Unit() - 0.5);
        std::vector<float> input(rows * inputs);
        for (float& x : input) x = static_cast<float>(random.Unit() - 0.5);
        // The largest products, whose sums of two 16 bits do not hold: signs alike.
        for (int64_t i = 0; i < inputs && rows % 2 == 0; ++i) weights[i] = input[i] = 1.0f;
        const std::vector<float> got = Multiply(evex, spec, weights, input, rows);
        const std::vector<float> expected = Multiply(avx2, spec, weights, input, rows);
        ASSERT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)))
            << rows << " rows, " << inputs << " inputs, " << spec.out_features << " outputs";
      }
    }
  }
}

}  // namespace
}  // namespace tandem
