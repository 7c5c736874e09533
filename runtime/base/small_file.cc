#include "runtime/base/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

absl::Status SystemError(const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(path, ": ", std::generic_category().message(error));
  return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                             : absl::UnavailableError(text);
}

absl::StatusOr<std::string> ReadOpenFile(int fd, const std::string& path, size_t max_bytes) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return SystemError(path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, at most %d are read", path, info.st_size, max_bytes));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(fd, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path);
    if (got == 0) break;  // It became shorter meanwhile: the reader sees what is there.
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  TANDEM_RETURN_IF_ERROR(RefuseLfsPointer(path, text));
  return text;
}

}  // namespace

absl::Status RefuseLfsPointer(const std::string& path, std::string_view beginning) {
  if (!beginning.starts_with("version https://git-lfs.github.com/spec/")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   ": not the file but a pointer of Git LFS to it; \"git lfs pull\" in its "
                   "folder fetches the file"));
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  // Without O_NONBLOCK a named pipe would hold the caller until somebody writes.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path);
  absl::StatusOr<std::string> text = ReadOpenFile(fd, path, max_bytes);
  ::close(fd);
  return text;
}

absl::Status WriteSmallFile(const std::string& path, std::string_view text) {
  const std::string draft = absl::StrCat(path, ".", getpid());
  std::ofstream out(draft);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(draft, path, error);
  if (out && !error) return absl::OkStatus();
  const std::string why = error ? error.message() : std::generic_category().message(errno);
  std::filesystem::remove(draft, error);
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", why));
}

}  // namespace tandem
