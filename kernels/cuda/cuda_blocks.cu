#include "kernels/cuda/cuda_blocks.h"

#include <cuda_runtime.h>

#include "kernels/cuda/simt.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kTableSize = 256;
constexpr uint32_t kPolynomial = 0x82F63B78u;  // Reflected.
constexpr uint32_t kOne = 0x80000000u;         // The polynomial 1: the highest bit is x^0.
constexpr uint32_t kXToThe8 = kOne >> 8;

// a · b modulo the polynomial.
__device__ uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// The register after so many bytes of zeros.
__device__ uint32_t AfterZeros(uint32_t crc, size_t bytes) {
  uint32_t power = kXToThe8;
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) crc = Multiply(power, crc);
    power = Multiply(power, power);
  }
  return crc;
}

// One block of threads a KV block; each thread has a piece, whose register is carried over what
// follows: the sum of these is the whole's.
__global__ void TANDEM_THREADS(kThreads, 1) ChecksumKernel(ChecksumLaunch launch) {
  BeginLaunch();
  const SharedPtr<uint32_t> table = SharedCast<uint32_t>(SharedMemory());  // [4, kTableSize]
  const SharedPtr<uint32_t> parts = table + 4 * kTableSize;                // [warp]
  const int thread = threadIdx.x;
  // table[j][byte]: the register after the byte and j zeros.
  uint32_t crc = thread;
  for (int j = 0; j < 4; ++j) {
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[j * kTableSize + thread] = crc;
  }
  __syncthreads();

  const size_t size = launch.block_stride_bytes;
  const size_t piece = (size / 4 + kThreads - 1) / kThreads * 4;
  const size_t begin = thread * piece < size ? thread * piece : size;
  const size_t end = begin + piece < size ? begin + piece : size;
  const std::byte* const block =
      launch.base + static_cast<size_t>(launch.blocks[blockIdx.x]) * size;
  crc = thread == 0 ? 0xFFFFFFFFu : 0;
  for (size_t at = begin; at < end; at += 4) {
    crc ^= *reinterpret_cast<const uint32_t*>(block + at);
    crc = table[3 * kTableSize + (crc & 255)] ^ table[2 * kTableSize + ((crc >> 8) & 255)] ^
          table[kTableSize + ((crc >> 16) & 255)] ^ table[crc >> 24];
  }
  crc = AfterZeros(crc, size - end);
  for (int step = 16; step > 0; step /= 2) crc ^= __shfl_xor_sync(0xFFFFFFFFu, crc, step);
  if (thread % 32 == 0) parts[thread / 32] = crc;
  __syncthreads();
  if (thread != 0) return;
  crc = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) crc ^= parts[warp];
  launch.checksums[blockIdx.x] = ~crc;
}

}  // namespace

cudaError_t CudaChecksumBlocks(const ChecksumLaunch& launch, cudaStream_t stream) {
  return Launch(ChecksumKernel,
                {.blocks = launch.count,
                 .threads = kThreads,
                 .shared_bytes = sizeof(uint32_t) * (4 * kTableSize + kThreads / 32)},
                stream, launch);
}

}  // namespace tandem
