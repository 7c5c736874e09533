// What a row of logits is asked: its highest ids and the sum that log-probabilities need.

#ifndef TANDEM_KERNELS_SAMPLING_ROW_H_
#define TANDEM_KERNELS_SAMPLING_ROW_H_

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

// Maxima of a row. -infinity is a masked id.
struct RowMaxima {
  static constexpr int64_t kBlock = 256;  // Ids a maximum of `blocks` stands for.

  float max = 0;
  std::vector<float> blocks;
};

// The order of ids that everything here uses: falling logits and, among equals, rising ids.
struct Better {
  const float* row;

  bool operator()(int32_t a, int32_t b) const {
    return row[a] > row[b] || (row[a] == row[b] && a < b);
  }
};

// Returns whether all logits are finite; maxima are found if none is NaN. The row is not empty.
bool FindMaxima(std::span<const float> row, RowMaxima* maxima);

// The lowest id with the highest logit.
int32_t HighestId(std::span<const float> row, const RowMaxima& maxima);

// The `count` best ids, at most the row's size, best first.
std::vector<int32_t> HighestIds(std::span<const float> row, const RowMaxima& maxima, int64_t count);

// How many ids are better than `id`.
int32_t CountBetter(std::span<const float> row, int32_t id);

// log Σ exp(logit - max) in the order of docs/numerics.md:
// pieces of kVocabularyPiece ids, each in 16 lanes and the fixed tree, added in order.
float LogSumExp(std::span<const float> row, float max);

}  // namespace tandem

#endif  // TANDEM_KERNELS_SAMPLING_ROW_H_
