#ifndef TANDEM_TESTS_SUPPORT_METRIC_VALUE_H_
#define TANDEM_TESTS_SUPPORT_METRIC_VALUE_H_

#include <string>

namespace tandem {

// The value of `sample`, a name with its labels, in an exposition; -1 if it has none.
inline double MetricValue(const std::string& exposition, const std::string& sample) {
  const std::string line = "\n" + sample + " ", text = "\n" + exposition;
  const size_t at = text.find(line);
  return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size()));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_METRIC_VALUE_H_
