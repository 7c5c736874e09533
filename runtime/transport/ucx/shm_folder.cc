#include "runtime/transport/ucx/shm_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "tandem.";
constexpr int kTries = 16;  // A start that cleans up may take a folder before it is locked.

// The open and locked folder; -1 if somebody else has it, or it is gone or not ours.
int Lock(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return -1;
  struct stat status = {};
  if (flock(folder, LOCK_EX | LOCK_NB) == 0 && fstat(folder, &status) == 0 && status.st_nlink > 0 &&
      status.st_uid == geteuid()) {
    return folder;
  }
  close(folder);
  return -1;
}

}  // namespace

void ShmFolder::RemoveAbandoned(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!absl::StartsWith(entry->path().filename().string(), kPrefix)) continue;
    const int folder = Lock(entry->path().string());
    if (folder < 0) continue;
    std::error_code ignored;  // Whatever stays is met again at the next start.
    fs::remove_all(entry->path(), ignored);
    close(folder);
  }
}

absl::StatusOr<std::unique_ptr<ShmFolder>> ShmFolder::Create(const std::string& parent) {
  RemoveAbandoned(parent);
  for (int i = 0; i < kTries; ++i) {
    std::string path = parent + "/" + kPrefix + "XXXXXX";
    if (mkdtemp(path.data()) == nullptr) break;
    const int lock = Lock(path);
    if (lock >= 0) return std::unique_ptr<ShmFolder>(new ShmFolder(std::move(path), lock));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("cannot make a folder in %s: %s", parent, std::strerror(errno)));
}

ShmFolder::~ShmFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  close(lock_);
}

}  // namespace tandem
