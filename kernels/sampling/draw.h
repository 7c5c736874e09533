// A random token of a row: temperature, top-k, top-p, then the inverse of the cumulative
// distribution in id order.

#ifndef TANDEM_KERNELS_SAMPLING_DRAW_H_
#define TANDEM_KERNELS_SAMPLING_DRAW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/row.h"

namespace tandem {

// Memory that draws reuse.
struct DrawScratch {
  struct Candidate {
    int32_t id;
    float logit;
    uint64_t weight;
  };
  std::vector<float> floors;
  // What top-k keeps.
  std::vector<float> logits;
  std::vector<int32_t> ids;
  std::vector<int32_t> order;
  RowMaxima maxima;
  std::vector<float> weights;  // The row's; they count for their WholeWeight (row_math.h).
  std::vector<uint64_t> piece_totals;
  std::vector<float> sample, sample_weights;
  std::vector<int32_t> sample_places;
  std::vector<Candidate> candidates, near_cut;  // For top-p's cut.
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
