#include "runtime/text/chat_template.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/runtime/text/golden.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr char kHello[] = R"([{"role": "user", "content": "hello"}])";

std::unique_ptr<ChatTemplate> Make(std::string_view text, std::string_view config = "") {
  auto made = ChatTemplate::Parse(text, {.config = std::string(config)}, {});
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

absl::StatusOr<std::string> RenderText(std::string_view text, std::string_view messages = kHello) {
  return Make(text)->Render(messages, {});
}

std::string Message(const absl::StatusOr<std::string>& result) {
  return std::string(result.status().message());
}

// Null becomes an empty text.
std::string Serialize(const boost::json::value& value) {
  return value.is_null() ? std::string() : boost::json::serialize(value);
}

TEST(ChatTemplateTest, RendersAsTransformers) {
  const boost::json::value golden = LoadJson("chat_templates.json");
  ASSERT_GE(golden.at("cases").as_array().size(), 80u);
  for (const boost::json::value& c : golden.at("cases").as_array()) {
    SCOPED_TRACE(c.at("name").as_string().c_str());
    const boost::json::value& text = c.at("template");
    const auto made = ChatTemplate::Parse(text.is_null() ? "" : text.as_string().c_str(),
                                          {.config = Serialize(c.at("config"))}, {});
    absl::StatusOr<std::string> result;
    if (!made.ok()) {
      result = made.status();
    } else {
      result = (*made)->Render(Serialize(c.at("messages")),
                               {.add_generation_prompt = c.at("add_generation_prompt").as_bool(),
                                .tools_json = Serialize(c.at("tools")),
                                .variables_json = Serialize(c.at("variables")),
                                .now_s = golden.at("now_s").as_int64()});
    }
    if (const boost::json::value* expected = c.as_object().if_contains("expected")) {
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(*result, expected->as_string().c_str());
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    }
  }
}

TEST(ChatTemplateTest, ExceptionOfATemplateIsItsMessage) {
  const auto result = RenderText(
      "{% macro f() %}{{ raise_exception('say \"why\"') }}{% endmacro %}"
      "{% for m in messages %}{{ f() }}{% endfor %}");
  EXPECT_TRUE(absl::IsInvalidArgument(result.status()));
  EXPECT_EQ(Message(result), "say \"why\"");
}

TEST(ChatTemplateTest, SpecialTokensComeFromTheFirstFileThatNamesThem) {
  const auto tokens = [](const std::string& config, const std::string& map) {
    const auto made = ChatTemplate::Parse("{{ bos_token }}{{ eos_token }}{{ pad_token }}",
                                          {.config = config, .special_tokens_map = map},
                                          {.bos = "<bos>", .eos = "<eos>"});
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? (*made)->Render(kHello, {}).value() : std::string();
  };
  constexpr char kObjects[] = R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})";
  EXPECT_EQ(tokens(kObjects, ""), "<s></s>");
  EXPECT_EQ(tokens("", kObjects), "<s></s>");
  EXPECT_EQ(tokens(R"({"bos_token": null})", R"({"eos_token": "</s>", "pad_token": "!"})"),
            "<bos></s>!");
  EXPECT_EQ(tokens("", ""), "<bos><eos>");
  // As in Transformers the older file wins, unless the newer one lists its tokens.
  EXPECT_EQ(tokens(kObjects, R"({"eos_token": "<map>"})"), "<s><map>");
  EXPECT_EQ(tokens(R"({"eos_token": "</s>", "added_tokens_decoder": {}})",
                   R"({"eos_token": "<map>", "bos_token": "<map>"})"),
            "<map></s>");
}

TEST(ChatTemplateTest, AListWithoutADefaultIsNoTemplateAndAWarning) {
  testing::internal::CaptureStderr();
  const auto made = ChatTemplate::Parse(
      "", {.config = R"({"chat_template": [{"name": "rag", "template": "x"}]})"}, {});
  EXPECT_TRUE(absl::IsNotFound(made.status())) << made.status();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("no entry is named default"));
}

TEST(ChatTemplateTest, FileOfItsOwnWinsOverTheConfiguration) {
  EXPECT_EQ(Make("file", R"({"chat_template": "configuration"})")->Render(kHello, {}).value(),
            "file");
}

TEST(ChatTemplateTest, FolderOfTheDemoModelLoads) {
  const auto made = ChatTemplate::Create(TokenizerFolder("demo_model"), {});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->Render(kHello, {}).value(), "<|begin|><|user|>hello<|assistant|>");
}

TEST(ChatTemplateTest, EachFileOfAFolderIsRead) {
  const TempFolder folder;
  folder.Write("tokenizer_config.json",
               R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}",
                   "bos_token": "<s>"})");
  folder.Write("special_tokens_map.json", R"({"pad_token": "!"})");
  const ChatTemplate::ModelTokens tokens{.bos = "<bos>", .eos = "<eos>"};
  const auto made = ChatTemplate::Create(folder.path(), tokens);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->Render(kHello, {}).value(), "<s><eos>!");
  // A file that cannot be used is not one that is missing.
  folder.Write("chat_template.jinja", std::string(ChatTemplate::kMaxTemplateBytes + 1, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(ChatTemplate::Create(folder.path(), tokens).status()));
  folder.Write("chat_template.jinja", "{% for %}");
  const absl::Status broken = ChatTemplate::Create(folder.path(), tokens).status();
  EXPECT_TRUE(absl::IsInvalidArgument(broken)) << broken;
  EXPECT_THAT(std::string(broken.message()), testing::StartsWith(folder.path() + ": "));
}

TEST(ChatTemplateTest, FolderWithoutTemplateIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ChatTemplate::Create("/nonexistent", {}).status()));
  EXPECT_TRUE(absl::IsNotFound(
      ChatTemplate::Parse("", {.config = R"({"bos_token": "<s>"})"}, {}).status()));
}

TEST(ChatTemplateTest, BrokenFilesAreRefusedAtLoad) {
  for (const char* text : {"{% for %}", "{{ 'open", "{% endif %}", "{% if x %}", "{{ f( }}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ChatTemplate::Parse(text, {}, {}).status())) << text;
  }
  for (const char* config :
       {"{", "[]", R"({"chat_template": 5})", R"({"chat_template": [{"name": "default"}]})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ChatTemplate::Parse("", {.config = config}, {}).status()))
        << config;
  }
  const std::string long_text(ChatTemplate::kMaxTemplateBytes + 1, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(ChatTemplate::Parse(long_text, {}, {}).status()));
}

TEST(ChatTemplateTest, MessagesMustBeAListOfJson) {
  for (const char* messages : {"", "{", "{}", "null", "[1", "[]", "\"text\"", "[\"\\ud800\"]"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RenderText("x", messages).status())) << messages;
  }
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_TRUE(absl::IsInvalidArgument(RenderText("x", deep).status()));
}

TEST(ChatTemplateTest, MessagesToolsAndVariablesAreBounded) {
  const auto made = Make("x");
  const std::string most(ChatTemplate::kMaxMessagesBytes, ' '), more = most + " ";
  const auto refusal = [&](std::string_view messages, const ChatTemplate::Options& options) {
    return Message(made->Render(messages, options));
  };
  EXPECT_THAT(refusal(more, {}), HasSubstr("67108865 bytes, at most 67108864"));
  EXPECT_THAT(refusal(kHello, {.tools_json = more}), HasSubstr("67108865 bytes, at most 67108864"));
  EXPECT_THAT(refusal(kHello, {.variables_json = more}),
              HasSubstr("67108865 bytes, at most 67108864"));
  EXPECT_THAT(refusal(most, {}), HasSubstr("messages: EOF"));
}

TEST(ChatTemplateTest, VariablesAreBesideWhatIsRenderedAndNotInItsPlace) {
  const auto made =
      Make("{{ messages[0].content }}|{{ tools[0] }}|{{ add_generation_prompt }}|{{ bos_token }}",
           R"({"bos_token": "<s>"})");
  EXPECT_EQ(made->Render(kHello, {.add_generation_prompt = false,
                                  .tools_json = R"(["ours"])",
                                  .variables_json = R"({"messages": [{"content": "theirs"}],
                                                        "tools": ["theirs"], "bos_token": "theirs",
                                                        "add_generation_prompt": true})"})
                .value(),
            "hello|ours|False|theirs");
}

TEST(ChatTemplateTest, FailureNamesTheReason) {
  EXPECT_THAT(Message(RenderText("{{ messages[0].content.nothing() }}")), HasSubstr("nothing"));
  EXPECT_THAT(Message(RenderText("{{ undefined_thing.field }}")), HasSubstr("undefined"));
  EXPECT_THAT(Message(RenderText("{{ 1 / 0 }}")), HasSubstr("unable to calculate"));
}

TEST(ChatTemplateTest, EndlessTemplatesRunOutOfSteps) {
  const auto result = RenderText(
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
      "{% set x = a %}{% endfor %}{% endfor %}{% endfor %}");
  EXPECT_TRUE(absl::IsResourceExhausted(result.status())) << result.status();
}

TEST(ChatTemplateTest, EndlessRecursionStops) {
  const auto result = RenderText("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}");
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(Message(result), HasSubstr("recursion"));
  EXPECT_FALSE(RenderText("{% include 'default' %}").ok());
}

TEST(ChatTemplateTest, OutputIsBounded) {
  const auto result =
      RenderText("{% set text = 'x' * 1000000 %}{% for a in range(1000) %}{{ text }}{% endfor %}");
  EXPECT_TRUE(absl::IsResourceExhausted(result.status())) << result.status();
}

TEST(ChatTemplateTest, DeepExpressionsAreRefused) {
  const std::string deep =
      "{{ " + std::string(100'000, '(') + "1" + std::string(100'000, ')') + " }}";
  EXPECT_TRUE(absl::IsInvalidArgument(ChatTemplate::Parse(deep, {}, {}).status()));
}

TEST(ChatTemplateTest, TemplatesReadNoFiles) {
  EXPECT_FALSE(RenderText("{% include '/etc/hostname' %}").ok());
  EXPECT_FALSE(RenderText("{% import 'chat_template.jinja' as x %}").ok());
}

TEST(ChatTemplateTest, ThreadsMayShareIt) {
  const auto made = ChatTemplate::Create(TokenizerFolder("demo_model"), {}).value();
  std::vector<std::thread> threads;
  std::vector<int> differences(4);
  for (int& count : differences) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const auto text = made->Render(kHello, {});
        if (!text.ok() || *text != "<|begin|><|user|>hello<|assistant|>") ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(differences, testing::Each(0));
}

}  // namespace
}  // namespace tandem
