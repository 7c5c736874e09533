#include "tools/tandem/worker_lives.h"

#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <optional>
#include <sstream>

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

// Of the line "oom_kill N".
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

int64_t NumMemoryKills(const std::string& proc, const std::string& cgroup) {
  // "0::/path" for v2, "N:cpu,memory:/path" for v1; in a container the path may lie outside.
  std::ifstream groups(proc + "/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    for (const std::string& below : {path, std::string()}) {
      std::optional<int64_t> kills;
      if (controllers == ",,") kills = MemoryKillsIn(cgroup + below + "/memory.events");
      if (controllers.find(",memory,") != controllers.npos) {
        kills = MemoryKillsIn(cgroup + "/memory" + below + "/memory.oom_control");
      }
      if (kills.has_value()) return *kills;
    }
  }
  return MemoryKillsIn(proc + "/vmstat").value_or(0);
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
