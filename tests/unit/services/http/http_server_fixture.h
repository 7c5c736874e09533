// An HTTP server on a port of its own, with a handler that does what a path says.

#ifndef TANDEM_TESTS_UNIT_SERVICES_HTTP_HTTP_SERVER_FIXTURE_H_
#define TANDEM_TESTS_UNIT_SERVICES_HTTP_HTTP_SERVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "services/http/http_server.h"
#include "tests/support/eventually.h"

namespace tandem {

// Answers with what the path says.
class TestHandler final : public HttpHandler {
 public:
  bool RefusesAtHeader(const HttpRequest& header) const override {
    ++headers_seen;
    return header.path == "/refused" && header.Header("x-good").empty();
  }
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    if (request.path == "/burst") {
      exchange->StartStream(200, "text/plain");
      exchange->Write(std::string(kBurstBytes, 'b'));
      exchange->EndStream();
    } else if (request.path == "/large") {
      exchange->Send(200, "text/plain", std::string(kBurstBytes, 'l'));
    } else if (request.path == "/held") {
      exchange->StartStream(200, "text/plain");
      exchange->Write("begun");
      held = std::move(exchange);
    } else if (request.path == "/block") {
      blocked = true;
      while (blocked) std::this_thread::yield();
      exchange->Send(200, "text/plain", "unblocked");
    } else if (request.path == "/silent") {
      held = std::move(exchange);
      held_request = std::move(request);
      silent = true;
    } else if (RefusesAtHeader(request)) {
      exchange->Send(401, "text/plain",
                     request.id + ", body of " + std::to_string(request.body.size()));
    } else {
      exchange->Send(200, "text/plain", request.id);
    }
  }

  static constexpr size_t kBurstBytes = size_t{8} << 20;  // Well above what may wait unsent.
  std::shared_ptr<HttpExchange> held;  // For tests, once "begun" has come, or `silent`.
  HttpRequest held_request;            // Once `silent`.
  std::atomic<bool> silent{false};
  mutable std::atomic<int> headers_seen{0};  // By RefusesAtHeader.
  std::atomic<bool> blocked{false};          // Its thread, until a test says otherwise.
};

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    HttpServerOptions options{.address = {.ip = "127.0.0.1"},
                              .budget = &budget_,
                              .on_slow_reader = [this] { ++num_slow_readers_; }};
    server_ = *HttpServer::Create(options, &handler_);
  }

  static constexpr int64_t kBudgetBytes = int64_t{16} << 20;

  MemoryBudget budget_{kBudgetBytes};
  TestHandler handler_;
  std::atomic<int> num_slow_readers_{0};
  std::unique_ptr<HttpServer> server_;
};

// All clients have all the time, but for the one thing that a case is about.
class HttpTimesTest : public HttpServerTest {
 protected:
  void TearDown() override { server_.reset(); }  // It counts until then.

  int Serve(void (*shorten)(HttpTimes*), int num_threads = 2) {
    const std::chrono::hours all(1);
    HttpTimes times{.header = all,
                    .body = all,
                    .idle = all,
                    .write = all,
                    .discard = all,
                    .discard_in_drain = all,
                    .last_request = all};
    shorten(&times);
    server_ = *HttpServer::Create(
        {.address = {.ip = "127.0.0.1"},
         .budget = &budget_,
         .times = times,
         .num_threads = num_threads,
         .on_connections = [this](int open) { num_closed_ += open < num_open_.exchange(open); }},
        &handler_);
    return server_->port();
  }
  bool AreClosed(int number) {
    return Eventually([&] { return num_closed_ == number; }, std::chrono::seconds(10));
  }
  bool OneIsClosed() { return AreClosed(1); }

  static constexpr char kHalfBody[] = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf";
  // The buffer of a socket whose reader takes nothing: far less than an answer.
  static constexpr int kSmallBuffer = 64 << 10;
  std::atomic<int> num_open_{0}, num_closed_{0};
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVICES_HTTP_HTTP_SERVER_FIXTURE_H_
