#include "services/server/program_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>

#include "runtime/base/log.h"
#include "services/server/build_info.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ProgramConfigTest : public testing::Test {
 protected:
  ProgramConfigTest() {
    flags_.Add("threads", &threads_, "N", "that compute", 0, 64);
    flags_.Add("kv-memory", &memory_, "BYTES", "of the pool");
    flags_.Add("allowed-host", &hosts_, "NAME,...", "names");
    flags_.Add("isolate-cache", &isolate_, "no sharing");
    config_.emplace(&flags_);
  }

  std::string Write(const std::string& text) { return folder_.Write("tandem.yaml", text); }
  absl::Status Read(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {}) {
    return config_->Read(arguments, environment).status();
  }
  absl::Status ReadFile(const std::string& text) { return Read({"--config=" + Write(text)}); }

  TempFolder folder_;
  int32_t threads_ = 2;
  ByteSize memory_;
  std::string hosts_;
  bool isolate_ = false;
  FlagSet flags_{"program [flags]", "Does things."};
  std::optional<ProgramConfig> config_;
};

TEST_F(ProgramConfigTest, TheCommandLineGoesBeforeTheEnvironmentAndThatBeforeTheFile) {
  const std::string file = Write("threads: 3\nkv-memory: 1MiB\nisolate-cache: true\n");
  ASSERT_TRUE(Read({"--threads=5", "--config", file},
                   {"TANDEM_THREADS=4", "TANDEM_KV_MEMORY=2MiB", "PATH=/bin", "HOME"})
                  .ok());
  EXPECT_EQ(threads_, 5);
  EXPECT_EQ(memory_.bytes, 2 << 20);
  EXPECT_TRUE(isolate_);
  EXPECT_TRUE(flags_.WasSet("isolate-cache"));
  EXPECT_FALSE(flags_.WasSet("allowed-host"));
}

TEST_F(ProgramConfigTest, WhatAsksOnlyIsOnTheCommandLine) {
  ASSERT_TRUE(Read({}, {"TANDEM_VERSION=1.2.3", "TANDEM_PRINT_CONFIG=true"}).ok());
  EXPECT_FALSE(config_->AnswersAtOnce("program"));
  EXPECT_FALSE(config_->print_requested());
  EXPECT_THAT(config_->unknown_variables(), ElementsAre("TANDEM_VERSION", "TANDEM_PRINT_CONFIG"));
  EXPECT_THAT(ReadFile("version: true").message(), HasSubstr("version: has no place in a file"));
}

TEST_F(ProgramConfigTest, AVersionIsPrintedWhateverElseIsWrong) {
  EXPECT_FALSE(Read({"--version"}, {"TANDEM_THREADS=none"}).ok());
  testing::internal::CaptureStdout();
  EXPECT_TRUE(config_->AnswersAtOnce("program"));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), VersionLine("program") + "\n");
}

TEST_F(ProgramConfigTest, TheEnvironmentMayNameTheFile) {
  ASSERT_TRUE(Read({}, {"TANDEM_CONFIG=" + Write("threads: 3")}).ok());
  EXPECT_EQ(threads_, 3);
}

TEST_F(ProgramConfigTest, ASequenceIsAListAndAnEmptyFileSaysNothing) {
  ASSERT_TRUE(ReadFile("# of chats\nallowed-host: [chat.example, \"api.example\"]\n").ok());
  EXPECT_EQ(hosts_, "chat.example,api.example");
  EXPECT_TRUE(ReadFile("").ok());
  EXPECT_TRUE(ReadFile("# nothing\n").ok());
}

TEST_F(ProgramConfigTest, WhatIsWrongIsNamedWithItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"threads: 1\nkv-memry: 1", "tandem.yaml:2: kv-memry: there is no such flag"},
      {"threads: 65", "tandem.yaml:1: threads: want a number from 0 to 64, got \"65\""},
      {"threads:", "tandem.yaml:1: threads: want a scalar"},
      {"threads: {a: 1}", "tandem.yaml:1: threads: want a scalar"},
      {"allowed-host: [[a]]", "tandem.yaml:1: allowed-host: want a scalar"},
      {"threads: 1\nthreads: 2", "tandem.yaml:2: threads: is there twice"},
      {"\nconfig: other", "tandem.yaml:2: config: has no place in a file"},
      {"print-config: true", "print-config: has no place in a file"},
      {"- threads", "tandem.yaml:1: want one mapping"},
      {"threads: 1\n---\nthreads: 2", "want one mapping"},
      {"threads: [1", "tandem.yaml:"},
      {"? [threads]\n: 1", "tandem.yaml:1: want the name of a flag"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status = ReadFile(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
  }
  EXPECT_THAT(std::string(Read({}, {"TANDEM_THREADS=many"}).message()),
              HasSubstr("TANDEM_THREADS: want a number from 0 to 64, got \"many\""));
  EXPECT_THAT(std::string(Read({"--config=/nonexistent"}).message()), HasSubstr("--config: "));
}

TEST_F(ProgramConfigTest, VariablesThatNameNoFlagAreTold) {
  ASSERT_TRUE(Read({}, {"TANDEM_THREAD=4", "TANDEM_SERVICE_HOST=10.0.0.1",
                        "TANDEM_ROUTER_SERVICE_PORT_HTTP=8000", "TANDEM_PORT=tcp://10.0.0.1:80",
                        "TANDEM_PORT_80_TCP_ADDR=10.0.0.1", "TANDEM_DNS_PORT_53_UDP=udp://10.0.0.1",
                        "TANDEM_FLEET_SECRET=0123", "TANDEM_API_KEY=0123"})
                  .ok());
  EXPECT_THAT(config_->unknown_variables(), ElementsAre("TANDEM_THREAD"));
  const std::string printed = config_->ToYaml();
  EXPECT_THAT(printed, HasSubstr("\n# TANDEM_THREAD names no flag of this program\n"));
  EXPECT_TRUE(ReadFile(printed).ok()) << printed;
}

TEST_F(ProgramConfigTest, WhatIsPrintedIsAFileThatSaysTheSame) {
  const std::string file = Write("allowed-host: \"a: b # c\"\n");
  ASSERT_TRUE(
      Read({"--threads=7", "--print-config", "--config=" + file}, {"TANDEM_KV_MEMORY=1.5GiB"})
          .ok());
  EXPECT_TRUE(config_->print_requested());
  const std::string printed = config_->ToYaml();
  EXPECT_THAT(printed, HasSubstr("threads: 7"));
  for (const std::string& source : {std::string("command line"), std::string("TANDEM_KV_MEMORY"),
                                    file, std::string("default")}) {
    EXPECT_THAT(printed, HasSubstr("# " + source + "\n"));
  }
  threads_ = 0;
  memory_ = {};
  hosts_.clear();
  FlagSet again("program", "");
  again.Add("threads", &threads_, "N", "");
  again.Add("kv-memory", &memory_, "BYTES", "");
  again.Add("allowed-host", &hosts_, "NAME", "");
  again.Add("isolate-cache", &isolate_, "");
  ASSERT_TRUE(ProgramConfig(&again).Read({"--config=" + Write(printed)}, {}).ok());
  EXPECT_EQ(threads_, 7);
  EXPECT_EQ(memory_.bytes, 3ll << 29);
  EXPECT_EQ(hosts_, "a: b # c");
  EXPECT_THAT(printed, HasSubstr("# log-level-file: none\n")) << "an empty one would be refused";
}

TEST_F(ProgramConfigTest, AFileThatWasNotFilledInIsNotNoFile) {
  EXPECT_THAT(std::string(Read({}, {"TANDEM_LOG_LEVEL_FILE="}).message()),
              HasSubstr("TANDEM_LOG_LEVEL_FILE: want a file, got \"\""));
  EXPECT_THAT(std::string(Read({}, {"TANDEM_CONFIG="}).message()), HasSubstr("TANDEM_CONFIG: "));
  EXPECT_THAT(std::string(ReadFile("log-level-file: \"\"").message()),
              HasSubstr("tandem.yaml:1: log-level-file: want a file"));
}

TEST_F(ProgramConfigTest, TheLogsLevelIsFollowedInAFileUnlessSaidBefore) {
  const std::string file = Write("log-level: error\n");
  const auto arguments = [](const std::vector<std::string>& given,
                            const std::vector<std::string>& environment) {
    FlagSet flags("program", "");
    ProgramConfig config(&flags);
    EXPECT_TRUE(config.Read(given, environment).ok());
    return config.LogArguments();
  };
  EXPECT_THAT(arguments({}, {}), ElementsAre("--log-level=info"));
  EXPECT_THAT(arguments({"--config", file}, {}), ElementsAre("--log-level-file=" + file));
  EXPECT_THAT(arguments({"--config", file, "--log-level-file=other"}, {}),
              ElementsAre("--log-level-file=other"));
  EXPECT_THAT(arguments({"--config", file}, {"TANDEM_LOG_LEVEL=debug"}),
              ElementsAre("--log-level=debug"));
  EXPECT_THAT(arguments({"--log-level=warning", "--log-level-file", file}, {}),
              ElementsAre("--log-level=warning"));
}

TEST_F(ProgramConfigTest, TheLogBeginsAtItsLevelAndTellsOfUnknownVariables) {
  ASSERT_TRUE(Read({"--config", Write("log-level: warning")}, {"TANDEM_THREAD=4"}).ok());
  testing::internal::CaptureStderr();
  config_->BeginLog("a-name");
  LogInfo("below");
  LogWarning("above");
  const std::string log = testing::internal::GetCapturedStderr();
  SetLogLevel(LogLevel::kInfo);
  EXPECT_THAT(log, HasSubstr("\"process\":\"a-name\""));
  EXPECT_THAT(log, HasSubstr("\"variable\":\"TANDEM_THREAD\""));
  EXPECT_THAT(log, HasSubstr("above"));
  EXPECT_THAT(log, testing::Not(HasSubstr("below")));
}

TEST_F(ProgramConfigTest, TheLogBeginsAtTheLevelOfTheCommandLine) {
  ASSERT_TRUE(Read({"--log-level=error", "--config", Write("log-level: debug")}).ok());
  config_->BeginLog("a-name");
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kError);
  SetLogLevel(LogLevel::kInfo);
}

TEST_F(ProgramConfigTest, TheLogBeginsAtTheLevelOfItsFileAndFollowsIt) {
  ASSERT_TRUE(Read({"--log-level-file", Write("log-level: error")}).ok());
  config_->BeginLog("a-name", std::chrono::milliseconds(1));
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kError);
  Write("log-level: warning");
  EXPECT_TRUE(Eventually([] { return CurrentLogLevel() == LogLevel::kWarning; }));
  Write("threads: 1");
  EXPECT_TRUE(Eventually([] { return CurrentLogLevel() == LogLevel::kInfo; }));
}

TEST_F(ProgramConfigTest, WhatIsStartedFromHereHasNoVariablesOfTheConfiguration) {
  setenv("TANDEM_THREADS", "4", 1);
  setenv("TANDEM", "kept", 1);
  const char* const secrets[] = {"TANDEM_FLEET_SECRET", "TANDEM_API_KEY"};
  for (const char* const secret : secrets) setenv(secret, "kept", 1);
  ClearConfigVariables();
  EXPECT_EQ(getenv("TANDEM_THREADS"), nullptr);
  EXPECT_STREQ(getenv("TANDEM"), "kept");
  for (const char* const secret : secrets) {
    EXPECT_STREQ(getenv(secret), "kept");
    unsetenv(secret);
  }
  unsetenv("TANDEM");
  EXPECT_THAT(Environment(), testing::Not(testing::Contains(testing::HasSubstr("TANDEM_THREADS"))));
}

}  // namespace
}  // namespace tandem
