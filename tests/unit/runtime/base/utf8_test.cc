#include "runtime/base/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace tandem {
namespace {

std::string Replaced(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text.append(kReplacementCharacter);
  return text;
}

TEST(Utf8Test, WholeCharactersStay) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF\x7F";
  EXPECT_TRUE(IsValidUtf8(text));
  EXPECT_EQ(ToValidUtf8(text), text);
  EXPECT_EQ(UnfinishedSuffix(text), 0u);
}

TEST(Utf8Test, BytesThatFormNoCharacterAreReplacedPartByPart) {
  EXPECT_EQ(ToValidUtf8("\x80"), Replaced(1));
  EXPECT_EQ(ToValidUtf8("\xC0\x80"), Replaced(2));          // Long form.
  EXPECT_EQ(ToValidUtf8("\xE0\x9F\x80"), Replaced(3));      // Long form.
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), Replaced(3));      // Surrogate.
  EXPECT_EQ(ToValidUtf8("\xF4\x90\x80\x80"), Replaced(4));  // Past U+10FFFF.
  EXPECT_EQ(ToValidUtf8("\xF5\xFF"), Replaced(2));          // Never in UTF-8.
  EXPECT_EQ(ToValidUtf8("\xE2\x82x"), Replaced(1) + "x");   // A beginning is one part.
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\x98"), Replaced(1));      // Also at the end.
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\xE2\x82\xAC"), Replaced(1) + "\xE2\x82\xAC");
}

TEST(Utf8Test, UnfinishedSuffixIsWhatMoreBytesCouldComplete) {
  EXPECT_EQ(UnfinishedSuffix(""), 0u);
  EXPECT_EQ(UnfinishedSuffix("a\xC3"), 1u);
  EXPECT_EQ(UnfinishedSuffix("a\xE2\x82"), 2u);
  EXPECT_EQ(UnfinishedSuffix("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(UnfinishedSuffix("\xC0"), 0u);
  EXPECT_EQ(UnfinishedSuffix("\xE0\x9F"), 0u);
  EXPECT_EQ(UnfinishedSuffix("\x80\x80\x80\x80"), 0u);
  EXPECT_EQ(UnfinishedSuffix("\xE2\x82\x41"), 0u);
}

}  // namespace
}  // namespace tandem
