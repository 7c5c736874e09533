// What a router makes of the options that it is started with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/routing/prefix_index.h"
#include "services/router/api_limits.h"
#include "services/server/api_keys.h"
#include "services/server/listen_socket.h"
#include "tests/integration/router_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tls_answer.h"

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
  Begin({.workers = {first.address(), address}, .settle_us = 3'600'000'000});
  RawAnswer answer;
  EXPECT_TRUE(Eventually([&] {
    answer = RawHttp(http()).Exchange("/ready");
    return answer.body.find("\"why\":\"in its first 3600 s") != std::string::npos;
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
              HasSubstr("of 2 workers that are known 1 decode it; 2 are lost"));
  json::array& lost = ready.at("lost_workers").as_array();
  for (json::value& worker : lost) {
    EXPECT_FALSE(worker.at("why").as_string().empty());
    worker.as_object().erase("why");
  }
  EXPECT_EQ(lost,
            (json::array{{{"name", "hybrid"}, {"address", hybrid}, {"role", "hybrid"}},
                         {{"name", "prefill \"1\""}, {"address", prefill}, {"role", "prefill"}}}));
}

TEST_F(RouterStartTest, ReadyTellsThatAPrefillWorkerAloneIsNotEnough) {
  Begin({.workers = {AddWorker({.role = WorkerRole::kPrefill}).address()}, .settle_us = 0});
  RawAnswer answer;
  EXPECT_TRUE(Eventually([&] {
    answer = RawHttp(http()).Exchange("/ready");
    return answer.body.find(
               "\"why\":\"no decode or hybrid worker of this model is healthy: of 1 "
               "workers that are known 0 decode it; 0 are lost\"") != std::string::npos;
  })) << answer.body;
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

TEST_F(RouterStartTest, WithKeysWhoHasNoneIsToldSoBeforeTheBody) {
  const TempFolder folder;
  const std::string key = MakeApiKey();
  const FakeWorker& worker = AddWorker({});
  Begin({.workers = {worker.address()},
         .cors_origins = {"https://chat.example"},
         .api_key_file = folder.Write("keys", ApiKeyLine("ann", key))});
  ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  const std::string with = "Authorization: Bearer " + key + "\r\n";
  const std::string wrong = "Authorization: Bearer " + MakeApiKey() + "\r\n";
  for (const std::string& headers : {std::string(), wrong, with + wrong, wrong + with}) {
    for (const char* const path : {"/v1/models", "/metrics", "/version", "/nothing"}) {
      const RawAnswer answer = RawHttp(http()).Exchange(path, "", headers);
      EXPECT_EQ(answer.status, 401) << path << " " << headers;
      EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
      const json::value error = json::parse(answer.body).at("error");
      EXPECT_EQ(error.at("code"), "invalid_api_key");
      EXPECT_EQ(error.at("type"), "authentication_error");
    }
    RawHttp posting(http());
    posting.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + headers +
                 "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n");
    EXPECT_EQ(posting.Read().status, 401);
  }
  RawHttp client(http());
  EXPECT_EQ(client.Exchange("/health").status, 200);
  EXPECT_EQ(client.Exchange("/ready").status, 200);
  client.Send(
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
      "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200) << "a page asks without it";
  EXPECT_EQ(worker.num_submits(), 0);
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  EXPECT_EQ(client.Exchange("/v1/completions", body, with).status, 200);
  EXPECT_EQ(client.Exchange("/metrics", "", with).status, 200);
}

TEST_F(RouterStartTest, WhoCallsARouterByAStrangeNameIsToldSoBeforeTheBody) {
  Begin({.workers = {"127.0.0.1:1"}, .allowed_hosts = {"box.example"}});
  for (const auto& [host, status] :
       {std::pair("evil.example", 403), std::pair("box.example", 404)}) {
    RawHttp client(http());
    client.Send("GET /nothing HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n");
    EXPECT_EQ(client.Read().status, status) << host;
  }
  RawHttp posting(http());
  posting.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\n"
      "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_EQ(posting.Read().status, 403);
}

TEST_F(RouterStartTest, APageThatMayUseARouterReadsItsAnswers) {
  Begin({.workers = {"127.0.0.1:1"}, .cors_origins = {"https://chat.example"}});
  const std::string page = "Origin: https://chat.example\r\n";
  RawHttp client(http());
  for (const auto& [answer, status] :
       {std::pair(client.Exchange("/v1/models", "", page), 200),
        std::pair(client.Exchange("/v1/nothing", "", page), 404),
        std::pair(client.Exchange("/v1/completions", "{}", page), 400)}) {
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://chat.example");
  }
  EXPECT_EQ(client.Exchange("/v1/models").headers.count("access-control-allow-origin"), 0u);
  for (const auto& [path, methods] :
       {std::pair("/v1/completions", "POST"), std::pair("/v1/models", "GET, HEAD")}) {
    client.Send("OPTIONS " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + page +
                "Access-Control-Request-Method: POST\r\n\r\n");
    const RawAnswer asked = client.Read();
    EXPECT_EQ(asked.status, 200) << path;
    EXPECT_EQ(asked.headers.at("access-control-allow-methods"), methods);
  }
}

TEST_F(RouterStartTest, WhereThereIsAnAddressForOperatorsMetricsAreThereAlone) {
  const FakeWorker& worker = AddWorker({});
  Begin({.workers = {worker.address()}, .admin = ListenAddress{.ip = "127.0.0.1"}});
  const int admin = router_->admin_port();
  RawHttp client(http());
  EXPECT_EQ(client.Exchange("/health").status, 200);
  EXPECT_EQ(MetricValue(RawHttp(admin).Exchange("/metrics").body, "tandem_http_connections"), 1);
  EXPECT_EQ(RawHttp(admin).Exchange("/health").status, 200);
  ASSERT_TRUE(Eventually([&] { return RawHttp(admin).Exchange("/ready").status == 200; }));
  EXPECT_THAT(RawHttp(admin).Exchange("/ready").body, HasSubstr("\"workers\":1"));
  const std::string own = RawHttp(admin).Exchange("/metrics").body;
  EXPECT_EQ(MetricValue(own, R"(tandem_workers{role="hybrid",state="healthy"})"), 1);
  const std::string of_worker = R"(tandem_fake_submits_total{worker="fake-0"})";
  EXPECT_EQ(MetricValue(own, of_worker), -1);
  EXPECT_EQ(MetricValue(RawHttp(admin).Exchange("/metrics/fleet").body, of_worker), 0);
  EXPECT_EQ(RawHttp(admin).Exchange("/v1/models").status, 404);
  EXPECT_EQ(RawHttp(http()).Exchange("/metrics").status, 404);
  router_->BeginDrain();
  EXPECT_EQ(RawHttp(admin).Exchange("/ready").status, 503);
}

// A page of the fleet is under way to each of them when the router ends.
TEST_F(RouterStartTest, WhoScrapesARouterThatEndsHoldsNothingOfItUp) {
  const FakeWorker& worker = AddWorker({.holds_metrics = true});
  Begin({.workers = {worker.address()}, .admin = ListenAddress{.ip = "127.0.0.1"}});
  ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  const int before = worker.num_scrapes();
  std::list<RawHttp> scrapers;
  for (int i = 0; i < 8; ++i) {
    scrapers.emplace_back(router_->admin_port()).SendRequest("/metrics/fleet");
  }
  for (RawHttp& scraper : scrapers) ASSERT_TRUE(Eventually([&] { return scraper.AllReceived(); }));
  ASSERT_TRUE(Eventually([&] { return worker.num_scrapes() > before; }));
  router_.reset();
  for (RawHttp& scraper : scrapers) EXPECT_EQ(scraper.ReadToEnd(), 0u);
}

bool AnswersTls(int port) { return TlsAnswer(port, "/health").starts_with("HTTP/1.1 200 "); }

TEST_F(RouterStartTest, WithTlsNobodyIsServedWithoutItAndProbesNeedNoCertificate) {
  const TempFolder folder;
  const TestAuthority authority;
  const TestCertificate shown = authority.Issue("localhost");
  const TlsFiles files{.certificate = folder.Write("certificate", shown.pem),
                       .key = folder.Write("key", shown.key)};
  TlsFiles with_clients = files;
  with_clients.client_authorities = folder.Write("authorities", authority.pem());
  for (const TlsFiles& tls : {files, with_clients}) {
    Begin({.workers = {"127.0.0.1:1"}, .admin = ListenAddress{.ip = "127.0.0.1"}, .tls = tls});
    EXPECT_EQ(RawHttp(http()).Exchange("/health").status, 0);
    EXPECT_EQ(RawHttp(router_->admin_port()).Exchange("/health").status, 0);
    constexpr uint8_t kStreams = 3;
    EXPECT_FALSE(TellsSetting(router_->grpc_port(), kStreams, kMaxGrpcStreams));
    EXPECT_EQ(AnswersTls(http()), tls.client_authorities.empty());
    EXPECT_TRUE(AnswersTls(router_->admin_port()));
    if (tls.client_authorities.empty()) {
      EXPECT_EQ(MetricValue(TlsAnswer(router_->admin_port(), "/metrics"),
                            R"(tandem_certificate_refused{use="clients"})"),
                0);
    }
  }
}

TEST_F(RouterStartTest, WhatCannotBeOpenedIsNamedByItsFlag) {
  const ListenSocket taken = *ListenSocket::Open("127.0.0.1:0");
  const auto why = [](const RouterOptions& options) {
    return std::string(RouterApp::Create(options).status().message());
  };
  const ListenAddress free{.ip = "127.0.0.1"};
  const ListenAddress other{.ip = "127.0.0.1", .port = taken.port()};
  RouterOptions options{.model = Folder(), .workers = {"127.0.0.1:1"}, .http = free, .grpc = free};
  options.http = other;
  EXPECT_THAT(why(options), testing::StartsWith("--http: "));
  options.http = free;
  options.grpc = other;
  EXPECT_THAT(why(options), testing::StartsWith("--grpc: "));
  options.grpc = free;
  options.admin = other;
  EXPECT_THAT(why(options), testing::StartsWith("--admin: "));
  options.admin.reset();
  options.api_key_file = "/nonexistent/keys";
  EXPECT_THAT(why(options), testing::StartsWith("--api-key-file: "));
  options.api_key_file.clear();
  options.memory_limit_bytes = INT64_MAX;
  EXPECT_THAT(why(options), testing::StartsWith("--memory-limit: "));
  options.memory_limit_bytes = 0;
  EXPECT_EQ(why(options), "");
}

// What two routers ask of one worker is never the same request, nor the same draw.
TEST_F(RouterStartTest, NoTwoRoutersAreAlike) {
  const FakeWorker& worker = AddWorker({});
  std::set<uint64_t> seeds, incarnations;
  for (int i = 0; i < 2; ++i) {
    Begin({.workers = {worker.address()}});
    ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
    PostOk("/v1/completions", R"({"prompt":"a","max_tokens":1})");
    seeds.insert(worker.last_submit().spec.sampling.seed);
    incarnations.insert(worker.last_submit().attempt.request.router_incarnation);
  }
  EXPECT_EQ(seeds.size(), 2u);
  EXPECT_EQ(incarnations.size(), 2u);
}

TEST_F(RouterStartTest, PromptsGoToPrefillWorkersAsItIsToldTo) {
  const FakeWorker& hybrid = AddWorker({.name = "hybrid"});
  const FakeWorker& prefill = AddWorker({.name = "prefill", .role = WorkerRole::kPrefill});
  for (const auto& [policy, name] : {std::pair(DisaggregatePolicy::kAuto, ""),
                                     std::pair(DisaggregatePolicy::kAlways, "prefill")}) {
    Begin({.workers = {hybrid.address(), prefill.address()}, .disaggregate = policy});
    ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
    const std::vector<int> prompt(100, 5);  // By itself it does so from 256 on.
    PostOk("/v1/completions",
           absl::StrCat(R"({"max_tokens":1,"prompt":[)", absl::StrJoin(prompt, ","), "]}"));
    EXPECT_EQ(hybrid.last_submit().prefill.worker.name, name);
  }
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
