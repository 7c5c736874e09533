#include "services/server/followed_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::ElementsAre;

TEST(FollowedFilesTest, WhatIsNotTakenIsToldAgainAndSoIsWhatItReplaced) {
  const TempFolder folder;
  std::vector<std::string> told;
  FollowedFiles files({folder.Write("file", "good")}, [&](const auto& texts) {
    told.push_back(texts.ok() ? texts->front() : "none");
    return told.back() == "good";
  });
  const auto look = [&](const std::string& text) {
    folder.Write("file", text);
    files.Look();
    return std::exchange(told, {});
  };
  EXPECT_THAT(look("good"), ElementsAre("good"));
  EXPECT_THAT(look("good"), ElementsAre()) << "it is known";
  EXPECT_THAT(look("bad"), ElementsAre("bad"));
  EXPECT_THAT(look("bad"), ElementsAre("bad")) << "it was not taken";
  EXPECT_THAT(look("good"), ElementsAre("good")) << "whoever heard of the bad one hears of its end";
  EXPECT_THAT(look("good"), ElementsAre());
}

}  // namespace
}  // namespace tandem
