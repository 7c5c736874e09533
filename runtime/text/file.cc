#include "runtime/text/file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace tandem {

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrFormat("%s: no such file", path));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::InternalError(absl::StrFormat("%s: %s", path, error.message()));
  if (size > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, at most %d allowed", path, size, max_bytes));
  }
  std::string contents(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(contents.data(), static_cast<std::streamsize>(size));
  if (!file) {
    return absl::InternalError(
        absl::StrFormat("%s: read %d of %d bytes", path, file.gcount(), size));
  }
  return contents;
}

}  // namespace tandem
