#include "runtime/base/check_range.h"

#include "absl/strings/str_format.h"

namespace tandem {

absl::Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d, want %d to %d", field, value, low, high));
}

}  // namespace tandem
