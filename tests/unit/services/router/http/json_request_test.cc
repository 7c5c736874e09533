#include "services/router/http/json_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/router/api_error.h"
#include "services/router/api_limits.h"
#include "services/router/http/strict_json.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelInfo DemoModel() {
  ModelInfo model;
  model.served_name = "demo";
  model.vocab_size = 4096;
  model.max_model_tokens = 1024;
  model.generation.eos_token_ids = {1};
  return model;
}

TEST(MostJsonValuesTest, CountsValuesAndKeysOutsideOfTexts) {
  EXPECT_EQ(MostJsonValues("7"), 1);
  EXPECT_EQ(MostJsonValues(R"({"a": [1, "x", {}], "b": null})"), 9);  // One for the empty object.
  EXPECT_EQ(MostJsonValues(R"(["a, b: [c] {d}"])"), 2);
  EXPECT_EQ(MostJsonValues(R"(["\"a, b, c\\", 1])"), 3);
}

// Parses and checks, as a front end does.
absl::Status CompletionStatus(std::string_view body) {
  const absl::StatusOr<GenerateRequest> request = ParseCompletionRequest(body);
  return request.ok() ? CheckRequest(*request, DemoModel(), /*isolate_cache=*/false)
                      : request.status();
}

absl::Status ChatStatus(std::string_view body) {
  const absl::StatusOr<GenerateRequest> request = ParseChatRequest(body);
  return request.ok() ? CheckRequest(*request, DemoModel(), /*isolate_cache=*/false)
                      : request.status();
}

struct BadField {
  std::string fields;  // Joined to a body that is otherwise good.
  std::string field;   // What the error names.
};

class BadCompletionTest : public testing::TestWithParam<BadField> {};

TEST_P(BadCompletionTest, IsRefusedNamingTheField) {
  const absl::Status status = CompletionStatus("{\"prompt\":\"a\"," + GetParam().fields + "}");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << GetParam().fields;
  EXPECT_EQ(FieldOf(status), GetParam().field) << status;
  EXPECT_EQ(HttpStatusOf(status), 400);
}

TEST(CompletionTest, AValueOfTheWrongKindIsNamedByItsKind) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("n":true)", "n must be an integer, not a boolean"},
      {R"("n":"1")", "n must be an integer, not a string"},
      {R"("n":[1])", "n must be an integer, not a list"},
      {R"("n":{})", "n must be an integer, not an object"},
      {R"("stream":1)", "stream must be a boolean, not a number"},
      {R"("stream":-1.5)", "stream must be a boolean, not a number"},
      {R"("stop":[null])", "stop[0] must be a string, not null"},
      {R"("stop_token_ids":[1,"x"])", "stop_token_ids[1] must be an integer, not a string"},
      {R"("stream":true,"stream_options":{"include_usage":1})",
       "stream_options.include_usage must be a boolean, not a number"},
  };
  for (const auto& [fields, message] : cases) {
    const absl::Status status = CompletionStatus("{\"prompt\":\"a\"," + std::string(fields) + "}");
    EXPECT_EQ(status.message(), message) << fields;
  }
}

TEST(CompletionTest, WhatIsRefusedIsToldAsItWasSent) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":2.0000000001)", "temperature is 2.0000000001, must be from 0 to 2"},
      {R"("top_p":1.0000001)", "top_p is 1.0000001, must be"},
      {R"("n":1.23456789)", "n is 1.23456789, must be an integer"},
      {R"("seed":1e308)", "seed is 1e+308, must be an integer"},
      {R"("logit_bias":{"7":100.0000001})", "logit_bias is 100.0000001 for token id 7"},
      {R"("logit_bias":{"7":-1e308})", "logit_bias is -1e+308 for token id 7"},
      {R"("logit_bias":{"09":1})", "logit_bias has the key \"09\", must be a token id"},
  };
  for (const auto& [fields, message] : cases) {
    const absl::Status status = CompletionStatus("{\"prompt\":\"a\"," + std::string(fields) + "}");
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << fields;
  }
}

// {"0":1,"1":1,...}
std::string Biases(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  return "{" + out + "}";
}

std::string Repeat(const std::string& item, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += (i > 0 ? "," : "") + item;
  return out;
}

INSTANTIATE_TEST_SUITE_P(
    Ranges, BadCompletionTest,
    testing::Values(
        BadField{"\"temperature\":-0.1", "temperature"},
        BadField{"\"temperature\":2.1", "temperature"},
        BadField{"\"temperature\":\"hot\"", "temperature"},
        BadField{"\"temperature\":1e999", "temperature"},
        BadField{"\"temperature\":true", "temperature"}, BadField{"\"top_p\":0", "top_p"},
        BadField{"\"top_p\":1.01", "top_p"}, BadField{"\"top_p\":-1", "top_p"},
        BadField{"\"top_k\":-2", "top_k"}, BadField{"\"top_k\":1.5", "top_k"},
        BadField{"\"top_k\":4294967296", "top_k"}, BadField{"\"n\":0", "n"},
        BadField{"\"n\":129", "n"}, BadField{"\"n\":-1", "n"}, BadField{"\"n\":[1]", "n"},
        BadField{"\"max_tokens\":0", "max_tokens"}, BadField{"\"max_tokens\":-5", "max_tokens"},
        BadField{"\"max_tokens\":99999999999999999999", "max_tokens"},
        BadField{"\"max_tokens\":\"16\"", "max_tokens"},
        BadField{"\"min_tokens\":-1", "min_tokens"},
        BadField{"\"max_tokens\":4,\"min_tokens\":5", "min_tokens"},
        BadField{"\"seed\":9223372036854775808", "seed"},
        BadField{"\"seed\":9223372036854775808.0", "seed"}, BadField{"\"seed\":0.5", "seed"},
        BadField{"\"seed\":-1e300", "seed"}, BadField{"\"logprobs\":21", "logprobs"},
        BadField{"\"logprobs\":-1", "logprobs"}, BadField{"\"logprobs\":true", "logprobs"},
        BadField{"\"prompt_logprobs\":21", "prompt_logprobs"},
        BadField{"\"prompt_logprobs\":1,\"stream\":true", "prompt_logprobs"},
        BadField{"\"stop\":7", "stop"}, BadField{"\"stop\":[1]", "stop"},
        BadField{"\"stop\":\"\"", "stop"},
        BadField{"\"stop\":[" + Repeat("\"x\"", 17) + "]", "stop"},
        BadField{"\"stop\":\"" + std::string(1025, 's') + "\"", "stop"},
        BadField{"\"stop_token_ids\":[4096]", "stop_token_ids"},
        BadField{"\"stop_token_ids\":[-1]", "stop_token_ids"},
        BadField{"\"stop_token_ids\":[1,\"x\"]", "stop_token_ids"},
        BadField{"\"stop_token_ids\":[1.5]", "stop_token_ids"},
        BadField{"\"stop_token_ids\":3", "stop_token_ids"}, BadField{"\"stream\":1", "stream"},
        BadField{"\"stream_options\":{\"include_usage\":true}", "stream_options"},
        BadField{"\"stream\":true,\"stream_options\":7", "stream_options"},
        BadField{"\"add_special_tokens\":\"no\"", "add_special_tokens"},
        BadField{"\"stream\":true,\"stream_options\":{\"include_usage\":\"y\"}",
                 "stream_options.include_usage"},
        BadField{"\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}",
                 "stream_options.continuous_usage_stats"},
        BadField{"\"return_token_ids\":\"yes\"", "return_token_ids"},
        BadField{"\"cache_salt\":\"\"", "cache_salt"}, BadField{"\"cache_salt\":7", "cache_salt"},
        BadField{"\"cache_salt\":\"" + std::string(257, 's') + "\"", "cache_salt"},
        BadField{"\"logit_bias\":[5]", "logit_bias"}, BadField{"\"logit_bias\":7", "logit_bias"},
        BadField{"\"logit_bias\":{\"a\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1.0\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\" 1\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"09\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"-0\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"+5\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1\":100.0000001}", "logit_bias"},
        BadField{"\"logit_bias\":{\"-1\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"4096\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"99999999999\":5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1\":100.5}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1\":-1e300}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1\":1e999}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1\":\"5\"}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1\":null}", "logit_bias"},
        BadField{"\"logit_bias\":{\"1\":5,\"01\":5}", "logit_bias"},
        BadField{"\"logit_bias\":" + Biases(301), "logit_bias"}, BadField{"\"model\":7", "model"}));

INSTANTIATE_TEST_SUITE_P(
    Unsupported, BadCompletionTest,
    testing::Values(BadField{"\"echo\":true", "echo"}, BadField{"\"suffix\":\"z\"", "suffix"},
                    BadField{"\"best_of\":2", "best_of"},
                    BadField{"\"best_of\":3,\"n\":2", "best_of"},
                    BadField{"\"best_of\":1,\"n\":2", "best_of"},
                    BadField{"\"best_of\":\"2\",\"n\":2", "best_of"},
                    BadField{"\"presence_penalty\":0.5", "presence_penalty"},
                    BadField{"\"frequency_penalty\":-0.5", "frequency_penalty"},
                    BadField{"\"repetition_penalty\":1.1", "repetition_penalty"},
                    BadField{"\"min_p\":0.1", "min_p"},
                    BadField{"\"use_beam_search\":true", "use_beam_search"},
                    BadField{"\"tools\":[{}]", "tools"},
                    BadField{"\"tool_choice\":\"required\"", "tool_choice"},
                    BadField{"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
                    BadField{"\"response_format\":\"text\"", "response_format"},
                    BadField{"\"modalities\":[\"audio\"]", "modalities"},
                    BadField{"\"modalities\":[\"text\",7]", "modalities"},
                    BadField{"\"response_format\":{\"type\":7}", "response_format"},
                    BadField{"\"truncate_prompt_tokens\":5", "truncate_prompt_tokens"}));

TEST(JsonRequestTest, WhatWouldChangeTheAnswerAndIsNotSupportedIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"length_penalty", "2"},
      {"bad_words", R"(["x"])"},
      {"allowed_token_ids", "[1]"},
      {"early_stopping", "true"},
      {"include_stop_str_in_output", "true"},
      {"prompt_embeds", R"("x")"},
      {"structured_outputs", R"({"json":{}})"},
      {"guided_json", R"({"type":"object"})"},
      {"guided_regex", R"("x")"},
      {"guided_choice", R"(["x"])"},
      {"guided_grammar", R"("x")"},
      {"functions", "[{}]"},
      {"function_call", R"({"name":"f"})"},
      {"audio", "{}"},
      {"prediction", "{}"},
      {"web_search_options", "{}"},
      {"reasoning_effort", R"("high")"},
      {"documents", "[{}]"},
      {"chat_template", R"("x")"},
      {"continue_final_message", "true"},
      {"mm_processor_kwargs", R"({"a":1})"},
      {"kv_transfer_params", R"({"a":1})"},
      {"logits_processors", R"(["x"])"},
      {"priority", "1"},
      {"response_format", "{}"},
      {"modalities", R"("text")"},
  };
  for (const auto& [field, value] : cases) {
    const std::string last = "\"" + std::string(field) + "\":" + value + "}";
    EXPECT_EQ(FieldOf(CompletionStatus(R"({"prompt":"a",)" + last)), field) << value;
    EXPECT_EQ(FieldOf(ChatStatus(R"({"messages":[{"role":"user","content":"a"}],)" + last)), field)
        << value;
  }
}

TEST(JsonRequestTest, ABiasComesInRisingIdsOfBothApis) {
  const std::string fields = R"("logit_bias":{"17":-100,"3":2.5,"4095":1e2})";
  const auto completion = ParseCompletionRequest(R"({"prompt":"a",)" + fields + "}");
  const auto chat =
      ParseChatRequest(R"({"messages":[{"role":"user","content":"a"}],)" + fields + "}");
  ASSERT_TRUE(completion.ok() && chat.ok()) << completion.status() << chat.status();
  EXPECT_THAT(completion->logit_bias,
              ElementsAre(TokenBias(3, 2.5f), TokenBias(17, -100.0f), TokenBias(4095, 100.0f)));
  EXPECT_EQ(chat->logit_bias, completion->logit_bias);
  EXPECT_TRUE(CompletionStatus(R"({"prompt":"a","logit_bias":)" + Biases(300) + "}").ok());
}

TEST(JsonRequestTest, ABadBiasIsToldWithItsNumbers) {
  const auto message = [](const std::string& bias) {
    const absl::Status status = CompletionStatus(R"({"prompt":"a","logit_bias":)" + bias + "}");
    return std::string(status.message());
  };
  EXPECT_EQ(message(R"({"7x":1})"), "logit_bias has the key \"7x\", must be a token id");
  EXPECT_THAT(message("{\"" + std::string(1000, '\x7f') + "\":1}"), HasSubstr("key \"\\x7f"));
  EXPECT_LT(message("{\"" + std::string(1000, 'k') + "\":1}").size(), 100u);
  EXPECT_EQ(message(R"({"4096":1})"), "logit_bias has token id 4096, must be from 0 to 4095");
  EXPECT_EQ(message(R"({"5":-100.25})"),
            "logit_bias is -100.25 for token id 5, must be from -100 to 100");
  EXPECT_EQ(message(Biases(301)), "logit_bias has 301 tokens, at most 300 are allowed");
  EXPECT_EQ(message(R"({"5":true})"), "logit_bias[5] must be a number, not a boolean");
}

TEST(JsonRequestTest, OfALongKeyThatIsThereTwiceABitIsToldAgain) {
  const std::string entry = "\"" + std::string(10'000, 'k') + "\":1";
  const absl::Status status = CompletionStatus("{" + entry + "," + entry + "}");
  EXPECT_EQ(FieldOf(status), std::string(64, 'k'));
  EXPECT_LT(status.message().size(), 200u);
}

INSTANTIATE_TEST_SUITE_P(Repeated, BadCompletionTest,
                         testing::Values(BadField{"\"prompt\":\"b\"", "prompt"},
                                         BadField{"\"x\":{\"k\":1,\"k\":2}", "k"},
                                         BadField{"\"n\":1,\"n\":2", "n"}));

TEST(JsonRequestTest, PromptsThatAreNoneAreRefused) {
  for (const char* body : {
           "{}",
           "{\"prompt\":null}",
           "{\"prompt\":3}",
           "{\"prompt\":{}}",
           "{\"prompt\":[]}",
           "{\"prompt\":[true]}",
           "{\"prompt\":[\"a\",3]}",
           "{\"prompt\":[1,\"a\"]}",
           "{\"prompt\":[1.5]}",
           "{\"prompt\":[-1]}",
           "{\"prompt\":[4096]}",
           "{\"prompt\":[[1],[99999999999]]}",
       }) {
    const absl::Status status = CompletionStatus(body);
    EXPECT_EQ(HttpStatusOf(status), 400) << body;
    EXPECT_EQ(FieldOf(status), "prompt") << body;
  }
  const auto many = [](size_t count) { return "{\"prompt\":[" + Repeat("\"a\"", count) + "]}"; };
  EXPECT_TRUE(CompletionStatus(many(kMaxPrompts)).ok());
  EXPECT_EQ(FieldOf(ParseCompletionRequest(many(kMaxPrompts + 1)).status()), "prompt");
  const std::string product = "{\"n\":128,\"prompt\":[" + Repeat("\"a\"", 9) + "]}";
  EXPECT_EQ(FieldOf(CompletionStatus(product)), "n");
}

TEST(JsonRequestTest, WhatIsNotJsonIsRefused) {
  for (const std::string& body : std::vector<std::string>{
           "", " ", "{", "nonsense", "[1]", "\"a\"", "null", "{\"prompt\":\"a\"} x",
           "{\"prompt\":\"a\",}", "{\"prompt\":\"\\ud800\"}", "{\"prompt\":\"\xff\"}",
           "{\"prompt\":NaN}", "{'prompt':'a'}", std::string("{\"prompt\":\"a\0\"}", 14)}) {
    EXPECT_EQ(HttpStatusOf(CompletionStatus(body)), 400) << body;
    EXPECT_EQ(HttpStatusOf(ChatStatus(body)), 400) << body;
  }
}

TEST(JsonRequestTest, DepthIsLimited) {
  const auto nested = [](int depth) {
    return "{\"prompt\":\"a\",\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(CompletionStatus(nested(kMaxJsonDepth - 1)).ok());
  EXPECT_THAT(std::string(CompletionStatus(nested(kMaxJsonDepth)).message()), HasSubstr("deeper"));
  EXPECT_THAT(std::string(CompletionStatus(nested(100000)).message()), HasSubstr("deeper"));
}

TEST(JsonRequestTest, AnUnknownModelIsNotFound) {
  const absl::Status status = CompletionStatus("{\"prompt\":\"a\",\"model\":\"other\"}");
  EXPECT_EQ(HttpStatusOf(status), 404);
  EXPECT_EQ(ApiCodeOf(status), "model_not_found");
  EXPECT_EQ(FieldOf(status), "model");
  EXPECT_TRUE(CompletionStatus("{\"prompt\":\"a\",\"model\":\"demo\"}").ok());
  EXPECT_TRUE(CompletionStatus("{\"prompt\":\"a\",\"model\":\"default\"}").ok());
}

TEST(JsonRequestTest, NullsNeutralExtrasAndUnknownFieldsAskForNothing) {
  const absl::StatusOr<GenerateRequest> request = ParseCompletionRequest(R"({
      "prompt": "a", "model": null, "temperature": null, "top_p": null, "n": null, "stop": null,
      "logprobs": null, "stream": null, "stream_options": null, "seed": null, "max_tokens": null,
      "repetition_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "min_p": 0,
      "logit_bias": {}, "best_of": 1, "suffix": null, "echo": false, "tools": [],
      "tool_choice": "none", "use_beam_search": false, "bad_words": [], "priority": 0,
      "response_format": {"type": "text"}, "user": "someone", "metadata": {"a": [1]},
      "length_penalty": 1, "early_stopping": false, "prompt_embeds": "", "structured_outputs": {},
      "function_call": "auto", "reasoning_effort": "none", "modalities": ["text"],
      "something_new": {"deep": [1, 2]}})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(CheckRequest(*request, DemoModel(), /*isolate_cache=*/false).ok());
  EXPECT_EQ(request->n, 1);
  EXPECT_FALSE(request->temperature.has_value());
  EXPECT_FALSE(request->num_logprobs.has_value());
  EXPECT_FALSE(request->stream);
  EXPECT_EQ(request->default_max_tokens, 16) << "as OpenAI's API has it";
}

TEST(JsonRequestTest, BestOfAsManyAsAreWantedAsksForNothing) {
  const absl::StatusOr<GenerateRequest> request =
      ParseCompletionRequest(R"({"prompt": "a", "n": 3, "best_of": 3})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->n, 3);
}

TEST(JsonRequestTest, EveryCompletionFieldArrives) {
  const absl::StatusOr<GenerateRequest> request = ParseCompletionRequest(R"({
      "prompt": [[1, 2], "text"], "model": "demo", "temperature": 0.5, "top_p": 0.9, "top_k": 40,
      "n": 3, "stop": ["x", "y"], "stop_token_ids": [7], "logprobs": 4, "prompt_logprobs": 2,
      "seed": -9223372036854775808, "max_tokens": 10.0, "min_tokens": 2, "ignore_eos": true,
      "skip_special_tokens": false, "return_token_ids": true, "add_special_tokens": false,
      "return_tokens_as_token_ids": true, "cache_salt": "tenant"})");
  ASSERT_TRUE(request.ok()) << request.status();
  const GenerateRequest& r = *request;
  ASSERT_EQ(r.prompts.size(), 2);
  EXPECT_THAT(std::get<std::vector<int64_t>>(r.prompts[0]), ElementsAre(1, 2));
  EXPECT_EQ(std::get<std::string>(r.prompts[1]), "text");
  EXPECT_EQ(r.model, "demo");
  EXPECT_EQ(r.temperature, 0.5);
  EXPECT_EQ(r.top_p, 0.9);
  EXPECT_EQ(r.top_k, 40);
  EXPECT_EQ(r.n, 3);
  EXPECT_THAT(r.stop, ElementsAre("x", "y"));
  EXPECT_THAT(r.stop_token_ids, ElementsAre(7));
  EXPECT_EQ(r.num_logprobs, 4);
  EXPECT_EQ(r.num_prompt_logprobs, 2);
  EXPECT_EQ(r.seed, INT64_MIN);
  EXPECT_EQ(r.max_tokens, 10);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_FALSE(r.skip_special_tokens);
  EXPECT_TRUE(r.return_token_ids);
  EXPECT_TRUE(r.tokens_as_ids);
  EXPECT_EQ(r.add_special_tokens, false);
  EXPECT_EQ(r.cache_salt, "tenant");
  EXPECT_TRUE(CheckRequest(r, DemoModel(), /*isolate_cache=*/false).ok());
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt": "a", "seed": -9223372036854775808.0})")->seed,
            INT64_MIN);
}

TEST(JsonRequestTest, AStreamThatEndsWithItsUsageIsAskedForSo) {
  for (const bool usage : {false, true}) {
    const absl::StatusOr<GenerateRequest> request = ParseCompletionRequest(
        R"({"prompt": "a", "stream": true, "stream_options": {"include_usage": )" +
        std::string(usage ? "true" : "false") + R"(, "continuous_usage_stats": false}})");
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_TRUE(request->stream);
    EXPECT_EQ(request->include_usage, usage);
  }
}

TEST(JsonRequestTest, AListOfIdsIsOnePrompt) {
  const absl::StatusOr<GenerateRequest> request = ParseCompletionRequest("{\"prompt\":[5,6,7]}");
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->prompts.size(), 1);
  EXPECT_THAT(std::get<std::vector<int64_t>>(request->prompts[0]), ElementsAre(5, 6, 7));
}

TEST(JsonRequestTest, ChatContentOfTextPartsIsJoined) {
  const absl::StatusOr<GenerateRequest> request = ParseChatRequest(R"({"messages": [
      {"role": "system", "content": "be brief"},
      {"role": "assistant", "content": null},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
       "name": "x"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->messages_json,
            R"([{"role":"system","content":"be brief"},{"role":"assistant","content":""},)"
            R"({"role":"user","content":"a\nb","name":"x"}])");
}

TEST(JsonRequestTest, BadChatsAreRefusedNamingTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages":"hi"})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":["hi"]})", "messages[0]"},
      {R"({"messages":[{"content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":3,"content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages":[{"role":"user","content":["a"]}]})", "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"text":"a"}]}]})", "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":5}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":null}]})",
       "messages[1].content"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls"},
      {R"({"messages":[{"role":"assistant","function_call":{"name":"f"}}]})",
       "messages[0].function_call"},
      {R"({"messages":[{"role":"assistant","audio":{"id":"a"}}]})", "messages[0].audio"},
      {R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":2})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":21})",
       "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"logprobs":5})", "logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"max_completion_tokens":0})",
       "max_completion_tokens"},
      {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":0})", "max_tokens"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})", "tools"},
      {R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":[]})",
       "chat_template_kwargs"},
  };
  EXPECT_FALSE(ParseChatRequest("{}").ok()) << "before anything is made of it";
  for (const auto& [body, field] : cases) {
    const absl::Status status = ChatStatus(body);
    EXPECT_EQ(HttpStatusOf(status), 400) << body;
    EXPECT_EQ(FieldOf(status), field) << status;
  }
}

TEST(JsonRequestTest, AConversationMayHaveSoManyMessages) {
  const auto chat = [](size_t count) {
    return "{\"messages\":[" + Repeat(R"({"role":"user","content":"a"})", count) + "]}";
  };
  EXPECT_TRUE(ChatStatus(chat(kMaxMessages)).ok());
  EXPECT_EQ(FieldOf(ChatStatus(chat(kMaxMessages + 1))), "messages");
}

TEST(JsonRequestTest, WhatAMessageHasForNothingAsksForNothing) {
  const absl::StatusOr<GenerateRequest> request = ParseChatRequest(
      R"({"messages":[{"role":"assistant","content":"a","tool_calls":[],"function_call":{},)"
      R"("audio":null}],"logprobs":false,"top_logprobs":0})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->num_logprobs.has_value());
}

TEST(JsonRequestTest, ChatLogprobsAndNewerMaxTokensArrive) {
  const absl::StatusOr<GenerateRequest> request = ParseChatRequest(
      R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":5,)"
      R"("max_tokens":3,"max_completion_tokens":9})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->num_logprobs, 5);
  EXPECT_EQ(request->max_tokens, 9);
  EXPECT_FALSE(request->default_max_tokens.has_value());
  EXPECT_EQ(request->names.prompt, "messages") << "what else is wrong is at a field of the chat";
}

TEST(JsonRequestTest, WhatAChatSaysOfItsTemplateArrives) {
  const auto chat = [](const std::string& more) {
    return *ParseChatRequest(R"({"messages":[{"role":"user","content":"a"}])" + more + "}");
  };
  const GenerateRequest plain = chat(R"(,"logprobs":true)");
  EXPECT_TRUE(plain.add_generation_prompt);
  EXPECT_FALSE(plain.add_special_tokens.has_value());
  EXPECT_EQ(plain.template_variables_json, "");
  EXPECT_EQ(plain.num_logprobs, 0);
  const GenerateRequest told = chat(
      R"(,"add_generation_prompt":false,"add_special_tokens":true,"chat_template_kwargs":{"a":[1]})");
  EXPECT_FALSE(told.add_generation_prompt);
  EXPECT_EQ(told.add_special_tokens, true);
  EXPECT_EQ(told.template_variables_json, R"({"a":[1]})");
}

}  // namespace
}  // namespace tandem
