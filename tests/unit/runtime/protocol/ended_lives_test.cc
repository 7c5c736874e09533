#include "runtime/protocol/ended_lives.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(EndedLivesTest, AreReadAsTheyWereWritten) {
  const std::vector<EndedLife> lives = {{.incarnation = 1, .cause = EndCause::kOutside},
                                        {.incarnation = ~uint64_t{0}, .cause = EndCause::kCrash},
                                        {.incarnation = 7, .cause = EndCause::kMemory}};
  const std::string text = FormatEndedLives(lives);
  EXPECT_EQ(text, "1:outside,18446744073709551615:crash,7:memory");
  ASSERT_TRUE(ParseEndedLives(text).ok());
  EXPECT_EQ(*ParseEndedLives(text), lives);
  EXPECT_EQ(FormatEndedLives({}), "");
  EXPECT_TRUE(ParseEndedLives("")->empty());
}

TEST(EndedLivesTest, WhatIsNotSoIsQuoted) {
  for (const std::string text : {"1", "1:", ":crash", "x:crash", "0:crash", "-1:crash", "1:kill",
                                 "18446744073709551616:crash", "1:crash,,2:crash", "1:crash,"}) {
    const auto lives = ParseEndedLives(text);
    EXPECT_EQ(lives.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_NE(ParseEndedLives("1:crash,5:odd").status().message().find("\"5:odd\""),
            std::string::npos);
}

TEST(EndedLivesTest, AreBounded) {
  std::vector<EndedLife> lives(kMaxEndedLives, {.incarnation = 3, .cause = EndCause::kCrash});
  EXPECT_TRUE(ParseEndedLives(FormatEndedLives(lives)).ok());
  lives.push_back({.incarnation = 4, .cause = EndCause::kCrash});
  EXPECT_FALSE(ParseEndedLives(FormatEndedLives(lives)).ok());
}

}  // namespace
}  // namespace tandem
