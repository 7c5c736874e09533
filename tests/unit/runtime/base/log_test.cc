#include "runtime/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

namespace tandem {
namespace {

std::string Json(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

TEST(LogTest, WritesEveryStringAsValidJson) {
  EXPECT_EQ(Json("plain"), R"("plain")");
  EXPECT_EQ(Json("a\"b\\c\nd\te"), R"("a\"b\\c\nd\u0009e")");
  EXPECT_EQ(Json("ünï 😀"), "\"ünï 😀\"");
  EXPECT_EQ(Json("\xFFx\xE2\x82"), "\"\xEF\xBF\xBDx\xEF\xBF\xBD\"");
  EXPECT_EQ(Json("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // A surrogate.
}

// Standard error is one end of a pipe or a pair of sockets while this lives.
class Redirected {
 public:
  explicit Redirected(bool sockets) : saved_(dup(STDERR_FILENO)) {
    const int made =
        sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) : pipe(ends_.data());
    EXPECT_EQ(made, 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);  // For Read; a pipe's other end goes on blocking.
    dup2(ends_[1], STDERR_FILENO);
  }
  ~Redirected() {
    dup2(saved_, STDERR_FILENO);
    for (const int fd : {saved_, ends_[0], ends_[1]}) close(fd);
  }
  // All that is there.
  std::string Read() const {
    std::string text;
    std::array<char, 65536> buffer;
    while (true) {
      const ssize_t n = read(ends_[0], buffer.data(), buffer.size());
      if (n <= 0) return text;
      text.append(buffer.data(), static_cast<size_t>(n));
    }
  }

 private:
  std::array<int, 2> ends_{};
  int saved_ = -1;
};

class FullLogTest : public testing::TestWithParam<bool> {};

TEST_P(FullLogTest, DropsAndCountsLinesAndSaysSoWhenThereIsRoom) {
  const Redirected redirected(GetParam());
  const std::string filling(1000, 'x');
  const int64_t before = NumDroppedLogLines();
  constexpr int kLines = 1500;  // A pipe holds 64 KiB of them, sockets some more.
  for (int i = 0; i < kLines; ++i) LogInfo(filling);
  const int64_t dropped = NumDroppedLogLines() - before;
  EXPECT_GT(dropped, 100);

  std::string text = redirected.Read();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), kLines - dropped);
  LogInfo("room again");
  LogInfo("and again");
  text = redirected.Read();
  EXPECT_THAT(text, testing::HasSubstr("log lines were dropped"));
  EXPECT_THAT(text, testing::HasSubstr("\"lines\":" + std::to_string(dropped) + "}"));
  EXPECT_LT(text.find("dropped"), text.find("room again"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_EQ(NumDroppedLogLines() - before, dropped);
}
INSTANTIATE_TEST_SUITE_P(PipeAndSocket, FullLogTest, testing::Bool());

TEST(LogTest, OthersWhoShareTheFileGoOnBlocking) {
  const Redirected redirected(/*sockets=*/false);
  LogInfo("a line");
  EXPECT_EQ(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_THAT(redirected.Read(), testing::HasSubstr("a line"));
}

TEST(LogTest, LinesBelowTheLevelAreLeftOut) {
  const Redirected redirected(/*sockets=*/false);
  const auto written = [&] {
    LogDebug("a");
    LogInfo("b");
    LogWarning("c");
    LogError("d");
    const std::string text = redirected.Read();
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(written(), 3) << "no debug lines, unless asked for";
  int expected = 4;
  for (const char* const name : {"debug", "info", "warning", "error"}) {
    const std::optional<LogLevel> level = ParseLogLevel(name);
    ASSERT_TRUE(level.has_value()) << name;
    EXPECT_EQ(LogLevelName(*level), name);
    SetLogLevel(*level);
    EXPECT_EQ(written(), expected--) << name;
  }
  SetLogLevel(LogLevel::kInfo);
  EXPECT_EQ(ParseLogLevel("Debug"), std::nullopt);
}

// Ends with 0 if lines were dropped.
[[noreturn]] void LogIntoAFileOfOneByte() {
  BeginLog("test");
  char name[] = "/tmp/tandem-log.XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  dup2(file, STDERR_FILENO);
  const rlimit one_byte{1, 1};
  setrlimit(RLIMIT_FSIZE, &one_byte);
  LogInfo("a line");
  LogInfo("another");
  _exit(NumDroppedLogLines() > 0 ? 0 : 1);
}

TEST(LogTest, AFileThatMayNotGrowEndsNoProcess) {
  EXPECT_EXIT(LogIntoAFileOfOneByte(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tandem
