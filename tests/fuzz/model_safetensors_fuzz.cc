// libFuzzer's way in.

#include <cstddef>
#include <cstdint>

#include "tests/fuzz/model_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::FuzzSafetensors({data, size});
  return 0;
}
