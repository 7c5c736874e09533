#include "runtime/transport/ucx/shm_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr char kPrefix[] = "tandem.";
constexpr int kTries = 16;  // A start that cleans up may take a folder before it is locked.
constexpr char kMark[] = ".tandem-kv-pool";
// Nobody writes this into a file of that name by accident.
constexpr std::string_view kMarkText =
    "A worker of Tandem keeps its KV pool here. The next one removes the folder.\n"
    "5f0e7a3c-8a64-4d0b-9b6e-tandem-shm-folder\n";

// The open and locked folder; FailedPrecondition if somebody else has it, or it is gone or no
// folder that only this user can reach.
absl::StatusOr<FileDescriptor> Lock(int parent, const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(FileDescriptor folder, OpenPrivate(parent, name, O_RDONLY | O_DIRECTORY));
  struct stat info = {};
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 || ::fstat(folder.get(), &info) != 0 ||
      info.st_nlink == 0 || (info.st_mode & 07777) != S_IRWXU) {
    return absl::FailedPreconditionError("locked, gone or open to others: " + name);
  }
  return folder;
}

bool IsMarked(int folder) {
  const absl::StatusOr<FileDescriptor> mark = OpenPrivate(folder, kMark, O_RDONLY);
  if (!mark.ok()) return false;
  char text[kMarkText.size() + 1];
  const ssize_t got = ::read(mark->get(), text, sizeof(text));
  return got == static_cast<ssize_t>(kMarkText.size()) &&
         std::string_view(text, kMarkText.size()) == kMarkText;
}

absl::Status Mark(int folder) {
  TANDEM_ASSIGN_OR_RETURN(const FileDescriptor mark,
                          OpenPrivate(folder, kMark, O_WRONLY | O_CREAT | O_EXCL, 0600));
  if (::write(mark.get(), kMarkText.data(), kMarkText.size()) !=
      static_cast<ssize_t>(kMarkText.size())) {
    return absl::UnavailableError(std::strerror(errno));
  }
  return absl::OkStatus();
}

// What UCX and we put there are files; a folder inside is somebody else's and keeps it all. The
// mark goes last, so that what stays is met again at the next start.
void Remove(int parent, const std::string& name, int folder) {
  static_cast<void>(ForEachName(folder, [&](const std::string& file) {
    if (file != kMark) ::unlinkat(folder, file.c_str(), 0);
  }));
  int left = 0;
  static_cast<void>(ForEachName(folder, [&](const std::string&) { ++left; }));
  if (left > 1) return;
  ::unlinkat(folder, kMark, 0);
  ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

void RemoveAbandonedIn(int parent) {
  static_cast<void>(ForEachName(parent, [&](const std::string& name) {
    if (!absl::StartsWith(name, kPrefix)) return;
    const absl::StatusOr<FileDescriptor> folder = Lock(parent, name);
    if (folder.ok() && IsMarked(folder->get())) Remove(parent, name, folder->get());
  }));
}

FileDescriptor OpenParent(const std::string& parent) {
  return FileDescriptor(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

absl::StatusOr<SharedMemory> ShmFolder::MeasureSpace(const std::string& parent) {
  struct statvfs space = {};
  if (statvfs(parent.c_str(), &space) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s cannot be used (%s): the ucx transport keeps its pool there; mount it, "
                        "or choose --transport grpc",
                        parent, std::strerror(errno)));
  }
  const auto unit = static_cast<int64_t>(space.f_frsize);
  return SharedMemory{.total_bytes = static_cast<int64_t>(space.f_blocks) * unit,
                      .free_bytes = static_cast<int64_t>(space.f_bavail) * unit};
}

void ShmFolder::RemoveAbandoned(const std::string& parent) {
  const FileDescriptor opened = OpenParent(parent);
  if (opened.get() >= 0) RemoveAbandonedIn(opened.get());
}

absl::StatusOr<std::unique_ptr<ShmFolder>> ShmFolder::Create(const std::string& parent) {
  FileDescriptor opened = OpenParent(parent);
  std::string why = opened.get() < 0 ? std::strerror(errno) : "others took each that was made";
  if (opened.get() >= 0) RemoveAbandonedIn(opened.get());
  for (int i = 0; opened.get() >= 0 && i < kTries; ++i) {
    std::string path = parent + "/" + kPrefix + "XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
      why = std::strerror(errno);
      break;
    }
    const std::string name = path.substr(parent.size() + 1);
    ::chmod(path.c_str(), 0700);  // Whatever the umask left of it.
    absl::StatusOr<FileDescriptor> folder = Lock(opened.get(), name);
    if (!folder.ok()) {
      ::rmdir(path.c_str());
      continue;
    }
    if (const absl::Status marked = Mark(folder->get()); !marked.ok()) {
      why = std::string(marked.message());
      Remove(opened.get(), name, folder->get());
      break;
    }
    return std::unique_ptr<ShmFolder>(
        new ShmFolder(std::move(path), std::move(opened), *std::move(folder)));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("cannot make a folder in %s: %s", parent, why));
}

ShmFolder::~ShmFolder() {
  Remove(parent_.get(), path_.substr(path_.rfind('/') + 1), folder_.get());
}

}  // namespace tandem
