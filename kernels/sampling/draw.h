// A random token of a row: temperature, top-k, top-p, then the inverse of the cumulative
// distribution in id order.

#ifndef TANDEM_KERNELS_SAMPLING_DRAW_H_
#define TANDEM_KERNELS_SAMPLING_DRAW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/row.h"

namespace tandem {

// Memory that draws reuse.
struct DrawScratch {
  std::vector<float> floors;
  std::vector<float> logits;
  std::vector<int32_t> ids;
  std::vector<int32_t> order;
  std::vector<uint64_t> weights;
  std::vector<uint64_t> piece_totals;
};

struct DrawArgs {
  std::span<const float> row;  // Finite or -infinity (masked); at most kMaxVocabulary (sampler.h).
  const RowMaxima* maxima;     // The row's; the highest is finite.
  float temperature;           // Above 0.
  int32_t top_k;               // At least 0; 0 keeps all.
  float top_p;                 // In (0, 1].
  uint64_t random;             // Uniform over all 64-bit values.
};

// A weight is exp((logit - max) / temperature) in units of 2^-44, as an integer. Sums are exact
// whatever their order, so cuts and draws have no rounding to agree on. An id less likely than
// the best one by more than 2^44 is never drawn.
inline constexpr float kWeightOne = 0x1p44f;

int32_t Draw(const DrawArgs& args, DrawScratch* scratch);

}  // namespace tandem

#endif  // TANDEM_KERNELS_SAMPLING_DRAW_H_
