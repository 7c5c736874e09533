// Row operations: each row is computed by one thread, in 16 lanes with a fixed tree (lane i sums
// elements i, i + 16, …; then lanes i and i + 8 are added, then 4, 2, 1), so a row's bits depend
// on nothing but the row (docs/numerics.md, Rows).
//
// T rows (tokens of a step), E features. Arrays are row-major, contiguous unless a stride is given,
// in the backend's memory. The residual stream is f32; what feeds a Linear is in the compute type.

#ifndef TANDEM_KERNELS_API_ROWS_H_
#define TANDEM_KERNELS_API_ROWS_H_

#include <cstdint>
#include <tuple>

#include "kernels/api/device_ptr.h"
#include "kernels/api/dtype.h"

namespace tandem {

// output = table[ids] (+ position_table[positions]). An id below 0 is one that Sample has left on
// the device: -1 - id is its place in `drawn_tokens`.
template <template <typename> class P>
struct EmbeddingArgsOf {
  P<const int32_t> ids;                     // [T], below the table's rows
  P<const int32_t> drawn_tokens = nullptr;  // SampleArgs has them; read only for ids below 0
  P<const void> table;                      // [vocabulary, E] table_dtype
  P<const int32_t> positions = nullptr;     // [T], read only with a position_table
  P<const void> position_table = nullptr;   // [positions, E] table_dtype, or null
  P<float> output;                          // [T, E]
  int64_t num_rows;                         // T, may be 0
  int64_t features;                         // E
  DType table_dtype;
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.ids, self.drawn_tokens, self.table, self.positions, self.position_table,
                    self.output);
  }
};
using EmbeddingArgs = EmbeddingArgsOf<DevicePtr>;
// How such an id and a place become each other.
[[gnu::always_inline]] constexpr int32_t IdOfDrawn(int32_t place) { return -1 - place; }
// The token of a row, of arguments where they can be read.
template <typename Args>
[[gnu::always_inline]] constexpr int64_t TokenOf(const Args& args, int64_t row) {
  const int32_t id = args.ids[row];
  return id < 0 ? args.drawn_tokens[IdOfDrawn(id)] : id;
}

// output = input / sqrt(mean(input²) + epsilon) · weight.
template <template <typename> class P>
struct RmsNormArgsOf {
  P<const float> input;   // [T, E]
  P<const float> weight;  // [E]
  P<void> output;         // [T, E] output_dtype; may be the input if that is f32
  int64_t num_rows;       // T, may be 0
  int64_t features;       // E
  float epsilon;
  DType output_dtype;
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.input, self.weight, self.output);
  }
};
using RmsNormArgs = RmsNormArgsOf<DevicePtr>;

// output = (input − mean) / sqrt(variance + epsilon) · weight + bias; two passes, biased variance.
template <template <typename> class P>
struct LayerNormArgsOf {
  P<const float> input;   // [T, E]
  P<const float> weight;  // [E]
  P<const float> bias;    // [E]
  P<void> output;         // [T, E] output_dtype; may be the input if that is f32
  int64_t num_rows;       // T, may be 0
  int64_t features;       // E
  float epsilon;
  DType output_dtype;
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.input, self.weight, self.bias, self.output);
  }
};
using LayerNormArgs = LayerNormArgsOf<DevicePtr>;

// What a linear layer makes of its outputs (LinearSpec::activation).
enum class ActivationFunction : uint8_t {
  kSilu,  // x / (1 + exp(−x))
  // 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))): GPT-2's gelu_new, gelu_pytorch_tanh. Computed as
  // x / (1 + exp(−2·√(2/π)·(x + 0.044715·x³))), the same function without cancellation.
  kGeluTanh,
};

// values = cap · tanh(values / cap), element by element: capped logits.
template <template <typename> class P>
struct SoftCapArgsOf {
  P<float> values;  // [count]
  int64_t count;    // may be 0
  float cap;        // above 0
  static constexpr auto Pointers(auto& self) { return std::tie(self.values); }
};
using SoftCapArgs = SoftCapArgsOf<DevicePtr>;

// accumulator += addend, element by element: the residual stream.
template <template <typename> class P>
struct AddArgsOf {
  P<float> accumulator;   // [count]
  P<const float> addend;  // [count]
  int64_t count;          // may be 0
  static constexpr auto Pointers(auto& self) { return std::tie(self.accumulator, self.addend); }
};
using AddArgs = AddArgsOf<DevicePtr>;

// output[i] = input[rows[i]]: the rows that need logits.
template <template <typename> class P>
struct GatherRowsArgsOf {
  P<const void> input;     // [T, E] dtype
  P<const int32_t> rows;   // [R], each below T
  P<void> output;          // [R, E] dtype, overlaps no input
  int64_t num_rows;        // R, may be 0
  int64_t num_input_rows;  // T
  int64_t features;        // E
  DType dtype;
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.input, self.rows, self.output);
  }
};
using GatherRowsArgs = GatherRowsArgsOf<DevicePtr>;

// Vocabulary sums run over fixed pieces of this many ids, each in 16 lanes with the fixed tree,
// merged in order.
inline constexpr int64_t kVocabularyPiece = 4096;

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_ROWS_H_
