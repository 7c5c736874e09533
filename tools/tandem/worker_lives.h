// How a worker's processes ended, told to the next one on its command line: what could have been
// done by a request that it computed, and what could not.

#ifndef TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_
#define TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/protocol/ended_lives.h"

namespace tandem {

// The kernel's count of processes of this process's cgroup (v2, v1), or where that is not counted
// of this machine, that it has killed for their memory. 0 if nobody counts.
int64_t NumMemoryKills(const std::string& proc = "/proc",
                       const std::string& cgroup = "/sys/fs/cgroup");

// Tells the kernel's SIGKILLs from those of others: as many of them as it counts, each charged to
// one process. Not thread-safe.
class MemoryKills {
 public:
  explicit MemoryKills(int64_t count) : charged_(count) {}

  // `wait_status`: of a process that has ended, as waitpid gives it; `count`: NumMemoryKills now.
  EndCause CauseOfExit(int wait_status, int64_t count);

 private:
  int64_t charged_;
};

// Of the processes of one name. Not thread-safe.
class WorkerLives {
 public:
  // The flags by which the next process knows itself and the last kMaxEndedLives before it.
  std::vector<std::string> Begin(uint64_t incarnation);
  // The process that Begin was for has ended.
  void End(EndCause cause);

 private:
  uint64_t incarnation_ = 0;
  std::vector<EndedLife> ended_;
};

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_
