#include "runtime/transport/ucx/shm_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

namespace fs = std::filesystem;

int NumEntries(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

class ShmFolderTest : public testing::Test {
 protected:
  ShmFolderTest() : parent_(testing::TempDir() + "shm_folder_test." + std::to_string(getpid())) {
    fs::create_directory(parent_);
  }
  ~ShmFolderTest() override { fs::remove_all(parent_); }

  const std::string parent_;
};

TEST_F(ShmFolderTest, GoesWithItsOwnerAndAllThatIsInIt) {
  {
    const auto folder = ShmFolder::Create(parent_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    std::ofstream((*folder)->path() + "/pool") << "blocks";
    EXPECT_EQ(NumEntries(parent_), 1);
  }
  EXPECT_EQ(NumEntries(parent_), 0);
}

TEST_F(ShmFolderTest, StartRemovesWhatAKilledProcessLeftAndNothingElse) {
  fs::create_directory(parent_ + "/somebody.else");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto folder = ShmFolder::Create(parent_);
    if (folder.ok()) std::ofstream((*folder)->path() + "/pool") << "blocks";
    const char done = folder.ok() ? 'y' : 'n';
    if (write(ready[1], &done, 1) == 1) pause();
    _exit(1);
  }
  char done = 0;
  ASSERT_EQ(read(ready[0], &done, 1), 1);
  ASSERT_EQ(done, 'y');

  const auto beside = ShmFolder::Create(parent_);
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(NumEntries(parent_), 3) << "the living child's folder stays";

  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto after = ShmFolder::Create(parent_);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(NumEntries(parent_), 3);
  EXPECT_TRUE(fs::exists((*beside)->path()));
  EXPECT_TRUE(fs::exists((*after)->path()));
  EXPECT_TRUE(fs::exists(parent_ + "/somebody.else"));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(ShmFolderTest, SaysWhereItCannotBeMade) {
  const absl::Status status = ShmFolder::Create(parent_ + "/missing").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/missing"));
}

}  // namespace
}  // namespace tandem
