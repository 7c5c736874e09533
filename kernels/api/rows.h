// Row operations: each row is computed by one thread, in 16 lanes with a fixed tree (lane i sums
// elements i, i + 16, …; then lanes i and i + 8 are added, then 4, 2, 1), so a row's bits depend
// on nothing but the row (docs/numerics.md, Rows).
//
// T rows (tokens of a step), E features. Arrays are row-major, contiguous unless a stride is given,
// in the backend's memory. The residual stream is f32; what feeds a Linear is in the compute type.

#ifndef TANDEM_KERNELS_API_ROWS_H_
#define TANDEM_KERNELS_API_ROWS_H_

#include <cstdint>

#include "kernels/api/dtype.h"

namespace tandem {

// output = table[ids] (+ position_table[positions]).
struct EmbeddingArgs {
  const int32_t* ids;                    // [T], below the table's rows
  const void* table;                     // [vocabulary, E] table_dtype
  const int32_t* positions = nullptr;    // [T], read only with a position_table
  const void* position_table = nullptr;  // [positions, E] table_dtype, or null
  float* output;                         // [T, E]
  int64_t num_rows;                      // T, may be 0
  int64_t features;                      // E
  DType table_dtype;
};

// output = input / sqrt(mean(input²) + epsilon) · weight.
struct RmsNormArgs {
  const float* input;   // [T, E]
  const float* weight;  // [E]
  void* output;         // [T, E] output_dtype; may be the input if that is f32
  int64_t num_rows;     // T, may be 0
  int64_t features;     // E
  float epsilon;
  DType output_dtype;
};

// output = (input − mean) / sqrt(variance + epsilon) · weight + bias; two passes, biased variance.
struct LayerNormArgs {
  const float* input;   // [T, E]
  const float* weight;  // [E]
  const float* bias;    // [E]
  void* output;         // [T, E] output_dtype; may be the input if that is f32
  int64_t num_rows;     // T, may be 0
  int64_t features;     // E
  float epsilon;
  DType output_dtype;
};

// output = silu(gate) · up, silu(x) = x / (1 + exp(−x)).
struct SwiGluArgs {
  const void* gate;      // [T, E] input_dtype, rows input_stride apart
  const void* up;        // [T, E] input_dtype, rows input_stride apart
  int64_t input_stride;  // elements; 2E when gate and up are one fused projection
  void* output;          // [T, E] output_dtype, overlaps no input
  int64_t num_rows;      // T, may be 0
  int64_t features;      // E
  DType input_dtype;
  DType output_dtype;
};

// GPT-2's gelu_new: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), computed as
// x / (1 + exp(−2·√(2/π)·(x + 0.044715·x³))), which is the same function without cancellation.
struct GeluArgs {
  const void* input;  // [T, E] input_dtype
  void* output;       // [T, E] output_dtype; may be the input if the types are equal
  int64_t num_rows;   // T, may be 0
  int64_t features;   // E
  DType input_dtype;
  DType output_dtype;
};

// accumulator += addend, element by element: the residual stream.
struct AddArgs {
  float* accumulator;   // [count]
  const float* addend;  // [count]
  int64_t count;        // may be 0
};

// output[i] = input[rows[i]]: the rows that need logits.
struct GatherRowsArgs {
  const void* input;       // [T, E] dtype
  const int32_t* rows;     // [R], each below T
  void* output;            // [R, E] dtype, overlaps no input
  int64_t num_rows;        // R, may be 0
  int64_t num_input_rows;  // T
  int64_t features;        // E
  DType dtype;
};

// Vocabulary sums run over fixed pieces of this many ids, merged in order.
inline constexpr int64_t kVocabularyPiece = 4096;

// max[r] = largest logit; log_sum[r] = log Σ exp(logit − max). The log-probability of an id is
// (logit − max) − log_sum, in this order: LogProbability() in vector_math.h. Every piece of 4,096
// ids is summed in 16 lanes with the fixed tree; pieces are added in order.
// A logit of −∞ is a masked id. A row of only −∞, or with a NaN, gives NaN.
struct LogSoftmaxArgs {
  const float* logits;                 // [R, V]
  float* max;                          // [R]
  float* log_sum;                      // [R]
  float* log_probabilities = nullptr;  // [R, V] or null; may be `logits`
  int64_t num_rows;                    // R, may be 0
  int64_t vocabulary;                  // V
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_ROWS_H_
