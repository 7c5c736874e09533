// Which numbers a model of a test is made of, in one word.

#ifndef TANDEM_TESTS_SUPPORT_MODEL_FORMAT_H_
#define TANDEM_TESTS_SUPPORT_MODEL_FORMAT_H_

#include <string>

#include "runtime/model/model.h"

namespace tandem {

// "f32" or "bf16"; or either with what matrices are kept in, "bf16_int8" or "bf16_int4", all or all
// but the output projection, "bf16_int8_output", all but inputs from 6 on, "bf16_int8_outliers6",
// or KV, "bf16_kvint8".
inline ModelOptions InFormat(const std::string& folder, const std::string& format) {
  const size_t end = format.find('_');
  ModelOptions options{.folder = folder, .dtype = format.substr(0, end)};
  if (end == std::string::npos) return options;
  const std::string kept = format.substr(end + 1);
  if (kept.starts_with("kv")) {
    options.kv = kept.substr(2);
  } else {
    options.weights = kept.substr(0, kept.find('_'));
    if (kept.ends_with("_output")) options.output_weights = "dtype";
    const size_t outliers = kept.find("_outliers");
    if (outliers != std::string::npos) {
      options.int8_outliers = std::stod(kept.substr(outliers + std::string("_outliers").size()));
    }
  }
  return options;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_MODEL_FORMAT_H_
