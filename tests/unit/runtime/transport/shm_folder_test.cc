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

// /dev/shm is everybody's: names that look like ours prove nothing.
TEST_F(ShmFolderTest, WhatAnotherProgramMadeStaysWhateverItsName) {
  const auto make = [&](const std::string& name) {
    const std::string path = parent_ + "/tandem." + name;
    fs::create_directory(path);
    fs::permissions(path, fs::perms::owner_all);
    std::ofstream(path + "/data") << "precious";
    return path;
  };
  // What ours look like, copied into what is not ours in one thing each.
  std::string mark, mark_text;
  {
    const auto ours = ShmFolder::Create(parent_);
    ASSERT_TRUE(ours.ok()) << ours.status();
    const fs::path file = fs::directory_iterator((*ours)->path())->path();
    mark = file.filename().string();
    std::ifstream in(file);
    mark_text.assign(std::istreambuf_iterator<char>(in), {});
  }
  ASSERT_FALSE(mark_text.empty());
  const std::string unmarked = make("unmarked");
  const std::string other_text = make("other_text");
  std::ofstream(other_text + "/" + mark) << mark_text << "and more";
  const std::string linked_mark = make("linked_mark");
  std::ofstream(parent_ + "/a_mark") << mark_text;
  fs::create_symlink(parent_ + "/a_mark", linked_mark + "/" + mark);
  const std::string open_to_others = make("open_to_others");
  std::ofstream(open_to_others + "/" + mark) << mark_text;
  fs::permissions(open_to_others, fs::perms::owner_all | fs::perms::group_all);
  const std::string shown_to_others = make("shown_to_others");
  std::ofstream(shown_to_others + "/" + mark) << mark_text;
  fs::permissions(shown_to_others, fs::perms::owner_all | fs::perms::others_read);
  const std::string linked = make("linked");
  std::ofstream(linked + "/" + mark) << mark_text;
  fs::rename(linked, parent_ + "/elsewhere");
  fs::create_directory_symlink(parent_ + "/elsewhere", linked);

  ShmFolder::RemoveAbandoned(parent_);
  for (const std::string& path :
       {unmarked, other_text, linked_mark, open_to_others, shown_to_others, linked}) {
    EXPECT_TRUE(fs::exists(path + "/data")) << path;
  }

  // One that is ours is still not followed out of: a link goes, its target stays.
  const std::string ours = make("ours");
  std::ofstream(ours + "/" + mark) << mark_text;
  fs::create_directory_symlink(unmarked, ours + "/way_out");
  ShmFolder::RemoveAbandoned(parent_);
  EXPECT_FALSE(fs::exists(ours));
  EXPECT_TRUE(fs::exists(unmarked + "/data"));
}

TEST_F(ShmFolderTest, SaysWhereItCannotBeMade) {
  const absl::Status status = ShmFolder::Create(parent_ + "/missing").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/missing"));
}

}  // namespace
}  // namespace tandem
