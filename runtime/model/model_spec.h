// A model family as a declaration: which tensors make which layer, and which options the layers
// have. Adding a family is adding a function that fills a ModelSpec; the loader (weights.h) and the
// forward pass (decoder.h) only read it.

#ifndef TANDEM_RUNTIME_MODEL_MODEL_SPEC_H_
#define TANDEM_RUNTIME_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/linear.h"
#include "runtime/config/model_config.h"
#include "runtime/model/weight_source.h"

namespace tandem {

// One tensor of a linear layer; several stack along the outputs (Q, K, V; gate, up).
struct LinearPart {
  std::string weight;  // Tensor name, shape [out, in] or [in, out] as the layer's layout says.
  std::string bias;    // Tensor name, shape [out]; empty: none.
  int64_t out_features = 0;
};

struct LinearDecl {
  std::vector<LinearPart> parts;  // All with a bias, or none.
  int64_t in_features = 0;
  WeightLayout layout = WeightLayout::kOutIn;
  bool segmented = false;  // Its sum over the inputs is cut into segments (docs/numerics.md).

  int64_t out_features() const;
};

enum class NormKind : uint8_t { kRms, kLayer };
enum class FfnKind : uint8_t { kSwiGlu, kGelu };
enum class PositionKind : uint8_t { kRotary, kLearned };

struct NormDecl {
  std::string weight;
  std::string bias;  // kLayer only.
};

struct LayerDecl {
  NormDecl attention_norm;
  LinearDecl qkv;
  LinearDecl attention_output;
  NormDecl ffn_norm;
  LinearDecl ffn_in;  // gate and up, or GPT-2's c_fc.
  LinearDecl ffn_out;
};

struct ModelSpec {
  NormKind norm = NormKind::kRms;
  FfnKind ffn = FfnKind::kSwiGlu;
  PositionKind positions = PositionKind::kRotary;
  std::string layers_prefix;       // Every tensor of a layer has it: "model.layers.".
  std::string embedding;           // [vocab, hidden]
  std::string position_embedding;  // [positions, hidden]; kLearned only.
  std::vector<LayerDecl> layers;
  NormDecl final_norm;
  LinearDecl logits;

  // The tensors that are read, by their number of dimensions.
  std::vector<std::string> Matrices() const;
  std::vector<std::string> Vectors() const;
};

// The declaration of `config`'s family. `source` tells what only the checkpoint knows: GPT-2's
// names come with and without "transformer.", and an output projection of its own is used even
// where `tie_word_embeddings` says that it is the embedding (equal ones give equal bits).
ModelSpec MakeModelSpec(const ModelConfig& config, const WeightSource& source);

// Rotary frequencies, config.head_dim / 2 of them, as Transformers computes them.
std::vector<float> RopeFrequencies(const ModelConfig& config);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_MODEL_SPEC_H_
