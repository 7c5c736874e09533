#include "services/server/log_level_file.h"

#include <gtest/gtest.h>

#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

class LogLevelFileTest : public testing::Test {
 protected:
  ~LogLevelFileTest() override { SetLogLevel(LogLevel::kInfo); }

  void Write(std::string_view text) { folder_.Write("log.yaml", text); }

  const TempFolder folder_;
  const std::unique_ptr<FollowedFiles> file_ =
      LogLevelFile(folder_.path() + "/log.yaml", LogLevel::kInfo);
};

TEST_F(LogLevelFileTest, TheLevelIsWhatTheFileSaysNow) {
  Write("threads: 4\nlog-level: error\n");
  file_->Look();
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kError);
  file_->Follow(std::chrono::milliseconds(1));
  Write("log-level: debug");
  EXPECT_TRUE(Eventually(LogsDebug));
  Write("threads: 4\n");
  EXPECT_TRUE(Eventually([] { return CurrentLogLevel() == LogLevel::kInfo; }));
}

TEST_F(LogLevelFileTest, WhatCannotBeUnderstoodChangesNothingAndIsToldOnce) {
  SetLogLevel(LogLevel::kWarning);
  const auto told = [this] {
    testing::internal::CaptureStderr();
    file_->Look();
    return !testing::internal::GetCapturedStderr().empty();
  };
  EXPECT_TRUE(told()) << "there is no such file";
  for (const char* const text : {"log-level: loud", "log-level: {", "[error]"}) {
    Write(text);
    EXPECT_TRUE(told()) << text;
    EXPECT_FALSE(told()) << text;
    EXPECT_EQ(CurrentLogLevel(), LogLevel::kWarning) << text;
  }
  Write("log-level: error");
  file_->Look();
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kError);
}

}  // namespace
}  // namespace tandem
