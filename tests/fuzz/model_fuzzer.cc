// The first byte picks one of the files of a model folder, the rest are its bytes. What an accepted
// document promises is checked; a broken promise stops the process.

#include "tests/fuzz/model_fuzzer.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/config/generation_config.h"
#include "runtime/config/model_config.h"
#include "runtime/model/dummy_weights.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/safetensors_file.h"
#include "runtime/model/weight_source.h"

namespace tandem {
namespace {

std::string_view Text(std::span<const uint8_t> input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

void CheckConfig(const ModelConfig& config) {
  TANDEM_CHECK(config.hidden_size >= 1 && config.hidden_size <= kMaxHiddenSize);
  TANDEM_CHECK(config.num_layers >= 1 && config.num_layers <= kMaxLayers);
  TANDEM_CHECK(config.num_kv_heads >= 1 && config.num_heads % config.num_kv_heads == 0);
  TANDEM_CHECK(config.head_dim >= 2 && config.head_dim <= kMaxHeadDim && config.head_dim % 2 == 0);
  TANDEM_CHECK(config.max_positions >= 1 && config.max_positions <= kMaxPositions);
  TANDEM_CHECK(config.vocab_size >= 1 && config.vocab_size <= kMaxVocabSize);
  TANDEM_CHECK(static_cast<int64_t>(config.windows.size()) == config.num_layers);
  for (const int64_t window : config.windows) TANDEM_CHECK(window >= 0 && window <= kMaxPositions);
  TANDEM_CHECK(config.norm_epsilon >= 0 && config.norm_epsilon <= 1);
  TANDEM_CHECK(config.rope.theta >= 1 && config.rope.factor >= 1);
  TANDEM_CHECK(MakeModelSpec(config, *MakeDummyWeights(config)).NumParameters() > 0);
}

bool CheckSafetensors(std::span<const uint8_t> input) {
  const auto header = SafetensorsHeader::Parse(input, input.size(), "input");
  if (!header.ok()) return false;
  TANDEM_CHECK(header->data_start <= input.size());
  const uint64_t data_bytes = input.size() - header->data_start;
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const auto& [name, entry] : header->tensors) {
    TANDEM_CHECK(entry.begin <= entry.end && entry.end <= data_bytes) << name;
    places.emplace_back(entry.begin, entry.end);
  }
  std::sort(places.begin(), places.end());
  uint64_t covered = 0;
  for (const auto& [begin, end] : places) {
    TANDEM_CHECK(begin == covered) << begin << " after " << covered;
    covered = end;
  }
  TANDEM_CHECK(covered == data_bytes) << covered << " of " << data_bytes;
  return true;
}

bool CheckSafetensorsIndex(std::span<const uint8_t> input) {
  const auto index = ParseSafetensorsIndex(Text(input), "input");
  if (!index.ok()) return false;
  TANDEM_CHECK(!index->empty());
  for (const auto& [tensor, file] : *index) {
    TANDEM_CHECK(file.find('/') == std::string::npos && file.find('\\') == std::string::npos &&
                 file[0] != '.' && file.ends_with(".safetensors"))
        << file;
  }
  return true;
}

bool CheckModelConfig(std::span<const uint8_t> input) {
  const auto config = ModelConfig::Parse(Text(input));
  if (config.ok()) CheckConfig(*config);
  return config.ok();
}

bool CheckGenerationConfig(std::span<const uint8_t> input) {
  constexpr int64_t kVocabSize = 64;
  const auto config = GenerationConfig::Parse("{}", Text(input), kVocabSize);
  if (!config.ok()) return false;
  const std::vector<int32_t>& eos = config->eos_token_ids;
  TANDEM_CHECK(std::is_sorted(eos.begin(), eos.end()));
  for (const int32_t id : eos) TANDEM_CHECK(id >= 0 && id < kVocabSize);
  TANDEM_CHECK(config->bos_token_id >= -1 && config->bos_token_id < kVocabSize);
  TANDEM_CHECK(config->temperature >= 0 && config->temperature <= 2);
  TANDEM_CHECK(config->top_p > 0 && config->top_p <= 1 && config->top_k >= 0);
  return true;
}

bool Check(ModelFile file, std::span<const uint8_t> input) {
  switch (file) {
    case ModelFile::kSafetensors:
      return CheckSafetensors(input);
    case ModelFile::kSafetensorsIndex:
      return CheckSafetensorsIndex(input);
    case ModelFile::kConfig:
      return CheckModelConfig(input);
    default:
      return CheckGenerationConfig(input);
  }
}

int64_t num_accepted = 0;

}  // namespace

int64_t NumAcceptedModelFiles() { return num_accepted; }

}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto file = static_cast<tandem::ModelFile>(data[0] % tandem::kNumModelFiles);
  if (tandem::Check(file, {data + 1, size - 1})) ++tandem::num_accepted;
  return 0;
}
