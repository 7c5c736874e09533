#include "runtime/base/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

absl::StatusCode CodeOf(const std::string& path, size_t max_bytes) {
  return ReadSmallFile(path, max_bytes).status().code();
}

TEST(SmallFileTest, GivesAllBytesUpToTheLimit) {
  const TempFolder folder;
  const std::string bytes("a\0b\n", 4);
  const std::string path = folder.Write("file", bytes);
  EXPECT_EQ(ReadSmallFile(path, 4).value(), bytes);
  EXPECT_EQ(ReadSmallFile(folder.Write("empty", ""), 4).value(), "");
  EXPECT_EQ(CodeOf(path, 3), absl::StatusCode::kInvalidArgument);
}

TEST(SmallFileTest, OnlyAMissingFileIsNotFound) {
  const TempFolder folder;
  EXPECT_EQ(CodeOf(folder.path() + "/absent", 10), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(folder.Write("file", "x") + "/below", 10), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(folder.path(), 10), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(folder.path() + "/" + std::string(300, 'n'), 10),
            absl::StatusCode::kUnavailable);
}

TEST(SmallFileTest, IsWrittenWholeOrNotAtAll) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "before");
  EXPECT_TRUE(WriteSmallFile(path, "after\n").ok());
  EXPECT_EQ(ReadSmallFile(path, 10).value(), "after\n");
  EXPECT_EQ(WriteSmallFile(folder.path() + "/no/file", "x").code(), absl::StatusCode::kUnavailable);
  // What cannot be replaced stays, and nothing is left beside it.
  std::filesystem::create_directories(folder.path() + "/taken/by");
  EXPECT_EQ(WriteSmallFile(folder.path() + "/taken", "x").code(), absl::StatusCode::kUnavailable);
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);
}

TEST(SmallFileTest, WhatFindsNoRoomReplacesNothing) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "before");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteSmallFile(path, "longer than that");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadSmallFile(path, 10).value(), "before");
}

TEST(SmallFileTest, APointerOfGitLfsIsRefusedByThatName) {
  const TempFolder folder;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
      "\nsize 9\n";
  const absl::Status status = ReadSmallFile(folder.Write("file", pointer), 1000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("\"git lfs pull\""));
  EXPECT_EQ(CodeOf(folder.Write("file", " " + pointer), 1000), absl::StatusCode::kOk);
}

TEST(SmallFileTest, ANamedPipeIsRefusedWithoutWaiting) {
  const TempFolder folder;
  const std::string path = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(CodeOf(path, 10), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
