// A model whose norms give some channels numbers far above all others, as those of large language
// models do: what 8 bits cost it, with outliers in them and without.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "tests/unit/runtime/model/decoder_harness.h"
#include "tests/unit/runtime/model/stored_tensors.h"

namespace tandem {
namespace {

constexpr int64_t kOutlierChannels[] = {5, 64, 127};
// A power of two, so that f32 computes the same function, bit by bit.
constexpr float kFactor = 64;

bool IsOutlier(int64_t channel) {
  for (const int64_t outlier : kOutlierChannels) {
    if (channel == outlier) return true;
  }
  return false;
}

// Weights that 8 bits hold exactly, with and without outliers, so that inputs alone cost anything:
// q · 2^-10, with 127 in each output, and in the channels that may become outliers 64 or -64.
StoredTensor Weights(int64_t outputs, int64_t inputs, bool reads_a_norm, bool shrunk,
                     Random* random) {
  std::vector<float> numbers;
  for (int64_t n = 0; n < outputs; ++n) {
    for (int64_t k = 0; k < inputs; ++k) {
      auto q = static_cast<float>(k == 0 ? 127 : random->Between(-127, 127));
      if (reads_a_norm && IsOutlier(k)) q = (random->Chance(0.5) ? 1 : -1) * (shrunk ? 1 : kFactor);
      numbers.push_back(q * 0x1p-10f);
    }
  }
  return Stored("F32", {outputs, inputs}, numbers);
}

StoredTensors Llama(bool with_outliers) {
  Random random(31);
  StoredTensors tensors = UnquantisedTensors(&random);
  for (const StoredMatrix& matrix : kMatrices) {
    const std::string name = matrix.name;
    const bool reads_a_norm = name != "self_attn.o_proj" && name != "mlp.down_proj";
    tensors[NameOf(matrix) + ".weight"] =
        Weights(matrix.outputs, matrix.inputs, reads_a_norm, with_outliers, &random);
  }
  tensors["lm_head.weight"] = Weights(kVocabulary, kHidden, true, with_outliers, &random);
  if (!with_outliers) return tensors;
  for (const char* name : {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                           "model.layers.0.post_attention_layernorm.weight"}) {
    auto* const weight = reinterpret_cast<float*>(tensors.at(name).bytes.data());
    for (const int64_t channel : kOutlierChannels) weight[channel] *= kFactor;
  }
  return tensors;
}

std::vector<float> LogitsOf(const StoredTensors& tensors, const std::string& format) {
  TempFolder folder;
  WriteCheckpoint(folder, tensors, "");
  const auto harness = DecoderHarness::Create(folder.path(), format, {.device = "cpu"}, 64);
  TANDEM_CHECK(harness.ok()) << harness.status().message();
  std::vector<int32_t> tokens;
  Random random(32);
  for (int i = 0; i < 64; ++i) tokens.push_back(static_cast<int32_t>(random.Below(kVocabulary)));
  return (*harness)->Feed(tokens);
}

// Signal to noise, in decibels.
double Decibels(const std::vector<float>& exact, const std::vector<float>& rounded) {
  double signal = 0, noise = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    signal += double{exact[i]} * exact[i];
    noise += (double{rounded[i]} - exact[i]) * (double{rounded[i]} - exact[i]);
  }
  return 10 * std::log10(signal / noise);
}

TEST(OutlierChannelsTest, CostLittleOnlyWhereTheyAreNotMadeEightBits) {
  const StoredTensors ordinary = Llama(false), with_outliers = Llama(true);
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::vector<float> exact = LogitsOf(with_outliers, dtype);
    ASSERT_EQ(exact, LogitsOf(ordinary, dtype)) << "another function";
    const auto cost = [&](const StoredTensors& tensors, const std::string& format) {
      const double decibels = Decibels(exact, LogitsOf(tensors, dtype + format));
      std::printf("%s%s, %s: %.1f dB\n", dtype.c_str(), format.c_str(),
                  &tensors == &ordinary ? "no outliers" : "outliers", decibels);
      return decibels;
    };
    const double without = cost(ordinary, "_int8");
    const double plain = cost(with_outliers, "_int8");
    const double apart = cost(with_outliers, "_int8_outliers6");
    EXPECT_LT(plain, 15);
    EXPECT_GT(apart, plain + 20);
    EXPECT_GT(apart, without - 1);
    EXPECT_EQ(LogitsOf(ordinary, dtype + "_int8_outliers6"), LogitsOf(ordinary, dtype + "_int8"))
        << "nothing is an outlier";
  }
}

}  // namespace
}  // namespace tandem
