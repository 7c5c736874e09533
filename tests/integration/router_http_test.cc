#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <list>

#include "services/server/limits.h"
#include "tests/integration/router_fixture.h"

namespace tandem {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class RouterHttpTest : public RouterFixture {
 protected:
  std::vector<int32_t> FakeTokens(const std::vector<int32_t>& prompt, uint64_t seed, int choice,
                                  int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(
          FakeToken(options_[0], prompt, seed, choice, static_cast<int32_t>(prompt.size()) + i));
    }
    return tokens;
  }
  static std::vector<int32_t> Ids(const json::value& list) {
    return json::value_to<std::vector<int32_t>>(list);
  }
  std::string Decode(const std::vector<int32_t>& ids) {
    if (tokenizer_ == nullptr) tokenizer_ = *Tokenizer::Create(Folder());
    return *tokenizer_->Decode(ids);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(RouterHttpTest, HoweverManyScrapeAWorkerIsAskedOnceAtATime) {
  constexpr int kClients = 40;
  FakeWorkerOptions options;
  options.holds_metrics = true;
  Start({options});
  std::list<RawHttp> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back(http()).SendRequest("/metrics");
  for (RawHttp& client : clients) {
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, HasSubstr("tandem_requests_in_flight"));
  }
  EXPECT_LE(workers_[0]->num_scrapes(), kClients / 2);
}

TEST_F(RouterHttpTest, ProbesAndModelCards) {
  const int64_t begun_s = WallClockSeconds();
  Start();
  RawHttp client(http());
  EXPECT_EQ(client.Exchange("/health").status, 200);
  EXPECT_EQ(client.Exchange("/ready").status, 200);
  EXPECT_THAT(client.Exchange("/version").body, HasSubstr("\"version\""));
  const json::value models = json::parse(client.Exchange("/v1/models").body);
  const json::object& card = models.at("data").at(0).as_object();
  EXPECT_EQ(card.at("id"), "demo_model");
  EXPECT_EQ(card.at("max_model_len"), 1024);  // The worker's, which is less than the model's.
  EXPECT_GE(card.at("created").as_int64(), begun_s);
  EXPECT_LE(card.at("created").as_int64(), WallClockSeconds());
  EXPECT_EQ(card.at("object"), "model");
  EXPECT_EQ(card.at("root"), "demo_model");
  EXPECT_EQ(json::parse(client.Exchange("/v1/models/demo_mode%6C").body), card);
  EXPECT_EQ(client.Exchange("/v1/models/").status, 404);
  EXPECT_EQ(client.Exchange("/v1/models/demo_model").status, 200);
  EXPECT_EQ(client.Exchange("/v1/models/default").status, 200);
  const RawAnswer other = client.Exchange("/v1/models/other");
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.body, HasSubstr("model_not_found"));
  EXPECT_EQ(client.Exchange("/v1/models/demo%5Fmodel").status, 200);
  EXPECT_THAT(client.Exchange("/v1/models/a%2Fb%zz%4").body, HasSubstr("\\\"a/b%zz%4\\\""));
  client.Send(
      "HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /version HTTP/1.1\r\nHost: "
      "localhost\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("\"version\"")) << "a pipelined request follows an empty HEAD";
}

TEST_F(RouterHttpTest, AWholeCompletionHasTextIdsUsageAndFingerprint) {
  Start();
  RawHttp client(http());
  const RawAnswer answer = client.Exchange(
      "/v1/completions",
      R"({"model":"default","prompt":[10,11,12],"max_tokens":20,"seed":7,"return_token_ids":true})",
      "X-Request-Id: mine\r\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("x-request-id"), "mine");
  const json::object body = json::parse(answer.body).as_object();
  const json::object& choice = body.at("choices").at(0).as_object();
  const std::vector<int32_t> want = FakeTokens({10, 11, 12}, 7, 0, 20);
  EXPECT_EQ(Ids(choice.at("token_ids")), want);
  EXPECT_EQ(Ids(choice.at("prompt_token_ids")), std::vector<int32_t>({10, 11, 12}));
  EXPECT_EQ(choice.at("text").as_string(), Decode(want));
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_TRUE(choice.at("stop_reason").is_null());
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(body.at("system_fingerprint"), "fake-numerics");
  EXPECT_EQ(body.at("model"), "demo_model");
  EXPECT_EQ(body.at("id"), "cmpl-mine");
  const json::object& usage = body.at("usage").as_object();
  EXPECT_EQ(usage.at("prompt_tokens"), 3);
  EXPECT_EQ(usage.at("completion_tokens"), 20);
  EXPECT_EQ(usage.at("total_tokens"), 23);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), 0);
}

TEST_F(RouterHttpTest, AStreamSaysTheSameAsTheWholeAnswer) {
  Start();
  const std::string fields = R"("prompt":"And God said","max_tokens":60,"seed":5)";
  const std::string whole{
      PostOk("/v1/completions", "{" + fields + "}").at("choices").at(0).at("text").as_string()};
  const RawAnswer answer =
      Post("/v1/completions",
           "{" + fields + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_THAT(answer.headers.at("content-type"), HasSubstr("text/event-stream"));
  std::vector<std::string> events = EventsOf(answer.body);
  ASSERT_GE(events.size(), 3);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  const json::value usage = json::parse(events.back());
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens"), 60);
  events.pop_back();
  std::string text;
  for (const std::string& event : events) {
    const json::value chunk = json::parse(event);
    EXPECT_TRUE(chunk.at("usage").is_null());
    text += chunk.at("choices").at(0).at("text").as_string();
  }
  EXPECT_EQ(text, whole);
  EXPECT_EQ(json::parse(events.back()).at("choices").at(0).at("finish_reason"), "length");
}

TEST_F(RouterHttpTest, ABiasReachesTheWorkerWithEveryPromptOfACall) {
  Start();
  RawHttp client(http());
  const RawAnswer answer = client.Exchange(
      "/v1/completions",
      R"({"prompt":[[4,5],[6]],"n":2,"max_tokens":2,"logit_bias":{"30":1,"8":-100}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(workers_[0]->last_submit().spec.sampling.logit_bias,
            (std::vector<TokenBias>{{8, -100.0f}, {30, 1.0f}}));
  const RawAnswer refused =
      client.Exchange("/v1/completions", R"({"prompt":[4],"logit_bias":{"4096":1}})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("\"param\":\"logit_bias\""));
  EXPECT_THAT(refused.body, HasSubstr("4096, must be from 0 to 4095"));
}

TEST_F(RouterHttpTest, InAChatTheRoleTravelsWithTheFirstToken) {
  Start();
  const std::string fields =
      R"("messages":[{"role":"user","content":"hello"}],"max_tokens":12,"seed":1)";
  const json::object whole = PostOk("/v1/chat/completions", "{" + fields + "}");
  EXPECT_EQ(whole.at("object"), "chat.completion");
  EXPECT_THAT(std::string(whole.at("id").as_string()), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(whole.at("choices").at(0).at("message").at("role"), "assistant");
  // The template's begin token, <|user|>, hello, <|assistant|>.
  EXPECT_GE(whole.at("usage").at("prompt_tokens").as_int64(), 4);

  const RawAnswer answer = Post("/v1/chat/completions", "{" + fields + R"(,"stream":true})");
  const std::vector<std::string> events = EventsOf(answer.body);
  const json::value first = json::parse(events.at(0));
  EXPECT_EQ(first.at("object"), "chat.completion.chunk");
  EXPECT_EQ(first.at("choices").at(0).at("delta").at("role"), "assistant");
  EXPECT_FALSE(first.at("choices").at(0).at("delta").at("content").as_string().empty());
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json::value chunk = json::parse(events[i]);
    const json::object& delta = chunk.at("choices").at(0).at("delta").as_object();
    EXPECT_EQ(delta.contains("role"), i == 0);
    text += delta.at("content").as_string();
  }
  EXPECT_EQ(text, whole.at("choices").at(0).at("message").at("content").as_string());
}

TEST_F(RouterHttpTest, ChoicesOfSeveralPromptsAreNumberedInOrder) {
  Start();
  const json::object body = PostOk(
      "/v1/completions",
      R"({"prompt":[[10,11],[20,21,22]],"n":2,"max_tokens":5,"seed":3,"return_token_ids":true})");
  const json::array& choices = body.at("choices").as_array();
  ASSERT_EQ(choices.size(), 4);
  for (int i = 0; i < 4; ++i) {
    const std::vector<int32_t> prompt =
        i < 2 ? std::vector<int32_t>{10, 11} : std::vector<int32_t>{20, 21, 22};
    EXPECT_EQ(choices[i].at("index"), i);
    EXPECT_EQ(Ids(choices[i].at("token_ids")), FakeTokens(prompt, 3, i % 2, 5)) << i;
  }
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 5);
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 20);
}

TEST_F(RouterHttpTest, LogprobsHaveTheFormsOfBothApis) {
  Start();
  const json::object completion =
      PostOk("/v1/completions",
             R"({"prompt":[10,11,12],"max_tokens":3,"seed":7,"logprobs":2,"prompt_logprobs":1})");
  const json::object& choice = completion.at("choices").at(0).as_object();
  const json::object& logprobs = choice.at("logprobs").as_object();
  const std::vector<int32_t> tokens = FakeTokens({10, 11, 12}, 7, 0, 3);
  ASSERT_EQ(logprobs.at("token_logprobs").as_array().size(), 3);
  EXPECT_EQ(logprobs.at("token_logprobs").at(0).as_double(), -0.125 * (tokens[0] % 7 + 1));
  EXPECT_EQ(logprobs.at("text_offset").at(0), 0);
  EXPECT_EQ(logprobs.at("top_logprobs").at(0).as_object().size(), 2);
  const json::array& prompt = choice.at("prompt_logprobs").as_array();
  ASSERT_EQ(prompt.size(), 3);
  EXPECT_TRUE(prompt[0].is_null());
  EXPECT_EQ(prompt[1].at("11").at("logprob").as_double(), -0.5);
  EXPECT_EQ(prompt[1].at("11").at("rank"), 2);
  EXPECT_TRUE(prompt[1].as_object().contains("4"));

  const json::object chat =
      PostOk("/v1/chat/completions",
             R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2,"logprobs":true,)"
             R"("top_logprobs":3})");
  const json::array& content = chat.at("choices").at(0).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), 2);
  EXPECT_EQ(content[0].at("top_logprobs").as_array().size(), 3);
  EXPECT_FALSE(content[0].at("bytes").as_array().empty());
}

TEST_F(RouterHttpTest, StopsEndTheTextBeforeThem) {
  tokenizer_ = *Tokenizer::Create(Folder());
  FakeWorkerOptions options;
  options.script = *tokenizer_->Encode("alpha beta gamma", /*add_special_tokens=*/false);
  Start({options});
  const json::object by_text =
      PostOk("/v1/completions", R"({"prompt":"x","max_tokens":16,"stop":["zzz","beta"]})");
  EXPECT_EQ(by_text.at("choices").at(0).at("text"), "alpha ");
  EXPECT_EQ(by_text.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(by_text.at("choices").at(0).at("stop_reason"), "beta");
  const int32_t id = options.script[1];
  const json::object by_id =
      PostOk("/v1/completions", R"({"prompt":"x","max_tokens":16,"stop_token_ids":[)" +
                                    std::to_string(id) + R"(],"return_token_ids":true})");
  EXPECT_EQ(by_id.at("choices").at(0).at("stop_reason"), id);
  EXPECT_EQ(Ids(by_id.at("choices").at(0).at("token_ids")).size(), 2);
  EXPECT_EQ(by_id.at("usage").at("completion_tokens"), 2);
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_running() == 0; }));
}

TEST_F(RouterHttpTest, SpecialTokensAreShownToWhoAsksAndTokensNamedAsTheyAreWanted) {
  FakeWorkerOptions options;
  options.script = {500, 3, 501};  // 3 is <|assistant|>.
  Start({options});
  const auto choice = [this](const std::string& more) {
    return PostOk("/v1/completions", R"({"prompt":"x","max_tokens":3,"logprobs":0)" + more + "}")
        .at("choices")
        .at(0)
        .as_object();
  };
  const json::object plain = choice("");
  EXPECT_EQ(plain.at("text").as_string(), Decode({500, 501}));
  EXPECT_EQ(plain.at("logprobs").at("tokens").at(1), "<|assistant|>");
  EXPECT_EQ(choice(R"(,"skip_special_tokens":false)").at("text").as_string(),
            Decode({500}) + "<|assistant|>" + Decode({501}));
  EXPECT_EQ(choice(R"(,"return_tokens_as_token_ids":true)").at("logprobs").at("tokens"),
            json::parse(R"(["token_id:500","token_id:3","token_id:501"])"));
}

TEST_F(RouterHttpTest, AnEndTokenCountsButHasNoTextAndNoReason) {
  FakeWorkerOptions options;
  options.script = {500, 501, 1};  // 1 is the model's end.
  Start({options});
  const json::object body = PostOk(
      "/v1/completions", R"({"prompt":"x","max_tokens":16,"logprobs":0,"return_token_ids":true})");
  const json::object& choice = body.at("choices").at(0).as_object();
  EXPECT_EQ(Ids(choice.at("token_ids")), options.script);
  EXPECT_EQ(choice.at("logprobs").at("tokens").as_array().size(), 3);
  EXPECT_EQ(choice.at("text").as_string(), Decode({500, 501}));
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_TRUE(choice.at("stop_reason").is_null());
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 3);
  const json::object ignored =
      PostOk("/v1/completions", R"({"prompt":"x","max_tokens":16,"ignore_eos":true})");
  EXPECT_EQ(ignored.at("usage").at("completion_tokens"), 16);
}

TEST_F(RouterHttpTest, WrongRequestsAreRefusedAndTheConnectionGoesOn) {
  Start();
  RawHttp client(http());
  const RawAnswer nothing = client.Exchange("/v1/nothing?a=b");
  EXPECT_EQ(nothing.status, 404);
  EXPECT_THAT(nothing.body, HasSubstr(R"("no such route: \"/v1/nothing\"")"));
  const RawAnswer posted = client.Exchange("/v1/models", "{}");
  EXPECT_EQ(posted.status, 405);
  EXPECT_EQ(posted.headers.at("allow"), "GET, HEAD");
  const RawAnswer not_posted = client.Exchange("/v1/completions");
  EXPECT_EQ(not_posted.status, 405);
  EXPECT_EQ(not_posted.headers.at("allow"), "POST");
  const RawAnswer bad = client.Exchange("/v1/completions", R"({"prompt":"a","temperature":9})");
  EXPECT_EQ(bad.status, 400);
  const json::object error = json::parse(bad.body).at("error").as_object();
  EXPECT_EQ(error.at("param"), "temperature");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_TRUE(error.at("code").is_null());
  const RawAnswer unknown = client.Exchange("/v1/completions", R"({"prompt":"a","model":"b"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr("model_not_found"));
  std::string ids = "1";
  for (int i = 0; i < 1020; ++i) ids += ",1";
  const RawAnswer longer =
      client.Exchange("/v1/completions", "{\"prompt\":[" + ids + "],\"max_tokens\":4}");
  EXPECT_EQ(longer.status, 400);
  EXPECT_THAT(longer.body, testing::AllOf(HasSubstr("context_length_exceeded"), HasSubstr("1021"),
                                          HasSubstr("1025"), HasSubstr("1024")));
  EXPECT_EQ(client.Exchange("/v1/completions", R"({"prompt":""})").status, 400);
  EXPECT_EQ(client.Exchange("/v1/completions", R"({"prompt":"a","max_tokens":1})").status, 200);
  EXPECT_EQ(workers_[0]->num_submits(), 1);
}

TEST_F(RouterHttpTest, ATextThatCannotFitIsNotEncodedToItsEnd) {
  Start();
  // However many bytes a token of this vocabulary has: at most 16.
  const RawAnswer by_length =
      Post("/v1/completions", R"({"prompt":")" + std::string(32'000, 'a') + "\"}");
  EXPECT_EQ(by_length.status, 400);
  EXPECT_THAT(by_length.body,
              testing::AllOf(HasSubstr("context_length_exceeded"), HasSubstr("at least 2000"),
                             HasSubstr("32000 bytes"), HasSubstr("1024 tokens")));
  std::string words;
  while (words.size() < 16'000) words += "and it was so. ";
  const RawAnswer by_pieces = Post("/v1/completions", R"({"prompt":")" + words + "\"}");
  EXPECT_EQ(by_pieces.status, 400);
  EXPECT_THAT(by_pieces.body,
              testing::AllOf(HasSubstr("context_length_exceeded"), HasSubstr("the first 4"),
                             HasSubstr(std::to_string(words.size())), HasSubstr("1024 tokens")));
  EXPECT_EQ(workers_[0]->num_submits(), 0);
}

TEST_F(RouterHttpTest, WhatEncodingTakesIsChargedToItsClient) {
  FakeWorkerOptions worker;
  worker.max_model_tokens = 100'000;
  memory_limit_bytes_ = int64_t{32} << 20;
  Start({worker});
  const auto ask = [&](int bytes) {
    std::string text;  // One piece, which cannot be cut.
    while (text.size() + 3 <= static_cast<size_t>(bytes)) text += "the";
    return Post("/v1/completions", R"({"max_tokens":1,"prompt":")" + text + "\"}");
  };
  const RawAnswer too_much = ask(24'000);
  EXPECT_EQ(too_much.status, 400);
  EXPECT_THAT(too_much.body, testing::AllOf(HasSubstr("24000 bytes"), HasSubstr("9216000"),
                                            HasSubstr("8388608"), HasSubstr("--memory-limit")));
  // Beside what the client holds already it finds no room.
  std::list<RawHttp> uploads;
  for (int i = 0; i < 5; ++i) {
    uploads.emplace_back(http()).Send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: 4000000\r\n\r\n" +
        std::string(3'999'999, ' '));
  }
  ASSERT_TRUE(Eventually([&] { return Metric("tandem_memory_held_bytes") > 27'000'000; }));
  EXPECT_EQ(ask(100).status, 200);
  const RawAnswer no_room = ask(21'000);
  EXPECT_EQ(no_room.status, 429);
  EXPECT_THAT(no_room.body, HasSubstr("memory: 8064000 more bytes wanted"));
  uploads.clear();
  ASSERT_TRUE(Eventually([&] { return Metric("tandem_memory_held_bytes") < 10'000'000; }));
  EXPECT_EQ(ask(21'000).status, 200);
  EXPECT_LT(Metric("tandem_memory_held_bytes"), 10'000'000) << "given back";
}

TEST_F(RouterHttpTest, ALongBodyNeedsRoomToWaitIn) {
  memory_limit_bytes_ = int64_t{16} << 20;
  Start();
  const RawAnswer refused = Post("/v1/completions", std::string(3 << 20, ' '));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, testing::AllOf(HasSubstr("wait to be tokenized"), HasSubstr("3145728"),
                                           HasSubstr("2097152 of one client's")));
}

TEST_F(RouterHttpTest, ValuesOfABodyAreChargedBeforeTheyAreParsedAndRendered) {
  memory_limit_bytes_ = int64_t{32} << 20;
  Start();
  const auto zeros = [](int count) {
    std::string list = "[0";
    for (int i = 1; i < count; ++i) list += ",0";
    return list + "]";
  };
  const RawAnswer parsed = Post("/v1/completions", R"({"prompt":)" + zeros(300'000) + "}");
  EXPECT_EQ(parsed.status, 400);
  EXPECT_THAT(parsed.body, testing::AllOf(HasSubstr("parsing the body"), HasSubstr("8388608")));
  // These can be parsed, but not all of it be given to a template.
  const std::string chat = R"({"max_tokens":1,"messages":[{"role":"user","content":"a","x":)";
  const RawAnswer rendered = Post("/v1/chat/completions", chat + zeros(30'000) + "}]}");
  EXPECT_EQ(rendered.status, 400);
  EXPECT_THAT(rendered.body, HasSubstr("rendering the messages"));
  EXPECT_EQ(Post("/v1/chat/completions", chat + zeros(1'000) + "}]}").status, 200);
}

TEST_F(RouterHttpTest, LimitsOfHttpAreAnswered) {
  Start();
  EXPECT_EQ(Post("/v1/completions", std::string(5 << 20, ' ')).status, 413);
  EXPECT_EQ(
      RawHttp(http()).Exchange("/health", "", "X: " + std::string(20000, 'x') + "\r\n").status,
      431);
  std::string fields;
  for (int i = 0; i < 101; ++i) fields += "X" + std::to_string(i) + ": y\r\n";
  EXPECT_EQ(RawHttp(http()).Exchange("/health", "", fields).status, 431);
  EXPECT_EQ(RawHttp(http()).Exchange("/" + std::string(3000, 'a')).status, 414);
  RawHttp nonsense(http());
  nonsense.Send("NONSENSE\r\n\r\n");
  EXPECT_EQ(nonsense.Read().status, 400);
  RawHttp careful(http());
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  careful.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: "
      "100-continue\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_TRUE(careful.ReadUntil("100 Continue\r\n\r\n"));
  careful.Send(body);
  EXPECT_TRUE(careful.ReadUntil("\"usage\""));
  RawHttp old(http());  // HTTP/1.0 knows no interim answers.
  old.Send("GET /health HTTP/1.0\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(old.Read().status, 200);
}

TEST_F(RouterHttpTest, AClientThatLeavesAbortsItsRequest) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 3;
  Start({options});
  {
    RawHttp streaming(http()), waiting(http());
    streaming.SendRequest("/v1/completions", R"({"prompt":"a","max_tokens":50,"stream":true})");
    waiting.SendRequest("/v1/completions", R"({"prompt":"b","max_tokens":50})");
    EXPECT_TRUE(streaming.ReadUntil("data: "));
    EXPECT_TRUE(Eventually([&] { return workers_[0]->num_running() == 2; }));
  }
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_running() == 0; }));
  EXPECT_EQ(workers_[0]->num_cancels(), 2);
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_requests_in_flight") == 0; }));
  EXPECT_EQ(Metric("tandem_requests_total{outcome=\"cancelled\"}"), 2);
}

TEST_F(RouterHttpTest, AClientThatDoesNotReadIsCutOff) {
  Start();
  RawHttp client(http(), /*receive_buffer_bytes=*/4096);
  client.SendRequest("/v1/completions",
                     R"({"prompt":"a","max_tokens":1000,"n":32,"logprobs":20,"stream":true})");
  EXPECT_TRUE(Eventually([&] { return Metric("tandem_slow_readers_total") == 1; }));
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_running() == 0; }));
  EXPECT_FALSE(client.ReadUntil("[DONE]"));
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"a","max_tokens":1})").status, 200);
}

TEST_F(RouterHttpTest, AStreamGoesOnElsewhereWhenItsWorkerDies) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 5;
  Start({options, options});
  for (const int n : {1, 3}) {
    RawHttp client(http());
    client.SendRequest("/v1/completions",
                       R"({"prompt":[10,11,12],"max_tokens":40,"seed":9,"stream":true,)"
                       R"("return_token_ids":true,"n":)" +
                           std::to_string(n) + "}");
    ASSERT_TRUE(client.ReadUntil("data: "));
    size_t busy = 0;
    ASSERT_TRUE(Eventually([&] {
      busy = workers_[0]->num_running() > 0 ? 0 : 1;
      return workers_[busy]->num_running() == n;
    }));
    const int port = workers_[busy]->port();
    workers_[1 - busy]->ReleaseHeld();
    workers_[busy].reset();
    const RawAnswer answer = client.Read();
    std::vector<std::vector<int32_t>> tokens(n);
    for (const std::string& event : EventsOf(answer.body)) {
      if (event == "[DONE]") continue;
      const json::value chunk = json::parse(event);
      const json::object& choice = chunk.at("choices").at(0).as_object();
      for (const int32_t id : Ids(choice.at("token_ids"))) {
        tokens[choice.at("index").as_int64()].push_back(id);
      }
    }
    for (int i = 0; i < n; ++i) EXPECT_EQ(tokens[i], FakeTokens({10, 11, 12}, 9, i, 40)) << i;
    EXPECT_THAT(answer.body, HasSubstr("[DONE]"));
    EXPECT_GE(Metric("tandem_stream_resumes_total{reason=\"session_lost\"}"), 1);
    // It comes back at the same address, as a restarted process does.
    FakeWorkerOptions again = options_[busy];
    again.port = port;
    workers_[busy] = std::make_unique<FakeWorker>(again);
    const std::string healthy = "tandem_workers{role=\"hybrid\",state=\"healthy\"}";
    ASSERT_TRUE(Eventually([&] { return Metric(healthy) == 2 && router_->Ready(); }));
    if (n == 1) {  // Both hold again for the next round.
      FakeWorkerOptions other = options_[1 - busy];
      other.port = workers_[1 - busy]->port();
      workers_[1 - busy].reset();
      workers_[1 - busy] = std::make_unique<FakeWorker>(other);
      ASSERT_TRUE(Eventually(
          [&] { return workers_[1 - busy]->num_submits() == 0 && Metric(healthy) == 2; }));
    }
  }
}

TEST_F(RouterHttpTest, MetricsOfWorkersAreLabelledAndNeverGoBack) {
  Start();
  PostOk("/v1/completions", R"({"prompt":"a","max_tokens":4})");
  const std::string submits = "tandem_fake_submits_total{worker=\"fake-0\"}";
  const std::string running = "tandem_fake_running{worker=\"fake-0\"}";
  EXPECT_EQ(Metric(submits), 1);
  EXPECT_EQ(Metric(running), 0);
  EXPECT_EQ(Metric("tandem_ttft_seconds_count"), 1);
  EXPECT_EQ(Metric("tandem_itl_seconds_count"), 3);
  EXPECT_EQ(Metric("tandem_requests_total{outcome=\"done\"}"), 1);
  EXPECT_EQ(Metric("tandem_generated_tokens_total"), 4);
  FakeWorkerOptions again = options_[0];
  again.port = workers_[0]->port();
  workers_[0].reset();
  EXPECT_TRUE(Eventually([&] { return Metric(running) == -1; })) << "a gauge of a dead worker";
  EXPECT_EQ(Metric(submits), 1);
  workers_[0] = std::make_unique<FakeWorker>(again);
  ASSERT_TRUE(Eventually([&] { return router_->Ready() && Metric(running) == 0; }));
  EXPECT_EQ(Metric(submits), 1);
  PostOk("/v1/completions", R"({"prompt":"a","max_tokens":4})");
  EXPECT_EQ(Metric(submits), 2);
}

// A worker that dies between two scrapes takes little with it.
TEST_F(RouterHttpTest, AWorkerIsAskedForMetricsThoughNobodyScrapes) {
  Start();
  EXPECT_TRUE(Eventually([&] { return workers_[0]->num_scrapes() > 0; }));
}

TEST_F(RouterHttpTest, AWorkerThatIsGoneCutsNoPageShort) {
  Start({FakeWorkerOptions(), FakeWorkerOptions()});
  workers_[1].reset();
  const std::string gone = "tandem_fake_running{worker=\"fake-1\"}";
  ASSERT_TRUE(Eventually([&] { return Metric(gone) == -1; }));
  for (int i = 1; i <= 10; ++i) {
    PostOk("/v1/completions", R"({"prompt":"a","max_tokens":1})");
    EXPECT_EQ(Metric("tandem_fake_submits_total{worker=\"fake-0\"}"), i);
  }
}

TEST_F(RouterHttpTest, MetricsThatAreTooLongLeaveWhatIsKnown) {
  Start({{.metrics_bytes = kMaxMetricsBytes}, {.metrics_bytes = kMaxMetricsBytes / 2}});
  const auto submits = [this](const std::string& worker) {
    return Metric("tandem_fake_submits_total{worker=\"" + worker + "\"}");
  };
  ASSERT_TRUE(Eventually([&] { return submits("fake-0") == 0; }));
  ASSERT_TRUE(Eventually([&] {
    PostOk("/v1/completions", R"({"prompt":"a","max_tokens":1})");
    return workers_[0]->num_submits() > 0 && workers_[1]->num_submits() > 0;
  }));
  EXPECT_TRUE(Eventually([&] { return submits("fake-1") > 0; }));
  EXPECT_EQ(submits("fake-0"), 0) << "as it last was";
}

TEST_F(RouterHttpTest, AWorkerOfAnotherNameTakesThePlaceInTheMetrics) {
  Start();
  const auto submits = [this](const std::string& worker) {
    return Metric("tandem_fake_submits_total{worker=\"" + worker + "\"}");
  };
  EXPECT_EQ(submits("fake-0"), 0);
  const FakeWorkerOptions other{.name = "other", .port = workers_[0]->port()};
  workers_[0].reset();
  workers_[0] = std::make_unique<FakeWorker>(other);
  EXPECT_TRUE(Eventually([&] { return submits("other") == 0; }));
  EXPECT_EQ(submits("fake-0"), -1);
}

TEST_F(RouterHttpTest, AWorkerOfAnotherModelMakesNobodyReady) {
  Start({FakeWorkerOptions(), FakeWorkerOptions{.model = "another", .max_model_tokens = 16}});
  EXPECT_EQ(Post("/v1/completions", R"({"prompt": [5, 6, 7], "max_tokens": 30})").status, 200);
  workers_[0].reset();
  EXPECT_TRUE(Eventually([&] { return RawHttp(http()).Exchange("/ready").status == 503; }));
}

TEST_F(RouterHttpTest, NoWorkerOffersMoreThanTheModelsOwnContext) {
  Start({FakeWorkerOptions{.max_model_tokens = 4 << 20}});
  const json::value models = json::parse(RawHttp(http()).Exchange("/v1/models").body);
  EXPECT_EQ(models.at("data").at(0).at("max_model_len"), 8192);
  const RawAnswer longer = Post("/v1/completions", R"({"prompt": [5, 6, 7], "max_tokens": 8190})");
  EXPECT_EQ(longer.status, 400);
  EXPECT_THAT(longer.body, HasSubstr("context_length_exceeded"));
}

TEST_F(RouterHttpTest, AWorkerWhoseSessionsAreOfNoUseIsNotDialledAgainAtOnce) {
  Start({FakeWorkerOptions(), FakeWorkerOptions{.other_incarnation = true}});
  // Every dial without a pause that grows would be several a heartbeat.
  EXPECT_TRUE(Eventually([&] { return workers_[1]->num_heartbeats() > 60; }));
  EXPECT_GT(workers_[1]->num_sessions(), 1);
  EXPECT_LT(workers_[1]->num_sessions(), 60);
}

TEST_F(RouterHttpTest, WithoutATokenizerIdsGoInAndOut) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("ids_only_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(Folder() + "/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  FakeWorkerOptions options;
  options.model = folder.filename();
  Start({options}, folder);
  const json::object body =
      PostOk("/v1/completions",
             R"({"prompt":[10,11],"max_tokens":4,"seed":2,"logprobs":1,"return_token_ids":true})");
  const json::object& choice = body.at("choices").at(0).as_object();
  const std::vector<int32_t> want = FakeTokens({10, 11}, 2, 0, 4);
  EXPECT_EQ(Ids(choice.at("token_ids")), want);
  EXPECT_EQ(choice.at("text"), "");
  EXPECT_EQ(choice.at("logprobs").at("tokens").at(0).as_string(),
            "token_id:" + std::to_string(want[0]));
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"text"})").status, 400);
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":[1],"stop":"x"})").status, 400);
  EXPECT_EQ(Post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})").status,
            400);
  std::filesystem::remove_all(folder);
}

TEST_F(RouterHttpTest, ADrainLetsRunningStreamsEndAndEveryAnswerIsTheLast) {
  FakeWorkerOptions options;
  options.hold_after_tokens = 2;
  Start({options});
  RawHttp client(http()), idle(http()), uploading(http());
  EXPECT_EQ(idle.Exchange("/health").status, 200);
  uploading.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n12");
  client.SendRequest("/v1/completions", R"({"prompt":"a","max_tokens":8,"stream":true})");
  ASSERT_TRUE(client.ReadUntil("data: "));
  router_->BeginDrain();
  EXPECT_EQ(idle.Exchange("/health").headers["connection"], "close");
  EXPECT_EQ(idle.Read().status, 0) << "it is closed";
  EXPECT_FALSE(router_->Drained());
  workers_[0]->ReleaseHeld();
  EXPECT_THAT(client.Read().body, HasSubstr("[DONE]"));
  EXPECT_TRUE(Eventually([&] { return router_->num_requests() == 0; }));
  EXPECT_FALSE(router_->Drained()) << "a request is on its way";
  uploading.Send("34");
  EXPECT_EQ(uploading.Read().status, 415);
  EXPECT_TRUE(Eventually([&] { return router_->Drained(); }));
}

TEST_F(RouterHttpTest, APageOfAnotherSiteGetsAndStartsNothing) {
  Start();
  const auto status = [&](const std::string& head, const std::string& body = "") {
    RawHttp client(http());
    std::string text = head + "\r\n";
    if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    client.Send(text + "\r\n" + body);
    return client.Read().status;
  };
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  const std::string json_type = "Content-Type: application/json\r\n";
  // Under a name of its own that leads here (DNS rebinding).
  EXPECT_EQ(status("GET /metrics HTTP/1.1\r\nHost: evil.example:8000"), 403);
  EXPECT_EQ(status(post + json_type + "Host: evil.example", body), 403);
  // What a page sends without asking (CSRF), and when it has asked.
  EXPECT_EQ(status(post + "Host: localhost\r\nContent-Type: text/plain", body), 415);
  EXPECT_EQ(status(post + "Host: localhost", body), 415);
  EXPECT_EQ(status(post + json_type + "Host: localhost\r\nOrigin: http://evil.example", body), 403);
  EXPECT_EQ(status("OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                   "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST"),
            405);
  EXPECT_EQ(workers_[0]->num_submits(), 0);
  EXPECT_EQ(status(post + json_type + "Host: localhost", body), 200);
  EXPECT_EQ(workers_[0]->num_submits(), 1);
}

}  // namespace
}  // namespace tandem
