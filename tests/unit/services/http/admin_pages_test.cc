#include "services/http/admin_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/raw_http.h"

namespace tandem {
namespace {

using testing::HasSubstr;

MetricsSource Page(const char* text) {
  return [text](const auto& done) { done(std::make_shared<const std::string>(text)); };
}

class AdminPagesTest : public testing::Test {
 protected:
  void Start(MetricsSource fleet_metrics) {
    pages_ = std::make_unique<AdminPages>(AdminPagesParts{
        .address = address_,
        .health = [this] { return ProbeAnswer{.ok = healthy_, .json = "{\"h\":1}"}; },
        .ready = [this] { return ProbeAnswer{.ok = ready_, .json = "{\"r\":1}"}; },
        .metrics = Page("own 1\n"),
        .fleet_metrics = std::move(fleet_metrics)});
    server_ = *HttpServer::Create({.address = address_, .budget = &budget_}, pages_.get());
  }
  RawAnswer Get(const std::string& path, const std::string& headers = "") {
    return RawHttp(server_->port()).Exchange(path, "", headers);
  }

  const ListenAddress address_{.ip = "127.0.0.1"};
  MemoryBudget budget_{int64_t{16} << 20};
  bool healthy_ = true, ready_ = false;
  std::unique_ptr<AdminPages> pages_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(AdminPagesTest, ProbesSayWhatIsSo) {
  Start(nullptr);
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/health").body, "{\"h\":1}");
  EXPECT_EQ(Get("/ready").status, 503);
  EXPECT_EQ(Get("/ready").body, "{\"r\":1}");
  healthy_ = false;
  ready_ = true;
  EXPECT_EQ(Get("/health").status, 503);
  EXPECT_EQ(Get("/ready").status, 200);
}

TEST_F(AdminPagesTest, MetricsAreOfThisProcessAndWhereThereIsAFleetOfIt) {
  Start(nullptr);
  const RawAnswer own = Get("/metrics");
  EXPECT_EQ(own.status, 200);
  EXPECT_EQ(own.body, "own 1\n");
  EXPECT_THAT(own.headers.at("content-type"), HasSubstr("version=0.0.4"));
  EXPECT_EQ(Get("/metrics/fleet").status, 404) << "it knows none";
  Start(Page("fleet 1\n"));
  EXPECT_EQ(Get("/metrics").body, "own 1\n");
  EXPECT_EQ(Get("/metrics/fleet").body, "fleet 1\n");
  EXPECT_THAT(Get("/version").body, HasSubstr("\"version\":"));
}

TEST_F(AdminPagesTest, NothingElseIsThere) {
  Start(nullptr);
  for (const char* const path : {"/", "/v1/models", "/metrics/", "/healthz"}) {
    EXPECT_EQ(Get(path).status, 404) << path;
  }
  EXPECT_THAT(Get("/healthz").body, HasSubstr(R"("no such route: \"/healthz\"")"));
  RawHttp post(server_->port());
  const RawAnswer answer = post.Exchange("/health", "{}");
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers.at("allow"), "GET, HEAD");
  RawHttp head(server_->port());
  head.Send("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const RawAnswer only_head = head.Read();
  EXPECT_EQ(only_head.status, 200);
  EXPECT_EQ(only_head.body, "");
}

TEST_F(AdminPagesTest, APageUnderAnotherNameReadsNothing) {
  Start(nullptr);
  RawHttp rebound(server_->port());
  rebound.Send("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  const RawAnswer answer = rebound.Read();
  EXPECT_EQ(answer.status, 403);
  EXPECT_EQ(answer.body.find("own"), answer.body.npos);
}

}  // namespace
}  // namespace tandem
