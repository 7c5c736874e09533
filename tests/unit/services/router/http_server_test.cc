#include "services/router/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/raw_http.h"

namespace tandem {
namespace {

// Answers with what the path says.
class Handler final : public HttpHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    if (request.path == "/burst") {
      exchange->StartStream(200, "text/plain");
      exchange->Write(std::string(kBurstBytes, 'b'));
      exchange->EndStream();
    } else if (request.path == "/held") {
      exchange->StartStream(200, "text/plain");
      exchange->Write("begun");
      held = std::move(exchange);
    } else {
      exchange->Send(200, "text/plain", request.id);
    }
  }

  static constexpr size_t kBurstBytes = size_t{8} << 20;  // Well above what may wait unsent.
  std::shared_ptr<HttpExchange> held;                     // For tests, once "begun" has come.
};

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    HttpServerOptions options{.address = {.ip = "127.0.0.1"},
                              .on_slow_reader = [this] { ++num_slow_readers_; }};
    server_ = *HttpServer::Create(options, &handler_);
  }

  Handler handler_;
  std::atomic<int> num_slow_readers_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ABurstIsNoSlowReader) {
  RawHttp client(server_->port());
  const RawAnswer answer = client.Exchange("/burst");
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.body, std::string(Handler::kBurstBytes, 'b'));
  EXPECT_EQ(num_slow_readers_, 0);
  EXPECT_EQ(client.Exchange("/other").status, 200) << "the connection goes on";
}

TEST_F(HttpServerTest, EveryAnswerNamesItsRequest) {
  const RawAnswer own = RawHttp(server_->port()).Exchange("/", "", "X-Request-Id: mine\r\n");
  EXPECT_EQ(own.body, "mine");
  EXPECT_EQ(own.headers.at("x-request-id"), "mine");
  const RawAnswer fresh =
      RawHttp(server_->port()).Exchange("/", "", "X-Request-Id: not printable\x01\r\n");
  EXPECT_EQ(fresh.headers.at("x-request-id").size(), 32u);
  // Refused before any handler.
  RawHttp large(server_->port());
  large.Send("POST / HTTP/1.1\r\nHost: x\r\nX-Request-Id: big\r\nContent-Length: 99999999\r\n\r\n");
  const RawAnswer refused = large.Read();
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(refused.headers.at("x-request-id"), "big");
  EXPECT_EQ(RawHttp(server_->port())
                .Exchange("/" + std::string(3000, 'a'), "", "X-Request-Id: far\r\n")
                .headers.at("x-request-id"),
            "far");
  RawHttp nonsense(server_->port());
  nonsense.Send("NONSENSE\r\n\r\n");
  EXPECT_EQ(nonsense.Read().headers.at("x-request-id").size(), 32u);
}

TEST_F(HttpServerTest, WhatWasWrittenBeforeTheStopArrives) {
  RawHttp client(server_->port());
  client.SendRequest("/held");
  ASSERT_TRUE(client.ReadUntil("begun"));
  handler_.held->Write(" and ended");
  handler_.held->EndStream();
  server_->Stop();
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.body, "begun and ended");
  handler_.held.reset();
}

}  // namespace
}  // namespace tandem
