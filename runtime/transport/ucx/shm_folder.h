// A folder in /dev/shm that does not outlive its process for long.
//
// UCX makes the pool's file there and removes its name once it is mapped; killed in between, it
// would leave a pool's worth of memory behind for ever. So each process has a folder of its own and
// holds a lock on it, which goes with the process, and each start removes the folders that nobody
// locks. A lock is seen across PID namespaces that share /dev/shm; a process id is not.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_SHM_FOLDER_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_SHM_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

class ShmFolder {
 public:
  // Removes what dead processes of this user left in `parent`.
  static void RemoveAbandoned(const std::string& parent = "/dev/shm");
  // Does that, then makes a folder. FailedPrecondition if it cannot be made.
  static absl::StatusOr<std::unique_ptr<ShmFolder>> Create(const std::string& parent = "/dev/shm");
  ~ShmFolder();  // With all that is in it.

  ShmFolder(const ShmFolder&) = delete;
  ShmFolder& operator=(const ShmFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  ShmFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;  // The open folder.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_SHM_FOLDER_H_
