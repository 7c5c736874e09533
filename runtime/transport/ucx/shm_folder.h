// A folder in /dev/shm that does not outlive its process for long.
//
// UCX makes the pool's file there and removes its name once it is mapped; killed in between, it
// would leave a pool's worth of memory behind for ever. So each process has a folder of its own and
// holds a lock on it, which goes with the process, and each start removes the folders that nobody
// locks. A lock is seen across PID namespaces that share /dev/shm; a process id is not.
//
// /dev/shm is everybody's, and a name proves nothing: only a folder of this user that is closed to
// all others and bears our mark is ever removed, and only the files in it. No link is followed.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_SHM_FOLDER_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_SHM_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/base/private_file.h"

namespace tandem {

// The size of a file system in memory, and what of it is free.
struct SharedMemory {
  int64_t total_bytes = 0, free_bytes = 0;
};

class ShmFolder {
 public:
  // Removes the folders that dead processes of this user left in `parent`.
  static void RemoveAbandoned(const std::string& parent = "/dev/shm");
  // The file system that holds the folders, as statvfs tells. FailedPrecondition if it cannot be
  // used.
  static absl::StatusOr<SharedMemory> MeasureSpace(const std::string& parent = "/dev/shm");
  // Removes what is abandoned, then makes a folder. FailedPrecondition if it cannot be made.
  static absl::StatusOr<std::unique_ptr<ShmFolder>> Create(const std::string& parent = "/dev/shm");
  ~ShmFolder();  // With the files in it.

  ShmFolder(const ShmFolder&) = delete;
  ShmFolder& operator=(const ShmFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  ShmFolder(std::string path, FileDescriptor parent, FileDescriptor folder)
      : path_(std::move(path)), parent_(std::move(parent)), folder_(std::move(folder)) {}

  const std::string path_;
  const FileDescriptor parent_;
  const FileDescriptor folder_;  // Locked.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_SHM_FOLDER_H_
