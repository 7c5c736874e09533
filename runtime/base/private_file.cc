#include "runtime/base/private_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem {

absl::StatusOr<FileDescriptor> OpenPrivate(int folder, const std::string& name, int flags,
                                           mode_t mode) {
  // Without O_NONBLOCK a named pipe would hold the caller.
  FileDescriptor file(
      ::openat(folder, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode));
  const bool want_folder = (flags & O_DIRECTORY) != 0;
  if (file.get() < 0) {
    const int error = errno;
    const std::string text = absl::StrCat(name, ": ", std::generic_category().message(error));
    if (error == ENOENT) return absl::NotFoundError(text);
    // The system says ENOTDIR of a link where a folder is wanted.
    if (error == ELOOP || (error == ENOTDIR && want_folder)) {
      return absl::FailedPreconditionError(absl::StrCat(text, ", or a link to one"));
    }
    return absl::UnavailableError(text);
  }
  struct stat info;
  if (::fstat(file.get(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": ", std::generic_category().message(errno)));
  }
  if ((want_folder ? !S_ISDIR(info.st_mode) : !S_ISREG(info.st_mode)) ||
      info.st_uid != ::geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: mode %04o of user %d; wanted is a %s of this user (%d) that nobody else may write",
        name, info.st_mode & 07777, info.st_uid, want_folder ? "folder" : "file", ::geteuid()));
  }
  return file;
}

absl::Status ForEachName(int folder, const std::function<void(const std::string&)>& each) {
  const int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const opened = fd < 0 ? nullptr : ::fdopendir(fd);
  if (opened == nullptr) {
    if (fd >= 0) ::close(fd);
    return absl::UnavailableError(
        absl::StrCat("cannot list a folder: ", std::generic_category().message(errno)));
  }
  std::vector<std::string> names;  // All before the first call, which may remove some.
  while (const dirent* const entry = ::readdir(opened)) names.emplace_back(entry->d_name);
  ::closedir(opened);
  for (const std::string& name : names) {
    if (name != "." && name != "..") each(name);
  }
  return absl::OkStatus();
}

}  // namespace tandem
