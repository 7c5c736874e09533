#include "kernels/sampling/row.h"

#include <algorithm>

#include "kernels/api/rows.h"
#include "kernels/sampling/row_math.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/math.h"

namespace tandem {

bool FindMaxima(std::span<const float> row, RowMaxima* maxima) {
  const auto size = static_cast<int64_t>(row.size());
  const RowMath& math = GetRowMath();
  maxima->blocks.resize(static_cast<size_t>(CeilDiv(size, RowMaxima::kBlock)));
  bool all_finite = true;
  int64_t first = 0;
  for (float& max : maxima->blocks) {
    all_finite &= math.scan(row.data() + first, std::min(RowMaxima::kBlock, size - first), &max);
    first += RowMaxima::kBlock;
  }
  maxima->max = *std::max_element(maxima->blocks.begin(), maxima->blocks.end());
  return all_finite;
}

int32_t HighestId(std::span<const float> row, const RowMaxima& maxima) {
  const auto block = std::find(maxima.blocks.begin(), maxima.blocks.end(), maxima.max);
  const auto first = row.begin() + (block - maxima.blocks.begin()) * RowMaxima::kBlock;
  return static_cast<int32_t>(std::find(first, row.end(), maxima.max) - row.begin());
}

std::vector<int32_t> HighestIds(std::span<const float> row, const RowMaxima& maxima,
                                int64_t count) {
  const int64_t size = static_cast<int64_t>(row.size());
  count = std::min(count, size);
  std::vector<int32_t> best;  // A heap whose front is the worst of the best so far.
  if (count == 0) return best;
  const Better better{row.data()};
  for (size_t block = 0; block < maxima.blocks.size(); ++block) {
    // Later ids lose among equals, so a block must be strictly higher to matter.
    const bool full = static_cast<int64_t>(best.size()) == count;
    if (full && !(maxima.blocks[block] > row[best.front()])) continue;
    const int64_t first = static_cast<int64_t>(block) * RowMaxima::kBlock;
    const int64_t end = std::min(first + RowMaxima::kBlock, size);
    for (int64_t i = first; i < end; ++i) {
      const int32_t id = static_cast<int32_t>(i);
      if (static_cast<int64_t>(best.size()) == count) {
        if (!better(id, best.front())) continue;
        std::pop_heap(best.begin(), best.end(), better);
        best.pop_back();
      }
      best.push_back(id);
      std::push_heap(best.begin(), best.end(), better);
    }
  }
  std::sort_heap(best.begin(), best.end(), better);
  return best;
}

int32_t CountBetter(std::span<const float> row, int32_t id) {
  const float logit = row[id];
  const int64_t count =
      GetRowMath().count_above(row.data(), static_cast<int64_t>(row.size()), logit);
  return static_cast<int32_t>(count + std::count(row.begin(), row.begin() + id, logit));
}

float LogSumExp(std::span<const float> row, float max) {
  const int64_t size = static_cast<int64_t>(row.size());
  float sum = 0.0f;
  for (int64_t first = 0; first < size; first += kVocabularyPiece) {
    float lanes[kLanes] = {};
    GetRowMath().add_exp(row.data() + first, std::min(kVocabularyPiece, size - first), max, lanes);
    sum = sum + SumLanes(lanes);
  }
  return Log(sum);
}

}  // namespace tandem
