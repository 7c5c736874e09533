#include "services/router/http/generate_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "services/router/http/json_request.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Keeps the statuses of answers; what is posted runs at once.
class RecordingExchange final : public HttpExchange {
 public:
  void Send(int status, std::string_view, std::string, Headers) override {
    statuses.push_back(status);
  }
  void StartStream(int status, std::string_view, Headers) override { statuses.push_back(status); }
  void Write(std::string) override {}
  void EndStream() override {}
  void Post(std::function<void()> work) override { work(); }
  void OnLeft(std::function<void()> left) override { leave = std::move(left); }

  std::vector<int> statuses;
  std::function<void()> leave;
};

class GenerateCallTest : public testing::Test {
 protected:
  std::shared_ptr<GenerateCall> Watched(std::string body) {
    auto call =
        std::make_shared<GenerateCall>(&starter_, exchange_, HttpRequest{.body = std::move(body)},
                                       /*chat=*/false);
    call->WatchClient();
    return call;
  }
  // What it begins has begun when this returns.
  void Begin(const std::shared_ptr<GenerateCall>& call) {
    TextPool pool(2, 16, int64_t{1} << 20);
    call->Post(&pool, 1);
    pool.Stop();
  }
  int64_t InFlight() {
    std::promise<void> done;
    core_->PublishThen([&done] { done.set_value(); });
    done.get_future().wait();
    return core_->View().requests_in_flight;
  }
  double Refused() { return metrics_.RefusedCalls("INVALID_ARGUMENT").Value(); }

  const SteadyClock clock_;
  MemoryBudget budget_{int64_t{1} << 20};
  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  const ModelInfo model_{.served_name = "m", .vocab_size = 256, .max_model_tokens = 100};
  const ModelText text_;
  const std::unique_ptr<RouterCore> core_ =
      *RouterCore::Create({.owner = {.router_incarnation = 1}}, &clock_, &metrics_);
  CallStarter starter_{{}, &model_, &text_, core_.get(), &metrics_, &budget_, &clock_};
  const std::shared_ptr<RecordingExchange> exchange_ = std::make_shared<RecordingExchange>();
};

constexpr char kRuns[] = R"({"model": "m", "prompt": [1, 2, 3], "max_tokens": 5})";

TEST_F(GenerateCallTest, NobodyParsesForAClientThatLeftWhileItsBodyWaited) {
  Begin(Watched("this is no JSON"));
  EXPECT_THAT(exchange_->statuses, ElementsAre(400));
  EXPECT_EQ(Refused(), 1);

  exchange_->statuses.clear();
  const std::shared_ptr<GenerateCall> call = Watched("this is no JSON");
  exchange_->leave();
  Begin(call);
  EXPECT_THAT(exchange_->statuses, IsEmpty());
  EXPECT_EQ(Refused(), 1);
}

TEST_F(GenerateCallTest, WhatRunsEndsWhenItsClientLeaves) {
  const std::shared_ptr<GenerateCall> call = Watched(kRuns);
  Begin(call);
  EXPECT_EQ(InFlight(), 1);
  exchange_->leave();
  EXPECT_EQ(InFlight(), 0);
  EXPECT_THAT(exchange_->statuses, IsEmpty());
}

// Begins once its client has left, which it cannot know.
class LateCall final : public ClientCall {
 public:
  explicit LateCall(CallStarter* starter) : ClientCall(starter, {}) {}
  int num_outputs = 0;

 private:
  absl::StatusOr<GenerateRequest> Parse() override {
    Leave();
    return ParseCompletionRequest(kRuns);
  }
  void OnBegun(const GenerateRequest&, const RunningCall&) override {}
  void OnOutput() override { ++num_outputs; }
};

TEST_F(GenerateCallTest, WhatBeginsOnceItsClientHasLeftEnds) {
  const auto call = std::make_shared<LateCall>(&starter_);
  TextPool pool(2, 16, int64_t{1} << 20);
  call->Post(&pool, 1);
  pool.Stop();
  EXPECT_EQ(InFlight(), 0);
}

TEST_F(GenerateCallTest, ACallThatFindsNoThreadIsRefusedOnce) {
  const std::shared_ptr<GenerateCall> call = Watched(kRuns);
  TextPool pool(2, 16, int64_t{1} << 20);
  pool.Stop();
  call->Post(&pool, 1);
  EXPECT_THAT(exchange_->statuses, ElementsAre(503));
  EXPECT_THAT(call->Take(), IsEmpty());
  EXPECT_EQ(metrics_.RefusedCalls("UNAVAILABLE").Value(), 1);
}

}  // namespace
}  // namespace tandem
