// Whether a number that somebody gave is one that we take.

#ifndef TANDEM_RUNTIME_BASE_CHECK_RANGE_H_
#define TANDEM_RUNTIME_BASE_CHECK_RANGE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace tandem {

// InvalidArgument "field: 7, want 1 to 5".
absl::Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_CHECK_RANGE_H_
