#include "tools/tandem/worker_lives.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// Signals by which a process ends itself, or the kernel ends it for what it does.
bool IsOfFailure(int signal) {
  switch (signal) {
    case SIGABRT:
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGTRAP:
    case SIGSYS:
    case SIGPIPE:
    case SIGXCPU:
    case SIGXFSZ:
      return true;
    default:
      return false;
  }
}

// The N of the line "oom_kill N".
std::optional<int64_t> MemoryKillsIn(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace

// The oldest: who began later can only be charged with a newer one.
bool MemoryKills::Charge(int64_t count_at_begin, int64_t count) {
  int64_t kill = count_at_begin + 1;
  while (charged_.contains(kill)) ++kill;
  if (kill > count) return false;
  charged_.insert(kill);
  return true;
}

EndCause MemoryKills::CauseOfExit(pid_t pid, int wait_status, int64_t count) {
  const auto began = began_.extract(pid);
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    if (signal == SIGKILL && !began.empty() && Charge(began.mapped(), count)) {
      return EndCause::kMemory;
    }
    return IsOfFailure(signal) ? EndCause::kCrash : EndCause::kOutside;
  }
  const int status = WEXITSTATUS(wait_status);
  return status == 0 || status == kExitToBeReplaced ? EndCause::kOutside : EndCause::kCrash;
}

int64_t NumMemoryKills(const KernelFiles& files) {
  for (const Cgroup& group : ReadCgroups(files)) {
    const std::vector<std::string>& of = group.controllers;
    for (const std::string& below : {group.path, std::string()}) {
      std::optional<int64_t> kills;
      if (of.empty()) kills = MemoryKillsIn(files.cgroup + below + "/memory.events");
      if (std::find(of.begin(), of.end(), "memory") != of.end()) {
        kills = MemoryKillsIn(files.cgroup + "/memory" + below + "/memory.oom_control");
      }
      if (kills.has_value()) return *kills;
    }
  }
  return MemoryKillsIn(files.proc + "/vmstat").value_or(0);
}

std::vector<std::string> WorkerLives::Begin(uint64_t incarnation) {
  incarnation_ = incarnation;
  std::vector<std::string> flags = {absl::StrCat("--incarnation=", incarnation)};
  if (!ended_.empty()) flags.push_back("--ended=" + FormatEndedLives(ended_));
  return flags;
}

void WorkerLives::End(EndCause cause) {
  if (ended_.size() == kMaxEndedLives) ended_.erase(ended_.begin());
  ended_.push_back({.incarnation = incarnation_, .cause = cause});
}

}  // namespace tandem
