// What the emulation knows of a block's threads, and of each word of its shared memory (block.cc).

#ifndef TANDEM_KERNELS_CUDA_EMULATED_SHADOW_H_
#define TANDEM_KERNELS_CUDA_EMULATED_SHADOW_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/emulated/block.h"

namespace tandem::emulated {

inline constexpr size_t kWordBytes = 4;
inline constexpr int kNobody = -1;
inline constexpr int kMany = -2;

struct PendingCopy {
  int thread;
  uint32_t time;  // of the thread
  size_t offset;
  const void* from;
  size_t bytes;
  size_t there;  // that are copied; behind them are zeros
};

// Times of all threads up to which somebody knows what they did (a vector clock).
using Known = std::vector<uint32_t>;

inline void Learn(const Known& from, Known* to) {
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] = std::max((*to)[i], from[i]);
}

struct Phases {
  int arrivals = 0;  // of a phase
  int awaited = 0;   // of the running one
  uint64_t ended = 0;
  std::vector<PendingCopy> copies;
  Known arrived;  // what those know who have arrived
  Known at_end;   // of the phase before
};

struct Warp {
  uint64_t meetings = 0;  // how often its threads have met
  uint64_t epoch = 0;     // at how many of these their memory was put in order
  uint32_t arrived = 0;
  // Threads that have met may be a meeting apart.
  std::array<std::array<std::byte, kMaxExchangeBytes * kWarpThreads>, 2> slots;
};

// When a thread touched a word.
struct Touch {
  int thread = kNobody;  // or kMany
  int warp = kNobody;    // kMany: of several
  uint64_t block_epoch = 0;
  uint64_t warp_epoch = 0;
  uint32_t time = 0;
  bool adds = false;
};

// Lanes of a warp that have read a word at one time of theirs, the latest.
struct WarpReads {
  uint32_t lanes = 0;
  uint32_t time = 0;
  uint64_t block_epoch = 0;
};

// The shadow of four bytes.
struct Word {
  uint64_t block = 0;  // of whom the rest is
  Touch write;
  Touch read;
  bool written = false;
  int in_flight = kNobody;  // the thread whose copy is to fill it
  size_t fences = 0;        // FenceAsyncReads calls of its writer before that
  int products = 0;         // of warpgroups that are under way and read it
};

// Blocks of one thread of the host use the same memory, one after the other. Epochs are those of
// all of them, so that what one has left is of an epoch long past.
struct Memory {
  std::vector<std::byte> bytes;
  std::vector<Word> words;
  std::vector<WarpReads> reads;
  uint64_t epoch = 0;
};
inline Memory& TheMemory() {
  static thread_local Memory memory;
  return memory;
}

}  // namespace tandem::emulated

#endif  // TANDEM_KERNELS_CUDA_EMULATED_SHADOW_H_
