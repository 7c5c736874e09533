// How a worker's processes ended, told to the next one on its command line: what could have been
// done by a request that it computed, and what could not.

#ifndef TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_
#define TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/protocol/ended_lives.h"

namespace tandem {

// `wait_status` as waitpid gives it. `memory_ran_out`: the kernel has killed something for its
// memory while the process lived, which is how SIGKILL then is read.
EndCause CauseOfExit(int wait_status, bool memory_ran_out);

// Processes of this process's cgroup (v2, v1), or where that is not counted of this machine, that
// the kernel has killed for their memory since it started. 0 if nobody counts.
int64_t NumMemoryKills(const std::string& proc = "/proc",
                       const std::string& cgroup = "/sys/fs/cgroup");

// Of the processes of one name. Not thread-safe.
class WorkerLives {
 public:
  // The flags by which the next process knows itself and the last kMaxEndedLives before it.
  std::vector<std::string> Begin(uint64_t incarnation, int64_t memory_kills);
  // The process that Begin was for has ended.
  EndCause End(int wait_status, int64_t memory_kills);

 private:
  uint64_t incarnation_ = 0;
  int64_t memory_kills_ = 0;  // When it began.
  std::vector<EndedLife> ended_;
};

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_
