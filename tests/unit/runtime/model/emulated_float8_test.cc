// Checkpoints in 8-bit floats on an emulated GPU, whose tensor cores keep them.

#include <gtest/gtest.h>

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
    EXPECT_EQ(kept.converted_bytes == 0, keeps) << format.name;
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
