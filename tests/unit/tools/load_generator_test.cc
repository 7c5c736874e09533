#include "tools/tandem/load_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "services/http/http_server.h"
#include "tests/unit/tools/raw_server.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// Answers every request alike: with `status`, or a stream of `events`.
class Alike final : public HttpHandler {
 public:
  void Handle(HttpRequest, std::shared_ptr<HttpExchange> exchange) override {
    if (status != 200) return exchange->Send(status, "application/json", "why");
    exchange->StartStream(200, "text/event-stream");
    exchange->Write(events);
    exchange->EndStream();
  }

  int status = 200;
  std::string events;
};

class LoadGeneratorTest : public testing::Test {
 protected:
  static constexpr char kToken[] = "data: {\"choices\":[{\"index\":0}]}\n\n";
  static constexpr char kUsage[] =
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,"
      "\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n";
  static constexpr char kDone[] = "data: [DONE]\n\n";

  // What became of two requests, one after the other.
  RequestRecord Ask(int status, const std::string& events) {
    handler_.status = status;
    handler_.events = events;
    const LoadOptions options{
        .target = {.host = "127.0.0.1", .port = std::to_string(server_->port())},
        .requests = 2,
        .connections = 1,
        .prompt_tokens = {.low = 3, .high = 3},
        .output_tokens = {.low = 2, .high = 2}};
    int ended = 0;
    const LoadResult result = GenerateLoad(options, [&ended](int so_far) { ended = so_far; });
    EXPECT_EQ(ended, 2);
    EXPECT_EQ(result.requests[0].outcome, result.requests[1].outcome);
    EXPECT_EQ(result.requests[0].error, result.requests[1].error);
    return result.requests[1];
  }

  MemoryBudget budget_{int64_t{16} << 20};
  Alike handler_;
  const std::unique_ptr<HttpServer> server_ =
      *HttpServer::Create({.address = {.ip = "127.0.0.1"}, .budget = &budget_}, &handler_);
};

TEST_F(LoadGeneratorTest, AStreamIsCompletedByItsDone) {
  const RequestRecord whole = Ask(200, std::string(kToken) + kToken + kUsage + kDone);
  EXPECT_EQ(whole.outcome, CallOutcome::kCompleted) << whole.error;
  EXPECT_EQ(whole.token_us.size(), 2u) << "the usage is no token";
  EXPECT_EQ(whole.prompt_tokens, 7);
  EXPECT_EQ(whole.cached_tokens, 5);
  EXPECT_EQ(whole.output_tokens, 2);
  const RequestRecord cut = Ask(200, std::string(kToken) + kToken + kUsage);
  EXPECT_EQ(cut.outcome, CallOutcome::kFailed);
  EXPECT_EQ(cut.error, "the stream ended before its end");
  const RequestRecord broken =
      Ask(200, std::string(kToken) + "data: {\"error\":{\"message\":\"lost\"}}\n\n" + kDone);
  EXPECT_EQ(broken.outcome, CallOutcome::kFailed);
  EXPECT_THAT(broken.error, HasSubstr("lost"));
}

TEST_F(LoadGeneratorTest, AnOverloadIsNoFailure) {
  for (const int status : {429, 503}) {
    EXPECT_EQ(Ask(status, "").outcome, CallOutcome::kRejected) << status;
  }
  const RequestRecord wrong = Ask(400, "");
  EXPECT_EQ(wrong.outcome, CallOutcome::kFailed);
  EXPECT_EQ(wrong.error, "HTTP 400: why");
}

LoadOptions Requests(const RawServer& server, int32_t requests) {
  return {.target = server.target(),
          .requests = requests,
          .connections = 1,
          .prompt_tokens = {.low = 3, .high = 3},
          .output_tokens = {.low = 2, .high = 2}};
}

// A server may close a connection between two requests, and that is nobody's failure; what it has
// begun to answer is not asked for twice.
TEST(LoadGeneratorConnectionTest, ARequestIsSentAgainOnlyIfItsConnectionWasStale) {
  RawServer server;
  server.Serve({{kDoneStream}, {kDoneStream, kCut}, {kDoneStream}});
  const LoadResult result = GenerateLoad(Requests(server, 3), [](int) {});
  EXPECT_EQ(result.requests[0].outcome, CallOutcome::kCompleted) << result.requests[0].error;
  EXPECT_EQ(result.requests[1].outcome, CallOutcome::kCompleted) << result.requests[1].error;
  EXPECT_EQ(result.requests[2].outcome, CallOutcome::kFailed);
  EXPECT_EQ(server.Asked().size(), 3u);
}

// They are those of the plan, whenever the requests were really sent.
TEST(LoadGeneratorConnectionTest, RequestsOfAnOpenLoopAreDueAtTimesOfTheSeed) {
  const auto due = [](double rate) {
    RawServer server;
    server.Serve({{kDoneStream, kDoneStream, kDoneStream}});
    LoadOptions options = Requests(server, 3);
    options.rate_per_second = rate;
    std::vector<int64_t> times;
    for (const RequestRecord& request : GenerateLoad(options, [](int) {}).requests) {
      times.push_back(request.due_us);
    }
    return times;
  };
  const std::vector<int64_t> times = due(1'000), slower = due(100);
  EXPECT_EQ(due(1'000), times);
  EXPECT_TRUE(0 < times[0] && times[0] < times[1] && times[1] < times[2]);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(slower[i]), 10.0 * static_cast<double>(times[i]), 10);
  }
}

}  // namespace
}  // namespace tandem
