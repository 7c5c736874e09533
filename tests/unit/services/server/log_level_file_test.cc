#include "services/server/log_level_file.h"

#include <gmock/gmock.h>
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

TEST_F(LogLevelFileTest, WhatIsWrongIsToldWithItsPlaceAndWhatIsWanted) {
  for (const auto& [text, why] :
       {std::pair("threads: 4\nlog-level: loud", "line 2: no level; want"),
        std::pair("# of chats\n[error]", "line 2: no mapping; want"),
        std::pair("\n\nlog-level: {", "line 3: "), std::pair("a: b\n\tlog-level", "line 2: ")}) {
    Write(text);
    testing::internal::CaptureStderr();
    file_->Look();
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_THAT(told, testing::HasSubstr("\"file\":\"" + folder_.path() + "/log.yaml\"")) << text;
    EXPECT_THAT(told, testing::HasSubstr(std::string("\"why\":\"") + why)) << text;
    EXPECT_THAT(told,
                testing::HasSubstr("want YAML with one mapping, and in it log-level: debug, "))
        << text;
  }
}

}  // namespace
}  // namespace tandem
