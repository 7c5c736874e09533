// Which blocks the tokens to come still read, where every layer of the model has a sliding window.
// The others are given back while their sequence runs.

#ifndef TANDEM_RUNTIME_KV_CACHE_KV_WINDOW_H_
#define TANDEM_RUNTIME_KV_CACHE_KV_WINDOW_H_

#include <algorithm>
#include <cstdint>

#include "runtime/base/math.h"

namespace tandem {

// A value.
struct KvWindow {
  int64_t tokens = 0;  // Positions that a token sees, itself too, in the layer that sees most; 0:
                       // some layer sees all.
  int32_t block_tokens = 16;

  // The first block that the token at `position`, or any later one, sees.
  int32_t FirstBlock(int64_t position) const {
    if (tokens == 0) return 0;
    return static_cast<int32_t>(std::max<int64_t>(0, position + 1 - tokens) / block_tokens);
  }

  // The most blocks that a sequence of so many tokens holds at a time, if a step computes at most
  // `step_tokens` of it. One more than a step sees is not named yet when the next is begun.
  int64_t MostBlocks(int64_t num_tokens, int64_t step_tokens) const {
    const int64_t all = CeilDiv<int64_t>(num_tokens, block_tokens);
    if (tokens == 0) return all;
    return std::min(all, CeilDiv<int64_t>(tokens + step_tokens, block_tokens) + 2);
  }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_KV_CACHE_KV_WINDOW_H_
