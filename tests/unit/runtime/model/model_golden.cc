#include "tests/unit/runtime/model/model_golden.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/config/json.h"
#include "runtime/model/safetensors_file.h"
#include "tests/unit/runtime/model/decoder_harness.h"

namespace tandem {
namespace {

constexpr int64_t kMaxTokens = 64;

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

}  // namespace

absl::StatusOr<GoldenComparison> CompareWithGolden(const std::string& folder,
                                                   std::unique_ptr<Backend> backend) {
  TANDEM_ASSIGN_OR_RETURN(const auto harness,
                          DecoderHarness::Create(folder, "f32", std::move(backend), kMaxTokens));
  const size_t vocab = harness->vocab_size();
  GoldenComparison comparison;
  for (const Golden& golden : ReadGoldens(folder)) {
    harness->Reset();
    const std::vector<float> logits = harness->Feed(golden.prompt);
    comparison.worst_logit =
        std::max(comparison.worst_logit, WorstRow(logits, golden.logits, vocab));
    std::vector<float> last(logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
    for (const int32_t want : golden.greedy) {
      const auto best = std::max_element(last.begin(), last.end()) - last.begin();
      if (best != want) {
        ++comparison.wrong_texts;
        break;
      }
      last = harness->Feed(std::vector<int32_t>{want});
    }
    ++comparison.num_texts;
  }
  return comparison;
}

}  // namespace tandem
