// What benchmarks of kernels share: values that must be there, and medians.

#ifndef TANDEM_TESTS_BENCH_KERNELS_BENCH_SUPPORT_H_
#define TANDEM_TESTS_BENCH_KERNELS_BENCH_SUPPORT_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/check.h"

namespace tandem {

template <typename T>
T Must(absl::StatusOr<T> value) {
  TANDEM_CHECK(value.ok()) << value.status();
  return *std::move(value);
}

inline void Must(const absl::Status& status) { TANDEM_CHECK(status.ok()) << status; }

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_KERNELS_BENCH_SUPPORT_H_
