// Which files of a model folder model_fuzzer.cc reads, and how many it has accepted.

#ifndef TANDEM_TESTS_FUZZ_MODEL_FUZZER_H_
#define TANDEM_TESTS_FUZZ_MODEL_FUZZER_H_

#include <cstdint>

namespace tandem {

// The first byte of an input, modulo kNumModelFiles.
enum class ModelFile : uint8_t {
  kSafetensors,       // A whole file.
  kSafetensorsIndex,  // model.safetensors.index.json
  kConfig,            // config.json
  kGenerationConfig,  // generation_config.json
};
inline constexpr int kNumModelFiles = 4;

// So far, so that a test sees that mutations reach behind the JSON parser.
int64_t NumAcceptedModelFiles();

}  // namespace tandem

#endif  // TANDEM_TESTS_FUZZ_MODEL_FUZZER_H_
