#include "runtime/request/stop_matcher.h"

#include <gtest/gtest.h>

#include "runtime/base/random.h"
#include "runtime/request/choice_text.h"

namespace tandem {
namespace {

StopStrings Stops(std::vector<std::string> stops) {
  return std::make_shared<const std::vector<std::string>>(std::move(stops));
}

TEST(StopMatcher, HoldsBackWhatMayBeginAStopString) {
  StopMatcher matcher(Stops({"\n\nUser:"}));
  EXPECT_EQ(matcher.Append("Hello\n"), "Hello");
  EXPECT_EQ(matcher.Append("x\n\nUs"), "\nx");
  EXPECT_EQ(matcher.Append("age"), "\n\nUsage");
  EXPECT_EQ(matcher.Append("\n\nUser: hi"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Append("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, TheMatchThatIsCompleteFirstWins) {
  StopMatcher matcher(Stops({"cd", "bcde"}));
  EXPECT_EQ(matcher.Append("ab"), "a");
  EXPECT_EQ(matcher.Append("c"), "");
  EXPECT_EQ(matcher.Append("de"), "b");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, OfMatchesThatEndTogetherTheLongestWins) {
  StopMatcher matcher(Stops({"cd", "bcd"}));
  EXPECT_EQ(matcher.Append("abcd"), "a");
}

TEST(StopMatcher, FlushGivesBackWhatNeverBecameAStopString) {
  StopMatcher matcher(Stops({"stop"}));
  EXPECT_EQ(matcher.Append("no sto"), "no ");
  EXPECT_EQ(matcher.Flush(), "sto");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, AStopStringThatDoesNotCountIsTextAtOnce) {
  StopMatcher matcher(Stops({"stop"}));
  EXPECT_EQ(matcher.AppendUnmatched("a stop"), "a stop");
  EXPECT_EQ(matcher.AppendUnmatched(" st"), " ");
  EXPECT_EQ(matcher.Append("op"), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, WithoutStopStringsEverythingPasses) {
  StopMatcher matcher(Stops({}));
  EXPECT_EQ(matcher.Append("abc"), "abc");
  EXPECT_EQ(matcher.Flush(), "");
}

// Cut into random pieces, the text before the stop is what a search of the whole finds.
TEST(StopMatcher, TextDoesNotDependOnHowItWasCut) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto word = [&](uint64_t most) {
      std::string s;
      for (uint64_t i = random.Below(most) + 1; i > 0; --i) {
        s += static_cast<char>('a' + random.Below(2));
      }
      return s;
    };
    std::vector<std::string> stops;
    for (uint64_t i = random.Below(3) + 1; i > 0; --i) stops.push_back(word(6) + "a");
    const std::string text = word(30);
    size_t cut = std::string::npos, end = std::string::npos;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      if (end == std::string::npos || at + stop.size() < end ||
          (at + stop.size() == end && at < cut)) {
        cut = at;
        end = at + stop.size();
      }
    }
    StopMatcher matcher(Stops(stops));
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t piece = std::min<size_t>(random.Below(4) + 1, text.size() - at);
      shown += matcher.Append(text.substr(at, piece));
      at += piece;
      ASSERT_EQ(text.compare(0, shown.size(), shown), 0);
    }
    shown += matcher.Flush();
    EXPECT_EQ(shown, text.substr(0, cut));
    EXPECT_EQ(matcher.stopped(), cut != std::string::npos);
  }
}

class Letters final : public Detokenizer {
 public:
  std::string Append(int32_t token) override { return std::string(1, static_cast<char>(token)); }
  std::string Finish() override { return "."; }
};

TEST(ChoiceText, AStopTokenHasNoTextButEndsWhatWaited) {
  ChoiceText text(std::make_unique<Letters>(), Stops({"bz"}), 0);
  FinishReason finish = FinishReason::kNone;
  EXPECT_EQ(text.Append('a', &finish), "a");
  EXPECT_EQ(text.Append('b', &finish), "");
  finish = FinishReason::kStop;
  EXPECT_EQ(text.Append('z', &finish), "b.");
  EXPECT_EQ(finish, FinishReason::kStop);
}

TEST(ChoiceText, AStopStringThatTheLastTokenCompletesIsAStop) {
  ChoiceText text(std::make_unique<Letters>(), Stops({"b."}), 0);
  FinishReason finish = FinishReason::kNone;
  EXPECT_EQ(text.Append('a', &finish), "a");
  finish = FinishReason::kLength;
  EXPECT_EQ(text.Append('b', &finish), "");
  EXPECT_EQ(finish, FinishReason::kStop);
}

TEST(ChoiceText, WhatCouldHaveBegunAStopStringComesAtTheEnd) {
  ChoiceText text(std::make_unique<Letters>(), Stops({".z"}), 0);
  FinishReason finish = FinishReason::kLength;
  EXPECT_EQ(text.Append('a', &finish), "a.");
  EXPECT_EQ(finish, FinishReason::kLength);
}

// What comes of `tokens` one by one, until it stops.
std::string TextOf(const std::string& tokens, std::vector<std::string> stops, int32_t min_tokens) {
  ChoiceText text(std::make_unique<Letters>(), Stops(std::move(stops)), min_tokens);
  FinishReason finish = FinishReason::kNone;
  std::string all;
  for (const char token : tokens) {
    all += text.Append(token, &finish);
    if (finish == FinishReason::kStop) return all + "!";
  }
  finish = FinishReason::kLength;
  return all + text.Append('.', &finish) + (finish == FinishReason::kStop ? "!" : "");
}

TEST(ChoiceText, StopStringsBeforeTheFewestTokensDoNotCount) {
  EXPECT_EQ(TextOf("abcab", {"ab"}, 0), "!");
  EXPECT_EQ(TextOf("abcab", {"ab"}, 2), "abc!");
  EXPECT_EQ(TextOf("abcab", {"ab"}, 5), "abcab..");
  EXPECT_EQ(TextOf("abcab", {"ab"}, 100), "abcab..");
  // One that ends later counts wherever it began, and a complete one may begin a longer one.
  EXPECT_EQ(TextOf("xabc", {"ab"}, 2), "x!");
  EXPECT_EQ(TextOf("xabc", {"ab", "abc"}, 3), "x!");
}

TEST(ChoiceText, TheLastTextIsPartOfTheFewestTokens) {
  ChoiceText text(std::make_unique<Letters>(), Stops({"b."}), 1);
  FinishReason finish = FinishReason::kLength;
  EXPECT_EQ(text.Append('b', &finish), "b.");
  EXPECT_EQ(finish, FinishReason::kLength);
}

}  // namespace
}  // namespace tandem
