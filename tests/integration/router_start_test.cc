// What a router makes of the options that it is started with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>

#include "tests/integration/router_fixture.h"

namespace tandem {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class RouterStartTest : public RouterFixture {};

TEST_F(RouterStartTest, NotReadyUntilEveryWorkerOfTheListWasSeen) {
  FakeWorker first{FakeWorkerOptions{.name = "a"}};
  std::unique_ptr<FakeWorker> second = std::make_unique<FakeWorker>(FakeWorkerOptions{.name = "b"});
  const int port = second->port();
  const std::string address = second->address();
  second.reset();
  RouterOptions options{.model = Folder(),
                        .workers = {first.address(), address},
                        .http = {.ip = "127.0.0.1"},
                        .grpc = {.ip = "127.0.0.1"}};
  router_ = *RouterApp::Create(options);
  RawAnswer answer;
  EXPECT_TRUE(Eventually([&] {
    answer = RawHttp(http()).Exchange("/ready");
    return answer.body.find("\"why\":\"in its first") != std::string::npos;
  })) << answer.body;
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, testing::AllOf(HasSubstr(address), HasSubstr("\"workers\":1")));
  EXPECT_EQ(RawHttp(http()).Exchange("/health").status, 200);
  second = std::make_unique<FakeWorker>(FakeWorkerOptions{.name = "b", .port = port});
  EXPECT_TRUE(Eventually([&] { return RawHttp(http()).Exchange("/ready").status == 200; }));
  router_.reset();
}

TEST_F(RouterStartTest, OneWorkerThatNeverComesHoldsARouterUpForAWhileOnly) {
  FakeWorker first(FakeWorkerOptions{.name = "a"});
  router_ = *RouterApp::Create({.model = Folder(),
                                .workers = {first.address(), "127.0.0.1:1"},
                                .http = {.ip = "127.0.0.1"},
                                .grpc = {.ip = "127.0.0.1"},
                                .settle_us = 0});
  EXPECT_TRUE(Eventually([&] { return RawHttp(http()).Exchange("/ready").status == 200; }));
  EXPECT_THAT(RawHttp(http()).Exchange("/ready").body, HasSubstr("127.0.0.1:1"));
  router_->BeginDrain();
  EXPECT_FALSE(router_->Ready());
  router_.reset();
}

TEST_F(RouterStartTest, BehindADnsNameWorkersAreFound) {
  options_.push_back(FakeWorkerOptions());
  workers_.push_back(std::make_unique<FakeWorker>(options_[0]));
  RouterOptions options{.model = Folder(),
                        .workers_dns = "localhost:" + std::to_string(workers_[0]->port()),
                        .http = {.ip = "127.0.0.1"},
                        .grpc = {.ip = "127.0.0.1"}};
  router_ = *RouterApp::Create(options);
  ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  PostOk("/v1/completions", R"({"prompt":"a","max_tokens":2})");
  EXPECT_EQ(workers_[0]->num_submits(), 1);
}

TEST_F(RouterStartTest, MoreRequestsThanMayWaitAreToldToComeAgain) {
  router_ = *RouterApp::Create({.model = Folder(),
                                .workers = {"127.0.0.1:1"},
                                .http = {.ip = "127.0.0.1"},
                                .grpc = {.ip = "127.0.0.1"},
                                .max_queued_requests = 1});
  RawHttp waiting(http());
  waiting.SendRequest("/v1/completions", R"({"prompt":"a","max_tokens":1})");
  ASSERT_TRUE(Eventually([&] { return Metric("tandem_queue_depth") == 1; }));
  const RawAnswer refused = Post("/v1/completions", R"({"prompt":"b","max_tokens":1})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_THAT(refused.body, HasSubstr("at most 1 may"));
  router_.reset();
}

TEST_F(RouterStartTest, ARouterServesUnderItsNameAndWithinSaltsIfItIsToldTo) {
  const FakeWorker worker(FakeWorkerOptions{.model = "mine"});
  router_ = *RouterApp::Create({.model = Folder(),
                                .served_model_name = "mine",
                                .workers = {worker.address()},
                                .http = {.ip = "127.0.0.1"},
                                .grpc = {.ip = "127.0.0.1"},
                                .isolate_cache = true});
  ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  const auto ask = [this](const std::string& fields) {
    return Post("/v1/completions", R"({"prompt":"a","max_tokens":1,)" + fields + "}");
  };
  const RawAnswer served = ask(R"("model":"mine","cache_salt":"s")");
  EXPECT_EQ(served.status, 200) << served.body;
  EXPECT_EQ(json::parse(served.body).at("model"), "mine");
  EXPECT_EQ(ask(R"("model":"demo_model","cache_salt":"s")").status, 404);
  const RawAnswer unsalted = ask(R"("model":"mine")");
  EXPECT_EQ(unsalted.status, 400);
  EXPECT_EQ(json::parse(unsalted.body).at("error").at("param"), "cache_salt");
  router_.reset();
}

}  // namespace
}  // namespace tandem
