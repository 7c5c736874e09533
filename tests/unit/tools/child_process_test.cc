#include "tools/tandem/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clock.h"

namespace tandem {
namespace {

TEST(ChildProcessTest, ReportsHowTheProgramEnded) {
  ChildProcess child("child", {"/bin/sh", "-c", "exit 3"});
  ASSERT_TRUE(child.Start().ok());
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_EQ(DescribeExit(status), "exit status 3");

  ChildProcess sleeper("sleeper", {"/bin/sleep", "100"});
  ASSERT_TRUE(sleeper.Start().ok());
  sleeper.Signal(SIGKILL);
  ASSERT_EQ(waitpid(sleeper.pid(), &status, 0), sleeper.pid());
  EXPECT_EQ(DescribeExit(status), "signal 9 (Killed)");
}

// Serve blocks the signals that it waits for, and a terminal signals whole groups.
TEST(ChildProcessTest, HasAGroupOfItsOwnAndBlocksNoSignal) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  ChildProcess child("child", {"/bin/sh", "-c", "kill -TERM $$; exit 3"});
  const absl::Status started = child.Start();
  sigprocmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(started.ok()) << started;
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid()), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(getpgid(child.pid()), child.pid());
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_EQ(DescribeExit(status), "signal 15 (Terminated)");
}

TEST(ChildProcessTest, AProgramThatCannotRunEndsWith127) {
  ChildProcess child("child", {"/no/such/program"});
  ASSERT_TRUE(child.Start().ok());
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_EQ(DescribeExit(status), "exit status 127");
}

TEST(ChildProcessTest, RestartsAtOnceThenEverMoreSlowly) {
  ChildProcess child("child", {"/bin/true"});
  std::vector<int64_t> waits_us;
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(child.Start().ok());
    int status = 0;
    ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
    child.OnExited(1000);
    EXPECT_FALSE(child.running());
    waits_us.push_back(child.restart_at_us() - 1000);
  }
  EXPECT_THAT(waits_us,
              testing::ElementsAre(0, 100'000, 200'000, 400'000, 800'000, 1'000'000, 1'000'000));
}

TEST(ChildProcessTest, OneThatRanForThreeSecondsBeginsAgainAtOnce) {
  ChildProcess child("child", {"/bin/true"});
  int lives = 0;
  for (const int64_t lived_us : {0, 2'900'000, 3'100'000}) {
    ASSERT_TRUE(child.Start().ok());
    EXPECT_EQ(child.num_lives(), ++lives);
    const int64_t ended_us = SteadyClock().NowUs() + lived_us;
    int status = 0;
    ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
    child.OnExited(ended_us);
    EXPECT_EQ(child.restart_at_us() == ended_us, lived_us != 2'900'000) << lived_us;
  }
}

}  // namespace
}  // namespace tandem
