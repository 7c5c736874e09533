// A router in this process, with fake workers, on loopback and ports of its own.

#ifndef TANDEM_TESTS_INTEGRATION_ROUTER_FIXTURE_H_
#define TANDEM_TESTS_INTEGRATION_ROUTER_FIXTURE_H_

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"
#include "services/router/app/router_app.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_worker.h"
#include "tests/support/metric_value.h"
#include "tests/support/raw_http.h"

namespace tandem {

class RouterFixture : public testing::Test {
 protected:
  static std::string Folder() { return std::string(TANDEM_TEST_DATA) + "/demo_model"; }

  // Starts workers with these options and a router that knows them all, and waits until it is
  // ready, unless it will not be.
  void Start(std::vector<FakeWorkerOptions> workers, const std::string& folder = Folder(),
             bool await_ready = true) {
    RouterOptions options{.model = folder,
                          .http = {.ip = "127.0.0.1"},
                          .grpc = {.ip = "127.0.0.1"},
                          .liveness_scale = 5,
                          .secret = secret_,
                          .api_key_file = api_key_file_,
                          .memory_limit_bytes = memory_limit_bytes_};
    for (size_t i = 0; i < workers.size(); ++i) {
      workers[i].name = "fake-" + std::to_string(i);
      options_.push_back(workers[i]);
      workers_.push_back(std::make_unique<FakeWorker>(workers[i]));
      options.workers.push_back(workers_.back()->address());
    }
    absl::StatusOr<std::unique_ptr<RouterApp>> router = RouterApp::Create(options);
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    if (!await_ready) return;
    ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  }
  void Start() { Start({FakeWorkerOptions()}); }

  int http() const { return router_->http_port(); }
  RawAnswer Post(const std::string& path, const std::string& body) {
    return RawHttp(http()).Exchange(path, body);
  }
  boost::json::object PostOk(const std::string& path, const std::string& body) {
    const RawAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return boost::json::parse(answer.body).as_object();
  }
  std::string Metrics() { return RawHttp(http()).Exchange("/metrics").body; }
  double Metric(const std::string& sample) { return MetricValue(Metrics(), sample); }

  FleetSecret secret_;              // The router's.
  std::string api_key_file_;        // None: clients need no key.
  int64_t memory_limit_bytes_ = 0;  // 0: the router's default.
  std::vector<FakeWorkerOptions> options_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<RouterApp> router_;  // Goes first.
};

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_ROUTER_FIXTURE_H_
