// How a worker's processes ended, told to the next one on its command line: what could have been
// done by a request that it computed, and what could not.

#ifndef TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_
#define TANDEM_TOOLS_TANDEM_WORKER_LIVES_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/cgroups.h"
#include "runtime/protocol/ended_lives.h"

namespace tandem {

// The kernel's count of processes of this process's cgroup (v2, v1), or where that is not counted
// of this machine, that it has killed for their memory. 0 if nobody counts.
int64_t NumMemoryKills(const KernelFiles& files = {});

// Tells the kernel's SIGKILLs from those of others: of those that it counted while a process ran,
// one may have been that process's. Each is charged to one process. Not thread-safe.
class MemoryKills {
 public:
  // `count`: NumMemoryKills before the process was started.
  void Began(pid_t pid, int64_t count) { began_[pid] = count; }
  // Why a process has ended. `wait_status`: as waitpid gives it; `count`: NumMemoryKills now.
  EndCause CauseOfExit(pid_t pid, int wait_status, int64_t count);

 private:
  // False if somebody was charged with each of them, or there was none.
  bool Charge(int64_t count_at_begin, int64_t count);

  std::map<pid_t, int64_t> began_;  // What was counted before those that run.
  std::set<int64_t> charged_;       // Kills, as the kernel has numbered them.
};

// The lives of the processes of one name. Not thread-safe.
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
