#include "runtime/base/private_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <string>

#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

absl::StatusCode CodeOf(const std::string& path, int flags = O_RDONLY) {
  return OpenPrivate(AT_FDCWD, path, flags).status().code();
}

TEST(PrivateFileTest, OpensOnlyWhatIsThisUsersAlone) {
  const TempFolder folder;
  const std::string file = folder.Write("file", "x");
  for (const mode_t mode : {0600, 0644, 0755}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_EQ(CodeOf(file), absl::StatusCode::kOk) << std::oct << mode;
  }
  for (const mode_t mode : {0620, 0602, 0666}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_EQ(CodeOf(file), absl::StatusCode::kFailedPrecondition) << std::oct << mode;
  }
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  if (geteuid() == 0) {  // Nobody else can give files away.
    ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
    EXPECT_EQ(CodeOf(file), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(CodeOf(folder.path() + "/none"), absl::StatusCode::kNotFound);
}

TEST(PrivateFileTest, FollowsNoLinkAndTakesNothingElse) {
  const TempFolder folder;
  const std::string file = folder.Write("file", "x"), inside = folder.path() + "/inside";
  std::filesystem::create_directory(inside);
  std::filesystem::create_symlink(file, folder.path() + "/to_file");
  std::filesystem::create_symlink(inside, folder.path() + "/to_folder");
  ASSERT_EQ(mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(CodeOf(inside, O_RDONLY | O_DIRECTORY), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(folder.path() + "/to_file"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(folder.path() + "/to_folder", O_RDONLY | O_DIRECTORY),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(inside), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(folder.path() + "/pipe"), absl::StatusCode::kFailedPrecondition);
}

TEST(PrivateFileTest, NamesAreThoseInTheFolderAndMayGoMeanwhile) {
  const TempFolder folder;
  folder.Write("a", "");
  folder.Write("b", "");
  const auto opened = OpenPrivate(AT_FDCWD, folder.path(), O_RDONLY | O_DIRECTORY);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::set<std::string> names;
  ASSERT_TRUE(ForEachName(opened->get(), [&](const std::string& name) {
                names.insert(name);
                unlinkat(opened->get(), name.c_str(), 0);
              }).ok());
  EXPECT_EQ(names, (std::set<std::string>{"a", "b"}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace tandem
