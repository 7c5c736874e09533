#include "services/router/http/generate_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
  std::shared_ptr<GenerateCall> Watched() {
    auto call = std::make_shared<GenerateCall>(&generator_, exchange_, "1", /*chat=*/false);
    call->WatchClient();
    return call;
  }

  const SteadyClock clock_;
  MemoryBudget budget_{int64_t{1} << 20};
  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  const ModelInfo model_{.served_name = "m", .vocab_size = 256, .max_model_tokens = 100};
  const ModelText text_;
  const std::unique_ptr<RouterCore> core_ =
      *RouterCore::Create({.owner = {.router_incarnation = 1}}, &clock_, &metrics_);
  Generator generator_{{}, &model_, &text_, core_.get(), &metrics_, &budget_, &clock_};
  const std::shared_ptr<RecordingExchange> exchange_ = std::make_shared<RecordingExchange>();
};

TEST_F(GenerateCallTest, NobodyParsesForAClientThatLeftWhileItsBodyWaited) {
  const HttpRequest request{.body = "this is no JSON"};
  const auto refused = [&] { return metrics_.RefusedCalls("INVALID_ARGUMENT").Value(); };
  Watched()->Begin(request);
  EXPECT_THAT(exchange_->statuses, ElementsAre(400));
  EXPECT_EQ(refused(), 1);

  exchange_->statuses.clear();
  const std::shared_ptr<GenerateCall> call = Watched();
  exchange_->leave();
  call->Begin(request);
  EXPECT_THAT(exchange_->statuses, IsEmpty());
  EXPECT_EQ(refused(), 1);
}

}  // namespace
}  // namespace tandem
