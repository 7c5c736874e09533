// A worker tells the log-probabilities that were asked for, and no others.

#include <utility>
#include <vector>

#include "request_fixture.h"

namespace tandem {
namespace {

class RequestLogprobsTest : public RequestFixture {};

TEST_F(RequestLogprobsTest, LogprobsOfThePromptThatNobodyAskedForAreAProtocolError) {
  const SampledToken plain{.token = 2, .logprob = -1};
  const SampledToken wide{.token = 2, .logprob = -1, .rank = 1, .top = {{2, -1}, {3, -2}}};
  const struct {
    int32_t asked;
    std::vector<SampledToken> said;
    bool good;
  } cases[] = {
      {-1, {}, true},
      {-1, {plain}, false},
      {0, {plain, plain}, true},
      {0, {wide}, false},
      {0, {plain, plain, plain}, false},
      {2, {wide, wide}, true},
      {1, {wide}, false},
  };
  for (const auto& c : cases) {
    RecordingSink sink;
    Recreate({});
    const SessionId a = AddWorker("a");
    ClientRequest asked = MakeRequest(&sink);
    asked.spec.sampling.num_prompt_logprobs = c.asked;
    ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
    Say(a, {PromptEvent{.attempt = last_submit().attempt, .prompt_logprobs = c.said}});
    EXPECT_EQ(owner_->counters().protocol_errors, c.good ? 0u : 1u)
        << c.said.size() << " said, asked for " << c.asked;
  }
}

TEST_F(RequestLogprobsTest, ThoseOfThePromptAreAskedForUntilTheyHaveCome) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.sampling.num_prompt_logprobs = 0;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  EXPECT_EQ(last_submit().spec.sampling.num_prompt_logprobs, 0);
  owner_->OnSessionLost(a, now_us_);
  const SessionId b = AddWorker("b");
  EXPECT_EQ(last_submit().spec.sampling.num_prompt_logprobs, 0);
  const SampledToken plain{.token = 2, .logprob = -1};
  Say(b, {PromptEvent{.attempt = last_submit().attempt, .prompt_logprobs = {plain, plain}}});
  EXPECT_EQ(sink_.num_prompt_logprobs, 2u);
  owner_->OnSessionLost(b, now_us_);
  AddWorker("c");
  ASSERT_EQ(outbox_.submits.size(), 3u);
  EXPECT_EQ(last_submit().spec.sampling.num_prompt_logprobs, -1);
}

TEST_F(RequestLogprobsTest, LogprobsOfATokenThatNobodyAskedForAreAProtocolError) {
  for (const int32_t num_asked : {-1, 1, 2}) {
    RecordingSink sink;
    Recreate({});
    const SessionId a = AddWorker("a");
    ClientRequest asked = MakeRequest(&sink);
    asked.spec.sampling.num_logprobs = num_asked;
    ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
    TokenEvent event = Token(last_submit().attempt, 3, 'x');
    event.token.top = {{'x', -1}, {'y', -2}};
    Say(a, {event});
    EXPECT_EQ(owner_->counters().protocol_errors, num_asked == 2 ? 0u : 1u) << num_asked;
  }
}

}  // namespace
}  // namespace tandem
