// What this machine can do at most, measured beside the kernels: the rate of vdpbf16ps and of FMA
// out of registers, and of reading memory.

#ifndef TANDEM_TESTS_BENCH_KERNELS_MACHINE_LIMITS_H_
#define TANDEM_TESTS_BENCH_KERNELS_MACHINE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace tandem {

// Each runs on the calling thread. Operations: multiplications and additions, so 64 per vdpbf16ps
// and 32 per 512-bit FMA. Only on a machine with AVX-512 BF16.
double RunVdpbf16ps(int64_t iterations);  // returns operations done
double RunFma(int64_t iterations);
// Reads all of it; the result only keeps the reads from being removed.
uint64_t ReadMemory(const void* data, size_t size_bytes);

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_KERNELS_MACHINE_LIMITS_H_
