// A model family as a declaration: which tensors make which layer, and which options the layers
// have. A family whose tensors are named as Llama's needs only a reader of its config
// (runtime/config/model_config.cc); other names need another function that fills a ModelSpec. The
// loader (weights.h) and the forward pass (decoder.h) only read it.

#ifndef TANDEM_RUNTIME_MODEL_MODEL_SPEC_H_
#define TANDEM_RUNTIME_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/linear.h"
#include "kernels/api/rows.h"
#include "runtime/base/status_macros.h"
#include "runtime/config/model_config.h"
#include "runtime/model/weight_source.h"

namespace tandem {

struct TensorDecl {
  std::string name;  // Empty: the model has none.
  std::vector<int64_t> shape;

  bool present() const { return !name.empty(); }
};

// Rows that are looked up: [rows, features]. They are packed times `scale`, both rounded to the
// type that is computed in, so that a step multiplies nothing.
struct TableDecl {
  TensorDecl table;
  float scale = 1;

  bool present() const { return table.present(); }
};

struct NormDecl {
  TensorDecl weight;  // [features]
  TensorDecl bias;    // [features], NormKind::kLayer only.
  float offset = 0;   // Added to the weight in f32 when it is packed: some store it less 1.

  bool present() const { return weight.present(); }
};

// What one matrix adds to a linear layer; several stack along the outputs (Q, K, V; gate, up).
// Tensors have the shapes in which a checkpoint stores them, which sizes need not follow from.
struct LinearPart {
  int64_t out_features = 0;
  TensorDecl weight;  // [out, in] or [in, out], as the layer's layout says.
  TensorDecl scales;  // [out, runs of inputs] of a quantised weight (WeightPart).
  TensorDecl bias;    // [out]
  // A matrix in 4 bits has these too (int4_matrix.h).
  TensorDecl zeros = {};
  TensorDecl group_index = {};  // GPTQ's g_idx: each input's group.
  // One in 8-bit floats has these (float8_matrix.h), and no `scales`: no kernel sees them.
  TensorDecl float8_scales = {};
  Float8Blocks float8 = {};  // Sizes from 1 on.
};

struct LinearDecl {
  int64_t in_features = 0;
  std::vector<LinearPart> parts;  // All with a bias, or none; all with scales, or none.
  WeightLayout layout = WeightLayout::kOutIn;
  bool segmented = false;       // Its sum over the inputs is cut into segments (docs/numerics.md).
  Int4Format int4_format = {};  // How the checkpoint keeps it, if in 4 bits.
  bool is_output = false;       // The output projection (ModelTypes::output_is_plain).
  // LinearSpec has both: what comes out is f(in), or of two parts, gate and up, f(gate) · up.
  std::optional<ActivationFunction> activation = {};
  bool gated = false;

  bool biased() const { return !parts.empty() && parts[0].bias.present(); }
  bool scaled() const { return !parts.empty() && parts[0].scales.present(); }
  int64_t out_features() const;
};

// The parts of a model, by whatever stands for them: a declaration (ModelSpec) or what runs
// (WeightParts). Whoever names, counts, plans, packs or binds tensors visits them (VisitParts), so
// that a new tensor is a member here, a line there, its name in the families that have it, and its
// use in decoder.cc.
template <typename Table, typename Norm, typename Linear>
struct ModelParts {
  struct Layer {
    Norm attention_norm;
    Linear qkv;
    Norm query_norm;  // Each head's, before rotary.
    Norm key_norm;
    Linear attention_output;
    Norm attention_output_norm;  // Norms what attention adds to the residual.
    Norm ffn_norm;
    Linear ffn_in;  // gate and up, or GPT-2's c_fc.
    Linear ffn_out;
    Norm ffn_output_norm;  // Norms what the feed-forward adds.
  };

  Table embedding;           // [vocab, hidden]
  Table position_embedding;  // [positions, hidden]; PositionKind::kLearned only.
  std::vector<Layer> layers;
  Norm final_norm;
  Linear logits;
};

// Calls visit(part of `first`, the same part of each of `rest`) in the order of the packed image
// and of the digest, until one returns an error. All have as many layers as `first`.
template <typename Visit, typename First, typename... Rest>
absl::Status VisitParts(const Visit& visit, First& first, Rest&... rest) {
  TANDEM_RETURN_IF_ERROR(visit(first.embedding, rest.embedding...));
  TANDEM_RETURN_IF_ERROR(visit(first.position_embedding, rest.position_embedding...));
  const auto visit_layer = [&visit](auto& layer, auto&... others) -> absl::Status {
    TANDEM_RETURN_IF_ERROR(visit(layer.attention_norm, others.attention_norm...));
    TANDEM_RETURN_IF_ERROR(visit(layer.qkv, others.qkv...));
    TANDEM_RETURN_IF_ERROR(visit(layer.query_norm, others.query_norm...));
    TANDEM_RETURN_IF_ERROR(visit(layer.key_norm, others.key_norm...));
    TANDEM_RETURN_IF_ERROR(visit(layer.attention_output, others.attention_output...));
    TANDEM_RETURN_IF_ERROR(visit(layer.attention_output_norm, others.attention_output_norm...));
    TANDEM_RETURN_IF_ERROR(visit(layer.ffn_norm, others.ffn_norm...));
    TANDEM_RETURN_IF_ERROR(visit(layer.ffn_in, others.ffn_in...));
    TANDEM_RETURN_IF_ERROR(visit(layer.ffn_out, others.ffn_out...));
    return visit(layer.ffn_output_norm, others.ffn_output_norm...);
  };
  for (size_t i = 0; i < first.layers.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(visit_layer(first.layers[i], rest.layers[i]...));
  }
  TANDEM_RETURN_IF_ERROR(visit(first.final_norm, rest.final_norm...));
  return visit(first.logits, rest.logits...);
}

enum class NormKind : uint8_t { kRms, kLayer };
enum class PositionKind : uint8_t { kRotary, kLearned };

struct ModelSpec : ModelParts<TableDecl, NormDecl, LinearDecl> {
  NormKind norm = NormKind::kRms;
  PositionKind positions = PositionKind::kRotary;
  std::string layers_prefix;     // Every tensor of a layer has it: "model.layers.".
  std::vector<int64_t> windows;  // [layers] positions that a token sees, itself too; 0: all.

  bool has_windows() const;     // In some layer.
  bool has_head_norms() const;  // In some layer.
  bool comes_in_int4() const;   // The checkpoint has layers in 4 bits.

  // Every tensor that is read; the embedding twice where it is the output projection, too.
  std::vector<TensorDecl> Tensors() const;
  // The tables and weights among them: neither vectors nor scales, nor what is in 4 bits or in
  // 8-bit floats.
  std::vector<TensorDecl> Matrices() const;
  int64_t NumParameters() const;  // One that is read twice counts once.
};

// The declaration of `config`'s family. `source` tells what only the checkpoint knows: GPT-2's
// names come with and without "transformer.", and an output projection of its own is used even
// where `tie_word_embeddings` says that it is the embedding (equal ones give equal bits).
ModelSpec MakeModelSpec(const ModelConfig& config, const WeightSource& source);

// Rotary frequencies, config.head_dim / 2 of them, as Transformers computes them.
std::vector<float> RopeFrequencies(const ModelConfig& config);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_MODEL_MODEL_SPEC_H_
