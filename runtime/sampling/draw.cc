#include "runtime/sampling/draw.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/api/rows.h"
#include "kernels/api/vector_math.h"
#include "runtime/base/check.h"

namespace tandem {
namespace {

using Uint128 = unsigned __int128;

// Buckets by distance from the maximum, 1/16 wide, the last without end: they narrow a row down
// to the few ids near a cut in one pass.
constexpr int kNumBuckets = 512;
constexpr float kBucketsPerUnit = 16.0f;
// Below this many candidates sorting is cheaper than another partition.
constexpr size_t kSmall = 64;

int BucketOf(float logit, float max) {
  const float distance = (max - logit) * kBucketsPerUnit;
  return distance < kNumBuckets ? static_cast<int>(distance) : kNumBuckets - 1;
}

uint64_t WeightOf(float logit, const DrawArgs& args) {
  return static_cast<uint64_t>(
      static_cast<int64_t>(Exp((logit - args.max) / args.temperature) * kWeightOne));
}

bool Better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

uint64_t TotalWeight(std::span<const Candidate> candidates) {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// Uniform in [0, total).
uint64_t Scale(uint64_t random, uint64_t total) {
  return static_cast<uint64_t>((Uint128{random} * total) >> 64);
}

// The least sum that reaches top_p of `total`; at least 1.
uint64_t NeededWeight(float top_p, uint64_t total) {
  // 24 significant bits: exact for every top_p from 2^-8 on, rounded down below.
  const auto share = static_cast<uint64_t>(static_cast<double>(top_p) * 0x1p32);
  const uint64_t needed = static_cast<uint64_t>((Uint128{share} * total + 0xFFFFFFFF) >> 32);
  return std::max<uint64_t>(needed, 1);
}

// Weights of `count` ids from `first` on, and their sum.
uint64_t ComputeWeights(const DrawArgs& args, size_t first, size_t count, uint64_t* weights) {
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    weights[i] = WeightOf(args.row[first + i], args);
    total += weights[i];
  }
  return total;
}

// The whole row, piece by piece: no list of candidates.
int32_t DrawFromAll(const DrawArgs& args, DrawScratch* scratch) {
  constexpr size_t kPiece = kVocabularyPiece;
  scratch->weights.resize(kPiece);
  scratch->piece_totals.clear();
  uint64_t total = 0;
  for (size_t first = 0; first < args.row.size(); first += kPiece) {
    const size_t count = std::min(kPiece, args.row.size() - first);
    scratch->piece_totals.push_back(ComputeWeights(args, first, count, scratch->weights.data()));
    total += scratch->piece_totals.back();
  }
  uint64_t target = Scale(args.random, total);
  size_t piece = 0;
  while (target >= scratch->piece_totals[piece]) target -= scratch->piece_totals[piece++];
  const size_t first = piece * kPiece;
  ComputeWeights(args, first, std::min(kPiece, args.row.size() - first), scratch->weights.data());
  size_t i = 0;
  while (target >= scratch->weights[i]) target -= scratch->weights[i++];
  return static_cast<int32_t>(first + i);
}

// Ids of the buckets up to `last_bucket`, in id order.
void Gather(const DrawArgs& args, int last_bucket, std::vector<Candidate>* candidates) {
  candidates->clear();
  for (size_t id = 0; id < args.row.size(); ++id) {
    const float logit = args.row[id];
    if (BucketOf(logit, args.max) > last_bucket) continue;
    candidates->push_back(
        Candidate{.logit = logit, .id = static_cast<int32_t>(id), .weight = WeightOf(logit, args)});
  }
}

// The first bucket at which the running sum reaches `needed`.
int FindBucket(const std::array<uint64_t, kNumBuckets>& sums, uint64_t needed) {
  uint64_t sum = 0;
  for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
    sum += sums[bucket];
    if (sum >= needed) return bucket;
  }
  return kNumBuckets - 1;
}

// Candidates that contain at least the top_k best.
void GatherByCount(const DrawArgs& args, std::vector<Candidate>* candidates) {
  std::array<uint64_t, kNumBuckets> counts = {};
  for (const float logit : args.row) ++counts[BucketOf(logit, args.max)];
  Gather(args, FindBucket(counts, static_cast<uint64_t>(args.top_k)), candidates);
}

// Candidates that contain at least the best ones that weigh top_p of the row. Returns the row's
// weight.
uint64_t GatherByWeight(const DrawArgs& args, DrawScratch* scratch) {
  std::array<uint64_t, kNumBuckets> sums = {};
  scratch->weights.resize(args.row.size());
  const uint64_t total = ComputeWeights(args, 0, args.row.size(), scratch->weights.data());
  for (size_t id = 0; id < args.row.size(); ++id) {
    sums[BucketOf(args.row[id], args.max)] += scratch->weights[id];
  }
  Gather(args, FindBucket(sums, NeededWeight(args.top_p, total)), &scratch->candidates);
  return total;
}

// Drops what comes after `last` in the order of Better.
void KeepUpTo(const Candidate& last, std::vector<Candidate>* candidates) {
  std::erase_if(*candidates, [&last](const Candidate& c) { return Better(last, c); });
}

void KeepTopK(int32_t top_k, DrawScratch* scratch) {
  const size_t count = static_cast<size_t>(top_k);
  if (scratch->candidates.size() <= count) return;
  scratch->ordered = scratch->candidates;
  const auto nth = scratch->ordered.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(scratch->ordered.begin(), nth, scratch->ordered.end(), Better);
  KeepUpTo(*nth, &scratch->candidates);
}

// The fewest best ones that weigh `needed`, which all candidates together do.
void KeepWeight(uint64_t needed, DrawScratch* scratch) {
  std::vector<Candidate>& ordered = scratch->ordered;
  ordered = scratch->candidates;
  // What is before `begin` is kept, what is behind `end` is not; the last one kept is between.
  auto begin = ordered.begin();
  auto end = ordered.end();
  while (static_cast<size_t>(end - begin) > kSmall) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, Better);
    const uint64_t better = TotalWeight(std::span(begin, middle));
    if (better >= needed) {
      end = middle;
    } else {
      needed -= better;
      begin = middle;
    }
  }
  std::sort(begin, end, Better);
  while (begin->weight < needed) {
    needed -= begin->weight;
    ++begin;
    TANDEM_CHECK(begin != end) << needed << " of weight missing";
  }
  KeepUpTo(*begin, &scratch->candidates);
}

}  // namespace

int32_t Draw(const DrawArgs& args, DrawScratch* scratch) {
  const bool cuts_count = args.top_k > 0 && static_cast<size_t>(args.top_k) < args.row.size();
  const bool cuts_weight = args.top_p < 1.0f;
  if (!cuts_count && !cuts_weight) return DrawFromAll(args, scratch);
  std::vector<Candidate>& candidates = scratch->candidates;
  uint64_t total = 0;
  if (cuts_count) {
    GatherByCount(args, &candidates);
    KeepTopK(args.top_k, scratch);
    total = TotalWeight(candidates);
  } else {
    total = GatherByWeight(args, scratch);
  }
  if (cuts_weight) {
    KeepWeight(NeededWeight(args.top_p, total), scratch);
    total = TotalWeight(candidates);
  }
  uint64_t target = Scale(args.random, total);
  size_t i = 0;
  while (target >= candidates[i].weight) target -= candidates[i++].weight;
  return candidates[i].id;
}

}  // namespace tandem
