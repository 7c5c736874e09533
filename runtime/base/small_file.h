// Small files, read and written whole: configurations, tokenizers, templates, ports.

#ifndef TANDEM_RUNTIME_BASE_SMALL_FILE_H_
#define TANDEM_RUNTIME_BASE_SMALL_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// InvalidArgument if a file that begins so is what Git LFS leaves in a clone instead of a large
// file, as long as nobody fetches that.
absl::Status RefuseLfsPointer(const std::string& path, std::string_view beginning);

// The contents of a regular file. NotFound if there is none; InvalidArgument if it is no regular
// file, or one of Git LFS's, or larger than `max_bytes` (nothing is allocated then); Unavailable if
// it cannot be opened or read.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// Who reads it sees what was there before, or all of `text`. Unavailable, with the path and why.
absl::Status WriteSmallFile(const std::string& path, std::string_view text);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_SMALL_FILE_H_
