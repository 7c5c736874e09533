#include "kernels/sampling/draw.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/api/rows.h"
#include "kernels/sampling/row_math.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

using Uint128 = unsigned __int128;
using Candidate = DrawScratch::Candidate;

// A range of logits is cut into so many buckets, to find the few ids near a cut in one pass.
constexpr int kNumBuckets = 1024;

// Ids below this far from the best do not get buckets of their own.
constexpr float kBucketedDistance = 32.0f;

// So many candidates for a cut are looked at without narrowing them down first.
constexpr size_t kFewCandidates = 8192;
// What every so many-th id weighs below the cut tells what all do, nearly always within this share.
constexpr size_t kGuessStride = 16;
constexpr double kGuessError = 0.2;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits from `low` to `high`, both in it.
struct LogitRange {
  float low = -kInfinity;
  float high = kInfinity;
};

// The last that is kept, in the order of Better.
struct Cut {
  float logit = -kInfinity;
  int32_t id = std::numeric_limits<int32_t>::max();

  bool Keeps(float other_logit, int32_t other_id) const {
    return other_logit > logit || (other_logit == logit && other_id <= id);
  }
};

// Buckets of a range, the highest logits first.
class Buckets {
 public:
  // Logits lie in the range, and are at most `max`.
  Buckets(const LogitRange& range, float max)
      : high_(std::min(range.high, max)),
        low_(std::max(range.low, high_ - kBucketedDistance)),
        per_unit_(high_ > low_ ? (kNumBuckets - 1) / (high_ - low_) : 0) {}

  int Of(float logit) const {
    // In a range so narrow that per_unit_ is infinite, all are in the last.
    const float bucket = (high_ - logit) * per_unit_;
    return bucket < kNumBuckets - 1 ? static_cast<int>(bucket) : kNumBuckets - 1;
  }

 private:
  float high_, low_, per_unit_;
};

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

constexpr size_t kPiece = kVocabularyPiece;

std::span<const float> PieceOf(std::span<const float> row, size_t piece) {
  return row.subspan(piece * kPiece, std::min(kPiece, row.size() - piece * kPiece));
}

// Weights of logits, and their sum.
uint64_t ComputeWeights(std::span<const float> logits, const DrawArgs& args, uint64_t* weights) {
  return GetRowMath().weights(logits.data(), static_cast<int64_t>(logits.size()), args.maxima->max,
                              args.temperature, kWeightOne, weights);
}

// The weight of each piece of the row, and of all.
uint64_t WeighPieces(const DrawArgs& args, DrawScratch* scratch) {
  scratch->weights.resize(kPiece);
  scratch->piece_totals.clear();
  uint64_t total = 0;
  for (size_t piece = 0; piece * kPiece < args.row.size(); ++piece) {
    scratch->weighed_piece = piece;
    const uint64_t weight = ComputeWeights(PieceOf(args.row, piece), args, scratch->weights.data());
    scratch->piece_totals.push_back(weight);
    total += weight;
  }
  return total;
}

// A piece's weights: those of the last that was asked for, or weighed, are still there.
const uint64_t* WeightsOf(size_t piece, const DrawArgs& args, DrawScratch* scratch) {
  if (piece != std::exchange(scratch->weighed_piece, piece)) {
    ComputeWeights(PieceOf(args.row, piece), args, scratch->weights.data());
  }
  return scratch->weights.data();
}

// Draws from what the cut keeps, whose weights by piece are known.
int32_t DrawByPiece(const DrawArgs& args, const Cut& cut, uint64_t total, DrawScratch* scratch) {
  uint64_t target = Scale(args.random, total);
  size_t piece = 0;
  while (target >= scratch->piece_totals[piece]) target -= scratch->piece_totals[piece++];
  const std::span<const float> logits = PieceOf(args.row, piece);
  const uint64_t* const weights = WeightsOf(piece, args, scratch);
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(piece * kPiece + i);
    if (!cut.Keeps(logits[i], id)) continue;
    if (target < weights[i]) return id;
    target -= weights[i];
  }
  TANDEM_CHECK(false) << target << " left over of " << total;
  return -1;
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
  const Buckets buckets({}, args.maxima->max);
  std::array<uint32_t, kNumBuckets> counts = {};
  std::array<float, kNumBuckets> lowest;
  lowest.fill(args.maxima->max);
  for (const float logit : args.row) {
    const int bucket = buckets.Of(logit);
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
  const Cut cut = {.logit = logits[*nth], .id = *nth};
  size_t kept = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!cut.Keeps(logits[i], static_cast<int32_t>(i))) continue;
    logits[kept] = logits[i];
    ids[kept++] = ids[i];
  }
  logits.resize(kept);
  ids.resize(kept);
}

// A range in which the cut lies that keeps the fewest best of `needed` weight: those below weigh
// no more together than what may be lost. Rounding may put it a little outside.
LogitRange RangeOfCut(const DrawArgs& args, uint64_t total, uint64_t needed) {
  const float floor = static_cast<float>(total - needed) / static_cast<float>(args.row.size());
  return {.low = args.maxima->max + args.temperature * (Log(floor / kWeightOne) - 0.01f)};
}

// A narrower one, most likely, where many are in `range`: a guess from some of the row (Floyd and
// Rivest, "Expected time bounds for selection", 1975), of what is lost, since a few of the best may
// weigh as much as all others.
LogitRange NarrowRange(const DrawArgs& args, LogitRange range, uint64_t lost,
                       DrawScratch* scratch) {
  std::vector<float>& sample = scratch->sample;
  sample.clear();
  for (size_t i = 0; i < args.row.size(); i += kGuessStride) sample.push_back(args.row[i]);
  const auto size = static_cast<int64_t>(sample.size());
  const int64_t candidates = GetRowMath().count_above(sample.data(), size, range.low);
  if (candidates * int64_t{kGuessStride} <= int64_t{kFewCandidates}) return range;
  std::vector<uint64_t>& weights = scratch->sample_weights;
  weights.resize(sample.size());
  ComputeWeights(sample, args, weights.data());
  const Buckets buckets(range, args.maxima->max);
  std::array<uint64_t, kNumBuckets> sums = {};
  std::array<float, kNumBuckets> highest;
  highest.fill(-kInfinity);
  for (size_t i = 0; i < sample.size(); ++i) {
    const int bucket = buckets.Of(sample[i]);
    sums[bucket] += weights[i] * kGuessStride;
    highest[bucket] = std::max(highest[bucket], sample[i]);
  }
  uint64_t below = 0;
  for (int bucket = kNumBuckets - 1; bucket >= 0; --bucket) {
    below += sums[bucket];
    if (highest[bucket] == -kInfinity) continue;
    if (below < static_cast<double>(lost) * (1 - kGuessError)) range.low = highest[bucket];
    if (below > static_cast<double>(lost) * (1 + kGuessError)) {
      range.high = highest[bucket];
      break;
    }
  }
  return range;
}

// Lists the ids in `range` with their weights, and sums up by piece what is above it.
void SelectRange(const DrawArgs& args, const LogitRange& range, DrawScratch* scratch) {
  constexpr size_t kBlock = RowMaxima::kBlock;
  static_assert(kPiece % kBlock == 0);
  scratch->candidates.clear();
  std::fill(scratch->piece_totals.begin(), scratch->piece_totals.end(), 0);
  std::array<int32_t, kBlock> places;
  for (size_t block = 0; block < args.maxima->blocks.size(); ++block) {
    if (args.maxima->blocks[block] < range.low) continue;
    const size_t first = block * kBlock;
    const std::span<const float> logits =
        args.row.subspan(first, std::min(kBlock, args.row.size() - first));
    const size_t piece = first / kPiece;
    const uint64_t* const weights = WeightsOf(piece, args, scratch) + first % kPiece;
    const int64_t found =
        GetRowMath().select(logits.data(), weights, static_cast<int64_t>(logits.size()), range.low,
                            range.high, &scratch->piece_totals[piece], places.data());
    for (int64_t i = 0; i < found; ++i) {
      const auto place = static_cast<size_t>(places[static_cast<size_t>(i)]);
      scratch->candidates.push_back({.id = static_cast<int32_t>(first + place),
                                     .logit = logits[place],
                                     .weight = weights[place]});
    }
  }
}

// The cut that keeps the fewest best that weigh `needed`, if it is among what SelectRange listed.
// What it keeps of that counts in the pieces, and in `kept`, then.
std::optional<Cut> CutCandidates(const DrawArgs& args, const LogitRange& range, uint64_t needed,
                                 DrawScratch* scratch, uint64_t* kept) {
  const auto& totals = scratch->piece_totals;
  const uint64_t above = std::accumulate(totals.begin(), totals.end(), uint64_t{0});
  if (above >= needed) return std::nullopt;
  const Buckets buckets(range, args.maxima->max);
  std::array<uint64_t, kNumBuckets> sums = {};
  for (const Candidate& c : scratch->candidates) sums[buckets.Of(c.logit)] += c.weight;
  uint64_t sum = above;
  int bucket = 0;
  for (; bucket < kNumBuckets && sum + sums[bucket] < needed; ++bucket) sum += sums[bucket];
  if (bucket == kNumBuckets) return std::nullopt;
  std::vector<Candidate>& near = scratch->near_cut;
  near.clear();
  for (const Candidate& c : scratch->candidates) {
    if (buckets.Of(c.logit) == bucket) near.push_back(c);
  }
  std::sort(near.begin(), near.end(), [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
  size_t place = 0;
  while (sum + near[place].weight < needed) sum += near[place++].weight;
  *kept = sum + near[place].weight;
  const Cut cut{.logit = near[place].logit, .id = near[place].id};
  for (const Candidate& c : scratch->candidates) {
    if (cut.Keeps(c.logit, c.id)) scratch->piece_totals[c.id / kPiece] += c.weight;
  }
  return cut;
}

// Keeps the fewest best that weigh top_p of `total`, which is then what these weigh.
Cut CutByWeight(const DrawArgs& args, uint64_t* total, DrawScratch* scratch) {
  const uint64_t needed = std::max<uint64_t>(NeededWeight(args.top_p, *total), 1);
  LogitRange range = RangeOfCut(args, *total, needed);
  if (args.row.size() > kFewCandidates) {
    range = NarrowRange(args, range, *total - needed, scratch);
  }
  SelectRange(args, range, scratch);
  if (const auto cut = CutCandidates(args, range, needed, scratch, total)) return *cut;
  range = {};
  SelectRange(args, range, scratch);
  const auto cut = CutCandidates(args, range, needed, scratch, total);
  TANDEM_CHECK(cut.has_value()) << needed << " of " << *total << " not found";
  return *cut;
}

}  // namespace

int32_t Draw(const DrawArgs& args, DrawScratch* scratch) {
  if (args.top_k > 0 && static_cast<size_t>(args.top_k) < args.row.size()) {
    KeepTopK(args, scratch);
    FindMaxima(scratch->logits, &scratch->maxima);
    DrawArgs kept = args;
    kept.row = scratch->logits;
    kept.maxima = &scratch->maxima;
    kept.top_k = 0;
    return scratch->ids[static_cast<size_t>(Draw(kept, scratch))];
  }
  uint64_t total = WeighPieces(args, scratch);
  Cut cut;
  if (args.top_p < 1.0f) cut = CutByWeight(args, &total, scratch);
  return DrawByPiece(args, cut, total, scratch);
}

}  // namespace tandem
