// What this machine can do at most, measured beside the kernels: the rates of the instructions that
// a path multiplies with, out of registers, and of reading memory.

#ifndef TANDEM_TESTS_BENCH_KERNELS_MACHINE_LIMITS_H_
#define TANDEM_TESTS_BENCH_KERNELS_MACHINE_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

// Each runs on the calling thread and returns the operations done: a multiplication and an addition
// for each product. Only on a machine that has the instruction set.

// Fused multiply-adds in the widest registers of `isa` (a name of KnownIsas()); multiplications and
// additions apart for "generic".
double RunMultiplyAdds(std::string_view isa, int64_t iterations);
double RunVdpbf16ps(int64_t iterations);  // AVX-512 BF16
// Products of 8 bits, summed: by vpdpbusd where the path has it ("..vnni", "avx512bf16" and "amx"),
// else by vpmaddwd, which takes them as 16 bits, and an addition; for "generic" RunMultiplyAdds.
double RunInt8Products(std::string_view isa, int64_t iterations);
// By tiles of AMX, in a process that may use them: it has kernels of "amx" or of kTiles.
double RunInt8Tiles(int64_t iterations);
double RunBf16Tiles(int64_t iterations);

// Reads all of it; the result only keeps the reads from being removed.
uint64_t ReadMemory(const void* data, size_t size_bytes);

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_KERNELS_MACHINE_LIMITS_H_
