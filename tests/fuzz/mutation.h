// Damaged copies of good inputs, from a seed: the short run of the fuzzers within the tests.

#ifndef TANDEM_TESTS_FUZZ_MUTATION_H_
#define TANDEM_TESTS_FUZZ_MUTATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// What libFuzzer runs for longer (tools/dev/fuzz): every fuzzer defines it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tandem {

// Gives the fuzzer every input as it is and then `count` mutations: one to four changes, which are
// bytes and bits flipped, stretches cut out, repeated or moved, numbers replaced, what parsers
// stumble over, or a part of another input. With TANDEM_FUZZ_CORPUS in the environment it also
// leaves the inputs in that folder, for libFuzzer to begin with.
void RunFuzzer(const std::vector<std::string>& inputs, int count, uint64_t seed);

}  // namespace tandem

#endif  // TANDEM_TESTS_FUZZ_MUTATION_H_
