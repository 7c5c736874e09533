#include "services/server/run_program.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/protocol/ended_lives.h"
#include "tests/support/count_of.h"

namespace tandem {
namespace {

class RunProgramTest : public testing::Test {
 protected:
  // The exit status; what was printed is in out_ and error_.
  int Run(const std::vector<std::string>& arguments) {
    FlagSet flags("tandem-test [flags]", "");
    std::string size = "1";
    flags.Add("size", &size, "N", "a size");
    ran_ = false;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int status = RunProgram(
        arguments, {.name = "tandem-test",
                    .flags = &flags,
                    .check =
                        [&] {
                          return size == "0" ? absl::InvalidArgumentError("--size: 0, want 1")
                                             : absl::OkStatus();
                        },
                    .log_name = [] { return "test"; },
                    .run =
                        [this](StopSignal* stop) {
                          ran_ = true;
                          work_(stop);
                          return outcome_;
                        }});
    out_ = testing::internal::GetCapturedStdout();
    error_ = testing::internal::GetCapturedStderr();
    return status;
  }

  void (*work_)(StopSignal*) = [](StopSignal* stop) { stop->Serving(); };
  absl::Status outcome_;
  bool ran_ = false;
  std::string out_, error_;
};

// Where a thread cannot begin, whichever it is.
TEST_F(RunProgramTest, WhatNobodyCatchesIsALineOfTheLog) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = []() noexcept {
    FlagSet flags("tandem-test [flags]", "");
    RunProgram({}, {.name = "tandem-test",
                    .flags = &flags,
                    .check = [] { return absl::OkStatus(); },
                    .log_name = [] { return "test"; },
                    .run = [](StopSignal*) -> absl::Status {
                      throw std::system_error(EAGAIN, std::generic_category());
                    }});
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(1),
              "cannot go on.*temporarily unavailable: a thread cannot begin; see pids.max");
}

TEST_F(RunProgramTest, WrongUseIsToldInTwoLinesWhateverElseIsAsked) {
  for (const bool prints : {false, true}) {
    for (const auto& [wrong, why] : {std::pair("--size=0", "--size: 0, want 1"),
                                     std::pair("more", "unknown argument \"more\"")}) {
      std::vector<std::string> arguments = {wrong};
      if (prints) arguments.emplace_back("--print-config");
      EXPECT_EQ(Run(arguments), 2);
      EXPECT_EQ(error_, std::string("tandem-test: ") + why + "\nTry --help.\n");
      EXPECT_EQ(out_, "");
      EXPECT_FALSE(ran_);
    }
  }
}

TEST_F(RunProgramTest, WhatIsAskedForIsPrintedAndNothingElseHappens) {
  EXPECT_EQ(Run({"--print-config", "--size=3"}), 0);
  EXPECT_NE(out_.find("size: 3"), std::string::npos) << out_;
  EXPECT_EQ(Run({"--help", "--size=0"}), 0);
  EXPECT_NE(out_.find("--size N"), std::string::npos) << out_;
  EXPECT_FALSE(ran_);
}

TEST_F(RunProgramTest, TheExitStatusSaysWhetherItMayHelpToTryAgain) {
  EXPECT_EQ(Run({}), 0);
  EXPECT_TRUE(ran_);
  for (const auto& [outcome, status] :
       {std::pair(absl::InvalidArgumentError("no"), 2), std::pair(absl::NotFoundError("no"), 2),
        std::pair(absl::PermissionDeniedError("no"), 2),
        std::pair(absl::FailedPreconditionError("no"), 2),
        std::pair(absl::UnavailableError("that port is another's"), 2),
        std::pair(absl::ResourceExhaustedError("no memory"), 1),
        std::pair(absl::DataLossError("the device is lost"), kExitToBeReplaced),
        std::pair(absl::InternalError("no"), 1)}) {
    outcome_ = outcome;
    EXPECT_EQ(Run({}), status) << outcome;
  }
}

TEST_F(RunProgramTest, WhyItCannotStartIsALineOfItsLog) {
  outcome_ = absl::NotFoundError("no such model");
  work_ = [](StopSignal*) {
    grpc_init();
    gpr_log(GPR_ERROR, "said by gRPC");
  };
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(CountOf("\"process\":\"test\"", error_), 2) << error_;
  EXPECT_EQ(CountOf("said by gRPC", error_), 1) << error_;
  EXPECT_EQ(CountOf("\"why\":\"no such model\"", error_), 1) << error_;
}

// Nothing is promised to anybody yet.
TEST_F(RunProgramTest, WhoIsAskedToStopWhileItStartsEndsWell) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  outcome_ = absl::InternalError("it goes on");
  work_ = [](StopSignal* stop) {
    kill(getpid(), SIGTERM);
    stop->Wait(std::chrono::seconds(30));
  };
  EXPECT_EXIT(std::exit(Run({})), testing::ExitedWithCode(0), "");
}

// Unlike who is asked by others: that has begun something.
TEST_F(RunProgramTest, WhoAsksItselfWhileItStartsIsToldOnceItServes) {
  work_ = [](StopSignal* stop) {
    stop->Ask();
    stop->Serving();
    EXPECT_EQ(stop->Wait(), SIGTERM);
    EXPECT_EQ(stop->Wait(std::chrono::microseconds(1)), 0);
  };
  EXPECT_EQ(Run({}), 0);
}

TEST_F(RunProgramTest, ASignalIsHeardOnce) {
  work_ = [](StopSignal* stop) {
    stop->Serving();
    for (const int signal : {SIGTERM, SIGINT}) {
      kill(getpid(), signal);
      EXPECT_EQ(stop->Wait(), signal);
      EXPECT_EQ(stop->Wait(std::chrono::microseconds(1)), 0) << "the same again ends a drain";
    }
  };
  EXPECT_EQ(Run({}), 0);
}

}  // namespace
}  // namespace tandem
