#include "services/http/browser_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

using Headers = std::vector<std::pair<std::string, std::string>>;

HttpRequest With(Headers headers, const std::string& method = "POST") {
  return {.method = method, .path = "/v1/completions", .headers = std::move(headers)};
}

int StatusOf(const std::optional<GuardRefusal>& refusal) {
  return refusal.has_value() ? refusal->status : 200;
}

int HostStatus(const BrowserGuard& guard, const std::string& host) {
  return StatusOf(guard.CheckHost(With({{"host", host}})));
}

struct Recorded final : HttpExchange {
  void Send(int status, std::string_view, std::string, Headers sent) override {
    last_status = status;
    headers = std::move(sent);
  }
  void StartStream(int status, std::string_view, Headers sent) override {
    last_status = status;
    headers = std::move(sent);
  }
  void Write(std::string bytes) override { calls += "write " + bytes + ", "; }
  void EndStream() override { calls += "end, "; }
  void Post(std::function<void()> work) override { work(); }
  void OnLeft(std::function<void()> left) override { left(); }

  int last_status = 0;
  Headers headers;
  std::string calls;
};

TEST(BrowserGuardTest, OnLoopbackOnlyItsOwnNamesAreHosts) {
  const BrowserGuard guard({.address = {.ip = "127.0.0.3", .port = 8000},
                            .allowed_hosts = {"Box.example", "other:9", "dot.example."}});
  for (const char* host :
       {"localhost", "localhost:8000", "LocalHost.:1", "127.0.0.1:8000", "127.0.0.3", "[::1]:8000",
        "[::1]", "box.example:8000", "other", "box.example.", "dot.example", "dot.example.:8000"}) {
    EXPECT_EQ(HostStatus(guard, host), 200) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io",
        "evil.example:localhost", "[::1].evil.example", "evil]localhost", "", ":8000",
        "192.168.0.7", "0.0.0.0", "localhost..", "user@localhost"}) {
    EXPECT_EQ(HostStatus(guard, host), 403) << host;
  }
  EXPECT_EQ(StatusOf(guard.CheckHost(With({}))), 200) << "no browser";
  EXPECT_EQ(StatusOf(guard.CheckHost(With({{"host", "localhost"}, {"host", "evil.example"}}))),
            400);
  EXPECT_THAT(guard.CheckHost(With({{"host", "evil\x01"}}))->message,
              testing::AllOf(HasSubstr("evil?"), HasSubstr("--allowed-host")));
  EXPECT_LT(guard.CheckHost(With({{"host", std::string(10'000, 'h')}}))->message.size(), 300u);
}

TEST(BrowserGuardTest, NamesAFlagOnlyWhereThereIsOne) {
  const BrowserGuard guard(
      {.address = {.ip = "127.0.0.1", .port = 8000}, .takes_names = false, .cors_origins = {}});
  EXPECT_THAT(guard.CheckHost(With({{"host", "evil.example"}}))->message,
              testing::AllOf(HasSubstr("localhost"), testing::Not(HasSubstr("--allowed-host"))));
}

TEST(BrowserGuardTest, EveryAddressOfLoopbackIsOne) {
  for (const char* ip : {"127.255.0.1", "::1", "::ffff:127.0.0.1"}) {
    const BrowserGuard guard({.address = {.ip = ip, .port = 8000}});
    EXPECT_EQ(HostStatus(guard, "evil.example"), 403) << ip;
    EXPECT_EQ(HostStatus(guard, "10.0.0.7:8000"), 403) << ip;
  }
}

TEST(BrowserGuardTest, BeyondLoopbackNamesCountOnceTheyAreGiven) {
  const BrowserGuard open({.address = {.ip = "0.0.0.0", .port = 8000}});
  EXPECT_EQ(HostStatus(open, "any.example"), 200);
  const BrowserGuard named({.address = {.ip = "0.0.0.0"}, .allowed_hosts = {"box.example"}});
  for (const char* host : {"box.example", "10.0.0.7:8000", "[2001:db8::1]:8000", "localhost"}) {
    EXPECT_EQ(HostStatus(named, host), 200) << host;
  }
  EXPECT_EQ(HostStatus(named, "evil.example"), 403);
}

TEST(BrowserGuardTest, BodiesAreDeclaredAsJson) {
  const BrowserGuard guard({.address = {.ip = "127.0.0.1"}});
  for (const char* type :
       {"application/json", "Application/JSON; charset=utf-8", "application/json ;x"}) {
    EXPECT_EQ(StatusOf(guard.CheckPost(With({{"content-type", type}}))), 200) << type;
  }
  // What a page may send without asking, and what curl -d sends by itself.
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                           "", "text/plain; application/json", "application/jsonp"}) {
    const auto refused = guard.CheckPost(With({{"content-type", type}}));
    EXPECT_EQ(StatusOf(refused), 415) << type;
    EXPECT_THAT(refused->message, HasSubstr("-H 'Content-Type: application/json'"));
  }
  EXPECT_EQ(StatusOf(guard.CheckPost(With({}))), 415);
}

TEST(BrowserGuardTest, PagesOfUnknownOriginsStartNothing) {
  const BrowserGuard guard(
      {.address = {.ip = "127.0.0.1"}, .cors_origins = {"https://chat.example"}});
  const auto post = [&](const std::string& origin) {
    return StatusOf(
        guard.CheckPost(With({{"content-type", "application/json"}, {"origin", origin}})));
  };
  EXPECT_EQ(post("https://chat.example"), 200);
  for (const char* origin : {"https://evil.example", "null", "", "http://chat.example",
                             "https://chat.example.evil.example", "http://localhost:8000"}) {
    EXPECT_EQ(post(origin), 403) << origin;
  }
  EXPECT_EQ(StatusOf(guard.CheckPost(With({{"content-type", "application/json"},
                                           {"origin", "https://chat.example"},
                                           {"origin", "https://evil.example"}}))),
            403);
}

TEST(BrowserGuardTest, OnlyConfiguredPagesMayReadAnswers) {
  const BrowserGuard guard(
      {.address = {.ip = "127.0.0.1"}, .cors_origins = {"https://chat.example"}});
  const auto headers_for = [&](Headers headers) {
    const auto recorded = std::make_shared<Recorded>();
    const auto exchange = guard.ForOrigin(With(std::move(headers)), recorded);
    exchange->Send(200, "text/plain", "body", {{"X", "kept"}});
    const Headers of_whole = recorded->headers;
    exchange->StartStream(200, "text/event-stream", {{"X", "kept"}});
    EXPECT_EQ(recorded->headers, of_whole);
    return recorded->headers;
  };
  EXPECT_THAT(headers_for({}), UnorderedElementsAre(Pair("X", "kept")));
  EXPECT_THAT(headers_for({{"origin", "https://evil.example"}}),
              UnorderedElementsAre(Pair("X", "kept")));
  EXPECT_THAT(headers_for({{"origin", "https://chat.example"}}),
              UnorderedElementsAre(Pair("X", "kept"), Pair("Vary", "Origin"),
                                   Pair("Access-Control-Allow-Origin", "https://chat.example")));
}

TEST(BrowserGuardTest, ToAConfiguredPageAllIsWrittenAsToAnybody) {
  const BrowserGuard guard(
      {.address = {.ip = "127.0.0.1"}, .cors_origins = {"https://chat.example"}});
  const auto recorded = std::make_shared<Recorded>();
  const auto exchange = guard.ForOrigin(With({{"origin", "https://chat.example"}}), recorded);
  exchange->Write("a");
  exchange->Post([&] { recorded->calls += "posted, "; });
  exchange->OnLeft([&] { recorded->calls += "left, "; });
  exchange->EndStream();
  EXPECT_EQ(recorded->calls, "write a, posted, left, end, ");
}

TEST(BrowserGuardTest, PreflightIsAnsweredForConfiguredPages) {
  const BrowserGuard guard(
      {.address = {.ip = "127.0.0.1"}, .cors_origins = {"https://chat.example"}});
  Recorded recorded;
  const Headers ask = {{"origin", "https://chat.example"},
                       {"access-control-request-method", "POST"}};
  EXPECT_TRUE(guard.AnswerPreflight(With(ask, "OPTIONS"), "POST", &recorded));
  EXPECT_EQ(recorded.last_status, 200);
  EXPECT_THAT(recorded.headers, testing::Contains(Pair("Access-Control-Allow-Methods", "POST")));
  for (const char* const header : {"authorization", "content-type"}) {
    EXPECT_THAT(recorded.headers,
                testing::Contains(Pair("Access-Control-Allow-Headers", HasSubstr(header))));
  }
  Headers evil = ask;
  evil[0].second = "https://evil.example";
  EXPECT_FALSE(guard.AnswerPreflight(With(evil, "OPTIONS"), "POST", &recorded));
  EXPECT_FALSE(guard.AnswerPreflight(With(ask, "POST"), "POST", &recorded));
  EXPECT_FALSE(guard.AnswerPreflight(With({ask[0]}, "OPTIONS"), "POST", &recorded));
}

}  // namespace
}  // namespace tandem
