// The tiles of AMX in plain C++ (kernels/cpu/amx_tiles.h): what Intel's manual says that each
// instruction does, for machines that have none. What a processor would refuse stops the process.
// Sums of bf16 are as documented where the thread's floating-point environment is that of kernels
// and std::fma is one instruction.

#ifndef TANDEM_TESTS_KERNELS_SOFTWARE_TILES_H_
#define TANDEM_TESTS_KERNELS_SOFTWARE_TILES_H_

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "runtime/base/check.h"

namespace tandem {

class SoftwareTiles {
 public:
  SoftwareTiles() = default;
  ~SoftwareTiles() {
    if (is_configured_) --num_configured_;
  }
  SoftwareTiles(const SoftwareTiles&) = delete;
  SoftwareTiles& operator=(const SoftwareTiles&) = delete;

  // How many threads have tiles that were not released, and how often some were configured.
  static int num_configured() { return num_configured_; }
  static int64_t num_configurations() { return num_configurations_; }

  void Configure(const TileConfig& config) {
    TANDEM_CHECK(config.palette == 1) << int{config.palette};
    TANDEM_CHECK(config.start_row == 0) << int{config.start_row};
    for (const uint8_t byte : config.reserved) TANDEM_CHECK(byte == 0) << int{byte};
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = config.rows[tile], row_bytes = config.row_bytes[tile];
      TANDEM_CHECK(rows <= kAmxTileRows) << "tile " << tile << " has " << rows << " rows";
      TANDEM_CHECK(row_bytes <= kAmxTileRowBytes)
          << "tile " << tile << " has rows of " << row_bytes;
      TANDEM_CHECK((rows == 0) == (row_bytes == 0)) << "tile " << tile << " is neither";
      TANDEM_CHECK(tile < kNumTiles || rows == 0) << "there is no tile " << tile;
      if (tile < kNumTiles) tiles_[tile] = {.rows = rows, .row_bytes = row_bytes};
    }
    if (!is_configured_) ++num_configured_;
    is_configured_ = true;
    ++num_configurations_;
  }

  template <int kTile>
  void Zero() {
    Tile& tile = Configured(kTile);
    tile.bytes = {};
  }

  template <int kTile>
  void Load(const void* from, int64_t stride) {
    Tile& tile = Configured(kTile);
    tile.bytes = {};
    for (int r = 0; r < tile.rows; ++r) {
      std::memcpy(tile.row(r), static_cast<const std::byte*>(from) + r * stride, tile.row_bytes);
    }
  }

  template <int kTile>
  void Store(void* to, int64_t stride) {
    Tile& tile = Configured(kTile);
    for (int r = 0; r < tile.rows; ++r) {
      std::memcpy(static_cast<std::byte*>(to) + r * stride, tile.row(r), tile.row_bytes);
    }
  }

  template <int kSum, int kA, int kB>
  void MultiplyInt8() {
    ForAllSums<kSum, kA, kB>([](uint32_t sum, const uint32_t* a, auto b, int units) {
      for (int u = 0; u < units; ++u) {
        const auto signed_bytes = std::bit_cast<std::array<int8_t, 4>>(a[u]);
        const auto bytes = std::bit_cast<std::array<uint8_t, 4>>(b(u));
        for (int i = 0; i < 4; ++i) sum += static_cast<uint32_t>(signed_bytes[i] * bytes[i]);
      }
      return sum;
    });
  }

  template <int kSum, int kA, int kB>
  void MultiplyBf16() {
    ForAllSums<kSum, kA, kB>([](uint32_t sum, const uint32_t* a, auto b, int units) {
      float even = 0.0f, odd = 0.0f;
      for (int u = 0; u < units; ++u) {
        even = std::fma(std::bit_cast<float>(a[u] << 16), std::bit_cast<float>(b(u) << 16), even);
        odd = std::fma(std::bit_cast<float>(a[u] & 0xFFFF0000u),
                       std::bit_cast<float>(b(u) & 0xFFFF0000u), odd);
      }
      return std::bit_cast<uint32_t>(std::bit_cast<float>(sum) + (even + odd));
    });
  }

 private:
  struct Tile {
    int rows = 0;
    int row_bytes = 0;
    std::array<std::byte, size_t{kAmxTileRows}* kAmxTileRowBytes> bytes = {};
    std::byte* row(int r) { return bytes.data() + r * kAmxTileRowBytes; }
    uint32_t* words(int r) { return reinterpret_cast<uint32_t*>(row(r)); }
  };

  Tile& Configured(int tile) {
    TANDEM_CHECK(is_configured_) << "no tile has been configured";
    TANDEM_CHECK(tile >= 0 && tile < kNumTiles && tiles_[tile].rows > 0) << "tile " << tile;
    return tiles_[tile];
  }

  // Each sum becomes add(sum, row of A, column of B by unit, units).
  template <int kSum, int kA, int kB, typename Add>
  void ForAllSums(Add add) {
    static_assert(kSum != kA && kSum != kB && kA != kB);
    Tile &sum = Configured(kSum), &a = Configured(kA), &b = Configured(kB);
    TANDEM_CHECK(sum.row_bytes % 4 == 0 && a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0);
    TANDEM_CHECK(sum.rows == a.rows) << sum.rows << ", " << a.rows;
    TANDEM_CHECK(sum.row_bytes == b.row_bytes) << sum.row_bytes << ", " << b.row_bytes;
    TANDEM_CHECK(a.row_bytes / 4 == b.rows) << a.row_bytes << ", " << b.rows;
    for (int m = 0; m < sum.rows; ++m) {
      for (int n = 0; n < sum.row_bytes / 4; ++n) {
        const auto column = [&b, n](int unit) { return b.words(unit)[n]; };
        sum.words(m)[n] = add(sum.words(m)[n], a.words(m), column, b.rows);
      }
    }
  }

  inline static std::atomic<int> num_configured_{0};
  inline static std::atomic<int64_t> num_configurations_{0};
  bool is_configured_ = false;
  std::array<Tile, kNumTiles> tiles_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_SOFTWARE_TILES_H_
