#include "services/server/build_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(BuildInfoTest, AVersionIsALineThatSaysWhatIsThere) {
  EXPECT_EQ(VersionLine("tandem-worker", {.cuda = "13.0 for sm_90a", .nccl = "2.3", .ucx = "1.13"}),
            "tandem-worker " TANDEM_VERSION " (CUDA 13.0 for sm_90a, NCCL 2.3, UCX 1.13)");
  EXPECT_EQ(VersionLine("tandem", {.ucx = "1.13"}),
            "tandem " TANDEM_VERSION " (no CUDA, no NCCL, UCX 1.13)");
  EXPECT_EQ(
      VersionLine("tandem", {.commit = "0123abcd-dirty", .ucx = "1.13", .ucx_loaded = "1.22"}),
      "tandem " TANDEM_VERSION " (commit 0123abcd-dirty, no CUDA, no NCCL, UCX 1.13, loaded 1.22)");
}

TEST(BuildInfoTest, ThisBuildHasNcclOnlyWithCuda) {
  const BuildInfo& build = ThisBuild();
  EXPECT_THAT(build.ucx, testing::ContainsRegex("^[0-9]+\\.[0-9]+\\.[0-9]+$"));
  EXPECT_THAT(build.cuda, testing::ContainsRegex("^$|^[0-9]+\\.[0-9]+ for [sc0-9]"));
  EXPECT_THAT(build.nccl, testing::ContainsRegex("^$|^[0-9]+\\.[0-9]+\\.[0-9]+$"));
  EXPECT_TRUE(build.nccl.empty() || !build.cuda.empty());
  EXPECT_EQ(build.commit, "") << "a commit would link every test anew";
  EXPECT_EQ(LoadedUcx(), "") << "this test has none";
  EXPECT_EQ(build.ucx_loaded, "");
}

}  // namespace
}  // namespace tandem
