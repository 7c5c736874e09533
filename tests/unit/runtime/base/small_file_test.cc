#include "runtime/base/small_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

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

TEST(SmallFileTest, ANamedPipeIsRefusedWithoutWaiting) {
  const TempFolder folder;
  const std::string path = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(CodeOf(path, 10), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
