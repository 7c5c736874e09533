#include "kernels/sampling/draw.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

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
// What one of so many ids weighs below the cut, in runs of a line of the cache each, tells what all
// do, nearly always within this share.
constexpr size_t kGuessStride = 16;
constexpr size_t kGuessRun = 16;
constexpr double kGuessError = 0.06;

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
  // But for rounding.
  float HighestOf(int bucket) const {
    return per_unit_ > 0 ? high_ - static_cast<float>(bucket) / per_unit_ : high_;
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

// The weights of the row, of each piece, and of all.
uint64_t WeighRow(const DrawArgs& args, DrawScratch* scratch) {
  scratch->weights.resize(args.row.size());
  scratch->piece_totals.clear();
  uint64_t total = 0;
  for (size_t first = 0; first < args.row.size(); first += kPiece) {
    const std::span<const float> logits = PieceOf(args.row, first / kPiece);
    scratch->piece_totals.push_back(
        GetRowMath().weigh(logits.data(), static_cast<int64_t>(logits.size()), args.maxima->max,
                           args.temperature, kWeightOne, scratch->weights.data() + first));
    total += scratch->piece_totals.back();
  }
  return total;
}

// Draws from what the cut keeps, whose weights by piece are known.
int32_t DrawByPiece(const DrawArgs& args, const Cut& cut, uint64_t total,
                    const DrawScratch& scratch) {
  uint64_t target = Scale(args.random, total);
  size_t piece = 0;
  while (target >= scratch.piece_totals[piece]) target -= scratch.piece_totals[piece++];
  const size_t first = piece * kPiece;
  for (size_t id = first; id < std::min(first + kPiece, args.row.size()); ++id) {
    if (!cut.Keeps(args.row[id], static_cast<int32_t>(id))) continue;
    const uint64_t weight = WholeWeight(scratch.weights[id]);
    if (target < weight) return static_cast<int32_t>(id);
    target -= weight;
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
  std::vector<float>& weights = scratch->sample_weights;
  sample.clear();
  weights.clear();
  const float* const row_weights = scratch->weights.data();
  for (size_t first = 0; first < args.row.size(); first += kGuessRun * kGuessStride) {
    const size_t end = std::min(first + kGuessRun, args.row.size());
    sample.insert(sample.end(), args.row.data() + first, args.row.data() + end);
    weights.insert(weights.end(), row_weights + first, row_weights + end);
  }
  const auto size = static_cast<int64_t>(sample.size());
  scratch->sample_places.resize(sample.size() + kLanes);
  uint64_t above = 0;
  const auto found =
      static_cast<size_t>(GetRowMath().select(sample.data(), weights.data(), size, range.low,
                                              range.high, &above, scratch->sample_places.data()));
  if (found * kGuessStride <= kFewCandidates) return range;
  uint64_t below = 0;
  for (const float weight : weights) below += WholeWeight(weight);
  const Buckets buckets(range, args.maxima->max);
  std::array<uint64_t, kNumBuckets> sums = {};
  for (size_t i = 0; i < found; ++i) {
    const auto place = static_cast<size_t>(scratch->sample_places[i]);
    const uint64_t weight = WholeWeight(weights[place]);
    sums[buckets.Of(sample[place])] += weight;
    below -= weight;
  }
  for (int bucket = kNumBuckets - 1; bucket >= 0; --bucket) {
    below += sums[bucket];
    const double guess = static_cast<double>(below) * kGuessStride;
    if (guess < static_cast<double>(lost) * (1 - kGuessError)) {
      range.low = buckets.HighestOf(bucket);
    }
    if (guess > static_cast<double>(lost) * (1 + kGuessError)) {
      range.high = buckets.HighestOf(bucket);
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
  std::array<int32_t, kBlock + kLanes> places;
  for (size_t block = 0; block < args.maxima->blocks.size(); ++block) {
    if (args.maxima->blocks[block] < range.low) continue;
    const size_t first = block * kBlock;
    const std::span<const float> logits =
        args.row.subspan(first, std::min(kBlock, args.row.size() - first));
    const size_t piece = first / kPiece;
    const float* const weights = scratch->weights.data() + first;
    const int64_t found =
        GetRowMath().select(logits.data(), weights, static_cast<int64_t>(logits.size()), range.low,
                            range.high, &scratch->piece_totals[piece], places.data());
    for (int64_t i = 0; i < found; ++i) {
      const auto place = static_cast<size_t>(places[static_cast<size_t>(i)]);
      scratch->candidates.push_back({.id = static_cast<int32_t>(first + place),
                                     .logit = logits[place],
                                     .weight = WholeWeight(weights[place])});
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
  uint64_t total = WeighRow(args, scratch);
  Cut cut;
  if (args.top_p < 1.0f) cut = CutByWeight(args, &total, scratch);
  return DrawByPiece(args, cut, total, *scratch);
}

}  // namespace tandem
