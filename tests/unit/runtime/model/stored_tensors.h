// Checkpoints that tests write tensor by tensor: Llamas of one layer, whose matrices a test has in
// a format of its own.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_MODEL_STORED_TENSORS_H_
#define TANDEM_TESTS_UNIT_RUNTIME_MODEL_STORED_TENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/create_backend.h"
#include "runtime/base/random.h"
#include "runtime/model/model.h"
#include "tests/support/temp_folder.h"

namespace tandem {

struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

template <typename Number>
StoredTensor Stored(const std::string& dtype, std::vector<int64_t> shape,
                    const std::vector<Number>& numbers) {
  return {
      dtype, std::move(shape),
      std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number))};
}

constexpr int64_t kHidden = 128, kFfn = 384, kVocabulary = 96, kHeadDim = 32;
constexpr int64_t kHeads = 4, kKvHeads = 2;

struct StoredMatrix {
  const char* name;
  int64_t inputs, outputs;
};
constexpr StoredMatrix kMatrices[] = {{"self_attn.q_proj", kHidden, kHeads* kHeadDim},
                                      {"self_attn.k_proj", kHidden, kKvHeads* kHeadDim},
                                      {"self_attn.v_proj", kHidden, kKvHeads* kHeadDim},
                                      {"self_attn.o_proj", kHeads* kHeadDim, kHidden},
                                      {"mlp.gate_proj", kHidden, kFfn},
                                      {"mlp.up_proj", kHidden, kFfn},
                                      {"mlp.down_proj", kFfn, kHidden}};

inline std::string NameOf(const StoredMatrix& matrix) {
  return absl::StrCat("model.layers.0.", matrix.name);
}

// All but kMatrices, in f32.
inline StoredTensors UnquantisedTensors(Random* random) {
  StoredTensors tensors;
  const auto numbers = [&](const std::string& name, std::vector<int64_t> shape, float mean) {
    int64_t count = 1;
    for (const int64_t dimension : shape) count *= dimension;
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(mean + static_cast<float>(random->Unit()) - 0.5f);
    }
    tensors[name] = Stored("F32", std::move(shape), values);
  };
  numbers("model.embed_tokens.weight", {kVocabulary, kHidden}, 0);
  numbers("lm_head.weight", {kVocabulary, kHidden}, 0);
  numbers("model.norm.weight", {kHidden}, 1);
  const std::string layer = "model.layers.0.";
  numbers(layer + "input_layernorm.weight", {kHidden}, 1);
  numbers(layer + "post_attention_layernorm.weight", {kHidden}, 1);
  return tensors;
}

// Empty: without a quantization_config.
inline void WriteConfig(const TempFolder& folder, const std::string& quantisation) {
  std::string config = absl::StrFormat(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":%d,"intermediate_size":%d,)"
      R"("num_hidden_layers":1,"num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":%d,)"
      R"("vocab_size":%d,"torch_dtype":"float16")",
      kHidden, kFfn, kHeads, kKvHeads, kHeadDim, kVocabulary);
  if (!quantisation.empty()) {
    absl::StrAppend(&config, R"(,"quantization_config":)", quantisation);
  }
  folder.Write("config.json", config + "}");
}

inline void WriteCheckpoint(const TempFolder& folder, const StoredTensors& tensors,
                            const std::string& quantisation) {
  std::string header, data;
  for (const auto& [name, tensor] : tensors) {
    std::string shape;
    for (const int64_t dimension : tensor.shape) {
      absl::StrAppend(&shape, shape.empty() ? "" : ",", dimension);
    }
    absl::StrAppendFormat(&header, R"(%s"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]})",
                          header.empty() ? "" : ",", name, tensor.dtype, shape, data.size(),
                          data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  folder.Write("model.safetensors", SafetensorsText("{" + header + "}", 0) + data);
  WriteConfig(folder, quantisation);
}

inline std::string LoadRefusal(const ModelOptions& options) {
  const auto backend = CreateBackend({.device = "cpu"});
  const auto model = Model::Load(options, backend->get());
  return model.ok() ? "loaded" : std::string(model.status().message());
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_MODEL_STORED_TENSORS_H_
