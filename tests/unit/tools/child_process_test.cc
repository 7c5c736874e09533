#include "tools/tandem/child_process.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
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

TEST(ChildProcessTest, HasLivedOnceItRanForThreeSeconds) {
  ChildProcess child("child", {"/bin/true"});
  for (const int64_t lived_us : {2'900'000, 3'100'000, 0}) {
    ASSERT_TRUE(child.Start().ok());
    const int64_t started_us = SteadyClock().NowUs();
    int status = 0;
    ASSERT_EQ(waitpid(child.pid(), &status, 0), child.pid());
    child.OnExited(started_us + lived_us);
    EXPECT_EQ(child.has_lived(), lived_us != 2'900'000) << lived_us;
  }
}

TEST(ReservedPortTest, OneServerAndNoOtherListensOnIt) {
  const auto port = ReserveLoopbackPort();
  ASSERT_TRUE(port.ok());
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port->port));
  const auto listen_there = [&](int reuse) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
        listen(fd, 1) == 0) {
      return fd;
    }
    close(fd);
    return -1;
  };
  EXPECT_EQ(listen_there(0), -1);
  const int server = listen_there(1);  // Servers reuse addresses.
  EXPECT_GE(server, 0);
  EXPECT_EQ(listen_there(1), -1);
  close(server);
  close(port->socket);
}

}  // namespace
}  // namespace tandem
