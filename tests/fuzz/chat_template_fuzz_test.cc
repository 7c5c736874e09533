#include <boost/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/small_file.h"
#include "tests/fuzz/mutation.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 20240302;

TEST(ChatTemplateFuzzTest, DamagedTemplatesAndMessagesAreErrorsAndNoMore) {
  SCOPED_TRACE(kSeed);
  const auto json =
      ReadSmallFile(std::string(TANDEM_TEST_DATA) + "/text/chat_templates.json", size_t{4} << 20);
  ASSERT_TRUE(json.ok()) << json.status();
  std::vector<std::string> inputs;
  const boost::json::value golden =
      boost::json::parse(boost::json::string_view(json->data(), json->size()));
  for (const boost::json::value& c : golden.at("cases").as_array()) {
    std::string input;
    if (c.at("template").is_string()) input += c.at("template").as_string().c_str();
    input += '\0' + boost::json::serialize(c.at("config"));
    input += '\0' + boost::json::serialize(c.at("messages"));
    inputs.push_back(input);
  }
  ASSERT_GE(inputs.size(), 20u);
  RunFuzzer(inputs, /*count=*/50000, kSeed);
}

}  // namespace
}  // namespace tandem
