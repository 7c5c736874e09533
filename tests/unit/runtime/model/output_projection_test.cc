// An output projection that is not quantised where all else is: what goes into it is what goes into
// one that is, and what comes out is the product as it is computed.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "tests/unit/runtime/model/decoder_harness.h"
#include "tests/unit/runtime/model/stored_tensors.h"

namespace tandem {
namespace {

const std::vector<int32_t> kTokens = {1, 17, 5, 95, 40, 2, 3};

StoredTensors Llama() {
  Random random(21);
  StoredTensors tensors = UnquantisedTensors(&random);
  for (const StoredMatrix& matrix : kMatrices) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < matrix.inputs * matrix.outputs; ++i) {
      numbers.push_back(0.3f * static_cast<float>(random.Unit()) - 0.15f);
    }
    tensors[NameOf(matrix) + ".weight"] = Stored("F32", {matrix.outputs, matrix.inputs}, numbers);
  }
  return tensors;
}

// The sums of the reference, which this file can repeat.
std::vector<float> LogitsOf(const StoredTensors& tensors, const std::string& format) {
  TempFolder folder;
  WriteCheckpoint(folder, tensors, "");
  const auto harness = DecoderHarness::Create(folder.path(), format, {.device = "reference"}, 16);
  TANDEM_CHECK(harness.ok()) << harness.status().message();
  return (*harness)->Feed(kTokens);
}

// What goes into the output projection: outputs of ones that have a single 1 in each row.
std::vector<float> HiddenOf(StoredTensors tensors, const std::string& format) {
  std::vector<float> hidden(kTokens.size() * kHidden);
  for (const int64_t first : {int64_t{0}, kHidden - kVocabulary}) {
    std::vector<float> rows(kVocabulary * kHidden);
    for (int64_t n = 0; n < kVocabulary; ++n) rows[n * kHidden + first + n] = 1;
    tensors["lm_head.weight"] = Stored("F32", {kVocabulary, kHidden}, rows);
    const std::vector<float> logits = LogitsOf(tensors, format);
    for (size_t t = 0; t < kTokens.size(); ++t) {
      for (int64_t n = 0; n < kVocabulary; ++n) {
        hidden[t * kHidden + first + n] = logits[t * kVocabulary + n];
      }
    }
  }
  return hidden;
}

TEST(OutputProjectionTest, WhatIsNotQuantisedIsTheProductOfWhatQuantisedLayersGive) {
  const StoredTensors tensors = Llama();
  const auto* const weights =
      reinterpret_cast<const float*>(tensors.at("lm_head.weight").bytes.data());
  for (const std::string format : {"f32_int8", "f32_int4"}) {
    const std::vector<float> hidden = HiddenOf(tensors, format + "_output");
    EXPECT_NE(hidden, HiddenOf(tensors, "f32")) << "layers are not quantised";
    std::vector<float> products;
    for (size_t t = 0; t < kTokens.size(); ++t) {
      for (int64_t n = 0; n < kVocabulary; ++n) {
        float sum = 0;
        for (int64_t k = 0; k < kHidden; ++k) {
          sum = sum + hidden[t * kHidden + k] * weights[n * kHidden + k];
        }
        products.push_back(sum);
      }
    }
    EXPECT_EQ(LogitsOf(tensors, format + "_output"), products) << format;
    EXPECT_NE(LogitsOf(tensors, format), products) << format;
  }
}

}  // namespace
}  // namespace tandem
