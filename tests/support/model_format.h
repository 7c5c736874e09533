// Which numbers a model of a test is made of, in one word.

#ifndef TANDEM_TESTS_SUPPORT_MODEL_FORMAT_H_
#define TANDEM_TESTS_SUPPORT_MODEL_FORMAT_H_

#include <string>

#include "runtime/model/model.h"

namespace tandem {

// "f32" or "bf16"; or either with what matrices are kept in, "bf16_int8" or "bf16_int4".
inline ModelOptions InFormat(const std::string& folder, const std::string& format) {
  const size_t end = format.find('_');
  return {.folder = folder,
          .dtype = format.substr(0, end),
          .weights = end == std::string::npos ? "auto" : format.substr(end + 1)};
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_MODEL_FORMAT_H_
