// Every guard is needed, and the simulation sees what it prevents: switched off alone, some seed
// breaks an invariant (or one of our own checks stops the process).
//
// Each guard is tried in a process of its own, two at a time.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <string>

#include "runtime/base/guard.h"
#include "runtime/simulation/simulation.h"

namespace tandem {
namespace {

constexpr uint64_t kMaxSeeds = 10'000;
constexpr int kProcesses = 2;
constexpr int kCaught = 3;  // Exit status.

struct Shared {
  std::atomic<uint64_t> seed;
  char what[200];
};

// In a process of its own; never returns.
[[noreturn]] void TryWithout(Guard* guard, Shared* shared) {
  guard->set_enabled(false);
  for (uint64_t seed = 0; seed < kMaxSeeds; ++seed) {
    shared->seed = seed;
    const SimulationReport report = Simulation(SimulationOptions::FromSeed(seed)).Run();
    if (report.status.ok()) continue;
    std::snprintf(shared->what, sizeof(shared->what), "%s",
                  std::string(report.status.message()).c_str());
    _exit(kCaught);
  }
  _exit(0);
}

TEST(Guards, EachOneSwitchedOffIsCaughtWithinTenThousandSeeds) {
  struct Trial {
    Guard* guard;
    Shared* shared;
  };
  std::map<pid_t, Trial> running;
  const auto wait_for_one = [&] {
    int status = 0;
    const pid_t pid = wait(&status);
    const Trial trial = running.at(pid);
    running.erase(pid);
    const std::string name(trial.guard->name());
    const bool stopped = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    const bool caught = WIFEXITED(status) && WEXITSTATUS(status) == kCaught;
    EXPECT_TRUE(stopped || caught)
        << name << ": " << kMaxSeeds << " seeds miss it, or status " << status;
    std::printf("%-24s seed %5llu: %s\n", name.c_str(),
                static_cast<unsigned long long>(trial.shared->seed.load()),
                stopped ? "a check stopped the process" : trial.shared->what);
    std::fflush(stdout);
    munmap(trial.shared, sizeof(Shared));
  };
  const std::vector<Guard*> guards = ListGuards();
  ASSERT_GE(guards.size(), 15u);
  for (Guard* guard : guards) {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* shared = new (memory) Shared{};
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) TryWithout(guard, shared);
    running[pid] = {guard, shared};
    if (running.size() == kProcesses) wait_for_one();
  }
  while (!running.empty()) wait_for_one();
}

}  // namespace
}  // namespace tandem
