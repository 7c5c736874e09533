// Damaged copies of good inputs, from a seed: the short run of the fuzzers within the tests.

#ifndef TANDEM_TESTS_FUZZ_MUTATION_H_
#define TANDEM_TESTS_FUZZ_MUTATION_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

// What a clang build with -fsanitize=fuzzer runs for longer: every fuzzer defines it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tandem {

// One to four changes: bytes flipped, cut out, repeated, moved, or replaced by what parsers
// stumble over; or a part of another input.
std::string Mutate(std::string input, const std::vector<std::string>& others,
                   std::mt19937_64& random);

// Gives the fuzzer every input as it is and then `count` mutations.
void RunFuzzer(const std::vector<std::string>& inputs, int count, uint64_t seed);

}  // namespace tandem

#endif  // TANDEM_TESTS_FUZZ_MUTATION_H_
