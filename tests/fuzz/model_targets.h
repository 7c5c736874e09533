// What the fuzzers of a model folder's files run: one function a parser. Each parses arbitrary
// bytes and checks what an accepted document promises; a broken promise stops the process.

#ifndef TANDEM_TESTS_FUZZ_MODEL_TARGETS_H_
#define TANDEM_TESTS_FUZZ_MODEL_TARGETS_H_

#include <cstdint>
#include <span>

namespace tandem {

// True if the document was accepted.
using FuzzTarget = bool (*)(std::span<const uint8_t> input);

bool FuzzSafetensors(std::span<const uint8_t> input);       // A whole file.
bool FuzzSafetensorsIndex(std::span<const uint8_t> input);  // model.safetensors.index.json
bool FuzzModelConfig(std::span<const uint8_t> input);       // config.json
bool FuzzGenerationConfig(std::span<const uint8_t> input);  // generation_config.json

}  // namespace tandem

#endif  // TANDEM_TESTS_FUZZ_MODEL_TARGETS_H_
