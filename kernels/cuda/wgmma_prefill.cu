// Prefill attention in bf16 by products of four warps (wgmma, sm_90a), with the bits of
// tensor_prefill.cu where those products have a warp's (wgmma_trial.cu). A block has two
// warpgroups, each of 64 rows; warps have the rows, scores and outputs that they have there.
//
// A tile's products with V are under way while the next tile's scores become weights, as in
// FlashAttention-3 (Shah et al., 2024): only then are the outputs rescaled, so a row's sums have
// the order that they have elsewhere.
//
// K and V lie in the pool as the CPU has them, in words of two numbers: of K neighbours of one
// token, of V the same one of two tokens. A product wants sixteen bytes of one token, or of one
// number of V. So copies are of words; their order within sixteen is one in which lanes find their
// own. Rows of a matrix are 128 bytes, swizzled: a row of K has 64 numbers of a token, so wider
// heads have two panels; a row of V one number of the tile's 64 tokens.

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/tensor_tiles.h"

namespace tandem {
namespace {

constexpr int kWarp = 32;
constexpr int kWgmmaWarps = 8;
constexpr int kWgmmaThreads = kWgmmaWarps * kWarp;
constexpr int kWgmmaRows = kWgmmaWarps * kTensorRows;
constexpr int kWgmmaStages = 4;
constexpr int kRowBytes = 128;
constexpr int kPanelBytes = kAttentionTileTokens * kRowBytes;
constexpr int kPanelDims = kRowBytes / 2;
constexpr int kStepBytes = 32;           // sixteen numbers
constexpr int kCopyThreads = 2 * kWarp;  // that copy a sub-tile
constexpr int kPairLanes = kCopyThreads / 16;

struct WgmmaLaunch {
  PrefillLaunch jobs;
  float4* totals;  // SegmentTotals, as TensorPrefillScratchBytes has room for
};

// A stage has a tile of K and one of V, the latter of the tile before.
template <int kHeadDim>
struct WgmmaStage {
  static constexpr int kPanels = (kHeadDim + kPanelDims - 1) / kPanelDims;
  static constexpr int kValuesAt = kPanels * kPanelBytes;
  static constexpr int kBytes = kValuesAt + kHeadDim * kRowBytes;
  static constexpr size_t kSharedBytes = size_t{kWgmmaStages} * kBytes;
};

// Even ones of sixteen come first: where the one with that index is.
__device__ __forceinline__ int EvenFirst(int index) { return index % 2 * 8 + index / 2; }

// The running thread among those that copy a sub-tile. What follows from it is not worth registers
// in between: it is computed each time.
__device__ __forceinline__ int CopyThread() {
  uint32_t thread = threadIdx.x;
  Settle(&thread, 1);
  return static_cast<int>(thread) % kCopyThreads;
}

// A word of each row of K's panels: two numbers of this thread's token of sub-tile `sub`.
template <int kHeadDim>
__device__ __forceinline__ void CopyKeys(const std::byte* from, bool there, int sub,
                                         SharedPtr<std::byte> stage) {
  const int thread = CopyThread();
  const int token = thread % 16;
  const int word = thread / 16;
  const int row = sub * kKvSubTileTokens + EvenFirst(token);
  const SharedPtr<std::byte> to = stage + row * kRowBytes + word * 4;
#pragma unroll
  for (int i = 0; i < kHeadDim / 8; ++i) {  // of sixteen bytes
    CopyAsync4(to + (i / 8 * kPanelBytes + ((i % 8) ^ row % 8) * 16),
               from + ((i * kPairLanes + word) * 16 + token) * 4, there ? 4 : 0);
  }
}

// A word of each row of V: the thread's number of every sixteen, of two pairs of tokens. Slots
// behind the first `tokens` were never written, or are stale: they become zeros.
template <int kHeadDim>
__device__ __forceinline__ void CopyValues(const std::byte* from, int tokens, int sub,
                                           SharedPtr<std::byte> stage) {
  const int thread = CopyThread();
  const int dim = thread % 16;
  const int word = thread / 16;
  const int row = EvenFirst(dim);
  const SharedPtr<std::byte> to =
      stage + WgmmaStage<kHeadDim>::kValuesAt + row * kRowBytes + word * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = word * 2 + half;
    const int kept = Least((tokens - pair * 2) * 2, 4);
    const SharedPtr<std::byte> sixteen = to + ((sub * 2 + half) ^ row % 8) * 16;
#pragma unroll
    for (int run = 0; run < kHeadDim / 16; ++run) {
      CopyAsync4(sixteen + run * 16 * kRowBytes, from + (pair * kHeadDim + run * 16 + dim) * 4,
                 kept > 0 ? kept : 0);
    }
  }
}

// TensorRows, with products of the warpgroup.
template <typename Kind>
class WgmmaRows : public TensorRows<Kind> {
 public:
  using Base = TensorRows<Kind>;
  using Base::kHeadDim;
  using Base::kRowsOfLane;
  using Base::kSteps;
  using Base::kSubTiles;
  static constexpr int kScores = 8 * kSubTiles;
  static constexpr int kOutputs = kHeadDim / 2;

  __device__ WgmmaRows(const AttentionProblem& problem, const RowJob& job, int first_row)
      : Base(problem, job, first_row) {
    Settle(&nothing_, 1);
  }

  // What the products of the next step are to read, is there.
  __device__ void Fence() {
    Settle(Outputs(), kOutputs);
    FenceProducts();
  }

  __device__ void GetQueries(uint32_t (&queries)[kSteps][4]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 query = this->Query(step);
      queries[step][0] = query.x;
      queries[step][1] = query.y;
      queries[step][2] = query.z;
      queries[step][3] = query.w;
    }
    Settle(&queries[0][0], 4 * kSteps);
  }
  __device__ void BeginScores(SharedPtr<std::byte> keys, const uint32_t (&queries)[kSteps][4]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      WarpgroupMma<kAttentionTileTokens>(
          Scores(), queries[step],
          SwizzledMatrix(keys + (step / 4 * kPanelBytes + step % 4 * kStepBytes)), step > 0);
    }
  }
  __device__ void SettleScores() { Settle(Scores(), kScores); }

  // Weights of the tile whose scores there are, and what its outputs are to be rescaled by.
  __device__ void Weigh(int first_position, bool masked, float (&rescale)[kRowsOfLane]) {
    float largest[kRowsOfLane];
    this->Prepare(first_position, masked, largest);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) rescale[i] = this->WeighRow(i, largest[i]);
  }
  __device__ void RescaleBy(const float (&rescale)[kRowsOfLane]) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) this->RescaleRow(i, rescale[i]);
  }

  // The weights are given to the products with V, which others may come in place of.
  __device__ void GiveWeights() {
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
      uint32_t weights[4];
      this->GetWeights(sub, SharedCast<float>(SharedMemory()), weights);
#pragma unroll
      for (int i = 0; i < 4; ++i) given_[sub][i] = weights[i] + nothing_;
    }
    Settle(&given_[0][0], 4 * kSubTiles);
  }
  __device__ void BeginValues(SharedPtr<std::byte> values) {
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
      WarpgroupMma<kHeadDim>(Outputs(), given_[sub], SwizzledMatrix(values + sub * kStepBytes),
                             true);
    }
  }
  __device__ void SettleOutputs() { Settle(Outputs(), kOutputs); }

 private:
  __device__ float* Scores() { return &this->scores_[0][0]; }
  __device__ float* Outputs() { return &this->out_[0][0][0]; }

  uint32_t given_[kSubTiles][4];
  // Zero, which nvcc does not know. Were weights given as they are, it would make them in the very
  // registers of which products still read those before, and so have products wait for each other.
  uint32_t nothing_ = 0;
};

// The ring: iteration i has tile i of K and tile i − 1 of V.
template <typename Kind>
class WgmmaRing {
 public:
  using Kv = Kind::Kv;
  using Stage = WgmmaStage<Kind::kHeadDim>;

  __device__ WgmmaRing(const AttentionProblem& problem, const RowJob& job, const SeenByJob& seen)
      : problem_(problem),
        table_(problem.block_table + job.sequence * problem.max_blocks),
        seen_(seen),
        position_(seen.begin + Sub() * kKvSubTileTokens),
        at_(problem, job, position_) {
    Find();
  }

  __device__ void Begin() {
    __syncthreads();  // Everybody has left the ring.
    for (int i = 0; i < kWgmmaStages - 1; ++i) Copy();
  }
  // The next stage is there, the one before it is free. One Copy() comes behind each: best while
  // products read.
  __device__ SharedPtr<std::byte> Next() const {
    WaitForCopies<kWgmmaStages - 2>();
    FenceAsyncReads();
    __syncthreads();
    return StageOf(position_ + kAttentionTileTokens);
  }
  // The next iteration's, of which there is one more than tiles.
  __device__ void Copy() {
    const SharedPtr<std::byte> stage = StageOf(position_);
    const int tile = position_ - Sub() * kKvSubTileTokens;
    if (tile > seen_.begin && tile < seen_.end + kAttentionTileTokens) {
      const int tokens = keys_ == nullptr ? 0 : seen_.end - (position_ - kAttentionTileTokens);
      const std::byte* const keys = keys_ == nullptr ? problem_.kv.base : keys_;
      CopyValues<Kind::kHeadDim>(keys + ToValues(problem_.kv), tokens, Sub(), stage);
    }
    if (tile < seen_.end) {
      keys_ = block_ == kNone ? nullptr : at_.template In<Kv>(block_);
      CopyKeys<Kind::kHeadDim>(keys_ == nullptr ? problem_.kv.base : keys_, keys_ != nullptr, Sub(),
                               stage);
      at_.Advance(kAttentionTileTokens);
    }
    position_ += kAttentionTileTokens;
    Find();
    CommitCopies();
  }

 private:
  // The stage that Copy() fills is the one before Next()'s.
  static_assert(kWgmmaStages == 4);
  __device__ static SharedPtr<std::byte> StageOf(int position) {
    return SharedMemory() + position / kAttentionTileTokens % kWgmmaStages * Stage::kBytes;
  }
  // Two warps copy a sub-tile of each tile.
  __device__ static int Sub() { return static_cast<int>(threadIdx.x) / kCopyThreads; }

  // The block of the next sub-tile, if any row sees some of it; it is known a tile before.
  __device__ void Find() {
    block_ = SeesSubTile(position_, seen_.first, seen_.end) ? table_[at_.index()] : kNone;
  }
  static constexpr int kNone = -1;

  const AttentionProblem& problem_;
  const int32_t* const table_;
  const SeenByJob& seen_;
  int position_;  // of the next sub-tile to be copied
  SubTiles at_;
  int block_ = kNone;
  const std::byte* keys_ = nullptr;  // what was copied last, if any row sees some of it
};

// One job's rows over all that they see, a segment at a time.
template <typename Kind>
__device__ __forceinline__ void PrefillRows(const WgmmaLaunch& launch, const RowJob& job) {
  using Rows = WgmmaRows<Kind>;
  constexpr int kValuesAt = WgmmaStage<Kind::kHeadDim>::kValuesAt;
  const AttentionProblem& problem = launch.jobs.problem;
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * kTensorRows;
  const SeenByJob seen(problem, job);
  Rows rows(problem, job, first_row);
  WgmmaRing<Kind> ring(problem, job, seen);
  ring.Begin();
  // All of this warp's rows see positions [all_first, all_end).
  const int last_row = Least(kTensorRows, job.num_rows - first_row) - 1;
  const int all_first = last_row < 0 ? 0 : rows.FirstVisibleOf(last_row);
  const int all_end = rows.VisibleOf(0);
  const auto weigh = [&](int tile, float(&rescale)[Rows::kRowsOfLane]) {
    rows.Weigh(tile, tile < all_first || tile + kAttentionTileTokens > all_end, rescale);
  };

  SegmentTotals<Rows, kWgmmaThreads> totals(launch.totals);
  SharedPtr<std::byte> stage = ring.Next();
  ring.Copy();
  int tile = seen.begin;
  while (true) {
    rows.Begin();
    uint32_t queries[Rows::kSteps][4];
    rows.GetQueries(queries);
    float rescale[Rows::kRowsOfLane];
    rows.Fence();
    rows.BeginScores(stage, queries);
    CommitProducts();
    WaitForProducts<0>();
    rows.SettleScores();
    weigh(tile, rescale);  // There are no outputs yet.
    rows.GiveWeights();
    const int end = Least(seen.end, (tile / kAttentionSegmentTokens + 1) * kAttentionSegmentTokens);
    for (tile += kAttentionTileTokens; tile < end; tile += kAttentionTileTokens) {
      stage = ring.Next();
      rows.Fence();
      rows.BeginScores(stage, queries);
      CommitProducts();
      rows.BeginValues(stage + kValuesAt);
      CommitProducts();
      ring.Copy();
      WaitForProducts<1>();
      rows.SettleScores();
      weigh(tile, rescale);
      WaitForProducts<0>();
      rows.SettleOutputs();
      rows.RescaleBy(rescale);
      rows.GiveWeights();
    }
    stage = ring.Next();
    rows.Fence();
    rows.BeginValues(stage + kValuesAt);
    CommitProducts();
    ring.Copy();
    WaitForProducts<0>();
    rows.SettleOutputs();
    totals.MergeInto(&rows);
    if (tile >= seen.end) break;
    totals.Keep(&rows);
  }
  rows.Finish(problem);
}

template <typename Kind>
__global__ void TANDEM_THREADS(kWgmmaThreads, 1) WgmmaPrefillKernel(WgmmaLaunch launch) {
  BeginLaunch();
  if (HasWarpgroupProducts()) {
    ForEachPrefillJob<kWgmmaRows>(launch.jobs,
                                  [&](const RowJob& job) { PrefillRows<Kind>(launch, job); });
  }
}

}  // namespace

cudaError_t WgmmaPrefillAttention(const HostPrefillAttentionArgs& args, void* scratch,
                                  const ProcessorLimits& limits, cudaStream_t stream) {
  const WgmmaLaunch launch{.jobs = PrefillLaunchOf(args), .totals = static_cast<float4*>(scratch)};
  return ByKind</*kOneToken=*/false>(args, [&]<typename Kind>() {
    if constexpr (std::is_same_v<typename Kind::Kv, Bf16Kv>) {
      return Launch(WgmmaPrefillKernel<Kind>,
                    {.blocks = args.num_sequences == 0 ? 0 : limits.num_processors,
                     .threads = kWgmmaThreads,
                     .shared_bytes = WgmmaStage<Kind::kHeadDim>::kSharedBytes},
                    stream, launch);
    } else {
      return cudaErrorInvalidValue;  // TensorPrefillAttention has them.
    }
  });
}

}  // namespace tandem
