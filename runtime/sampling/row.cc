#include "runtime/sampling/row.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/api/rows.h"
#include "kernels/api/vector_math.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Lanes let the compiler use vectors; a maximum does not depend on the order.
float MaxOf(const float* values, int64_t count) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  for (; i < count; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

// Whether `a` comes before `b` among the highest.
struct Better {
  const float* row;
  bool operator()(int32_t a, int32_t b) const {
    return row[a] > row[b] || (row[a] == row[b] && a < b);
  }
};

}  // namespace

void FindMaxima(std::span<const float> row, RowMaxima* maxima) {
  const int64_t size = static_cast<int64_t>(row.size());
  maxima->blocks.clear();
  for (int64_t first = 0; first < size; first += RowMaxima::kBlock) {
    maxima->blocks.push_back(MaxOf(row.data() + first, std::min(RowMaxima::kBlock, size - first)));
  }
  maxima->max = *std::max_element(maxima->blocks.begin(), maxima->blocks.end());
}

bool AllFinite(std::span<const float> row) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t num_others = 0;
  for (const float logit : row) {
    num_others += (std::bit_cast<uint32_t>(logit) & kExponent) == kExponent ? 1u : 0u;
  }
  return num_others == 0;
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
  int32_t count = 0;
  for (const float other : row) count += other > logit ? 1 : 0;
  for (const float other : row.first(id)) count += other == logit ? 1 : 0;
  return count;
}

float LogSumExp(std::span<const float> row, float max) {
  const int64_t size = static_cast<int64_t>(row.size());
  float sum = 0.0f;
  for (int64_t first = 0; first < size; first += kVocabularyPiece) {
    const float* piece = row.data() + first;
    const int64_t count = std::min(kVocabularyPiece, size - first);
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = lanes[lane] + Exp(piece[i + lane] - max);
      }
    }
    for (int lane = 0; i + lane < count; ++lane) {
      lanes[lane] = lanes[lane] + Exp(piece[i + lane] - max);
    }
    sum = sum + SumLanes(lanes);
  }
  return Log(sum);
}

}  // namespace tandem
