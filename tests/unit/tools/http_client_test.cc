#include "tools/tandem/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "services/server/api_keys.h"
#include "tests/unit/tools/raw_server.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HttpTargetTest, SplitsHostPortAndPath) {
  const auto target = ParseHttpTarget("http://127.0.0.1:8000/prefix/");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->host, "127.0.0.1");
  EXPECT_EQ(target->port, "8000");
  EXPECT_EQ(target->base_path, "/prefix");
  EXPECT_EQ(ParseHttpTarget("http://localhost")->port, "80");
  EXPECT_FALSE(ParseHttpTarget("http://localhost")->tls);
  EXPECT_EQ(ParseHttpTarget("https://localhost")->port, "443");
  EXPECT_TRUE(ParseHttpTarget("https://localhost:8443/x")->tls);
  EXPECT_EQ(ParseHttpTarget("http://[::1]:8000")->port, "8000");
  EXPECT_EQ(ParseHttpTarget("http://[::1]")->host, "[::1]");
}

TEST(HttpTargetTest, RefusesWhatItCannotReach) {
  for (const char* url : {"", "127.0.0.1:8000", "ftp://127.0.0.1", "https:127.0.0.1", "https://",
                          "http://", "http://:80", "http://host:"}) {
    EXPECT_EQ(ParseHttpTarget(url).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
}

TEST(HttpTargetTest, RefusesFilesThatItHasNoUseFor) {
  const HttpTlsFlags pair{.certificate = "c", .key = "k"}, torn{.certificate = "c"},
      believing{.authorities = "a"};
  EXPECT_TRUE(ParseHttpTarget("https://localhost", pair).ok());
  EXPECT_TRUE(ParseHttpTarget("https://localhost", believing).ok());
  EXPECT_THAT(std::string(ParseHttpTarget("https://localhost", torn).status().message()),
              ::testing::HasSubstr("--tls-key"));
  for (const HttpTlsFlags& files : {pair, believing}) {
    EXPECT_THAT(std::string(ParseHttpTarget("http://localhost", files).status().message()),
                ::testing::HasSubstr("https"));
  }
}

std::vector<std::string> Events(const std::vector<std::string>& pieces) {
  EventStreamParser parser;
  std::vector<std::string> events;
  for (const std::string& piece : pieces) {
    parser.Feed(piece, [&](std::string_view data) {
      events.emplace_back(data);
      return true;
    });
  }
  return events;
}

TEST(EventStreamTest, FindsTheSameEventsHoweverTheBytesAreCut) {
  const std::string stream = ": comment\n\ndata: one\n\ndata:two\r\n\r\ndata: [DONE]\n\n";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < stream.size(); at += piece) pieces.push_back(stream.substr(at, piece));
    EXPECT_THAT(Events(pieces), ElementsAre("one", "two", "[DONE]")) << piece;
  }
}

TEST(EventStreamTest, StopsWhereItIsTold) {
  EventStreamParser parser;
  int calls = 0;
  EXPECT_FALSE(parser.Feed("data: a\n\ndata: b\n\n", [&](std::string_view) {
    ++calls;
    return false;
  }));
  EXPECT_EQ(calls, 1);
}

TEST(HttpConnectionTest, ASilentServerIsLost) {
  const RawServer server;  // The kernel accepts; nobody reads.
  auto connection = HttpConnection::Connect(server.target(), std::chrono::milliseconds(20));
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto status = (*connection)->Send("/", "", [](std::string_view) { return true; });
  EXPECT_EQ(status.status().code(), absl::StatusCode::kUnavailable) << status.status();
}

TEST(HttpConnectionTest, SaysWhatItWantsBehindTheTargetsPath) {
  RawServer server;
  server.Serve({{kWhole, kWhole}});
  HttpTarget target = server.target();
  target.base_path = "/prefix";
  setenv(kApiKeyVariable, "a-key", 1);
  const auto connection = HttpConnection::Connect(target);
  ASSERT_TRUE(connection.ok()) << connection.status();
  std::string body;
  const auto take = [&](std::string_view piece) {
    body += piece;
    return true;
  };
  EXPECT_EQ(*(*connection)->Send("/things", R"({"a":1})", take), 200);
  EXPECT_EQ(*(*connection)->Send("/things", "", take), 200);
  unsetenv(kApiKeyVariable);
  EXPECT_EQ(body, "wellwell");
  const std::vector<std::string> asked = server.Asked();
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_THAT(asked[0], ::testing::StartsWith("POST /prefix/things HTTP/1.1\r\n"));
  EXPECT_THAT(asked[0], HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_THAT(asked[0], ::testing::EndsWith("\r\n\r\n{\"a\":1}"));
  EXPECT_THAT(asked[1], ::testing::StartsWith("GET /prefix/things HTTP/1.1\r\n"));
  for (const std::string& request : asked) {
    EXPECT_THAT(request, HasSubstr("\r\nAuthorization: Bearer a-key\r\n"));
    EXPECT_THAT(request, HasSubstr("\r\nHost: 127.0.0.1:" + target.port + "\r\n"));
  }
}

TEST(HttpConnectionTest, ABodyThatIsCutOffIsLost) {
  RawServer server;
  server.Serve({{kCut}});
  const auto connection = HttpConnection::Connect(server.target());
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto status = (*connection)->Send("/", "", [](std::string_view) { return true; });
  EXPECT_EQ(status.status().code(), absl::StatusCode::kUnavailable) << status.status();
  const auto again = (*connection)->Send("/", "", [](std::string_view) { return true; });
  EXPECT_EQ(again.status().message(), "the connection is closed");
}

}  // namespace
}  // namespace tandem
