// Tiny random checkpoints against Transformers (tools/dev/make_model_goldens.py tiny).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/small_file.h"
#include "runtime/config/json.h"
#include "runtime/model/safetensors_file.h"
#include "tests/unit/runtime/model/decoder_harness.h"

namespace tandem {
namespace {

constexpr float kLogitTolerance = 1e-3f;  // Of the row's largest magnitude.

struct Golden {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<float> logits;  // [prompt, vocabulary]
};

std::vector<int32_t> Ids(const boost::json::value& list) {
  std::vector<int32_t> ids;
  for (const boost::json::value& id : list.as_array()) {
    ids.push_back(static_cast<int32_t>(id.as_int64()));
  }
  return ids;
}

std::vector<Golden> ReadGoldens(const std::string& folder) {
  const auto text = ReadSmallFile(folder + "/golden.json", 1 << 20);
  TANDEM_CHECK(text.ok()) << text.status().message();
  const auto object = ParseJsonObject(*text, "golden.json", {});
  const auto logits = SafetensorsFile::Open(folder + "/golden.safetensors");
  TANDEM_CHECK(object.ok() && logits.ok());
  std::vector<Golden> goldens;
  for (const boost::json::value& prompt : object->at("prompts").as_array()) {
    const auto view = (*logits)->Tensor("logits." + std::to_string(goldens.size()));
    TANDEM_CHECK(view.ok()) << view.status().message();
    Golden golden{.prompt = Ids(prompt.at("prompt")), .greedy = Ids(prompt.at("greedy"))};
    golden.logits.resize(view->bytes.size() / sizeof(float));
    std::memcpy(golden.logits.data(), view->bytes.data(), view->bytes.size());
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

// Largest |difference| of any row as a share of the row's largest magnitude.
float WorstRow(std::span<const float> got, std::span<const float> want, size_t vocab) {
  TANDEM_CHECK(got.size() == want.size()) << got.size() << ", " << want.size();
  float worst = 0;
  for (size_t row = 0; row < want.size(); row += vocab) {
    float difference = 0, magnitude = 0;
    for (size_t i = row; i < row + vocab; ++i) {
      difference = std::max(difference, std::abs(got[i] - want[i]));
      magnitude = std::max(magnitude, std::abs(want[i]));
    }
    worst = std::max(worst, difference / magnitude);
  }
  return worst;
}

class TinyModelTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(TinyModelTest, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const auto& [device, name] = GetParam();
  const std::string folder = std::string(TANDEM_TEST_DATA) + "/tiny_models/" + name;
  const BackendOptions backend{.device = device == "reference" ? "reference" : "cpu",
                               .isa = device == "generic" ? "generic" : "auto",
                               .num_threads = 2};
  auto harness = DecoderHarness::Create(folder, "f32", backend, 64);
  ASSERT_TRUE(harness.ok()) << harness.status().message();
  const size_t vocab = (*harness)->vocab_size();
  const std::vector<Golden> goldens = ReadGoldens(folder);
  ASSERT_EQ(goldens.size(), 3u);
  float worst = 0;
  for (const Golden& golden : goldens) {
    (*harness)->Reset();
    const std::vector<float> logits = (*harness)->Feed(golden.prompt);
    worst = std::max(worst, WorstRow(logits, golden.logits, vocab));
    std::vector<float> last(logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
    std::vector<int32_t> greedy;
    while (greedy.size() < golden.greedy.size()) {
      greedy.push_back(
          static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
      last = (*harness)->Feed(std::vector<int32_t>{greedy.back()});
    }
    EXPECT_EQ(greedy, golden.greedy);
  }
  EXPECT_LE(worst, kLogitTolerance);
  RecordProperty("worst_relative_difference", std::to_string(worst));
  std::printf("%s on %s: worst |Δ logit| / max |logit| of a row: %.2e\n", name.c_str(),
              device.c_str(), static_cast<double>(worst));
}

INSTANTIATE_TEST_SUITE_P(
    All, TinyModelTest,
    testing::Combine(testing::Values("reference", "cpu", "generic"),
                     testing::Values("llama_gqa16_scaled_biased", "llama_mha32_tied",
                                     "llama_gqa64_bf16_sharded", "llama_gqa16_scaled_f16",
                                     "gpt2_heads16", "gpt2_heads32_unprefixed")),
    [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace tandem
