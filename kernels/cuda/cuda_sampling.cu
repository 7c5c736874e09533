// Compiled with denormals as numbers, as kernels/sampling is: a temperature may be one.

#include "kernels/cuda/cuda_sampling.h"

#include <cuda_runtime.h>

#include "kernels/cuda/numbers.h"
#include "kernels/cuda/sampling_pieces.h"
#include "kernels/cuda/simt.h"
#include "kernels/support/vector_math.h"

namespace tandem {
namespace {

constexpr int kDrawThreads = 1024;
constexpr int kDrawHeld = kPieceIds / kDrawThreads;

static_assert(kNumBuckets == kPieceThreads, "a thread has a bucket, or a digit");

// ---- scan ----

// Copies the piece to shared memory, with what the edit makes other.
__device__ void EditPiece(const SampleLaunch& launch, const SampleEdit& edit,
                          const VocabularyPiece& piece, SharedPtr<float> shared) {
  constexpr float kMasked = -__builtin_inff();
  const uint32_t* const words = launch.words + edit.first_word;
  HeldLogits(LogitsOf(launch, edit.row), piece).ForEach([&](int place, float logit) {
    const int64_t id = piece.begin + place;
    const uint32_t word = id / 32 < edit.num_words ? words[id / 32] : 0;
    const bool allowed = edit.num_words == 0 || (word >> id % 32 & 1) != 0;
    shared[place] = allowed ? logit : kMasked;
  });
  __syncthreads();
  const SampleBias* const biases = launch.biases + edit.first_bias;
  for (int i = threadIdx.x; i < edit.num_biases; i += kPieceThreads) {
    const int64_t place = biases[i].id - piece.begin;
    if (place < 0 || place >= piece.count) continue;
    if (i > 0 && biases[i - 1].id == biases[i].id) continue;  // One thread adds all of an id.
    float logit = shared[place];
    for (int j = i; j < edit.num_biases && biases[j].id == biases[i].id; ++j) {
      logit = logit + biases[j].bias;
    }
    shared[place] = logit;
  }
  __syncthreads();
  const int32_t* const masked = launch.masked + edit.first_masked;
  for (int i = threadIdx.x; i < edit.num_masked; i += kPieceThreads) {
    const int64_t place = masked[i] - piece.begin;
    if (place >= 0 && place < piece.count) shared[place] = kMasked;
  }
  __syncthreads();
}

constexpr size_t kScanBytes = kPieceIds * sizeof(float) + kMaxWarps * sizeof(uint64_t);

__global__ void TANDEM_THREADS(kPieceThreads, 4) ScanKernel(SampleLaunch launch) {
  BeginLaunch();
  const SharedPtr<float> shared = SharedCast<float>(SharedMemory());
  const SharedPtr<uint64_t> warps = SharedCast<uint64_t>(shared + kPieceIds);
  const int64_t num_sums = int64_t{launch.num_cuts} * 2 * kNumBuckets;
  for (int64_t i = int64_t{blockIdx.x} * kPieceThreads + threadIdx.x; i < num_sums;
       i += int64_t{gridDim.x} * kPieceThreads) {
    launch.buckets[i] = 0;
  }
  const VocabularyPiece piece(launch);
  uint64_t best = 0;
  uint64_t not_finite = 0;
  if (piece.job < launch.num_rows) {
    HeldLogits(LogitsOf(launch, launch.rows[piece.job]), piece)
        .ForEach([&](int place, float logit) {
          const int64_t id = piece.begin + place;
          best = LargerKey(best, KeyOf(logit, id));
          if (!IsFinite(logit)) {
            not_finite = LargerKey(not_finite, kHighestId - static_cast<uint32_t>(id));
          }
        });
    not_finite = LargestOfBlock<kPieceThreads>(not_finite, warps);
    if (threadIdx.x == 0) launch.not_finite[blockIdx.x] = not_finite;
  } else {
    const int edit = piece.job - launch.num_rows;
    EditPiece(launch, launch.edits[edit], piece, shared);
    float* const edited = launch.edited + edit * launch.vocabulary + piece.begin;
    for (int place = threadIdx.x; place < piece.count; place += kPieceThreads) {
      const float logit = shared[place];
      edited[place] = logit;
      best = LargerKey(best, KeyOf(logit, piece.begin + place));
    }
  }
  best = LargestOfBlock<kPieceThreads>(best, warps);
  if (threadIdx.x == 0) launch.best[blockIdx.x] = best;
}

// ---- weigh ----

// What a sum of a cut's buckets is of.
enum Measure : int { kWeight = 0, kCount = 1 };

constexpr size_t kWeighBytes = (2 * kNumBuckets + kMaxWarps) * sizeof(uint64_t);

__global__ void TANDEM_THREADS(kPieceThreads, 4) WeighKernel(SampleLaunch launch) {
  LetNextLaunchBegin();
  const SharedPtr<uint64_t> sums = SharedCast<uint64_t>(SharedMemory());
  const SharedPtr<uint64_t> warps = sums + 2 * kNumBuckets;
  const VocabularyPiece piece(launch);
  const SampleJob job = launch.draws[piece.job];  // No other launch's.
  WaitForLaunchBefore();
  const HeldLogits held(SourceOf(launch, job), piece);
  const SampleWeights weights{LogitOf(BestOf(launch, job)), job.temperature};
  const bool has_cut = job.cut >= 0;
  if (has_cut) {
    sums[threadIdx.x] = 0;
    sums[kNumBuckets + threadIdx.x] = 0;
    __syncthreads();
  }
  uint64_t sum = 0;
  held.ForEach([&](int /*place*/, float logit) {
    const float exponent = weights.Exponent(logit);
    const int bucket = SampleWeights::Bucket(exponent);
    if (bucket == kNumBuckets - 1) return;
    const uint64_t weight = SampleWeights::At(exponent);
    sum += weight;
    if (job.has_top_p) AddShared(sums + bucket, weight);
    if (job.top_k > 0) AddShared(sums + (kNumBuckets + bucket), 1);
  });
  const uint64_t all = SumOfBlock<kPieceThreads>(sum, warps).all;
  if (threadIdx.x == 0) launch.weights[blockIdx.x] = all;
  if (!has_cut) return;
  uint64_t* const to = launch.buckets + int64_t{job.cut} * 2 * kNumBuckets;
  for (int i = threadIdx.x; i < 2 * kNumBuckets; i += kPieceThreads) {
    if (const uint64_t of_piece = sums[i]; of_piece != 0) AddGlobal(to + i, of_piece);
  }
}

// For log-probabilities: the order of kernels/api/rows.h.
constexpr size_t kSumExpBytes = kPieceIds * sizeof(float);

__global__ void TANDEM_THREADS(kPieceThreads, 4) SumExpKernel(SampleLaunch launch) {
  BeginLaunch();
  const SharedPtr<float> shared = SharedCast<float>(SharedMemory());
  const VocabularyPiece piece(launch);
  const int row = launch.summed[piece.job];
  const HeldLogits held(LogitsOf(launch, launch.rows[row]), piece);
  const float max = LogitOf(BestOfRow(launch, row));
  held.ForEach([&](int place, float logit) { shared[place] = Exp(logit - max); });
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float lane = 0.0f;
  if (threadIdx.x < kLanes) {
#pragma unroll 16
    for (int i = threadIdx.x; i < piece.count; i += kLanes) lane = lane + shared[i];
  }
  lane = SumOfLanes(lane);
  if (threadIdx.x == 0) launch.exp_sums[int64_t{row} * launch.num_pieces + piece.index] = lane;
}

// ---- select ----

// What one cut of a job is of: its first is top-k, if it has that.
struct Round {
  Measure measure;
  bool is_last;
  bool exists;

  __device__ Round(const SampleJob& job, int round)
      : measure(round == 0 && job.top_k > 0 ? kCount : kWeight),
        is_last(round == 1 || job.top_k == 0 || !job.has_top_p),
        exists(round == 0 || (job.top_k > 0 && job.has_top_p)) {}
};

struct SelectLaunch {
  SampleLaunch sample;
  int round;
};

// Finds the bucket of a cut. All threads have it.
__device__ SampleCut FindBucket(const SelectLaunch& select, const SampleJob& job, Measure measure,
                                SharedPtr<uint64_t> shared) {
  const SharedPtr<uint64_t> warps = shared + 2;
  const uint64_t* const sums =
      select.sample.buckets + (int64_t{job.cut} * 2 + measure) * kNumBuckets;
  const uint64_t mine = sums[threadIdx.x];
  if (threadIdx.x == 0) {
    shared[0] = kNumBuckets - 1;
    shared[1] = 0;
  }
  const BlockSum prefix = SumOfBlock<kPieceThreads>(mine, warps);
  const uint64_t total = select.round == 0 ? prefix.all : select.sample.states[job.cut].kept;
  const uint64_t limit =
      measure == kCount ? static_cast<uint64_t>(job.top_k) : NeededOf(job.top_p, total);
  if (prefix.before < limit && limit <= prefix.before + mine) {
    shared[0] = threadIdx.x;
    shared[1] = limit - prefix.before;
  }
  __syncthreads();
  return {.bucket = static_cast<int32_t>(uint64_t{shared[0]}), .rest = shared[1], .kept = total};
}

constexpr size_t kSelectBytes = (2 + kMaxWarps) * sizeof(uint64_t);

__global__ void TANDEM_THREADS(kPieceThreads, 4) SelectKernel(SelectLaunch select) {
  LetNextLaunchBegin();
  const SharedPtr<uint64_t> shared = SharedCast<uint64_t>(SharedMemory());
  const SharedPtr<uint64_t> warps = shared + 2;
  const SampleLaunch& launch = select.sample;
  const VocabularyPiece piece(launch);
  const SampleJob job = launch.cuts[piece.job];  // No other launch's.
  WaitForLaunchBefore();
  const Round round(job, select.round);
  if (!round.exists) return;
  const HeldLogits held(SourceOf(launch, job), piece);
  const SampleWeights weights{LogitOf(BestOf(launch, job)), job.temperature};
  const SampleCut cut = FindBucket(select, job, round.measure, shared);
  const bool keeps_all = cut.bucket == kNumBuckets - 1;
  uint64_t above = 0;
  uint32_t listed = 0;  // bits
  held.ForEach([&](int place, float logit) {
    const float exponent = weights.Exponent(logit);
    const int bucket = SampleWeights::Bucket(exponent);
    if (bucket < cut.bucket) above += SampleWeights::At(exponent);
    if (bucket == cut.bucket && !keeps_all) listed |= 1u << place / kPieceThreads;
  });
  const uint64_t all = SumOfBlock<kPieceThreads>(above, warps).all;
  const BlockSum prefix = SumOfBlock<kPieceThreads>(static_cast<uint64_t>(__popc(listed)), warps);
  uint16_t* to = launch.candidates +
                 (int64_t{job.cut} * launch.num_pieces + piece.index) * kPieceIds +
                 static_cast<int64_t>(prefix.before);
  for (int i = 0; i < kHeldIds; ++i) {
    if ((listed >> i & 1u) != 0) *to++ = static_cast<uint16_t>(threadIdx.x + i * kPieceThreads);
  }
  if (threadIdx.x != 0) return;
  launch.weights[int64_t{job.draw} * launch.num_pieces + piece.index] = all;
  launch.num_candidates[int64_t{job.cut} * launch.num_pieces + piece.index] =
      static_cast<int32_t>(prefix.all);
  if (piece.index == 0) {
    launch.states[job.cut].bucket = cut.bucket;
    launch.states[job.cut].rest = cut.rest;
  }
}

// ---- draw ----

// So many candidates are in shared memory at once; of more, each is computed anew when it is seen.
constexpr int kStaged = 2048;

// Shared memory of a draw.
struct DrawShared {
  SharedPtr<uint64_t> warps;    // [kMaxWarps]
  SharedPtr<uint64_t> found;    // [2]
  SharedPtr<uint64_t> pieces;   // [kMaxPieces] what is kept of each weighs
  SharedPtr<uint64_t> offsets;  // [kMaxPieces] of candidates
  SharedPtr<uint64_t> digits;   // [kNumBuckets]
  SharedPtr<uint64_t> keys;     // [kStaged]
  SharedPtr<uint64_t> weights;  // [kStaged]

  __device__ explicit DrawShared(SharedPtr<uint64_t> first)
      : warps(first),
        found(warps + kMaxWarps),
        pieces(found + 2),
        offsets(pieces + kMaxPieces),
        digits(offsets + kMaxPieces),
        keys(digits + kNumBuckets),
        weights(keys + kStaged) {}
};
constexpr size_t kDrawBytes =
    (kMaxWarps + 2 + 2 * kMaxPieces + kNumBuckets + 2 * kStaged) * sizeof(uint64_t);

// What select has listed for one job.
class Candidates {
 public:
  __device__ Candidates(const SampleLaunch& launch, const SampleJob& job, const float* logits,
                        const SampleWeights& weights, const DrawShared& shared)
      : num_pieces_(launch.num_pieces),
        counts_(launch.num_candidates + int64_t{job.cut} * launch.num_pieces),
        places_(launch.candidates + int64_t{job.cut} * launch.num_pieces * kPieceIds),
        logits_(logits),
        weights_(weights),
        shared_(shared) {
    const int thread = static_cast<int>(threadIdx.x);
    const uint64_t mine = thread < num_pieces_ ? static_cast<uint64_t>(counts_[thread]) : 0;
    const BlockSum prefix = SumOfBlock<kDrawThreads>(mine, shared.warps);
    count_ = prefix.all;
    if (count_ > kStaged) return;
    if (thread < num_pieces_) shared.offsets[thread] = prefix.before;
    __syncthreads();
    Compute([&](int piece, int i, uint64_t key, uint64_t weight) {
      const auto at = static_cast<int64_t>(uint64_t{shared.offsets[piece]}) + i;
      shared.keys[at] = key;
      shared.weights[at] = weight;
    });
    __syncthreads();
  }

  // function(key, weight), each by one thread.
  template <typename Function>
  __device__ void ForEach(const Function& function) const {
    if (count_ > kStaged) {
      Compute(
          [&](int /*piece*/, int /*i*/, uint64_t key, uint64_t weight) { function(key, weight); });
      return;
    }
    for (int i = threadIdx.x; i < static_cast<int>(count_); i += kDrawThreads) {
      function(shared_.keys[i], shared_.weights[i]);
    }
  }

 private:
  // A warp each piece, some candidates of a lane at once.
  template <typename Function>
  __device__ void Compute(const Function& function) const {
    constexpr int kAtOnce = 4;
    for (int piece = threadIdx.x / 32; piece < num_pieces_; piece += kDrawThreads / 32) {
      const int first = piece * kPieceIds;
      const int count = counts_[piece];
      for (int i = threadIdx.x % 32; i < count; i += 32 * kAtOnce) {
        int ids[kAtOnce];
        float logits[kAtOnce];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          ids[n] = i + 32 * n < count ? first + places_[first + i + 32 * n] : first;
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) logits[n] = logits_[ids[n]];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          if (i + 32 * n >= count) break;
          function(piece, i + 32 * n, KeyOf(logits[n], ids[n]), weights_.Of(logits[n]));
        }
      }
    }
  }

  const int num_pieces_;
  const int32_t* const counts_;
  const uint16_t* const places_;
  const float* const logits_;
  const SampleWeights weights_;
  const DrawShared& shared_;
  uint64_t count_;
};

// The key of the last candidate, best first, that is kept of `rest`: digit by digit of what keys
// differ in.
__device__ uint64_t FindCut(const Candidates& candidates, Measure measure, uint64_t rest,
                            const DrawShared& shared) {
  uint64_t low = 0;
  uint64_t high = ~uint64_t{0};
  while (true) {
    uint64_t least = 0;  // as the largest complement
    uint64_t most = 0;
    candidates.ForEach([&](uint64_t key, uint64_t /*weight*/) {
      if (key < low || key > high) return;
      least = LargerKey(least, ~key);
      most = LargerKey(most, key);
    });
    least = ~LargestOfBlock<kDrawThreads>(least, shared.warps);
    most = LargestOfBlock<kDrawThreads>(most, shared.warps);
    if (least >= most) return most;
    const int num_bits = 64 - __clzll(static_cast<long long>(least ^ most));
    const int shift = num_bits > 8 ? num_bits - 8 : 0;
    if (threadIdx.x < kNumBuckets) shared.digits[threadIdx.x] = 0;
    __syncthreads();
    candidates.ForEach([&](uint64_t key, uint64_t weight) {
      if (key < low || key > high) return;
      AddShared(shared.digits + static_cast<int>(255 - (key >> shift & 255)),
                measure == kCount ? 1 : weight);
    });
    __syncthreads();
    const uint64_t mine = threadIdx.x < kNumBuckets ? uint64_t{shared.digits[threadIdx.x]} : 0;
    const uint64_t before = SumOfBlock<kDrawThreads>(mine, shared.warps).before;
    if (before < rest && rest <= before + mine) {
      shared.found[0] = 255 - threadIdx.x;
      shared.found[1] = before;
    }
    __syncthreads();
    low = (most >> shift >> 8 << 8 | shared.found[0]) << shift;
    high = low | ((uint64_t{1} << shift) - 1);
    rest -= shared.found[1];
  }
}

// This block's token: for the host, and for whoever computes with it before the host has seen it.
__device__ __forceinline__ void GiveToken(const SampleLaunch& launch, int32_t token) {
  launch.answers[blockIdx.x].token = token;
  if (launch.drawn_tokens != nullptr) launch.drawn_tokens[blockIdx.x] = token;
}

// The token of a draw: ids rising until what is kept weighs more than `target`.
__device__ void DrawToken(const SampleLaunch& launch, const float* logits,
                          const SampleWeights& weights, uint64_t cut, uint64_t random,
                          const DrawShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const uint64_t of_piece = thread < launch.num_pieces ? uint64_t{shared.pieces[thread]} : 0;
  const BlockSum prefix = SumOfBlock<kDrawThreads>(of_piece, shared.warps);
  const uint64_t target = __umul64hi(random, prefix.all);
  if (prefix.before <= target && target < prefix.before + of_piece) {
    shared.found[0] = threadIdx.x;
    shared.found[1] = target - prefix.before;
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(uint64_t{shared.found[0]}) * kPieceIds;
  const int count = VocabularyPiece::CountFrom(launch, first);
  const uint64_t left = shared.found[1];
  uint64_t held[kDrawHeld];
  uint64_t mine = 0;
#pragma unroll
  for (int i = 0; i < kDrawHeld; ++i) {
    const int place = thread * kDrawHeld + i;
    held[i] = 0;
    if (place < count) {
      const float logit = logits[first + place];
      if (KeyOf(logit, first + place) >= cut) held[i] = weights.Of(logit);
    }
    mine += held[i];
  }
  uint64_t sum = SumOfBlock<kDrawThreads>(mine, shared.warps).before;
#pragma unroll
  for (int i = 0; i < kDrawHeld; ++i) {
    if (sum <= left && left < sum + held[i]) {
      GiveToken(launch, static_cast<int32_t>(first) + thread * kDrawHeld + i);
    }
    sum += held[i];
  }
}

__global__ void TANDEM_THREADS(kDrawThreads, 1) DrawKernel(SelectLaunch select) {
  BeginLaunch();
  const DrawShared shared(SharedCast<uint64_t>(SharedMemory()));
  const SampleLaunch& launch = select.sample;
  const SampleJob job = launch.jobs[blockIdx.x];
  const Round round(job, select.round);
  if (!round.exists) return;
  const uint64_t not_finite = LargestOfPieces(
      launch.not_finite + int64_t{job.place} * launch.num_pieces, launch.num_pieces);
  const uint64_t best = BestOf(launch, job);
  const bool all_masked = LogitOf(best) == -__builtin_inff();
  const bool draws = not_finite == 0 && job.draw >= 0 && !all_masked;
  if (threadIdx.x == 0 && select.round == 0) {
    const int32_t id = IdOf(not_finite);
    const float logit = not_finite == 0 ? 0.0f : LogitsOf(launch, job.row)[id];
    const int32_t highest = all_masked || draws ? -1 : IdOf(best);
    const int32_t token = job.given >= 0 ? job.given : highest;
    launch.answers[blockIdx.x] = {.token = token,
                                  .not_finite = not_finite == 0 ? -1 : id,
                                  .logit = logit,
                                  .logprob = 0,
                                  .num_better = 0};
    // Whatever comes of a query that fails, it is a token.
    const int32_t given = token < 0 || not_finite != 0 ? 0 : token;
    if (launch.drawn_tokens != nullptr) launch.drawn_tokens[blockIdx.x] = given;
  }
  if (!draws) return;
  const float* const logits = SourceOf(launch, job);
  const SampleWeights weights{LogitOf(best), job.temperature};
  if (threadIdx.x < static_cast<unsigned>(launch.num_pieces)) {
    shared.pieces[threadIdx.x] =
        launch.weights[int64_t{job.draw} * launch.num_pieces + threadIdx.x];
  }
  if (threadIdx.x == 0) {
    shared.found[0] = 0;
    shared.found[1] = 0;
  }
  uint64_t cut = 0;
  if (job.cut >= 0 && launch.states[job.cut].bucket < kNumBuckets - 1) {
    const Candidates candidates(launch, job, logits, weights, shared);
    cut = FindCut(candidates, round.measure, launch.states[job.cut].rest, shared);
    candidates.ForEach([&](uint64_t key, uint64_t weight) {
      if (key >= cut) AddShared(shared.pieces + IdOf(key) / kPieceIds, weight);
    });
    __syncthreads();
  }
  if (round.is_last) {
    DrawToken(launch, logits, weights, cut, job.random, shared);
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const uint64_t mine = thread < launch.num_pieces ? uint64_t{shared.pieces[thread]} : 0;
  const uint64_t kept = SumOfBlock<kDrawThreads>(mine, shared.warps).all;
  if (thread == 0) launch.states[job.cut].kept = kept;
}

// ---- score ----

// The best `count` ids of a row, best first: the best of all pieces, and the next one of its piece.
__device__ void ListTop(const SampleLaunch& launch, const SampleJob& job, const float* logits,
                        float max, float log_sum, SharedPtr<uint64_t> shared) {
  const SharedPtr<uint64_t> warps = shared + kMaxPieces;
  if (threadIdx.x < static_cast<unsigned>(launch.num_pieces)) {
    shared[threadIdx.x] = launch.best[int64_t{job.place} * launch.num_pieces + threadIdx.x];
  }
  for (int i = 0; i < job.num_top; ++i) {
    __syncthreads();
    uint64_t best = 0;
    for (int piece = threadIdx.x % 32; piece < launch.num_pieces; piece += 32) {
      best = LargerKey(best, shared[piece]);
    }
    best = LargestOfWarp(best);
    const int32_t id = IdOf(best);
    if (threadIdx.x == 0) {
      launch.top[job.first_top + i] = {.token = id,
                                       .logprob = LogProbability(logits[id], max, log_sum)};
    }
    const int64_t first = int64_t{id / kPieceIds} * kPieceIds;
    const int size = VocabularyPiece::CountFrom(launch, first);
    uint64_t next = 0;
#pragma unroll
    for (int held = 0; held < kHeldIds; ++held) {
      const int place = static_cast<int>(threadIdx.x) + held * kPieceThreads;
      const uint64_t key = place < size ? KeyOf(logits[first + place], first + place) : 0;
      if (key < best) next = LargerKey(next, key);
    }
    next = LargestOfBlock<kPieceThreads>(next, warps);
    if (threadIdx.x == 0) shared[id / kPieceIds] = next;
  }
}

constexpr size_t kScoreBytes = (kMaxPieces + kMaxWarps) * sizeof(uint64_t);

// P blocks a job count who is better, and one more does the rest.
__global__ void TANDEM_THREADS(kPieceThreads, 4) ScoreKernel(SampleLaunch launch) {
  BeginLaunch();
  const SharedPtr<uint64_t> shared = SharedCast<uint64_t>(SharedMemory());
  const int blocks = launch.num_pieces + 1;
  const int index = static_cast<int>(blockIdx.x) % blocks;
  const int place = launch.scored[static_cast<int>(blockIdx.x) / blocks];
  const SampleJob job = launch.jobs[place];
  SampleAnswer* const answer = launch.answers + place;
  if (answer->not_finite >= 0 || answer->token < 0) return;
  const float* const logits = LogitsOf(launch, job.row);
  const float logit = logits[answer->token];
  if (index < launch.num_pieces) {
    const uint64_t key = KeyOf(logit, answer->token);
    const int64_t first = int64_t{index} * kPieceIds;
    const int size = VocabularyPiece::CountFrom(launch, first);
    uint64_t better = 0;
#pragma unroll
    for (int held = 0; held < kHeldIds; ++held) {
      const int at = static_cast<int>(threadIdx.x) + held * kPieceThreads;
      if (at < size && KeyOf(logits[first + at], first + at) > key) ++better;
    }
    better = SumOfBlock<kPieceThreads>(better, shared).all;
    if (threadIdx.x == 0 && better > 0) AddGlobal(&answer->num_better, better);
    return;
  }
  const float max = logits[IdOf(BestOfRow(launch, job.place))];
  float sum = 0.0f;
  for (int piece = 0; piece < launch.num_pieces; ++piece) {
    sum = sum + launch.exp_sums[int64_t{job.place} * launch.num_pieces + piece];
  }
  const float log_sum = Log(sum);
  if (threadIdx.x == 0) answer->logprob = LogProbability(logit, max, log_sum);
  ListTop(launch, job, logits, max, log_sum, shared);
}

// For each of `jobs`, a block a piece.
LaunchShape PiecesOf(const SampleLaunch& launch, int64_t jobs, size_t shared_bytes) {
  return {.blocks = jobs * launch.num_pieces,
          .threads = kPieceThreads,
          .shared_bytes = shared_bytes,
          .keeps_denormals = true};
}

}  // namespace

cudaError_t CudaSample(const SampleLaunch& launch, cudaStream_t stream) {
  cudaError_t error = Launch(
      ScanKernel, PiecesOf(launch, launch.num_rows + launch.num_edits, kScanBytes), stream, launch);
  if (error == cudaSuccess) {
    error = Launch(WeighKernel, PiecesOf(launch, launch.num_draws, kWeighBytes), stream, launch);
  }
  if (error == cudaSuccess) {
    error = Launch(SumExpKernel, PiecesOf(launch, launch.num_summed, kSumExpBytes), stream, launch);
  }
  for (int round = 0; round < (launch.cuts_twice ? 2 : 1) && error == cudaSuccess; ++round) {
    const SelectLaunch select{launch, round};
    error = Launch(SelectKernel, PiecesOf(launch, launch.num_cuts, kSelectBytes), stream, select);
    if (error != cudaSuccess) break;
    error = Launch(DrawKernel,
                   {.blocks = launch.num_jobs,
                    .threads = kDrawThreads,
                    .shared_bytes = kDrawBytes,
                    .keeps_denormals = true},
                   stream, select);
  }
  if (error == cudaSuccess) {
    LaunchShape shape = PiecesOf(launch, launch.num_scored, kScoreBytes);
    shape.blocks += launch.num_scored;
    error = Launch(ScoreKernel, shape, stream, launch);
  }
  return error;
}

}  // namespace tandem
