// The tiles of AMX: eight registers of up to 16 rows of 64 bytes, which are a matrix each.
//
//   NativeTiles tiles;                          // nothing yet; ends with tilerelease
//   tiles.Configure(config);                    // sizes of the tiles; all are zero then
//   tiles.Zero<kTile>();
//   tiles.Load<kTile>(from, stride);            // its rows, `stride` bytes apart
//   tiles.Store<kTile>(to, stride);
//   tiles.MultiplyInt8<kSum, kA, kB>();         // whole numbers: A has a sign, B has none
//   tiles.MultiplyBf16<kSum, kA, kB>();
//
// A tile of words of 4 bytes: A [M][U] and B [U][N] of units, kSum [M][N] of sums, U and N up
// to 16. A unit is four numbers of 8 bits or two of bf16. Sums of 8 bits are exact modulo 2^32. Of
// bf16 each sum has two chains that begin at zero, one over the even numbers and one over the odd
// ones, units ascending, each step a fused multiply-add; then both are added, and what they give to
// the sum. All round to the nearest, with denormals read and written as zero, whatever MXCSR says
// (Intel's manual, TDPBF16PS).
//
// Tiles belong to a thread: the one that configures them. A process needs the kernel's permission
// (kernel_table_x86.cc). kernels/cpu/amx_gemm.inc.h is written over any class with these
// operations; tests have one in plain C++.

#ifndef TANDEM_KERNELS_CPU_AMX_TILES_H_
#define TANDEM_KERNELS_CPU_AMX_TILES_H_

#include <cstdint>

namespace tandem {

inline constexpr int kNumTiles = 8;
inline constexpr int kAmxTileRows = 16;      // at most
inline constexpr int kAmxTileRowBytes = 64;  // at most

// What LDTILECFG reads. A tile without rows is none.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

#if defined(__x86_64__)
namespace {

// Written out, as the compiler's own functions take no tile from a template and do not say which
// memory they read.
class NativeTiles {
 public:
  NativeTiles() = default;
  ~NativeTiles() { __asm__ volatile("tilerelease" ::: "memory"); }
  NativeTiles(const NativeTiles&) = delete;
  NativeTiles& operator=(const NativeTiles&) = delete;

  [[gnu::always_inline]] void Configure(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  template <int kTile>
  [[gnu::always_inline]] void Zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  [[gnu::always_inline]] void Load(const void* from, int64_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0"
                     :
                     : "i"(kTile), "r"(from), "r"(stride)
                     : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void Store(void* to, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)"
                     :
                     : "i"(kTile), "r"(to), "r"(stride)
                     : "memory");
  }
  template <int kSum, int kA, int kB>
  [[gnu::always_inline]] void MultiplyInt8() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
  template <int kSum, int kA, int kB>
  [[gnu::always_inline]] void MultiplyBf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
};

}  // namespace
#endif  // __x86_64__

}  // namespace tandem

#endif  // TANDEM_KERNELS_CPU_AMX_TILES_H_
