#include "runtime/base/log.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string Json(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

TEST(LogTest, WritesEveryStringAsValidJson) {
  EXPECT_EQ(Json("plain"), R"("plain")");
  EXPECT_EQ(Json("a\"b\\c\nd\te"), R"("a\"b\\c\nd\u0009e")");
  EXPECT_EQ(Json("ünï 😀"), "\"ünï 😀\"");
  EXPECT_EQ(Json("\xFFx\xE2\x82"), "\"\xEF\xBF\xBDx\xEF\xBF\xBD\"");
  EXPECT_EQ(Json("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // A surrogate.
}

}  // namespace
}  // namespace tandem
