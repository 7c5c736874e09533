// Reading a checkpoint's small files.

#ifndef TANDEM_RUNTIME_TEXT_FILE_H_
#define TANDEM_RUNTIME_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The contents of a regular file. NotFound if there is none, InvalidArgument if it is larger than
// max_bytes (nothing is allocated then), Internal if reading fails.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TEXT_FILE_H_
