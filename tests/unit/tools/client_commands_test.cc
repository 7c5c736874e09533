// `tandem bench` and `tandem chat`, whose server only says what it was asked and what it was told
// to answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/mutex.h"
#include "runtime/base/small_file.h"
#include "services/http/http_server.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kDone[] = "data: [DONE]\n\n";

struct Answer {
  int status = 200;
  std::string body;  // A stream of events where the status is 200.
};

class Script final : public HttpHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    const Answer answer = Next(std::move(request));
    if (answer.status != 200) {
      return exchange->Send(answer.status, "application/json", answer.body);
    }
    exchange->StartStream(200, "text/event-stream");
    exchange->Write(answer.body);
    exchange->EndStream();
  }

  // The last one goes for all that follow.
  void Answers(std::deque<Answer> answers) {
    MutexLock lock(&mu_);
    answers_ = std::move(answers);
  }
  // The bodies that came since the last call.
  std::vector<json::value> Asked() {
    MutexLock lock(&mu_);
    return std::exchange(asked_, {});
  }

 private:
  Answer Next(HttpRequest request) {
    MutexLock lock(&mu_);
    EXPECT_EQ(request.method, "POST");
    asked_.push_back(json::parse(request.body));
    asked_.back().as_object()["path"] = request.path;
    Answer answer = answers_.front();
    if (answers_.size() > 1) answers_.pop_front();
    return answer;
  }

  Mutex mu_;
  std::deque<Answer> answers_ GUARDED_BY(mu_);
  std::vector<json::value> asked_ GUARDED_BY(mu_);
};

class ClientCommandsTest : public testing::Test {
 protected:
  struct Ended {
    int status = -1;
    std::string out, err;
  };

  // `tandem COMMAND --target=... FLAGS`, which reads `input`.
  Ended Run(const std::string& command, const std::string& flags, const std::string& input = "") {
    const std::string in = folder_.Write("in", input), out = folder_.path() + "/out",
                      err = folder_.path() + "/err";
    const int status = std::system(absl::StrCat(TANDEM_BINARY_DIR "/tandem ", command,
                                                " --target=http://127.0.0.1:", server_->port(), " ",
                                                flags, " <", in, " >", out, " 2>", err)
                                       .c_str());
    EXPECT_TRUE(WIFEXITED(status));
    return {WEXITSTATUS(status), *ReadSmallFile(out, 1 << 20), *ReadSmallFile(err, 1 << 20)};
  }

  const TempFolder folder_;
  MemoryBudget budget_{int64_t{16} << 20};
  Script script_;
  const std::unique_ptr<HttpServer> server_ =
      *HttpServer::Create({.address = {.ip = "127.0.0.1"}, .budget = &budget_}, &script_);
};

// ---- bench ----

std::string Completion(int prompt_tokens, int cached_tokens, int output_tokens) {
  return absl::StrCat("data: {\"choices\":[{\"index\":0}]}\n\n",
                      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":", prompt_tokens,
                      ",\"completion_tokens\":", output_tokens,
                      ",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens, "}}}\n\n",
                      kDone);
}

TEST_F(ClientCommandsTest, ABenchAsksForWhatItsFlagsSay) {
  script_.Answers({{200, Completion(7, 0, 3)}});
  const std::string flags =
      "--requests=40 --connections=1 --prompt-tokens=5-9 --output-tokens=3-4 --shared-prefix=3 "
      "--vocabulary=20 --temperature=0.5 --model=mine";
  ASSERT_EQ(Run("bench", flags).status, 0);
  const std::vector<json::value> asked = script_.Asked();
  ASSERT_EQ(asked.size(), 40u);
  std::set<int64_t> lengths, outputs, ids, seeds;
  for (const json::value& body : asked) {
    const json::array& prompt = body.at("prompt").as_array();
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(prompt[i], asked[0].at("prompt").as_array()[i]);
    for (const json::value& id : prompt) ids.insert(id.as_int64());
    lengths.insert(static_cast<int64_t>(prompt.size()));
    outputs.insert(body.at("max_tokens").as_int64());
    seeds.insert(body.at("seed").as_int64());
    EXPECT_EQ(body.at("path"), "/v1/completions");
    EXPECT_EQ(body.at("model"), "mine");
    EXPECT_EQ(body.at("temperature"), 0.5);
    EXPECT_EQ(body.at("ignore_eos"), true);
    EXPECT_EQ(body.at("stream"), true);
    EXPECT_EQ(body.at("stream_options").at("include_usage"), true);
  }
  EXPECT_THAT(lengths, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(outputs, ElementsAre(3, 4));
  EXPECT_THAT(ids, ElementsAre(16, 17, 18, 19)) << "special tokens come before";
  EXPECT_EQ(seeds.size(), 40u);
  ASSERT_EQ(Run("bench", flags).status, 0);
  EXPECT_EQ(script_.Asked(), asked) << "two servers are compared by the same prompts";
  ASSERT_EQ(Run("bench", flags + " --seed=2").status, 0);
  EXPECT_NE(script_.Asked(), asked);
}

TEST_F(ClientCommandsTest, ABenchReportsWhatTheServerSaid) {
  script_.Answers({{200, Completion(8, 2, 3)}, {200, Completion(8, 4, 1)}});
  const Ended ended = Run("bench",
                          "--requests=2 --connections=1 --prompt-tokens=8 --output-tokens=3 "
                          "--targets=ttft=0.000000001 --json");
  ASSERT_EQ(ended.status, 0) << ended.err;
  const json::value report = json::parse(ended.out);
  const auto number = [&](const char* name) { return report.at(name).to_number<double>(); };
  EXPECT_EQ(number("requests_completed"), 2);
  EXPECT_EQ(number("prompt_tokens"), 16);
  EXPECT_EQ(number("output_tokens"), 4);
  EXPECT_EQ(number("prefix_hit_rate"), 6.0 / 16);
  const double seconds = number("wall_seconds");
  EXPECT_NEAR(number("requests_per_second") * seconds, 2, 1e-9);
  EXPECT_NEAR(number("output_tokens_per_second") * seconds, 4, 1e-9);
  EXPECT_NEAR(number("total_tokens_per_second") * seconds, 20, 1e-9);
  EXPECT_EQ(number("goodput_requests_per_second"), 0) << "nobody is so fast";
  EXPECT_GT(report.at("e2e_seconds").at("p50").to_number<double>(), 0);
}

TEST_F(ClientCommandsTest, ABenchSucceedsOnlyIfEveryRequestWasCompleted) {
  const std::string flags = "--requests=2 --connections=1 --prompt-tokens=2 --output-tokens=1";
  const Answer good{200, Completion(2, 0, 1)}, busy{429, "busy"}, wrong{400, "wrong"};
  for (const auto& [second, plain, tolerant] :
       {std::tuple{good, 0, 0}, {busy, 1, 0}, {wrong, 1, 1}}) {
    script_.Answers({good, second});
    EXPECT_EQ(Run("bench", flags).status, plain) << second.status;
    script_.Answers({good, second});
    EXPECT_EQ(Run("bench", flags + " --may-be-refused").status, tolerant) << second.status;
  }
}

TEST_F(ClientCommandsTest, ABenchSendsNothingIfItsFlagsAreWrong) {
  script_.Answers({{200, Completion(2, 0, 1)}});
  for (const char* flags :
       {"--prompt-tokens=0", "--output-tokens=9-5", "--prompt-tokens=5-", "--output-tokens=1-2-3",
        "--output-tokens=x", "--targets=ttft", "--targets=ttft=0", "--targets=e2e=1",
        "--targets=ttft=1=2", "--target=ftp://127.0.0.1", "more", "--vocabulary=16"}) {
    const Ended ended = Run("bench", flags);
    EXPECT_EQ(ended.status, 2) << flags;
    EXPECT_THAT(ended.err, testing::StartsWith("tandem bench: ")) << flags;
  }
  EXPECT_TRUE(script_.Asked().empty());
}

// ---- chat ----

std::string Said(const std::string& text) {
  return absl::StrCat("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n",
                      "data: {\"choices\":[{\"delta\":{\"content\":\"", text, "\"}}]}\n\n");
}

TEST_F(ClientCommandsTest, AChatGoesOnFromWhatWasAnswered) {
  script_.Answers({{200, absl::StrCat(Said("first"), Said(" answer"), kDone)},
                   {400, R"({"error":{"message":"too rude"}})"},
                   {200, absl::StrCat(Said("third"), kDone)}});
  const Ended ended = Run("chat",
                          "--system=Be-brief --model=mine --temperature=0.25 --max-tokens=9 "
                          "--seed=5",
                          "one\n\ntwo\nthree\n");
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.out, "> first answer\n> > \n> third\n> \n");
  EXPECT_EQ(ended.err, "tandem chat: HTTP 400: too rude\n");
  const std::vector<json::value> asked = script_.Asked();
  ASSERT_EQ(asked.size(), 3u);
  const auto message = [](const char* role, const char* content) {
    return json::value{{"role", role}, {"content", content}};
  };
  const json::value system = message("system", "Be-brief"), one = message("user", "one"),
                    answer = message("assistant", "first answer");
  EXPECT_EQ(asked[0].at("messages"), (json::array{system, one}));
  EXPECT_EQ(asked[1].at("messages"), (json::array{system, one, answer, message("user", "two")}));
  EXPECT_EQ(asked[2].at("messages"), (json::array{system, one, answer, message("user", "three")}));
  for (const json::value& body : asked) {
    EXPECT_EQ(body.at("path"), "/v1/chat/completions");
    EXPECT_EQ(body.at("model"), "mine");
    EXPECT_EQ(body.at("temperature"), 0.25);
    EXPECT_EQ(body.at("max_tokens"), 9);
    EXPECT_EQ(body.at("seed"), 5);
    EXPECT_EQ(body.at("stream"), true);
  }
}

TEST_F(ClientCommandsTest, AChatOfOneMessageSaysWhetherItWasAnswered) {
  const Answer whole{200, Said("yes") + kDone}, cut{200, Said("ye")},
      broken{200, Said("ye") + "data: {\"error\":{\"message\":\"lost\"}}\n\n" + kDone},
      refused{503, "busy"};
  const std::tuple<Answer, int, const char*> cases[] = {
      {whole, 0, ""},
      {cut, 1, "tandem chat: the stream ended before its end\n"},
      {broken, 1, "tandem chat: lost\n"},
      {refused, 1, "tandem chat: HTTP 503: busy\n"}};
  for (const auto& [answer, status, said] : cases) {
    script_.Answers({answer});
    const Ended ended = Run("chat", "--message=hello", "not this\n");
    EXPECT_EQ(ended.status, status);
    EXPECT_EQ(ended.err, said);
    const std::vector<json::value> asked = script_.Asked();
    ASSERT_EQ(asked.size(), 1u);
    EXPECT_EQ(asked[0].at("messages").as_array().size(), 1u);
    EXPECT_FALSE(asked[0].as_object().contains("seed")) << "the server draws one";
  }
}

}  // namespace
}  // namespace tandem
