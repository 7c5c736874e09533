// A checkpoint beside what Transformers computes with it (tools/dev/make_model_goldens.py):
// golden.json with prompts and greedy tokens, golden.safetensors with the logits of every prompt
// position.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_MODEL_MODEL_GOLDEN_H_
#define TANDEM_TESTS_UNIT_RUNTIME_MODEL_MODEL_GOLDEN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"

namespace tandem {

inline constexpr float kLogitTolerance = 1e-3f;  // Relative to the row's largest magnitude.

struct GoldenComparison {
  float worst_logit = 0;  // Largest |difference| as a share of the row's largest magnitude.
  int num_texts = 0;
  int wrong_texts = 0;  // Texts whose greedy tokens differ.
};

// Computes in f32. The error of loading the checkpoint, if it is refused.
absl::StatusOr<GoldenComparison> CompareWithGolden(const std::string& folder,
                                                   std::unique_ptr<Backend> backend);

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_MODEL_MODEL_GOLDEN_H_
