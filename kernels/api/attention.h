// Rotary embedding, KV writes and paged attention.
//
// Block tables follow PagedAttention (Kwon et al., SOSP 2023); the running maximum and sum are
// online softmax (Milakov & Gimelshein, 2018).
//
// The order of every sum is fixed by docs/numerics.md: tiles of 64 positions aligned to position
// 0, in order within segments of 1,024 positions, segments merged left to right. Decode and prefill
// attention give a row the same bits, whatever the batch, the chunk and the block size. Positions
// that a window hides are masked as later ones are; tiles and segments without a visible position
// are left out, which changes no bit.

#ifndef TANDEM_KERNELS_API_ATTENTION_H_
#define TANDEM_KERNELS_API_ATTENTION_H_

#include <cstdint>
#include <tuple>

#include "kernels/api/device_ptr.h"
#include "kernels/api/dtype.h"
#include "kernels/api/kv_pool.h"

namespace tandem {

inline constexpr int kAttentionTileTokens = 64;
inline constexpr int kAttentionSegmentTokens = 1024;
inline constexpr int kMaxAttentionHeadDim = 256;

// The first position that a token sees, of the last `window` of `num_tokens`; all of them if that
// is 0. Inlined, as files for one instruction set must leave no shared symbol behind.
[[gnu::always_inline]] constexpr int64_t FirstVisible(int64_t num_tokens, int64_t window) {
  return window == 0 || num_tokens <= window ? 0 : num_tokens - window;
}

// Letters of this file. T tokens of a step, S sequences, H query heads, G KV heads, D head size,
// B tokens per block, N blocks in the pool, M block table width.
// Arrays are row-major, contiguous unless a stride is given, in the backend's memory.

// cos and sin of position × inv_freq (product rounded to float, as Transformers does), times
// `scale`. Once per step, for all layers.
template <template <typename> class P>
struct RotaryTableArgsOf {
  P<const int32_t> positions;  // [T], 0 or more
  P<const float> inv_freq;     // [D / 2]
  P<float> cos;                // [T, D / 2]
  P<float> sin;                // [T, D / 2]
  float scale = 1.0f;          // attention factor of a scaled rotary embedding
  int64_t num_tokens;          // T, may be 0
  int head_dim;                // D, even
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.positions, self.inv_freq, self.cos, self.sin);
  }
};
using RotaryTableArgs = RotaryTableArgsOf<DevicePtr>;

// Takes the f32 outputs of the QKV projection; norms each head of Q and K if there are norms (as
// RmsNorm does a row); rotates Q and K (the rotate-half convention of Transformers: d pairs with
// d + D/2); writes Q in the compute type, K and V to their blocks in the KV type, each rounded
// exactly once.
template <template <typename> class P>
struct RotaryKvWriteArgsOf {
  P<const float> query;          // [T, H, D], rows input_stride apart
  P<const float> key;            // [T, G, D], rows input_stride apart
  P<const float> value;          // [T, G, D], rows input_stride apart
  int64_t input_stride;          // floats; (H + 2G) · D when the three are one fused projection
  P<const float> cos = nullptr;  // [T, D / 2] of RotaryTable; both null: no rotation (GPT-2)
  P<const float> sin = nullptr;  // [T, D / 2]
  P<const float> query_norm = nullptr;  // [D] weight of the norm of a query's head; both null: none
  P<const float> key_norm = nullptr;    // [D]
  float norm_epsilon = 0.0f;            // of both norms
  P<const int64_t> slots;               // [T] block · B + offset in the block, all different
  KvLayerViewOf<P> kv;                  // written
  P<void> query_out;                    // [T, H, D] compute_dtype, overlaps no input
  int64_t num_tokens;                   // T, may be 0
  int num_heads;                        // H
  DType compute_dtype;                  // of the attention that follows
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.query, self.key, self.value, self.cos, self.sin, self.query_norm,
                    self.key_norm, self.slots, self.kv.base, self.query_out);
  }
};
using RotaryKvWriteArgs = RotaryKvWriteArgsOf<DevicePtr>;

// One query token per sequence, its own K and V already written. With a window W it sees the last W
// of its cached tokens; entries of the block table for blocks without any of them are not read.
// Table and counts were uploaded: no operation writes them, so that none is waited for.
template <template <typename> class P>
struct DecodeAttentionArgsOf {
  P<const void> query;           // [S, H, D] compute_dtype
  KvLayerViewOf<P> kv;           // read
  P<const int32_t> block_table;  // [S, M] block ids; entries past the end are not read
  P<const int32_t> num_tokens;   // [S] cached tokens, own included: 1 to M · B
  P<void> output;                // [S, H, D] compute_dtype, overlaps no input
  int64_t num_sequences;         // S, may be 0
  int64_t max_blocks;            // M
  int num_heads;                 // H
  DType compute_dtype;           // softmax weights are rounded to it before they multiply V
  float softmax_scale;           // usually 1 / sqrt(D)
  float score_cap = 0.0f;        // scaled scores become cap · tanh(score / cap); 0: no cap
  int64_t window = 0;            // W; 0: all are seen
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.query, self.kv.base, self.block_table, self.num_tokens, self.output);
  }
};
using DecodeAttentionArgs = DecodeAttentionArgsOf<DevicePtr>;

// Runs of query tokens, causal: token i of sequence s sees num_cached[s] + i + 1 tokens, with a
// window W the last W of them. K and V of the run itself are already written. Entries of the block
// table for blocks that no token of the run sees are not read.
template <template <typename> class P>
struct PrefillAttentionArgsOf {
  // [T, H, D] compute_dtype, sequence s has rows query_start[s] to query_start[s+1]
  P<const void> query;
  KvLayerViewOf<P> kv;           // read
  P<const int32_t> block_table;  // [S, M] block ids; entries past the end are not read
  P<const int32_t> query_start;  // [S + 1], ascending from 0 to T; empty runs are allowed
  P<const int32_t> num_cached;   // [S] tokens cached before the run
  P<void> output;                // [T, H, D] compute_dtype, overlaps no input
  int64_t num_sequences;         // S, may be 0
  int64_t max_blocks;            // M
  int num_heads;                 // H
  DType compute_dtype;           // as in DecodeAttentionArgs
  float softmax_scale;
  float score_cap = 0.0f;  // as in DecodeAttentionArgs
  int64_t window = 0;      // W; 0: all are seen
  static constexpr auto Pointers(auto& self) {
    return std::tie(self.query, self.kv.base, self.block_table, self.query_start, self.num_cached,
                    self.output);
  }
};
using PrefillAttentionArgs = PrefillAttentionArgsOf<DevicePtr>;

// Copies whole blocks, all layers (copy-on-write). Destinations differ from each other and from
// all sources. The arrays are the host's and are read before the call returns.
template <template <typename> class P>
struct CopyBlocksArgsOf {
  P<std::byte> base;            // of block 0
  size_t block_stride_bytes;    // and bytes copied per block
  const int32_t* sources;       // [count], of the host
  const int32_t* destinations;  // [count], of the host
  int64_t count;
  static constexpr auto Pointers(auto& self) { return std::tie(self.base); }
};
using CopyBlocksArgs = CopyBlocksArgsOf<DevicePtr>;

// checksums[i] = CRC-32C of all of blocks[i], as it lies there: they are there when the call
// returns, which waits for nothing that is enqueued. What was to write there has been waited for.
template <template <typename> class P>
struct ChecksumBlocksArgsOf {
  P<const std::byte> base;    // of block 0
  size_t block_stride_bytes;  // and bytes of each block
  const int32_t* blocks;      // [count], of the host
  uint32_t* checksums;        // [count], of the host
  int64_t count;              // may be 0
  static constexpr auto Pointers(auto& self) { return std::tie(self.base); }
};
using ChecksumBlocksArgs = ChecksumBlocksArgsOf<DevicePtr>;

// What is in these blocks is over: nobody reads it again. A backend need not do anything; one for
// tests overwrites it with NaNs, before the call returns, as the next to write there may be a
// transport.
template <template <typename> class P>
struct DiscardBlocksArgsOf {
  P<std::byte> base;          // of block 0
  size_t block_stride_bytes;  // and bytes of each block
  const int32_t* blocks;      // [count], of the host
  int64_t count;              // may be 0
  static constexpr auto Pointers(auto& self) { return std::tie(self.base); }
};
using DiscardBlocksArgs = DiscardBlocksArgsOf<DevicePtr>;

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_ATTENTION_H_
