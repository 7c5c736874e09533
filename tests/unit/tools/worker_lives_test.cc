#include "tools/tandem/worker_lives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.h"
#include "tools/tandem/child_process.h"

namespace tandem {
namespace {

using testing::ElementsAre;

// As waitpid packs them.
int Signalled(int signal) { return signal; }
int Exited(int status) { return status << 8; }

// While the kernel has counted nothing.
EndCause CauseOfExit(int wait_status) {
  MemoryKills kills;
  kills.Began(1, 0);
  return kills.CauseOfExit(1, wait_status, 0);
}

TEST(CauseOfExitTest, ASignalThatNoFailureSendsComesFromOutside) {
  for (const int signal : {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGALRM}) {
    EXPECT_EQ(CauseOfExit(Signalled(signal)), EndCause::kOutside) << signal;
  }
}

TEST(CauseOfExitTest, FailuresAreCrashes) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS}) {
    EXPECT_EQ(CauseOfExit(Signalled(signal)), EndCause::kCrash) << signal;
    EXPECT_EQ(CauseOfExit(Signalled(signal) | 0x80), EndCause::kCrash) << "with a core";
    MemoryKills kills;
    kills.Began(1, 0);
    EXPECT_EQ(kills.CauseOfExit(1, Signalled(signal), 1), EndCause::kCrash) << signal;
  }
  for (const int status : {1, 2, 127}) {
    EXPECT_EQ(CauseOfExit(Exited(status)), EndCause::kCrash) << status;
  }
}

TEST(CauseOfExitTest, AnEndOfItsOwnIsNoRequestsDoing) {
  EXPECT_EQ(CauseOfExit(Exited(0)), EndCause::kOutside);
  EXPECT_EQ(CauseOfExit(Exited(kExitToBeReplaced)), EndCause::kOutside);
}

TEST(CauseOfExitTest, EachOfTheKernelsKillsIsOneProcesss) {
  MemoryKills kills;
  for (const pid_t pid : {1, 2, 3, 4, 5}) kills.Began(pid, 7);
  EXPECT_EQ(kills.CauseOfExit(1, Signalled(SIGKILL), 7), EndCause::kOutside);
  EXPECT_EQ(kills.CauseOfExit(2, Signalled(SIGTERM), 9), EndCause::kOutside);
  EXPECT_EQ(kills.CauseOfExit(3, Signalled(SIGKILL), 9), EndCause::kMemory);
  EXPECT_EQ(kills.CauseOfExit(4, Signalled(SIGKILL), 9), EndCause::kMemory);
  EXPECT_EQ(kills.CauseOfExit(5, Signalled(SIGKILL), 9), EndCause::kOutside);
}

// The kernel counts whomever it kills: also strangers.
TEST(CauseOfExitTest, AKillBeforeAProcessBeganIsNotItsOwn) {
  MemoryKills kills;
  kills.Began(1, 0);
  kills.Began(2, 3);
  EXPECT_EQ(kills.CauseOfExit(2, Signalled(SIGKILL), 3), EndCause::kOutside);
  EXPECT_EQ(kills.CauseOfExit(1, Signalled(SIGKILL), 3), EndCause::kMemory);
  kills.Began(2, 3);  // Another process of that number.
  EXPECT_EQ(kills.CauseOfExit(2, Signalled(SIGKILL), 4), EndCause::kMemory);
}

TEST(CauseOfExitTest, WhoWasChargedWithAKillLeavesTheOthersToOthers) {
  MemoryKills kills;
  kills.Began(1, 0);
  kills.Began(2, 1);
  kills.Began(3, 1);
  EXPECT_EQ(kills.CauseOfExit(1, Signalled(SIGKILL), 2), EndCause::kMemory);
  EXPECT_EQ(kills.CauseOfExit(2, Signalled(SIGKILL), 2), EndCause::kMemory);
  EXPECT_EQ(kills.CauseOfExit(3, Signalled(SIGKILL), 2), EndCause::kOutside);

  kills.Began(4, 2);
  kills.Began(5, 3);
  EXPECT_EQ(kills.CauseOfExit(5, Signalled(SIGKILL), 4), EndCause::kMemory);
  EXPECT_EQ(kills.CauseOfExit(4, Signalled(SIGKILL), 4), EndCause::kMemory);
}

TEST(CauseOfExitTest, ReadsWhatProcessesReallyLeave) {
  const std::pair<const char*, EndCause> cases[] = {{"kill -ABRT $$", EndCause::kCrash},
                                                    {"kill -KILL $$", EndCause::kOutside},
                                                    {"exit 1", EndCause::kCrash},
                                                    {"exit 3", EndCause::kOutside}};
  for (const auto& [script, cause] : cases) {
    ChildProcess child("child", {"/bin/sh", "-c", script});
    ASSERT_TRUE(child.Start().ok());
    int status = 0;
    ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
    EXPECT_EQ(CauseOfExit(status), cause) << script;
  }
}

class NumMemoryKillsTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int64_t Count() const {
    return NumMemoryKills({.proc = folder_.path() + "/proc", .cgroup = folder_.path() + "/cgroup"});
  }
  TempFolder folder_;
};

TEST_F(NumMemoryKillsTest, OfTheGroupIfItCountsElseOfTheMachine) {
  EXPECT_EQ(Count(), 0);
  Write("/proc/vmstat", "pgfault 12\noom_kill 3\nnr_free 7\n");
  EXPECT_EQ(Count(), 3);
  Write("/proc/self/cgroup", "1:cpu:/a\n0::/b/c\n");
  EXPECT_EQ(Count(), 3);
  Write("/cgroup/b/c/memory.events", "low 0\nhigh 2\nmax 9\noom 4\noom_kill 5\n");
  EXPECT_EQ(Count(), 5);
}

TEST_F(NumMemoryKillsTest, OfAnOlderHierarchyAndOfAContainersRoot) {
  Write("/proc/self/cgroup", "4:cpuset,memory:/docker/1\n");
  Write("/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(Count(), 2);
  Write("/cgroup/memory/docker/1/memory.oom_control", "oom_kill_disable 0\noom_kill 6\n");
  EXPECT_EQ(Count(), 6);
}

TEST(WorkerLivesTest, EachProcessIsToldOfThoseBeforeIt) {
  WorkerLives lives;
  EXPECT_THAT(lives.Begin(11), ElementsAre("--incarnation=11"));
  lives.End(EndCause::kOutside);
  EXPECT_THAT(lives.Begin(12), ElementsAre("--incarnation=12", "--ended=11:outside"));
  lives.End(EndCause::kMemory);
  EXPECT_THAT(lives.Begin(13), ElementsAre("--incarnation=13", "--ended=11:outside,12:memory"));
}

TEST(WorkerLivesTest, AsManyAsACommandLineTakesTheNewestLast) {
  WorkerLives lives;
  for (uint64_t incarnation = 1; incarnation <= kMaxEndedLives + 10; ++incarnation) {
    lives.Begin(incarnation);
    lives.End(EndCause::kCrash);
  }
  const std::string flag = lives.Begin(1000).at(1);
  const auto told = ParseEndedLives(flag.substr(flag.find('=') + 1));
  ASSERT_TRUE(told.ok()) << told.status();
  ASSERT_EQ(told->size(), kMaxEndedLives);
  EXPECT_EQ(told->front().incarnation, 11u);
  EXPECT_EQ(told->back().incarnation, kMaxEndedLives + 10);
}

}  // namespace
}  // namespace tandem
