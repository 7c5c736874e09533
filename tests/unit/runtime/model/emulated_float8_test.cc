// Checkpoints in 8-bit floats on an emulated GPU, whose tensor cores keep them.

#include <gtest/gtest.h>

#include "runtime/execution/fingerprints.h"
#include "runtime/model/model.h"
#include "tests/unit/runtime/model/float8_checkpoints.h"

namespace tandem {
namespace {

// What weights take of memory, to be multiplied in bf16.
WeightSizes SizesOf(const StoredTensors& tensors, const std::string& quantisation,
                    const BackendOptions& device) {
  TempFolder folder;
  WriteCheckpoint(folder, tensors, quantisation);
  const auto plan =
      Model::Plan({.folder = folder.path(), .dtype = "bf16"}, **CreateTestBackend(device));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->weights : WeightSizes{};
}

TEST(EmulatedFloat8Test, TensorCoresKeepThemAndGiveTheBitsOfTheWide) {
  const BackendOptions tensor = {.device = kEmulatedDevice, .isa = "tensor"};
  if (!CreateTestBackend(tensor).ok()) GTEST_SKIP() << "this machine lacks AVX2 or FMA";
  for (const Format& format : kFormats) {
    const Pair pair = CheckpointsOf(format, "F32");
    EXPECT_EQ(LogitsOf(pair.float8, format.config, "bf16", tensor),
              LogitsOf(pair.wide, "", "bf16", tensor))
        << format.name;
    size_t numbers = 0;
    for (const StoredMatrix& matrix : kMatrices) numbers += matrix.inputs * matrix.outputs;
    // A group of 80 inputs is no whole blocks of theirs.
    const bool keeps = format.inputs != 80;
    const WeightSizes wide = SizesOf(pair.wide, "", tensor);
    const WeightSizes kept = SizesOf(pair.float8, format.config, tensor);
    EXPECT_EQ(kept.packed_bytes, wide.packed_bytes - (keeps ? numbers - numbers / 16 : 0))
        << format.name;
    // While a layer is packed: scales of each output, or the numbers in f32.
    EXPECT_EQ(kept.converted_bytes < numbers, keeps) << format.name;
    for (const BackendOptions& other :
         {BackendOptions{.device = "cpu"}, {.device = kEmulatedDevice, .isa = "fma"}}) {
      EXPECT_EQ(SizesOf(pair.float8, format.config, other).packed_bytes,
                SizesOf(pair.wide, "", other).packed_bytes)
          << format.name;
    }
  }
}

// One that is wide makes all of a layer wide.
TEST(EmulatedFloat8Test, LayersOfMixedPartsAreWideOnTensorCores) {
  const BackendOptions tensor = {.device = kEmulatedDevice, .isa = "tensor"};
  if (!CreateTestBackend(tensor).ok()) GTEST_SKIP() << "this machine lacks AVX2 or FMA";
  Pair pair = CheckpointsOf(kFormats[0], "F32");
  const std::string up = "model.layers.0.mlp.up_proj.";
  pair.float8[up + "weight"] = pair.wide[up + "weight"];
  pair.float8.erase(up + "weight_scale_inv");
  EXPECT_EQ(LogitsOf(pair.float8, kFormats[0].config, "bf16", tensor),
            LogitsOf(pair.wide, "", "bf16", tensor));
}

// What a worker measures of its numbers is of the kernels that it has.
TEST(EmulatedFloat8Test, AreProbedWhereTheyAreKept) {
  if (!CreateTestBackend({.device = kEmulatedDevice}).ok()) {
    GTEST_SKIP() << "this machine lacks AVX2 or FMA";
  }
  TempFolder folder;
  WriteCheckpoint(folder, CheckpointsOf(kFormats[0], "F32").float8, kFormats[0].config);
  for (const char* isa : {"tensor", "fma"}) {
    const auto harness = DecoderHarness::Create(
        folder.path(), "bf16", *CreateTestBackend({.device = kEmulatedDevice, .isa = isa}), 16);
    ASSERT_TRUE(harness.ok()) << harness.status();
    EXPECT_EQ(ProbedOptionsOf((*harness)->model()).fp8_weights, isa == std::string("tensor"));
  }
}

TEST(EmulatedFloat8Test, WhoWantsAnotherTypeHasIt) {
  const BackendOptions tensor = {.device = kEmulatedDevice, .isa = "tensor"};
  if (!CreateTestBackend(tensor).ok()) GTEST_SKIP() << "this machine lacks AVX2 or FMA";
  const Pair pair = CheckpointsOf(kFormats[0], "F32");
  for (const char* kept : {"f32", "bf16_int8"}) {
    EXPECT_EQ(LogitsOf(pair.float8, kFormats[0].config, kept, tensor),
              LogitsOf(pair.wide, "", kept, tensor))
        << kept;
  }
}

}  // namespace
}  // namespace tandem
