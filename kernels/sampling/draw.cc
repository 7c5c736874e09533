#include "kernels/sampling/draw.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>

#include "kernels/api/rows.h"
#include "kernels/sampling/row_math.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

using Uint128 = unsigned __int128;

// Buckets by distance from the maximum, 1/128 wide, the last without end: they narrow a row down
// to the few ids near a cut in one pass.
constexpr int kNumBuckets = 4096;
constexpr float kBucketsPerUnit = 128.0f;

// Ids that are still in the game, in id order.
struct Pool {
  std::span<const float> logits;
  std::span<const uint64_t> weights;
};

// The last that is kept, in the order of Better.
struct Cut {
  float logit;
  int32_t index;

  bool Keeps(float other_logit, int32_t other_index) const {
    return other_logit > logit || (other_logit == logit && other_index <= index);
  }
};

int BucketOf(float logit, float max) {
  const float distance = (max - logit) * kBucketsPerUnit;
  return distance < kNumBuckets ? static_cast<int>(distance) : kNumBuckets - 1;
}

// Uniform in [0, total).
uint64_t Scale(uint64_t random, uint64_t total) {
  return static_cast<uint64_t>((Uint128{random} * total) >> 64);
}

// The least sum that reaches top_p of `total`.
uint64_t NeededWeight(float top_p, uint64_t total) {
  // 24 significant bits: exact for every top_p from 2^-8 on, rounded down below.
  const auto share = static_cast<uint64_t>(static_cast<double>(top_p) * 0x1p32);
  return static_cast<uint64_t>((Uint128{share} * total + 0xFFFFFFFF) >> 32);
}

// Weights of logits, and their sum.
uint64_t ComputeWeights(std::span<const float> logits, const DrawArgs& args, uint64_t* weights) {
  return GetRowMath().weights(logits.data(), static_cast<int64_t>(logits.size()), args.maxima->max,
                              args.temperature, kWeightOne, weights);
}

// The whole row, piece by piece.
int32_t DrawFromAll(const DrawArgs& args, DrawScratch* scratch) {
  constexpr size_t kPiece = kVocabularyPiece;
  const auto piece_of_row = [&](size_t first) {
    return args.row.subspan(first, std::min(kPiece, args.row.size() - first));
  };
  scratch->weights.resize(kPiece);
  scratch->piece_totals.clear();
  uint64_t total = 0;
  for (size_t first = 0; first < args.row.size(); first += kPiece) {
    scratch->piece_totals.push_back(
        ComputeWeights(piece_of_row(first), args, scratch->weights.data()));
    total += scratch->piece_totals.back();
  }
  uint64_t target = Scale(args.random, total);
  size_t piece = 0;
  while (target >= scratch->piece_totals[piece]) target -= scratch->piece_totals[piece++];
  ComputeWeights(piece_of_row(piece * kPiece), args, scratch->weights.data());
  size_t i = 0;
  while (target >= scratch->weights[i]) target -= scratch->weights[i++];
  return static_cast<int32_t>(piece * kPiece + i);
}

// A logit that at least top_k of the row reach, close to the lowest such.
float FloorOfTopK(const DrawArgs& args, std::vector<float>* floors) {
  const size_t count = static_cast<size_t>(args.top_k);
  const std::vector<float>& blocks = args.maxima->blocks;
  if (count <= blocks.size()) {
    // The top_k highest of the blocks' maxima are top_k logits.
    *floors = blocks;
    const auto nth = floors->begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(floors->begin(), nth, floors->end(), std::greater<float>());
    return *nth;
  }
  std::array<uint32_t, kNumBuckets> counts = {};
  std::array<float, kNumBuckets> lowest;
  lowest.fill(args.maxima->max);
  for (const float logit : args.row) {
    const int bucket = BucketOf(logit, args.maxima->max);
    ++counts[bucket];
    lowest[bucket] = std::min(lowest[bucket], logit);
  }
  size_t sum = 0;
  int bucket = 0;
  while ((sum += counts[bucket]) < count) ++bucket;
  return lowest[bucket];
}

// Puts the top_k best logits and their ids into the scratch, in id order.
void KeepTopK(const DrawArgs& args, DrawScratch* scratch) {
  const float floor = FloorOfTopK(args, &scratch->floors);
  std::vector<float>& logits = scratch->logits;
  std::vector<int32_t>& ids = scratch->ids;
  logits.clear();
  ids.clear();
  for (size_t block = 0; block < args.maxima->blocks.size(); ++block) {
    if (args.maxima->blocks[block] < floor) continue;
    const size_t first = block * RowMaxima::kBlock;
    const size_t end = std::min(first + RowMaxima::kBlock, args.row.size());
    for (size_t id = first; id < end; ++id) {
      if (args.row[id] < floor) continue;
      logits.push_back(args.row[id]);
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  const size_t count = static_cast<size_t>(args.top_k);
  if (ids.size() <= count) return;
  std::vector<int32_t>& order = scratch->order;
  order.resize(ids.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto nth = order.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(order.begin(), nth, order.end(), Better{logits.data()});
  const Cut cut = {.logit = logits[*nth], .index = *nth};
  size_t kept = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!cut.Keeps(logits[i], static_cast<int32_t>(i))) continue;
    logits[kept] = logits[i];
    ids[kept++] = ids[i];
  }
  logits.resize(kept);
  ids.resize(kept);
}

struct WeightCut {
  Cut cut;
  uint64_t total;  // The sum of what it keeps.
};

// Keeps the fewest best that weigh `needed`, which is at most `total`, the pool's weight.
WeightCut CutByWeight(const Pool& pool, const DrawArgs& args, uint64_t total, uint64_t needed,
                      std::vector<int32_t>* order) {
  // All ids below this weight together weigh no more than what may be lost, so the cut lies
  // above them. In most rows that is nearly all ids.
  const uint64_t floor = (total - needed) / pool.weights.size();
  std::array<uint64_t, kNumBuckets> sums = {};
  for (size_t i = 0; i < pool.weights.size(); ++i) {
    if (pool.weights[i] < floor) continue;
    sums[BucketOf(pool.logits[i], args.maxima->max)] += pool.weights[i];
  }
  uint64_t kept = 0;
  int bucket = 0;
  for (; bucket < kNumBuckets && kept + sums[bucket] < needed; ++bucket) kept += sums[bucket];
  TANDEM_CHECK(bucket < kNumBuckets) << kept << " of " << needed << " found";
  order->clear();
  for (size_t i = 0; i < pool.weights.size(); ++i) {
    if (pool.weights[i] < floor) continue;
    if (BucketOf(pool.logits[i], args.maxima->max) != bucket) continue;
    order->push_back(static_cast<int32_t>(i));
  }
  std::sort(order->begin(), order->end(), Better{pool.logits.data()});
  size_t place = 0;
  while (kept + pool.weights[(*order)[place]] < needed) kept += pool.weights[(*order)[place++]];
  const int32_t last = (*order)[place];
  return {.cut = {.logit = pool.logits[last], .index = last}, .total = kept + pool.weights[last]};
}

}  // namespace

int32_t Draw(const DrawArgs& args, DrawScratch* scratch) {
  const bool cuts_count = args.top_k > 0 && static_cast<size_t>(args.top_k) < args.row.size();
  const bool cuts_weight = args.top_p < 1.0f;
  if (!cuts_count && !cuts_weight) return DrawFromAll(args, scratch);
  if (cuts_count) KeepTopK(args, scratch);
  const std::span<const float> logits =
      cuts_count ? std::span<const float>(scratch->logits) : args.row;
  scratch->weights.resize(logits.size());
  uint64_t total = ComputeWeights(logits, args, scratch->weights.data());
  const Pool pool = {.logits = logits, .weights = scratch->weights};
  Cut cut = {.logit = -std::numeric_limits<float>::infinity(),
             .index = static_cast<int32_t>(logits.size())};
  if (cuts_weight) {
    const WeightCut found =
        CutByWeight(pool, args, total, NeededWeight(args.top_p, total), &scratch->order);
    cut = found.cut;
    total = found.total;
  }
  uint64_t target = Scale(args.random, total);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!cut.Keeps(logits[i], static_cast<int32_t>(i))) continue;
    if (target < pool.weights[i]) return cuts_count ? scratch->ids[i] : static_cast<int32_t>(i);
    target -= pool.weights[i];
  }
  TANDEM_CHECK(false) << target << " of " << total << " left over";
  return -1;
}

}  // namespace tandem
