// What a router makes of the options that it is started with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/routing/prefix_index.h"
#include "tests/integration/router_fixture.h"

namespace tandem {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class RouterStartTest : public RouterFixture {
 protected:
  // A router with these options, at ports of its own, which may be long not ready.
  void Begin(RouterOptions options) {
    options.model = Folder();
    options.http = options.grpc = {.ip = "127.0.0.1"};
    router_ = *RouterApp::Create(options);
  }
  const FakeWorker& AddWorker(const FakeWorkerOptions& options) {
    return *workers_.emplace_back(std::make_unique<FakeWorker>(options));
  }
};

TEST_F(RouterStartTest, NotReadyUntilEveryWorkerOfTheListWasSeen) {
  const FakeWorker& first = AddWorker({.name = "a"});
  const int port = AddWorker({.name = "b"}).port();
  const std::string address = workers_[1]->address();
  workers_.pop_back();
  Begin({.workers = {first.address(), address}});
  RawAnswer answer;
  EXPECT_TRUE(Eventually([&] {
    answer = RawHttp(http()).Exchange("/ready");
    return answer.body.find("\"why\":\"in its first") != std::string::npos;
  })) << answer.body;
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, testing::AllOf(HasSubstr(address), HasSubstr("\"workers\":1")));
  EXPECT_EQ(RawHttp(http()).Exchange("/health").status, 200);
  AddWorker({.name = "b", .port = port});
  EXPECT_TRUE(Eventually([&] { return RawHttp(http()).Exchange("/ready").status == 200; }));
}

// What an operator reads first, by a program.
TEST_F(RouterStartTest, ReadyTellsWhoIsLostAndWhoIsAwaited) {
  AddWorker({.name = "hybrid"});
  AddWorker({.name = "prefill \"1\"", .role = WorkerRole::kPrefill});
  const std::string hybrid = workers_[0]->address(), prefill = workers_[1]->address();
  Begin({.workers = {hybrid, prefill, "127.0.0.1:1", "127.0.0.1:2"}, .settle_us = 0});
  json::value ready;
  const auto workers_lost = [&](int64_t number) {
    return Eventually([&] {
      ready = json::parse(RawHttp(http()).Exchange("/ready").body);
      return ready.at("workers") == 2 && ready.at("lost") == number &&
             ready.at("ready") == (number == 0) && ready.at("awaited").as_array().size() == 2;
    });
  };
  ASSERT_TRUE(workers_lost(0)) << ready;
  EXPECT_FALSE(ready.as_object().contains("why"));
  EXPECT_EQ(ready.at("awaited"), json::parse(R"(["127.0.0.1:1","127.0.0.1:2"])"));
  EXPECT_TRUE(ready.at("lost_workers").as_array().empty());
  workers_.clear();
  ASSERT_TRUE(workers_lost(2)) << ready;
  EXPECT_THAT(std::string(ready.at("why").as_string()),
              HasSubstr("of 2 that are known 2 are lost"));
  json::array& lost = ready.at("lost_workers").as_array();
  for (json::value& worker : lost) {
    EXPECT_FALSE(worker.at("why").as_string().empty());
    worker.as_object().erase("why");
  }
  EXPECT_EQ(lost,
            (json::array{{{"name", "hybrid"}, {"address", hybrid}, {"role", "hybrid"}},
                         {{"name", "prefill \"1\""}, {"address", prefill}, {"role", "prefill"}}}));
}

TEST_F(RouterStartTest, OneWorkerThatNeverComesHoldsARouterUpForAWhileOnly) {
  const FakeWorker& first = AddWorker({.name = "a"});
  Begin({.workers = {first.address(), "127.0.0.1:1"}, .settle_us = 0});
  EXPECT_TRUE(Eventually([&] { return RawHttp(http()).Exchange("/ready").status == 200; }));
  EXPECT_THAT(RawHttp(http()).Exchange("/ready").body, HasSubstr("127.0.0.1:1"));
  router_->BeginDrain();
  EXPECT_FALSE(router_->Ready());
}

TEST_F(RouterStartTest, BehindADnsNameWorkersAreFound) {
  const FakeWorker& worker = AddWorker({});
  Begin({.workers_dns = "localhost:" + std::to_string(worker.port())});
  ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  PostOk("/v1/completions", R"({"prompt":"a","max_tokens":2})");
  EXPECT_EQ(worker.num_submits(), 1);
}

TEST_F(RouterStartTest, MoreRequestsThanMayWaitAreToldToComeAgain) {
  Begin({.workers = {"127.0.0.1:1"}, .max_queued_requests = 1});
  RawHttp waiting(http());
  waiting.SendRequest("/v1/completions", R"({"prompt":"a","max_tokens":1})");
  ASSERT_TRUE(Eventually([&] { return Metric("tandem_queue_depth") == 1; }));
  const RawAnswer refused = Post("/v1/completions", R"({"prompt":"b","max_tokens":1})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_THAT(refused.body, HasSubstr("at most 1 may"));
}

TEST_F(RouterStartTest, ARouterServesUnderItsNameAndWithinSaltsIfItIsToldTo) {
  const FakeWorker& worker = AddWorker({.model = "mine"});
  Begin({.served_model_name = "mine", .workers = {worker.address()}, .isolate_cache = true});
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
}

// Caches may hold more than a router has room to know of: the oldest is forgotten.
TEST_F(RouterStartTest, WhatARouterKnowsOfCachesIsBoundedByItsMemory) {
  constexpr int32_t kForgotten = 5, kKnown = 6;
  memory_limit_bytes_ = int64_t{32} << 20;
  const auto num_known = static_cast<size_t>(memory_limit_bytes_ / 4 / PrefixIndex::kEntryBytes);
  const auto name_of = [](int32_t token) {
    return HashChain(HashRoot("demo_model", "", ""), std::vector<int32_t>(kHashTokens, token))[0];
  };
  std::vector<BlockHash> cached = {name_of(kForgotten)};
  for (uint8_t low = 0; cached.size() < num_known; ++low) {
    cached.push_back({.bytes = {low, static_cast<uint8_t>(cached.size() >> 8), 1}});
  }
  cached.push_back(name_of(kKnown));
  Start({{.cached = cached}, {}});
  const auto ask = [this](int32_t token) {
    const std::vector<int32_t> prompt(kHashTokens + 1, token);
    PostOk("/v1/completions",
           absl::StrCat(R"({"max_tokens":1,"prompt":[)", absl::StrJoin(prompt, ","), "]}"));
    return Metric(R"(tandem_attempts_total{prefill="no",reason="prefix"})");
  };
  ASSERT_TRUE(Eventually([&] { return ask(kKnown) == 1; }));
  EXPECT_EQ(ask(kForgotten), 1) << "no worker is known to have it";
  EXPECT_EQ(ask(kKnown), 2);
}

}  // namespace
}  // namespace tandem
