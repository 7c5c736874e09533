// What a model folder's config.json says, checked before anything is allocated: which architecture,
// which sizes, which options, which rope.
//
// Llama (2, 3, 3.1 and later with `llama3` rope scaling), Mistral, Qwen2 (and 2.5), Qwen3, Gemma 2
// and GPT-2. Everything else is refused by name, and so is what would change the numbers without
// being understood (another rope type, another quantisation, scaled attention). A field that is
// not there is what Transformers takes it for, which differs between families.

#ifndef TANDEM_RUNTIME_CONFIG_MODEL_CONFIG_H_
#define TANDEM_RUNTIME_CONFIG_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/config/tensor_type.h"

namespace tandem {

// Limits on what a config may ask for; with them no size below overflows 64 bits.
inline constexpr size_t kMaxServedNameBytes = 256;
inline constexpr int64_t kMaxHiddenSize = 65'536;
inline constexpr int64_t kMaxFfnSize = 1 << 20;
inline constexpr int64_t kMaxLayers = 1'024;
inline constexpr int64_t kMaxHeads = 1'024;
inline constexpr int64_t kMaxHeadDim = 256;        // What attention computes.
inline constexpr int64_t kMaxVocabSize = 1 << 19;  // What can be sampled.
inline constexpr int64_t kMaxPositions = 1 << 24;

// How tensors are named and layers made: Mistral's, Qwen's and Gemma's are Llama's with other
// options.
enum class ModelFamily : uint8_t { kLlama, kGpt2 };
enum class Activation : uint8_t { kSilu, kGeluTanh };

struct RopeConfig {
  double theta = 10'000.0;
  // Llama 3.1's scaling of low frequencies; off by default.
  bool llama3 = false;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 8'192;
};

// How a checkpoint keeps the matrices of its layers in 4 bits: GPTQ's or AWQ's tensors, each with
// its order of eight numbers in an I32.
struct Int4Format {
  enum class Method : uint8_t { kNone, kGptq, kAwq };
  Method method = Method::kNone;
  int64_t group = 0;  // Inputs that share a scale and a zero: 32, 64 or 128.
  int zero_less = 0;  // Zeros are stored less this: 1 in GPTQ's first format.

  bool present() const { return method != Method::kNone; }
};

// How a checkpoint keeps matrices in 8-bit floats, those whose tensors are of that type.
struct Float8Blocks {
  bool present = false;
  int64_t outputs = 0;  // So many of a matrix, and so many of its inputs, share a scale.
  int64_t inputs = 0;   // 0: all.
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::string architecture;  // "LlamaForCausalLM"
  int64_t hidden_size = 0;
  int64_t ffn_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // Divides num_heads.
  int64_t head_dim = 0;      // Even.
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  float norm_epsilon = 0;
  Activation activation = Activation::kSilu;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool head_norms = false;       // An RMS norm of each head's query and key, before rotary.
  std::vector<int64_t> windows;  // [num_layers] positions that a token sees, itself too; 0: all.
  bool output_norms = false;     // Norms of what attention and the feed-forward add, too.
  float norm_offset = 0;         // Weights of RMS norms are stored less this.
  float embedding_scale = 1;     // Embeddings are multiplied by it.
  float query_scalar = 0;  // Scores are divided by its root: head_dim unless a family differs.
  float score_cap = 0;     // Soft cap of attention's scores; 0: none.
  float logit_cap = 0;     // Soft cap of logits; 0: none.
  bool tied_embeddings = false;
  RopeConfig rope;         // Llama only.
  Int4Format int4_format;  // Llama only. Tables and the output projection have none.
  Float8Blocks float8;     // Llama only.
  // As the file names it; what the tensors are, only they say.
  TensorType checkpoint_type = TensorType::kF32;

  // Reads `folder`/config.json. NotFound without it; InvalidArgument naming file, field and limit;
  // FailedPrecondition for what this build does not compute.
  static absl::StatusOr<ModelConfig> Load(const std::string& folder);

  // From the text of the file.
  static absl::StatusOr<ModelConfig> Parse(std::string_view config);

  int64_t query_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  // Positions that a token sees in the layer in which it sees most; 0: in some layer it sees all.
  int64_t largest_window() const;
};

// What the API calls the model of a folder that is there: `given`, or, if that is empty, the
// folder's own name, whatever way leads to it. Router and workers must agree on it.
// InvalidArgument if it is no UTF-8, or longer than messages between them may have it.
absl::StatusOr<std::string> ServedName(const std::string& folder, std::string_view given);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_CONFIG_MODEL_CONFIG_H_
