// `tandem serve` whose children are scripts: they only say what becomes of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"
#include "tools/tandem/child_process.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// Lives until it is asked to end, or finds NAME.ends, which says with which status; where there is
// a file "deaf" it only says that it was asked.
constexpr char kChild[] = R"(#!/bin/sh
folder=${0%/*}
name=router
for flag; do
  case $flag in --name=*) name=${flag#--name=} ;; esac
done
say() { echo "$name $*" >> "$folder/said"; }
trap 'say asked; [ -e "$folder/deaf" ] || { say ends; exit 0; }' TERM
say "began secret=${#TANDEM_FLEET_SECRET} threads=$TANDEM_THREADS $*"
while [ -d "$folder" ]; do
  if [ -e "$folder/$name.ends" ]; then
    status=$(cat "$folder/$name.ends")
    rm "$folder/$name.ends"
    say ends
    exit "$status"
  fi
  sleep 0.01
done
)";

class ServeTest : public testing::Test {
 protected:
  ServeTest() {
    std::filesystem::copy(TANDEM_BINARY_DIR "/tandem", folder_.path() + "/tandem");
    for (const char* const program : {"tandem-worker", "tandem-router"}) {
      std::filesystem::permissions(folder_.Write(program, kChild), std::filesystem::perms::all);
    }
  }
  ~ServeTest() override {
    if (!serve_.has_value() || Status().has_value()) return;
    serve_->Signal(SIGKILL);
    waitpid(serve_->pid(), nullptr, 0);
  }

  void Start(const std::vector<std::string>& flags) {
    std::vector<std::string> command = {folder_.path() + "/tandem",
                                        "serve",
                                        TANDEM_TEST_DATA "/demo_model",
                                        "--http=127.0.0.1:0",
                                        "--grpc=127.0.0.1:0",
                                        "--transport=grpc",
                                        "--cache-dir=" + folder_.path(),
                                        "--kv-memory=64MiB",
                                        "--log-level=error"};
    command.insert(command.end(), flags.begin(), flags.end());
    serve_.emplace("serve", command);
    ASSERT_TRUE(serve_->Start().ok());
  }
  // How `serve` has ended; none: it runs.
  std::optional<std::string> Status() {
    int status = 0;
    if (!status_.has_value() && waitpid(serve_->pid(), &status, WNOHANG) == serve_->pid()) {
      status_ = DescribeExit(status);
    }
    return status_;
  }
  void ExpectEnd(const std::string& how) {
    EXPECT_TRUE(Eventually([&] { return Status().has_value(); }));
    EXPECT_EQ(Status(), how);
  }

  // What the children have said, in order: those lines that begin so.
  std::vector<std::string> Said(const std::string& begin) {
    std::vector<std::string> lines;
    std::ifstream file(folder_.path() + "/said");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(begin)) lines.push_back(line);
    }
    return lines;
  }
  bool AwaitSaid(const std::string& begin, size_t times = 1) {
    return Eventually([&] { return Said(begin).size() >= times; });
  }
  void EndChild(const std::string& name, int status) {
    const std::string whole = folder_.Write("ends", absl::StrCat(status));
    std::filesystem::rename(whole, absl::StrCat(folder_.path(), "/", name, ".ends"));
  }
  // What follows `flag` in a line.
  static std::string ValueOf(const std::string& flag, const std::string& line) {
    const size_t begin = line.find(flag + "=") + flag.size() + 1;
    return line.substr(begin, line.find(' ', begin) - begin);
  }

  const TempFolder folder_;
  std::optional<ChildProcess> serve_;
  std::optional<std::string> status_;
};

TEST_F(ServeTest, EachChildIsToldItsPartAndTheRouterWhereTheWorkersAre) {
  setenv("TANDEM_THREADS", "1", 1);
  Start({"--prefill=1", "--decode=1", "--memory-limit=64MiB", "--drain-seconds=77"});
  unsetenv("TANDEM_THREADS");
  for (const char* const name : {"prefill-0", "decode-0", "router"}) {
    ASSERT_TRUE(AwaitSaid(absl::StrCat(name, " began"))) << name;
  }
  const std::string prefill = Said("prefill-0 began")[0], decode = Said("decode-0 began")[0],
                    router = Said("router began")[0];
  EXPECT_THAT(prefill, HasSubstr(" --role=prefill "));
  EXPECT_THAT(decode, HasSubstr(" --role=decode "));
  for (const std::string& worker : {prefill, decode}) {
    EXPECT_THAT(worker, HasSubstr(" --machine-share=2 "));
    EXPECT_THAT(worker, HasSubstr(" --threads=1 "));
    EXPECT_THAT(worker, HasSubstr(" --incarnation="));
    EXPECT_EQ(worker.find(" --ended="), std::string::npos);
  }
  EXPECT_EQ(ValueOf("--workers", router),
            ValueOf("--listen", prefill) + "," + ValueOf("--listen", decode));
  EXPECT_THAT(router, HasSubstr(" --drain-seconds=77 "));
  for (const std::string& child : {prefill, decode, router}) {
    EXPECT_THAT(child, HasSubstr(" --memory-limit=67108864"));
    EXPECT_THAT(child, HasSubstr(" --log-level=error"));
    EXPECT_THAT(child, HasSubstr(" threads= ")) << "its variables would be flags once more";
    EXPECT_GE(std::stoi(ValueOf("secret", child)), 32);
  }
  serve_->Signal(SIGTERM);
  ExpectEnd("exit status 0");
}

// So a router learns that an attempt has ended several lives, and tries it on no other worker.
TEST_F(ServeTest, AWorkerThatEndsIsBegunAgainAndTellsHowItsLivesEnded) {
  Start({"--hybrid=1"});
  ASSERT_TRUE(AwaitSaid("hybrid-0 began"));
  size_t lives = 1;
  std::string ended;
  for (const auto& [status, cause] : {std::pair(1, "crash"), std::pair(0, "outside"),
                                      std::pair(2, "crash"), std::pair(3, "outside")}) {
    absl::StrAppend(&ended, ended.empty() ? "" : ",",
                    ValueOf("--incarnation", Said("hybrid-0 began").back()), ":", cause);
    EndChild("hybrid-0", status);
    ASSERT_TRUE(AwaitSaid("hybrid-0 began", ++lives)) << "after status " << status;
    EXPECT_EQ(ValueOf("--ended", Said("hybrid-0 began").back()), ended);
  }
  EXPECT_EQ(Said("router began").size(), 1u);
  EXPECT_EQ(Status(), std::nullopt);
}

// To begin it again would hide what is wrong.
TEST_F(ServeTest, AChildThatCannotStartEndsThemAll) {
  EndChild("decode-0", 2);
  Start({"--prefill=1", "--decode=1"});
  ExpectEnd("exit status 1");
  EXPECT_EQ(Said("decode-0 began").size(), 1u);
}

TEST_F(ServeTest, WorkersAreAskedToEndOnceTheRouterHasEnded) {
  folder_.Write("deaf", "");
  Start({"--hybrid=2"});
  ASSERT_TRUE(AwaitSaid("hybrid-0 began") && AwaitSaid("hybrid-1 began") &&
              AwaitSaid("router began"));
  serve_->Signal(SIGTERM);
  ASSERT_TRUE(AwaitSaid("router asked")) << "it has streams to end";
  EndChild("router", 0);
  ASSERT_TRUE(AwaitSaid("hybrid-0 asked") && AwaitSaid("hybrid-1 asked"));
  const std::vector<std::string> said = Said("");
  EXPECT_LT(std::find(said.begin(), said.end(), "router ends"),
            std::find_if(said.begin(), said.end(), [](const std::string& line) {
              return line == "hybrid-0 asked" || line == "hybrid-1 asked";
            }));
  EndChild("hybrid-0", 0);
  EndChild("hybrid-1", 0);
  ExpectEnd("exit status 0");
}

TEST_F(ServeTest, WhoAsksAgainWaitsForNobody) {
  folder_.Write("deaf", "");
  Start({"--hybrid=1", "--drain-seconds=3600"});
  ASSERT_TRUE(AwaitSaid("hybrid-0 began") && AwaitSaid("router began"));
  EXPECT_TRUE(Eventually([&] {
    if (!Status().has_value()) serve_->Signal(SIGTERM);
    return Status().has_value();
  }));
  EXPECT_EQ(Status(), "exit status 0");
}

TEST_F(ServeTest, NobodyStaysWhenItIsKilled) {
  Start({"--hybrid=1"});
  ASSERT_TRUE(AwaitSaid("hybrid-0 began") && AwaitSaid("router began"));
  serve_->Signal(SIGKILL);
  EXPECT_TRUE(AwaitSaid("hybrid-0 ends") && AwaitSaid("router ends"));
}

}  // namespace
}  // namespace tandem
