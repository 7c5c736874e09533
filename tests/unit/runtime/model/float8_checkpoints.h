// Checkpoints in 8-bit floats, as those who write them do, and the same weights written wide, which
// are made here from the definition of E4M3.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_MODEL_FLOAT8_CHECKPOINTS_H_
#define TANDEM_TESTS_UNIT_RUNTIME_MODEL_FLOAT8_CHECKPOINTS_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/api/half.h"
#include "runtime/base/random.h"
#include "tests/support/e4m3_definition.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_backend.h"
#include "tests/unit/runtime/model/decoder_harness.h"
#include "tests/unit/runtime/model/stored_tensors.h"

namespace tandem {

// What a format is: config.json's words, the tensor of scales, its type, and the blocks.
struct Format {
  const char* name;
  const char* config;
  const char* scales;
  const char* type;
  int64_t outputs, inputs;  // 0: all.
  size_t scalar_rank = 1;   // Dimensions of a matrix's only scale.
  const char* input_scale = "";
};
inline constexpr Format kFormats[] = {
    {"DeepSeek",
     R"({"quant_method":"fp8","activation_scheme":"dynamic","fmt":"e4m3",)"
     R"("weight_block_size":[128,128],"modules_to_not_convert":["lm_head","model.norm"]})",
     "weight_scale_inv", "F32", 128, 128},
    {"odd blocks", R"({"quant_method":"fp8","weight_block_size":[48,80]})", "weight_scale_inv",
     "BF16", 48, 80},
    {"Transformers",
     R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":null})",
     "weight_scale_inv", "BF16", 0, 0, 0, "activation_scale"},
    {"AutoFP8",
     R"({"quant_method":"fp8","activation_scheme":"static","ignored_layers":["lm_head"]})",
     "weight_scale", "F32", 0, 0, 1, "input_scale"},
    {"tensor",
     R"({"quant_method":"compressed-tensors","format":"float-quantized","kv_cache_scheme":null,)"
     R"("config_groups":{"group_0":{"targets":["Linear"],"output_activations":null,)"
     R"("input_activations":{"num_bits":8,"type":"float","dynamic":false,"strategy":"tensor"},)"
     R"("weights":{"num_bits":8,"type":"float","strategy":"tensor","symmetric":true,)"
     R"("dynamic":false}}},"ignore":["lm_head"],"sparsity_config":{},"transform_config":{}})",
     "weight_scale", "F32", 0, 0, 1, "input_scale"},
    {"channel",
     R"({"quant_method":"compressed-tensors","format":"float-quantized",)"
     R"("config_groups":{"group_0":{"format":"float-quantized","weights":{"num_bits":8,)"
     R"("type":"float","strategy":"channel","actorder":null}}},)"
     R"("sparsity_config":{"format":"dense"}})",
     "weight_scale", "BF16", 1, 0},
    {"block",
     R"({"quant_method":"compressed-tensors","format":"float-quantized",)"
     R"("config_groups":{"group_0":{"weights":{"num_bits":8,"type":"float","strategy":"block",)"
     R"("block_structure":[128,128]}}}})",
     "weight_scale", "F16", 128, 128},
    {"FBGEMM", R"({"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0})", "weight_scale",
     "F32", 1, 0, 1, "input_scale_ub"}};

inline int64_t Blocks(int64_t all, int64_t block) {
  return block == 0 ? 1 : (all + block - 1) / block;
}

inline StoredTensor StoredAs(const std::string& type, std::vector<int64_t> shape,
                             std::vector<float>* numbers) {
  std::vector<uint16_t> halves;
  for (float& number : *numbers) {
    if (type == "BF16") {
      halves.push_back(ToBfloat16(number).bits);
      number = ToFloat(Bfloat16{halves.back()});
    } else if (type == "F16") {
      halves.push_back(ToHalf(number).bits);
      number = ToFloat(Half{halves.back()});
    }
  }
  return type == "F32" ? Stored(type, shape, *numbers) : Stored(type, shape, halves);
}

// The same numbers in a format and, in one of 16 or 32 bits, multiplied out.
struct Pair {
  StoredTensors float8, wide;
};

inline Pair CheckpointsOf(const Format& format, const std::string& wide_type) {
  Random random(11);
  Pair pair;
  pair.float8 = pair.wide = UnquantisedTensors(&random);
  for (const StoredMatrix& matrix : kMatrices) {
    const int64_t inputs = matrix.inputs, outputs = matrix.outputs;
    std::vector<uint8_t> numbers;
    for (int64_t i = 0; i < inputs * outputs; ++i) {
      numbers.push_back(static_cast<uint8_t>(random.Below(127) | random.Below(2) << 7));
    }
    const int64_t rows = Blocks(outputs, format.outputs), columns = Blocks(inputs, format.inputs);
    std::vector<float> scales;
    for (int64_t i = 0; i < rows * columns; ++i) {
      scales.push_back(0.0005f + 0.001f * static_cast<float>(random.Unit()));
    }
    std::vector<int64_t> shape{rows, columns};
    if (format.outputs == 0) shape.assign(format.scalar_rank, 1);
    const std::string name = NameOf(matrix) + ".";
    pair.float8[name + "weight"] = Stored("F8_E4M3", {outputs, inputs}, numbers);
    pair.float8[name + format.scales] = StoredAs(format.type, shape, &scales);
    if (*format.input_scale != '\0') {
      pair.float8[name + format.input_scale] = Stored("F32", {}, std::vector<float>{0.5f});
    }
    std::vector<float> wide;
    for (int64_t n = 0; n < outputs; ++n) {
      for (int64_t k = 0; k < inputs; ++k) {
        const int64_t row = format.outputs == 0 ? 0 : n / format.outputs;
        const int64_t column = format.inputs == 0 ? 0 : k / format.inputs;
        wide.push_back(static_cast<float>(E4m3ByDefinition(numbers[n * inputs + k]) *
                                          scales[row * columns + column]));
      }
    }
    pair.wide[name + "weight"] = StoredAs(wide_type, {outputs, inputs}, &wide);
  }
  return pair;
}

inline std::vector<float> LogitsOf(const StoredTensors& tensors, const std::string& quantisation,
                                   const std::string& kept,
                                   const BackendOptions& device = {.device = "cpu"}) {
  TempFolder folder;
  WriteCheckpoint(folder, tensors, quantisation);
  const auto harness = DecoderHarness::Create(folder.path(), kept, *CreateTestBackend(device), 16);
  EXPECT_TRUE(harness.ok()) << kept << ": " << harness.status();
  if (!harness.ok()) return {};
  const std::vector<int32_t> tokens = {1, 17, 5, 95, 40, 2, 3};
  return (*harness)->Feed(tokens);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_MODEL_FLOAT8_CHECKPOINTS_H_
