// How a sub-tile of KV (kv_tile.h) lies in shared memory for the tensor cores, and what a lane
// gives products of it: numbers of bf16. Those of 8 bits are widened on the way, which rounds
// nothing: 8-bit floats are among those of bf16; q alone has 7 bits; with a scale of a group, a
// power of two, it has no more.
//
// Pieces of 16 bytes are moved so that lanes find theirs in different banks. A slice is what
// sixteen numbers of each token have of a sub-tile of V.

#ifndef TANDEM_KERNELS_CUDA_TENSOR_KV_H_
#define TANDEM_KERNELS_CUDA_TENSOR_KV_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/simt.h"

namespace tandem {

// What a lane gives two products, of even columns and of odd ones. Columns are tokens of K, or
// numbers of V; a lane has two words of either, its pairs of the sixteen that are summed.
struct LanePairs {
  uint32_t even[2];
  uint32_t odd[2];
};

// The numbers of a product are summed by the lanes of a column, four each: lane % 4.
__device__ __forceinline__ int SumLane() { return static_cast<int>(threadIdx.x) % 4; }
// Two columns are a lane's: 2 · this and the next.
__device__ __forceinline__ int ColumnLane() { return static_cast<int>(threadIdx.x) % 32 / 4; }

// What sub-tiles of K and V are, with heads of kHeadDim numbers.
template <typename Kv, int kHeadDim>
struct TensorKv;

template <int kHeadDim>
struct TensorKv<Bf16Kv, kHeadDim> {
  static constexpr int kPieces = Bf16Kv::SubTileBytes(kHeadDim) / 16;
  static constexpr int kRingBytes = kPieces * 16;
  static constexpr int kScalesAt = 0;  // It has none of tokens.
  // Where piece `piece` of a sub-tile of K, or V, lies.
  __device__ static int PieceAt(bool is_value, int piece) {
    constexpr int kValuePieces = kHeadDim / 4;  // of two positions
    const int moved = is_value ? piece ^ piece / kValuePieces : piece ^ piece / 8 % 2 * 2;
    return moved * 16;
  }
  // Dimensions 16 · step and so on.
  __device__ static LanePairs Keys(SharedPtr<std::byte> k, int step) {
    const int lane = threadIdx.x % 32;
    const int at = lane % 4 * 64 + ((lane / 8) ^ (lane % 4 / 2 * 2)) * 16 + lane / 4 % 2 * 8;
    return PairsAt(k + at + step * 512, k + at + step * 512 + 256);
  }
  __device__ static LanePairs Values(SharedPtr<std::byte> v, int step) {
    const int lane = threadIdx.x % 32;
    const int pair = lane % 4 * 2;
    const auto at = [&](int p) {
      return p * kHeadDim * 4 + ((step % 2 * 4 + lane / 8) ^ p) * 16 + lane / 4 % 2 * 8 +
             step / 2 * 128;
    };
    return PairsAt(v + at(pair), v + at(pair + 1));
  }

  static constexpr int kPairPieces = 4;  // of a slice, for two positions
  static constexpr int kSlicePieces = kKvSubTileTokens / 2 * kPairPieces;
  static constexpr int kSliceBytes = kSlicePieces * 16;
  // Where a piece of the slice-th slice is in the sub-tile, and where it lies in the slice.
  __device__ static int SliceFrom(int slice, int piece) {
    return piece / kPairPieces * kHeadDim * 4 + (slice * kPairPieces + piece % kPairPieces) * 16;
  }
  __device__ static int SlicePieceAt(int piece) {
    const int pair = piece / kPairPieces;
    return ((pair / 2 + pair % 2 * 4) * kPairPieces + (piece % kPairPieces ^ (pair / 4 * 2))) * 16;
  }
  __device__ static LanePairs SliceValues(SharedPtr<std::byte> slice) {
    const int lane = threadIdx.x % 32;
    const auto at = [&](int pair) {
      return SlicePieceAt(pair * kPairPieces + lane / 8) + lane / 4 % 2 * 8;
    };
    return PairsAt(slice + at(lane % 4 * 2), slice + at(lane % 4 * 2 + 1));
  }

 private:
  __device__ static LanePairs PairsAt(SharedPtr<std::byte> first, SharedPtr<std::byte> second) {
    const uint2 low = SharedCast<uint2>(first)[0];
    const uint2 high = SharedCast<uint2>(second)[0];
    return {{low.x, high.x}, {low.y, high.y}};
  }
};

// Bytes of two columns, of each of the four numbers that a lane has of them, become pairs.
// scale(i, column) is that of the i-th, column 0 or 1.
template <typename Scale>
__device__ __forceinline__ LanePairs WidenPairs(const uint32_t (&bytes)[4], const Scale& scale) {
  float columns[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    columns[0][i] = FloatOfInt8(bytes[i] & 0xFFu) * scale(i, 0);
    columns[1][i] = FloatOfInt8(bytes[i] >> 8) * scale(i, 1);
  }
  return {{UpperHalves(columns[0][0], columns[0][1]), UpperHalves(columns[0][2], columns[0][3])},
          {UpperHalves(columns[1][0], columns[1][1]), UpperHalves(columns[1][2], columns[1][3])}};
}
__device__ __forceinline__ uint32_t TwoBytes(SharedPtr<std::byte> from) {
  return SharedCast<uint16_t>(from)[0];
}

// The same of 8-bit floats.
__device__ __forceinline__ LanePairs PairsOfE4m3(const uint32_t (&bytes)[4]) {
  const uint32_t low = bytes[0] | bytes[1] << 16;
  const uint32_t high = bytes[2] | bytes[3] << 16;
  return {{PairOfE4m3(low << 8), PairOfE4m3(high << 8)}, {PairOfE4m3(low), PairOfE4m3(high)}};
}

// A byte a number: int8 and fp8.
template <typename Kv, int kHeadDim>
struct ByteTensorKv {
  static constexpr int kPieces = Kv::SubTileBytes(kHeadDim) / 16;
  static constexpr int kRingBytes = kPieces * 16;
  static constexpr int kScalesAt = Kv::NumberBytes(kHeadDim);  // of tokens, if they have some
  __device__ static int PieceAt(bool is_value, int piece) {
    constexpr int kVectorPieces = kHeadDim / 4;  // of four positions
    return (is_value && piece < kHeadDim ? piece ^ piece / kVectorPieces : piece) * 16;
  }
  __device__ static LanePairs Keys(SharedPtr<std::byte> k, int step) {
    const SharedPtr<std::byte> from = k + (step * 16 + SumLane() * 2) * 16 + ColumnLane() * 2;
    return Widened(
        {TwoBytes(from), TwoBytes(from + 16), TwoBytes(from + 128), TwoBytes(from + 144)});
  }
  __device__ static LanePairs Values(SharedPtr<std::byte> v, int step) {
    return OfVector(v + SumLane() * (kHeadDim * 4) + step * 64);
  }
  static constexpr int kSlicePieces = kKvSubTileTokens;
  static constexpr int kSliceBytes = kSlicePieces * 16;
  __device__ static int SliceFrom(int slice, int piece) {
    return piece / Kv::kTokens * kHeadDim * 4 + (slice * Kv::kTokens + piece % Kv::kTokens) * 16;
  }
  __device__ static int SlicePieceAt(int piece) { return (piece ^ piece / Kv::kTokens) * 16; }
  __device__ static LanePairs SliceValues(SharedPtr<std::byte> slice) {
    return OfVector(slice + SumLane() * 64);
  }

 private:
  // Four positions of sixteen numbers.
  __device__ static LanePairs OfVector(SharedPtr<std::byte> vector) {
    const auto at = [&](int token) {
      return TwoBytes(vector + (token ^ SumLane()) * 16 + ColumnLane() * 2);
    };
    return Widened({at(0), at(1), at(2), at(3)});
  }
  __device__ static LanePairs Widened(const uint32_t (&bytes)[4]) {
    if constexpr (Kv::kType == KvType::kFp8) return PairsOfE4m3(bytes);
    return WidenPairs(bytes, [](int, int) { return 1.0f; });
  }
};
template <int kHeadDim>
struct TensorKv<Int8Kv, kHeadDim> : ByteTensorKv<Int8Kv, kHeadDim> {};
template <int kHeadDim>
struct TensorKv<Fp8Kv, kHeadDim> : ByteTensorKv<Fp8Kv, kHeadDim> {};

template <int kHeadDim>
struct TensorKv<GroupedKv, kHeadDim> {
  static constexpr int kPieces = GroupedKv::SubTileBytes(kHeadDim) / 16;
  static constexpr int kVectorPieces = GroupedKv::kVectorBytes / 16;
  static constexpr int kHalfPieces = kPieces / 2;  // of eight positions of V
  // So that the halves' pieces are in different banks.
  static constexpr int kPadPieces = kHalfPieces % 4 == 2 ? 0 : 2;
  static constexpr int kRingBytes = (kPieces + kPadPieces) * 16;
  static constexpr int kScalesAt = 0;  // It has none of tokens.
  __device__ static int PieceAt(bool is_value, int piece) {
    return (is_value && piece >= kHalfPieces ? piece + kPadPieces : piece) * 16;
  }
  __device__ static LanePairs Keys(SharedPtr<std::byte> k, int step) {
    const SharedPtr<std::byte> low = k + GroupedKv::KeyVectorAt(step * 16) + ColumnLane() * 2;
    const SharedPtr<std::byte> high = k + GroupedKv::KeyVectorAt(step * 16 + 8) + ColumnLane() * 2;
    const int at = GroupedKv::kScaleBytes + SumLane() * 32;
    const uint32_t scales[2] = {TwoBytes(low), TwoBytes(high)};
    return WidenPairs({TwoBytes(low + at), TwoBytes(low + at + 16), TwoBytes(high + at),
                       TwoBytes(high + at + 16)},
                      [&](int i, int column) { return ScaleOf(scales[i / 2], column); });
  }
  __device__ static LanePairs Values(SharedPtr<std::byte> v, int step) {
    return OfVector(v + SumLane() / 2 * ((kHalfPieces + kPadPieces) * 16) +
                    step * GroupedKv::kVectorBytes);
  }

  static constexpr int kSlicePieces = 2 * kVectorPieces;
  static constexpr int kSliceBytes = kSlicePieces * 16;
  __device__ static int SliceFrom(int slice, int piece) {
    return (piece / kVectorPieces * kHalfPieces + slice * kVectorPieces + piece % kVectorPieces) *
           16;
  }
  __device__ static int SlicePieceAt(int piece) { return piece * 16; }
  __device__ static LanePairs SliceValues(SharedPtr<std::byte> slice) {
    return OfVector(slice + SumLane() / 2 * GroupedKv::kVectorBytes);
  }

 private:
  __device__ static float ScaleOf(uint32_t bytes, int index) {
    return Int8GroupScaleToFloat(static_cast<uint8_t>(bytes >> (8 * index)));
  }
  // The lane's four of a vector of eight positions. A column's scales are every other byte.
  __device__ static LanePairs OfVector(SharedPtr<std::byte> vector) {
    const int first = SumLane() % 2 * 4;
    const uint2 scales = SharedCast<uint2>(vector)[SumLane() % 2];
    const int shift = ColumnLane() / 4 * 8;
    const uint32_t of_group[2] = {scales.x >> shift, scales.y >> shift};
    const SharedPtr<std::byte> from =
        vector + GroupedKv::kScaleBytes + first * 16 + ColumnLane() * 2;
    return WidenPairs(
        {TwoBytes(from), TwoBytes(from + 16), TwoBytes(from + 32), TwoBytes(from + 48)},
        [&](int i, int) { return ScaleOf(of_group[i / 2], i % 2 * 2); });
  }
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_CUDA_TENSOR_KV_H_
