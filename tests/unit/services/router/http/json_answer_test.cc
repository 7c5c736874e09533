#include "services/router/http/json_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <limits>

#include "services/router/api_error.h"
#include "tests/support/count_of.h"
#include "tests/support/raw_http.h"

namespace tandem {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

SampledToken Sampled(int32_t token, float logprob, std::vector<int32_t> top = {}) {
  SampledToken out{.token = token, .logprob = logprob, .rank = 1};
  for (const int32_t id : top) {
    out.top.push_back({.token = id, .logprob = logprob - static_cast<float>(out.top.size())});
  }
  return out;
}

ChoiceOutput Token(int choice, int32_t token, std::string text,
                   FinishReason finish = FinishReason::kNone) {
  return {.choice = choice,
          .token = Sampled(token, -0.5f, {token, 9}),
          .text = std::move(text),
          .finish = finish};
}

class JsonAnswerTest : public testing::Test {
 protected:
  static AnswerOptions Options(bool chat) {
    AnswerOptions options;
    options.chat = chat;
    options.id = "id-1";
    options.model = "demo \"quoted\"";
    options.created_s = 1700000000;
    options.prompt_token_ids = [](int prompt) -> const std::vector<int32_t>& {
      static const std::vector<int32_t> ids[] = {{1, 2}, {3}};
      return ids[prompt];
    };
    return options;
  }
  // The events of a stream, [DONE] included.
  static std::vector<std::string> Stream(JsonAnswer* answer,
                                         const std::vector<CallOutput>& outputs) {
    std::string bytes;
    for (const CallOutput& output : outputs) answer->AppendEvents(output, &bytes);
    return EventsOf(bytes);
  }
  static json::value Gathered(JsonAnswer* answer, const std::vector<CallOutput>& outputs) {
    for (const CallOutput& output : outputs) answer->Add(output);
    return json::parse(answer->Json());
  }

  const PromptOutput prompt_{.prompt = 0, .cached_tokens = 1, .numerics_id = "n1"};
  const CallEnd end_{.usage = {.prompt_tokens = 2, .completion_tokens = 3, .cached_tokens = 1}};
};

TEST_F(JsonAnswerTest, AWholeCompletionGathersEveryChoice) {
  AnswerOptions options = Options(/*chat=*/false);
  options.num_prompts = 2;
  options.num_choices = 2;
  options.return_token_ids = true;
  JsonAnswer answer(options);
  const json::value whole = Gathered(
      &answer, {prompt_, Token(3, 30, "d", FinishReason::kLength), Token(0, 5, "a\n"),
                Token(0, 6, "b", FinishReason::kStop), Token(1, 7, "", FinishReason::kStop),
                Token(2, 8, "c", FinishReason::kLength), end_});
  EXPECT_EQ(whole.at("id"), "id-1");
  EXPECT_EQ(whole.at("model"), "demo \"quoted\"");
  EXPECT_EQ(whole.at("object"), "text_completion");
  EXPECT_EQ(whole.at("created"), 1700000000);
  EXPECT_EQ(whole.at("system_fingerprint"), "n1");
  const json::array& choices = whole.at("choices").as_array();
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[0].at("text"), "a\nb");
  EXPECT_EQ(choices[0].at("finish_reason"), "stop");
  EXPECT_EQ(choices[0].at("token_ids"), json::parse("[5,6]"));
  EXPECT_EQ(choices[1].at("prompt_token_ids"), json::parse("[1,2]"));
  EXPECT_EQ(choices[2].at("prompt_token_ids"), json::parse("[3]"));
  EXPECT_EQ(choices[3].at("index"), 3);
  EXPECT_EQ(choices[3].at("text"), "d");
  EXPECT_EQ(whole.at("usage").at("total_tokens"), 5);
  EXPECT_EQ(whole.at("usage").at("prompt_tokens_details").at("cached_tokens"), 1);
}

TEST_F(JsonAnswerTest, AWholeChatHasAMessage) {
  AnswerOptions options = Options(/*chat=*/true);
  options.return_token_ids = true;
  JsonAnswer answer(options);
  const json::value whole =
      Gathered(&answer, {prompt_, Token(0, 5, "hello", FinishReason::kLength), end_});
  const json::value& choice = whole.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "hello");
  EXPECT_TRUE(choice.at("message").at("refusal").is_null());
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(whole.at("prompt_token_ids"), json::parse("[1,2]"));
  EXPECT_FALSE(choice.as_object().contains("prompt_token_ids"));
}

TEST_F(JsonAnswerTest, WhatIsNotAskedForIsNotThere) {
  for (const bool chat : {false, true}) {
    JsonAnswer answer(Options(chat));
    const json::value whole =
        Gathered(&answer, {prompt_, Token(0, 5, "hello", FinishReason::kLength), end_});
    const json::object& choice = whole.at("choices").at(0).as_object();
    for (const char* const name : {"prompt_token_ids", "token_ids", "prompt_logprobs"}) {
      EXPECT_FALSE(whole.as_object().contains(name) || choice.contains(name)) << name;
    }
    EXPECT_TRUE(choice.at("logprobs").is_null());
  }
}

TEST_F(JsonAnswerTest, AStreamsChunksAreDeltas) {
  AnswerOptions options = Options(/*chat=*/true);
  options.include_usage = true;
  options.return_token_ids = true;
  options.num_logprobs = 0;
  JsonAnswer answer(options);
  const std::vector<std::string> events = Stream(
      &answer,
      {prompt_, Token(0, 5, "he"), Token(0, 6, ""), Token(0, 7, "llo", FinishReason::kStop), end_});
  ASSERT_EQ(events.size(), 5u) << "three tokens, the usage, [DONE]";
  const json::value first = json::parse(events[0]), second = json::parse(events[1]),
                    third = json::parse(events[2]), usage = json::parse(events[3]);
  EXPECT_EQ(first.at("object"), "chat.completion.chunk");
  EXPECT_EQ(first.at("prompt_token_ids"), json::parse("[1,2]"));
  EXPECT_EQ(first.at("choices").at(0).at("delta"),
            json::parse(R"({"role":"assistant","content":"he"})"));
  EXPECT_TRUE(first.at("usage").is_null());
  EXPECT_TRUE(first.at("choices").at(0).at("finish_reason").is_null());
  EXPECT_FALSE(second.as_object().contains("prompt_token_ids"));
  EXPECT_EQ(second.at("choices").at(0).at("delta"), json::parse(R"({"content":""})"));
  EXPECT_EQ(second.at("choices").at(0).at("token_ids"), json::parse("[6]"));
  const json::array& content = second.at("choices").at(0).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), 1u);
  EXPECT_EQ(content[0].at("token"), "token_id:6");
  EXPECT_EQ(content[0].at("logprob"), -0.5);
  EXPECT_TRUE(content[0].at("top_logprobs").as_array().empty()) << "none were asked for";
  EXPECT_EQ(third.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(third.at("system_fingerprint"), "n1");
  EXPECT_EQ(usage.at("object"), "chat.completion.chunk");
  EXPECT_EQ(usage.at("usage").at("completion_tokens"), 3);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(events[4], "[DONE]");
  options = Options(/*chat=*/false);
  options.include_usage = true;
  JsonAnswer completion(options);
  for (const std::string& event :
       Stream(&completion, {prompt_, Token(0, 5, "he", FinishReason::kStop), end_})) {
    if (event == "[DONE]") continue;
    EXPECT_EQ(json::parse(event).at("object"), "text_completion");
  }
}

TEST_F(JsonAnswerTest, AStreamedChoiceNamesItsPromptOnce) {
  AnswerOptions options = Options(/*chat=*/false);
  options.num_prompts = 2;
  options.return_token_ids = true;
  JsonAnswer answer(options);
  const std::vector<std::string> events =
      Stream(&answer, {prompt_, Token(1, 5, "a"), Token(0, 6, "b"), Token(1, 7, "c"), end_});
  ASSERT_EQ(events.size(), 4u);
  const auto choice = [&events](size_t event) {
    return json::parse(events[event]).at("choices").at(0).as_object();
  };
  EXPECT_FALSE(json::parse(events[0]).as_object().contains("prompt_token_ids"));
  EXPECT_EQ(choice(0).at("prompt_token_ids"), json::parse("[3]"));
  EXPECT_EQ(choice(1).at("prompt_token_ids"), json::parse("[1,2]"));
  EXPECT_FALSE(choice(2).contains("prompt_token_ids"));
  EXPECT_EQ(choice(2).at("token_ids"), json::parse("[7]"));
}

TEST_F(JsonAnswerTest, AStreamThatFailsHasNoDone) {
  JsonAnswer answer(Options(/*chat=*/false));
  const std::vector<std::string> events =
      Stream(&answer, {prompt_, Token(0, 5, "a"),
                       CallEnd{.status = absl::UnavailableError("the worker is \"gone\"")}});
  ASSERT_EQ(events.size(), 2u);
  const json::value error = json::parse(events[1]).at("error");
  EXPECT_EQ(error.at("message"), "the worker is \"gone\"");
  EXPECT_EQ(error.at("type"), "service_unavailable_error");
}

TEST_F(JsonAnswerTest, TheStopReasonIsTheStopOfTheClientsOnly) {
  ChoiceOutput by_string = Token(0, 5, "", FinishReason::kStop);
  by_string.stop_string = "\n";
  ChoiceOutput by_id = Token(1, 0, "", FinishReason::kStop);
  by_id.stop_token = 0;
  ChoiceOutput by_end = Token(2, 7, "", FinishReason::kStop);
  by_end.stop_token = 7;
  by_end.stopped_by_eos = true;
  AnswerOptions options = Options(/*chat=*/false);
  options.num_choices = 3;
  JsonAnswer answer(options);
  const json::value whole = Gathered(&answer, {prompt_, by_string, by_id, by_end, end_});
  EXPECT_EQ(whole.at("choices").at(0).at("stop_reason"), "\n");
  EXPECT_EQ(whole.at("choices").at(1).at("stop_reason"), 0);
  EXPECT_TRUE(whole.at("choices").at(2).at("stop_reason").is_null());
}

TEST_F(JsonAnswerTest, PromptLogprobsAreMapsByTokenId) {
  AnswerOptions options = Options(/*chat=*/true);
  options.num_prompt_logprobs = 2;
  JsonAnswer answer(options);
  PromptOutput prompt = prompt_;
  prompt.prompt_logprobs = {Sampled(17, -1.0f, {4, 17})};
  prompt.prompt_logprobs[0].rank = 2;
  const json::value whole =
      Gathered(&answer, {prompt, Token(0, 5, "", FinishReason::kLength), end_});
  const json::array& list = whole.at("prompt_logprobs").as_array();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[0].is_null()) << "nothing predicts the first token";
  ASSERT_EQ(list[1].as_object().size(), 2u) << "the prompt's own is named once";
  EXPECT_EQ(list[1].at("17").at("rank"), 2);
  EXPECT_EQ(list[1].at("4").at("rank"), 1);
  EXPECT_EQ(list[1].at("17").at("decoded_token"), "token_id:17");
}

TEST_F(JsonAnswerTest, PromptLogprobsWithoutAlternativesAreOfThePromptsTokensAlone) {
  AnswerOptions options = Options(/*chat=*/false);
  options.num_prompt_logprobs = 0;
  JsonAnswer answer(options);
  PromptOutput prompt = prompt_;
  for (int token = 0; token < 100; ++token) prompt.prompt_logprobs.push_back(Sampled(17, -1.0f));
  const json::value whole =
      Gathered(&answer, {prompt, Token(0, 5, "", FinishReason::kLength), end_});
  const json::array& list = whole.at("choices").at(0).at("prompt_logprobs").as_array();
  ASSERT_EQ(list.size(), 101u);
  EXPECT_EQ(list[1].as_object().size(), 1u);
  EXPECT_GE(answer.num_bytes(), std::ssize(json::serialize(list))) << "who keeps it is charged";
}

TEST_F(JsonAnswerTest, EveryChoiceHasTheLogprobsOfItsOwnPrompt) {
  AnswerOptions options = Options(/*chat=*/false);
  options.num_prompts = 2;
  options.num_choices = 2;
  options.num_prompt_logprobs = 0;
  JsonAnswer answer(options);
  PromptOutput first = prompt_, second = prompt_;
  first.prompt_logprobs = {Sampled(17, -1.0f)};
  second.prompt = 1;
  second.prompt_logprobs = {Sampled(18, -2.0f)};
  const json::value whole = Gathered(&answer, {second, first, end_});
  for (int choice = 0; choice < 4; ++choice) {
    const json::value& list = whole.at("choices").at(choice).at("prompt_logprobs");
    EXPECT_TRUE(list.at(1).as_object().contains(choice < 2 ? "17" : "18")) << choice;
  }
}

TEST_F(JsonAnswerTest, WhatIsGatheredIsMeasured) {
  constexpr int kTokens = 100;
  AnswerOptions options = Options(/*chat=*/false);
  options.num_choices = 2;
  options.return_token_ids = true;
  JsonAnswer answer(options);
  answer.Add(Token(1, 5, std::string(1000, 't')));
  EXPECT_GE(answer.num_bytes(), 1000);
  for (int i = 1; i < kTokens; ++i) answer.Add(Token(0, 123'456, ""));
  EXPECT_GE(answer.num_bytes(), 1000 + kTokens * std::ssize(std::string("123456,")));
}

TEST_F(JsonAnswerTest, NobodyIsNamedWhoComputedNothing) {
  JsonAnswer answer(Options(/*chat=*/false));
  EXPECT_TRUE(Gathered(&answer, {end_}).at("system_fingerprint").is_null());
}

// ---- Logprobs ----

TEST(LogprobsJsonTest, ALogprobReadsBackAsTheSameFloat) {
  for (const float logprob :
       {-0.1f, -1.0f / 3, -1e-38f, -0.0f, -12.3456789f, std::nextafterf(-0.1f, 0.0f)}) {
    std::string text;
    AppendLogprob(logprob, &text);
    const float read = std::strtof(text.c_str(), nullptr);
    EXPECT_EQ(std::memcmp(&read, &logprob, sizeof(read)), 0) << text;
    EXPECT_TRUE(json::parse(text).is_number()) << text;
  }
  for (const float none :
       {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::string text;
    AppendLogprob(none, &text);
    EXPECT_EQ(text, "-9999");
  }
}

TEST(LogprobsJsonTest, TextOffsetsGoOnFromChunkToChunk) {
  const TokenNames names;  // "token_id:N"
  LogprobsJson logprobs;
  logprobs.Add(Sampled(5, -1, {5, 6}), 2, /*chat=*/false, names);
  logprobs.Add(Sampled(17, -2, {4}), 1, /*chat=*/false, names);
  const std::string text = logprobs.Json(/*chat=*/false);
  EXPECT_EQ(CountOf("\"token_id:5\":", text), 1) << "no key is there twice";
  const json::value first = json::parse(text);
  logprobs.Clear();
  EXPECT_EQ(first.at("tokens"), json::parse(R"(["token_id:5","token_id:17"])"));
  EXPECT_EQ(first.at("token_logprobs"), json::parse("[-1,-2]"));
  EXPECT_EQ(first.at("text_offset"), json::parse("[0,10]"));
  EXPECT_EQ(first.at("top_logprobs").at(0).as_object().size(), 2u) << "the sampled one is there";
  EXPECT_EQ(first.at("top_logprobs").at(1).as_object().size(), 2u) << "the sampled one is added";
  logprobs.Add(Sampled(7, -3), 0, /*chat=*/false, names);
  const json::value second = json::parse(logprobs.Json(/*chat=*/false));
  EXPECT_EQ(second.at("tokens"), json::parse(R"(["token_id:7"])"));
  EXPECT_EQ(second.at("token_logprobs").as_array().size(), 1u);
  EXPECT_EQ(second.at("text_offset"), json::parse("[21]"));
  EXPECT_TRUE(second.at("top_logprobs").at(0).is_null());
}

TEST(LogprobsJsonTest, NoMoreAlternativesAreThereThanWereAskedFor) {
  for (const bool chat : {false, true}) {
    LogprobsJson logprobs;
    logprobs.Add(Sampled(5, -1, {5, 6, 7}), 2, chat, TokenNames());
    const std::string text = logprobs.Json(chat);
    EXPECT_EQ(CountOf("token_id:6", text), 1);
    EXPECT_EQ(CountOf("token_id:7", text), 0);
  }
}

TEST(LogprobsJsonTest, AllThatIsKeptIsMeasured) {
  for (const bool chat : {false, true}) {
    const int64_t frame = std::ssize(LogprobsJson().Json(chat));
    LogprobsJson logprobs;
    EXPECT_EQ(logprobs.num_bytes(), 0);
    logprobs.Add(Sampled(5, -1, {5, 6}), 2, chat, TokenNames());
    logprobs.Add(Sampled(7, -3), 0, chat, TokenNames());
    EXPECT_EQ(logprobs.num_bytes(), std::ssize(logprobs.Json(chat)) - frame);
  }
}

TEST(LogprobsJsonTest, OffsetsCountCharactersAndBytesAreOfTheToken) {
  const auto tokenizer = *Tokenizer::Create(std::string(TANDEM_TEST_DATA) + "/demo_model");
  const std::vector<int32_t> ids = *tokenizer->Encode("é!", /*add_special_tokens=*/false);
  const TokenNames names(tokenizer.get(), /*as_ids=*/false);
  LogprobsJson completion, chat;
  std::string bytes;
  for (const int32_t id : ids) {
    completion.Add(Sampled(id, -1), 0, /*chat=*/false, names);
    chat.Add(Sampled(id, -1), 0, /*chat=*/true, names);
  }
  const json::value content = json::parse(chat.Json(/*chat=*/true)).at("content");
  for (const json::value& entry : content.as_array()) {
    EXPECT_TRUE(entry.at("top_logprobs").as_array().empty());
    for (const json::value& byte : entry.at("bytes").as_array()) {
      bytes += static_cast<char>(byte.to_number<int>());
    }
  }
  EXPECT_EQ(bytes, "é!");
  const json::array offsets =
      json::parse(completion.Json(/*chat=*/false)).at("text_offset").as_array();
  ASSERT_EQ(offsets.size(), ids.size());
  int64_t characters = 0, text_bytes = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(offsets[i], characters) << i;
    const std::string text = names.Text(ids[i]);
    for (const char c : text) {  // Those that go on with a character are 10xxxxxx.
      const auto byte = static_cast<uint8_t>(c);
      characters += byte < 0x80 || byte >= 0xC0 ? 1 : 0;
    }
    text_bytes += std::ssize(text);
  }
  EXPECT_LT(offsets.back().as_int64(), text_bytes - 1) << "else it tells nothing";
  EXPECT_EQ(TokenNames(tokenizer.get(), /*as_ids=*/true).Text(7), "token_id:7");
  EXPECT_EQ(TokenNames().BytesJson(7), "null");
}

}  // namespace
}  // namespace tandem
