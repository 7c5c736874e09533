// The demo model against Transformers (tools/dev/make_model_goldens.py demo): greedy tokens in F32,
// and BF16 teacher-forced against F32 on text that the model was not trained on; what quantised
// formats cost on that text.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/small_file.h"
#include "runtime/config/json.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/runtime/execution/executor_harness.h"
#include "tests/unit/runtime/model/decoder_harness.h"

namespace tandem {
namespace {

namespace json = boost::json;

constexpr int kThreads = 2;
constexpr double kClearMarginNats = 0.1;
constexpr double kMaxMeanKl = 1e-3;
// What fewer bits may cost: their share of the perplexity without.
constexpr double kMaxInt8WeightsPerplexity = 1.005;
constexpr double kMaxInt4WeightsPerplexity = 1.04;
constexpr double kMaxInt8KvPerplexity = 1.005;
constexpr double kMaxGroupedKvPerplexity = 1.001;
constexpr double kMaxFp8KvPerplexity = 1.005;

json::object ReadGolden(const std::string& name) {
  const auto text =
      ReadSmallFile(std::string(TANDEM_TEST_DATA) + "/demo_goldens/" + name, 16 << 20);
  TANDEM_CHECK(text.ok()) << text.status().message();
  auto object = ParseJsonObject(*text, name, {});
  TANDEM_CHECK(object.ok()) << object.status().message();
  return *std::move(object);
}

std::vector<int32_t> Ids(const json::value& list) {
  std::vector<int32_t> ids;
  for (const json::value& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int64()));
  return ids;
}

TEST(DemoGoldensTest, GreedyTokensInF32AreThoseOfTransformers) {
  const json::object golden = ReadGolden("greedy_f32.json");
  json::array prompts = golden.at("prompts").as_array();
  ASSERT_EQ(prompts.size(), 100u);
  if (kSampleOnly) prompts.resize(2);
  const size_t generated = kSampleOnly ? 8 : 200;
  auto harness = ExecutorHarness::Create({.folder = DemoModel(),
                                          .format = "f32",
                                          .backend = {.device = "cpu", .num_threads = kThreads},
                                          .max_sequences = 100,
                                          .max_batched_tokens = 8192,
                                          .max_model_tokens = 272});
  ASSERT_TRUE(harness.ok()) << harness.status().message();
  (*harness)->ReserveSequences(100);
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<TestSequence> sequences;
  for (const json::value& prompt : prompts) {
    sequences.push_back((*harness)->NewSequence(Ids(prompt.at("prompt")), greedy));
  }
  std::vector<TestSequence*> pointers;
  for (TestSequence& sequence : sequences) pointers.push_back(&sequence);
  (*harness)->Generate(pointers, 64, generated);

  size_t compared = 0, uncertain = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<int32_t> want = Ids(prompts[i].at("greedy"));
    ASSERT_EQ(want.size(), 200u);
    const size_t certain =
        std::min(generated, static_cast<size_t>(prompts[i].at("certain").as_int64()));
    for (size_t t = 0; t < certain; ++t) {
      ASSERT_EQ(sequences[i].generated[t].token, want[t]) << "prompt " << i << ", token " << t;
    }
    compared += certain;
    uncertain += certain < generated;
  }
  // The goldens may leave out what Transformers itself is unsure of, but no more than a little.
  EXPECT_GE(compared, prompts.size() * generated * 95 / 100);
  std::printf("%zu tokens equal; %zu of %zu prompts stop early at a margin below 1e-4\n", compared,
              uncertain, prompts.size());
}

// log-softmax in double precision.
std::vector<double> LogProbabilities(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

size_t Best(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

TEST(DemoGoldensTest, Bf16StaysCloseToF32OnHeldOutText) {
  const json::object golden = ReadGolden("held_out.json");
  const BackendOptions backend{.device = "cpu", .num_threads = kThreads};
  auto exact = DecoderHarness::Create(DemoModel(), "f32", backend, 512);
  auto rounded = DecoderHarness::Create(DemoModel(), "bf16", backend, 512);
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  ASSERT_TRUE(rounded.ok()) << rounded.status().message();
  ASSERT_EQ((*rounded)->model().types().compute, DType::kBF16);
  const size_t vocab = (*exact)->vocab_size();
  size_t positions = 0, clear = 0, different = 0, different_clear = 0;
  double kl_sum = 0;
  for (const json::value& window : golden.at("windows").as_array()) {
    std::vector<int32_t> ids = Ids(window);
    if (kSampleOnly && positions > 0) break;
    if (kSampleOnly) ids.resize(64);
    (*exact)->Reset();
    (*rounded)->Reset();
    const std::vector<float> a = (*exact)->Feed(ids);
    const std::vector<float> b = (*rounded)->Feed(ids);
    for (size_t row = 0; row < ids.size(); ++row) {
      const auto p = LogProbabilities(std::span<const float>(a).subspan(row * vocab, vocab));
      const auto q = LogProbabilities(std::span<const float>(b).subspan(row * vocab, vocab));
      for (size_t i = 0; i < vocab; ++i) kl_sum += std::exp(p[i]) * (p[i] - q[i]);
      const size_t best = Best(p);
      std::vector<double> others = p;
      others[best] = -INFINITY;
      const bool is_clear = p[best] - p[Best(others)] >= kClearMarginNats;
      const bool differs = Best(q) != best;
      ++positions;
      clear += is_clear;
      different += differs;
      different_clear += is_clear && differs;
    }
  }
  const double mean_kl = kl_sum / static_cast<double>(positions);
  EXPECT_GE(positions, kSampleOnly ? 64u : 4'000u);
  EXPECT_EQ(different_clear, 0u);
  EXPECT_LE(mean_kl, kMaxMeanKl);
  EXPECT_GT(mean_kl, 0) << "BF16 was not computed in BF16";
  const json::object& peer = golden.at("transformers_bf16_against_f32").as_object();
  std::printf(
      "%zu positions, %.1f %% below 0.1 nat; mean KL %.2e (Transformers %.2e); other best token at "
      "%zu positions (Transformers %d), at clear margins %zu (Transformers %d)\n",
      positions, 100.0 - 100.0 * static_cast<double>(clear) / static_cast<double>(positions),
      mean_kl, peer.at("mean_kl").as_double(), different,
      static_cast<int>(peer.at("different").as_int64()), different_clear,
      static_cast<int>(peer.at("different_at_clear_margin").as_int64()));
}

// What a token of the held-out text has, given those before it.
double HeldOutPerplexity(const std::string& format, const std::string& folder = DemoModel()) {
  const json::object golden = ReadGolden("held_out.json");
  auto harness =
      DecoderHarness::Create(folder, format, {.device = "cpu", .num_threads = kThreads}, 512);
  TANDEM_CHECK(harness.ok()) << harness.status().message();
  const size_t vocab = (*harness)->vocab_size();
  double nats = 0;
  size_t count = 0;
  for (const json::value& window : golden.at("windows").as_array()) {
    std::vector<int32_t> ids = Ids(window);
    if (kSampleOnly && count > 0) break;
    if (kSampleOnly) ids.resize(64);
    (*harness)->Reset();
    const std::vector<float> logits = (*harness)->Feed(ids);
    for (size_t row = 0; row + 1 < ids.size(); ++row) {
      nats -= LogProbabilities(std::span<const float>(logits).subspan(
          row * vocab, vocab))[static_cast<size_t>(ids[row + 1])];
      ++count;
    }
  }
  return std::exp(nats / static_cast<double>(count));
}

TEST(DemoGoldensTest, FewerBitsOfWeightsCostLittlePerplexityOnHeldOutText) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const double whole = HeldOutPerplexity(dtype);
    std::printf("%s: perplexity %.4f\n", dtype.c_str(), whole);
    const std::pair<const char*, double> limits[] = {{"_int8", kMaxInt8WeightsPerplexity},
                                                     {"_int8_output", kMaxInt8WeightsPerplexity},
                                                     {"_int8_outliers6", kMaxInt8WeightsPerplexity},
                                                     {"_int4", kMaxInt4WeightsPerplexity},
                                                     {"_int4_output", kMaxInt4WeightsPerplexity}};
    for (const auto& [weights, limit] : limits) {
      const double fewer = HeldOutPerplexity(dtype + weights);
      std::printf("%s%s: perplexity %.4f, %+.3f %%\n", dtype.c_str(), weights, fewer,
                  100 * (fewer / whole - 1));
      EXPECT_NE(fewer, whole) << weights << " was not used";
      if (kSampleOnly) continue;
      EXPECT_LE(fewer / whole, limit) << weights;
    }
  }
}

// The demo model's function, but three channels behind each layer's norms are 64 times as large, as
// a few are in large language models, and the weights that read them a 64th.
void WriteWithOutlierChannels(const TempFolder& folder) {
  constexpr int64_t kChannels[] = {3, 100, 200};
  constexpr float kFactor = 64;
  folder.CopyFrom(DemoModel());
  auto file = ReadSmallFile(DemoModel() + "/model.safetensors", 16 << 20);
  TANDEM_CHECK(file.ok()) << file.status().message();
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file->data(), 8);
  const auto header = ParseJsonObject(file->substr(8, header_bytes), "header", {});
  TANDEM_CHECK(header.ok()) << header.status().message();
  for (const auto& [key, value] : *header) {
    const std::string name(key);
    const bool is_norm = name.find("layernorm") != std::string::npos;
    const bool reads_a_norm =
        name.find(".q_proj") != std::string::npos || name.find(".k_proj") != std::string::npos ||
        name.find(".v_proj") != std::string::npos || name.find(".gate_proj") != std::string::npos ||
        name.find(".up_proj") != std::string::npos;
    if (!is_norm && !reads_a_norm) continue;
    const json::object& tensor = value.as_object();
    TANDEM_CHECK(tensor.at("dtype").as_string() == "BF16") << name;
    const json::array& offsets = tensor.at("data_offsets").as_array();
    const int64_t inputs = tensor.at("shape").as_array().back().as_int64();
    const auto begin = static_cast<size_t>(offsets[0].as_int64());
    const auto end = static_cast<size_t>(offsets[1].as_int64());
    std::vector<Bfloat16> numbers((end - begin) / sizeof(Bfloat16));
    char* const at = file->data() + 8 + header_bytes + begin;
    std::memcpy(numbers.data(), at, end - begin);
    for (size_t row = 0; row < numbers.size(); row += static_cast<size_t>(inputs)) {
      for (const int64_t channel : kChannels) {
        Bfloat16& number = numbers[row + static_cast<size_t>(channel)];
        number = ToBfloat16(ToFloat(number) * (is_norm ? kFactor : 1 / kFactor));
      }
    }
    std::memcpy(at, numbers.data(), end - begin);
  }
  folder.Write("model.safetensors", *file);
}

TEST(DemoGoldensTest, OutliersCostEightBitsMuchAndLittleWhereTheyAreLeftOut) {
  const TempFolder folder;
  WriteWithOutlierChannels(folder);
  const double whole = HeldOutPerplexity("bf16", folder.path());
  EXPECT_EQ(whole, HeldOutPerplexity("bf16")) << "another function";
  const double plain = HeldOutPerplexity("bf16_int8", folder.path());
  const double apart = HeldOutPerplexity("bf16_int8_outliers6", folder.path());
  std::printf("perplexity %.4f, in 8 bits %.4f (%+.3f %%), without outliers %.4f (%+.3f %%)\n",
              whole, plain, 100 * (plain / whole - 1), apart, 100 * (apart / whole - 1));
  if (kSampleOnly) return;
  EXPECT_GT(plain / whole, 1 + 5 * (kMaxInt8WeightsPerplexity - 1));
  EXPECT_LE(apart / whole, kMaxInt8WeightsPerplexity);
}

TEST(DemoGoldensTest, KvOfEightBitsCostsLittlePerplexityOnHeldOutText) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const double whole = HeldOutPerplexity(dtype);
    for (const auto& [kv, most] :
         {std::pair("int8", kMaxInt8KvPerplexity), std::pair("int8g8", kMaxGroupedKvPerplexity),
          std::pair("fp8", kMaxFp8KvPerplexity)}) {
      const double int8 = HeldOutPerplexity(dtype + "_kv" + kv);
      std::printf("%s: perplexity %.4f, with KV of type %s %.4f: %+.3f %%\n", dtype.c_str(), whole,
                  kv, int8, 100 * (int8 / whole - 1));
      EXPECT_NE(int8, whole) << "8 bits were not used";
      if (kSampleOnly) continue;
      EXPECT_LE(int8 / whole, most);
    }
  }
}

}  // namespace
}  // namespace tandem
