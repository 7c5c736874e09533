// Reading small files whole: configurations, tokenizers, templates.

#ifndef TANDEM_RUNTIME_BASE_SMALL_FILE_H_
#define TANDEM_RUNTIME_BASE_SMALL_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The contents of a regular file. NotFound if there is none; InvalidArgument if it is no regular
// file or larger than `max_bytes` (nothing is allocated then); Unavailable if it cannot be opened
// or read.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_SMALL_FILE_H_
