// What a router makes of the text files of a model folder.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "services/router/call_starter.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

constexpr char kHello[] = R"([{"role": "user", "content": "hello"}])";

TEST(LoadModelTextTest, TokensThatNoTextFileNamesAreThoseOfTheModel) {
  const TempFolder folder;
  const std::string demo = std::string(TANDEM_TEST_DATA) + "/demo_model";
  std::filesystem::copy(demo + "/tokenizer.json", folder.path());
  folder.Write("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
  ModelInfo model{.folder = folder.path()};
  model.generation.bos_token_id = 0;
  model.generation.eos_token_ids = {1};
  const auto text = LoadModelText(model);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->chat_template->Render(kHello, {}).value(), "<|begin|>hello<|end|>");
}

TEST(LoadModelTextTest, AListOfTemplatesWithoutADefaultIsNoTemplate) {
  const TempFolder folder;
  std::filesystem::copy(std::string(TANDEM_TEST_DATA) + "/demo_model/tokenizer.json",
                        folder.path());
  folder.Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  const auto text = LoadModelText({.folder = folder.path()});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_NE(text->tokenizer, nullptr);
  EXPECT_EQ(text->chat_template, nullptr);
}

// Without their text a router would serve ids alone, and nobody would know why.
TEST(LoadModelTextTest, BrokenFilesAreErrorsAndMissingOnesAreNot) {
  const TempFolder folder;
  const ModelInfo model{.folder = folder.path()};
  const auto none = LoadModelText(model);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->tokenizer, nullptr);
  folder.Write("tokenizer.json", "{");
  EXPECT_FALSE(LoadModelText(model).ok());
  std::filesystem::copy(std::string(TANDEM_TEST_DATA) + "/demo_model/tokenizer.json", folder.path(),
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(LoadModelText(model).ok());
  folder.Write("chat_template.jinja", "{% if %}");
  EXPECT_FALSE(LoadModelText(model).ok());
}

}  // namespace
}  // namespace tandem
