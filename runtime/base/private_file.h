// Files and folders that nobody else can have put there or can change.

#ifndef TANDEM_RUNTIME_BASE_PRIVATE_FILE_H_
#define TANDEM_RUNTIME_BASE_PRIVATE_FILE_H_

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tandem {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// open(2) of `name` in the open folder `folder` (AT_FDCWD: of a path), not through a link at its
// end. What was opened is looked at, not its name: it belongs to the effective user, nobody else
// may write it, and it is a folder if `flags` have O_DIRECTORY, else a regular file.
// FailedPrecondition if it is not so, or is a link; NotFound; Unavailable with the system's reason.
absl::StatusOr<FileDescriptor> OpenPrivate(int folder, const std::string& name, int flags,
                                           mode_t mode = 0);

// Calls `each` with the names in an open folder, but for "." and "..". Unavailable if it cannot be
// read.
absl::Status ForEachName(int folder, const std::function<void(const std::string&)>& each);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_PRIVATE_FILE_H_
