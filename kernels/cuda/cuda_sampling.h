// Tokens from logits on a GPU (Backend::Sample), bit for bit those of kernels/sampling. Weights are
// integers, so that their sums have no order, and an id's place in the order of Better
// (kernels/sampling/row.h) is a number, its key: what a block of threads finds in one piece of a
// row, others add up or compare.
//
// A row is read piece by piece (kVocabularyPiece ids), a block each:
//   scan:   each piece's best id, and its first that is no number; copies with bias and masks
//   weigh:  sums of weights; for a cut, what ids weigh or count in each of kNumBuckets
//   select: the bucket that a cut is in; what is above is summed, its own ids are listed
//   draw:   one block a query: the cut among those listed, and the token
//   score:  ranks and the best ids, where log-probabilities are asked for
// Top-k with top-p takes select and draw twice: what top-k keeps says where top-p cuts.

#ifndef TANDEM_KERNELS_CUDA_CUDA_SAMPLING_H_
#define TANDEM_KERNELS_CUDA_CUDA_SAMPLING_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/api/rows.h"
#include "kernels/api/sampling.h"

namespace tandem {

// Eighths of how far (logit - max) / temperature is below 0; in the last an id weighs nothing.
inline constexpr int kNumBuckets = 256;

// One query.
struct SampleJob {
  int32_t row;         // of the logits
  int32_t place;       // The row's, among those that are read.
  int32_t edit = -1;   // the place of its own copy of the row; -1: it draws from the row itself
  int32_t draw = -1;   // that of its weights; -1: greedy, or nothing to draw
  int32_t cut = -1;    // that of its cut; -1: all are kept
  int32_t given = -1;  // the token, if it is not drawn
  int32_t top_k = 0;   // 0: no such cut
  bool has_top_p = false;
  uint32_t top_p = 0;  // in units of 2^-32
  float temperature = 0;
  int32_t num_top = 0;
  int64_t first_top = 0;  // of the launch's
  uint64_t random = 0;
};

// A copy of a row to draw from, and what is other there. Biases and masks are some of the launch's,
// ids rising.
struct SampleEdit {
  int32_t row;  // of the logits
  int32_t first_bias = 0, num_biases = 0;
  int32_t first_masked = 0, num_masked = 0;
  int32_t first_word = 0, num_words = 0;  // TokenMask; no word is no mask.
};
struct SampleBias {
  int32_t id;
  float bias;
};

// Where a job's cut is, after select: the bucket (the last: it keeps all), and how much of its ids,
// best first, is kept. After draw: what is kept weighs.
struct SampleCut {
  int32_t bucket;
  uint64_t rest;
  uint64_t kept;
};

struct SampleAnswer {
  int32_t token;        // -1: every token is masked.
  int32_t not_finite;   // the first id whose logit is none; -1: all are
  float logit;          // of that
  float logprob;        // where it is asked for, as what follows
  uint64_t num_better;  // how many ids are better than the token
};

// R rows that are read, Q jobs, E copies, D jobs with weights, C cuts, S jobs with
// log-probabilities and L rows with such; V ids, P pieces of a row.
struct SampleLaunch {
  const float* logits;  // [.., V]
  int64_t vocabulary;
  int32_t num_pieces;
  int32_t num_rows, num_jobs, num_edits, num_draws, num_cuts, num_scored, num_summed;
  bool cuts_twice;          // Some job has both cuts.
  const SampleJob* jobs;    // [Q]
  const int32_t* rows;      // [R] of the logits
  const SampleEdit* edits;  // [E]
  const SampleJob* draws;   // [D]
  const SampleJob* cuts;    // [C]
  const int32_t* scored;    // [S] which of the jobs
  const int32_t* summed;    // [L] places of rows
  const SampleBias* biases;
  const int32_t* masked;
  const uint32_t* words;
  // What the host gets.
  SampleAnswer* answers;  // [Q]
  int32_t* drawn_tokens;  // [Q] or null
  RankedToken* top;
  // What kernels leave each other.
  uint64_t* best;           // [R + E, P] keys
  uint64_t* not_finite;     // [R, P] 2^32 - 1 less the first such id; 0: there is none
  float* edited;            // [E, V]
  float* exp_sums;          // [R, P]
  uint64_t* weights;        // [D, P]
  uint64_t* buckets;        // [C, 2, kNumBuckets] weights and counts
  uint16_t* candidates;     // [C, P * kVocabularyPiece] places in their piece
  int32_t* num_candidates;  // [C, P]
  SampleCut* states;        // [C]
};

cudaError_t CudaSample(const SampleLaunch& launch, cudaStream_t stream);

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_CUDA_SAMPLING_H_
