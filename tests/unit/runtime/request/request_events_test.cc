// What a router may be, what workers are told of a request, what counts of what they say, and what
// clients hear of it.

#include "request_fixture.h"

namespace tandem {
namespace {

class RequestEventsTest : public RequestFixture {};

TEST_F(RequestEventsTest, WithoutATokenizerThereAreTokensAlone) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.make_detokenizer = nullptr;
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  Say(a, {Token(last_submit().attempt, 3, 'x'),
          Token(last_submit().attempt, 4, 'y', 0, FinishReason::kStop)});
  EXPECT_EQ(sink_.tokens[0], (Tokens{'x', 'y'}));
  EXPECT_EQ(sink_.text[0], "");
  EXPECT_TRUE(sink_.done);
}

TEST_F(RequestEventsTest, AWorkerIsToldTheTimeThatIsLeftAndToCancelWithinIt) {
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.spec.time_left_us = 10'000'000;
  const RequestId id = *owner_->Start(std::move(asked), now_us_);
  EXPECT_EQ(last_submit().spec.time_left_us, 10'000'000);
  Advance(1'000'000);
  AddWorker("b");
  owner_->OnSessionLost(a, now_us_);
  ASSERT_EQ(outbox_.submits.size(), 2u);
  EXPECT_EQ(last_submit().spec.time_left_us, 9'000'000);
  Advance(1'000'000);
  EXPECT_TRUE(owner_->Cancel(id, now_us_));
  ASSERT_EQ(outbox_.cancels.size(), 1u);
  EXPECT_EQ(outbox_.cancels[0].second.time_left_us, 8'000'000);
}

// What is late, or of somebody else's, must neither count nor end the router.
TEST_F(RequestEventsTest, EventsOfWhatDoesNotRunThereAreStale) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId attempt = last_submit().attempt;
  const SessionId b = AddWorker("b");
  uint64_t stale = 0;
  const auto say_all = [&](SessionId session, const AttemptId& of, uint64_t counted = 4) {
    const absl::Status internal = absl::InternalError("it failed");
    Say(session, {PromptEvent{.attempt = of}, Token(of, 3, 'x'),
                  RefusedEvent{.attempt = of, .status = internal},
                  EndedEvent{.attempt = of, .status = internal}});
    stale += counted;
    EXPECT_EQ(owner_->counters().stale_events, stale);
    EXPECT_FALSE(sink_.ended() || sink_.numerics.has_value());
  };
  say_all(a, {.request = {.router_incarnation = 99, .counter = 77}, .attempt = 1}, /*counted=*/0);
  say_all(a, {.request = attempt.request, .attempt = attempt.attempt + 1});
  say_all(b, attempt);
  say_all(/*session=*/77, attempt);
  owner_->OnHeartbeat({.name = "b", .incarnation = 1}, {}, /*draining=*/true, now_us_);
  Say(a, {RefusedEvent{.attempt = attempt, .status = absl::ResourceExhaustedError("full")}});
  EXPECT_EQ(owner_->num_waiting(), 1);
  say_all(a, attempt);
  EXPECT_TRUE(outbox_.closed.empty());
  EXPECT_FALSE(owner_->OnSessionUp({.name = "c", .incarnation = 1}, 88, now_us_));
}

// It would be asked again at once, and refuse, for ever.
TEST_F(RequestEventsTest, AWorkerThatRefusesForAPrefillWorkerThatThereIsNotIsFull) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  Say(a, {RefusedEvent{.attempt = last_submit().attempt,
                       .status = absl::ResourceExhaustedError("full"),
                       .by_prefill = true,
                       .retry_after_us = 500'000}});
  EXPECT_EQ(outbox_.submits.size(), 1u);
  EXPECT_EQ(owner_->num_waiting(), 1);
}

TEST_F(RequestEventsTest, APromptThatIsComputedIsNoLoadOfItsPrefillWorker) {
  const SessionId d = AddPair();
  Start(&sink_);
  const FleetWorker& prefill = owner_->fleet().workers().at("p");
  EXPECT_EQ(prefill.live, (LiveWork{.prompts = 1, .prompt_tokens = 3}));
  Say(d, {PromptEvent{.attempt = last_submit().attempt, .by_prefill = true}});
  EXPECT_EQ(prefill.live, LiveWork());
}

TEST_F(RequestEventsTest, TheErrorSaysHowManyWorkersServeTheModelAndAreHealthy) {
  model_ = "other";
  AddWorker("a");
  model_ = "m";
  for (const char* name : {"b", "c"}) owner_->OnSessionLost(AddWorker(name), now_us_);
  owner_->OnHeartbeat({.name = "b", .incarnation = 1}, {}, /*draining=*/true, now_us_);
  Start(&sink_);
  Advance(10'000'000);
  EXPECT_TRUE(absl::IsUnavailable(sink_.error));
  EXPECT_NE(sink_.error.message().find(
                "of 3 workers that are known 2 serve it, and 1 of these are healthy"),
            std::string::npos)
      << sink_.error;
}

TEST_F(RequestEventsTest, AnOpenEndThatNobodyWhoDecodesHoldsIsWhatAPrefillWorkerDoes) {
  max_model_tokens_ = 300;
  AddWorker("p", WorkerRole::kPrefill);
  const auto max_tokens_of = [this](RecordingSink* sink) {
    ClientRequest asked = MakeRequest(sink);
    asked.spec.sampling.max_tokens = 2000;
    asked.open_ended = true;
    EXPECT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
    return last_submit().spec.sampling.max_tokens;
  };
  EXPECT_EQ(max_tokens_of(&sink_), 297);
  max_model_tokens_ = 3;  // The prompt, and nothing more.
  AddWorker("d", WorkerRole::kDecode);
  RecordingSink other;
  EXPECT_EQ(max_tokens_of(&other), 297);
}

TEST_F(RequestEventsTest, OptionsThatCannotBeAreRefused) {
  const auto refused = [this](const auto& change) {
    RequestOwnerOptions options;
    options.router_incarnation = 99;
    change(&options);
    const auto owner =
        RequestOwner::Create(options, CreateLeastLoadedPrefixPolicy(1), &outbox_).status();
    return absl::IsInvalidArgument(owner);
  };
  EXPECT_FALSE(refused([](RequestOwnerOptions* o) {
    o->max_requests = o->max_waiting_requests = o->max_index_entries = 1;
    o->nobody_alive_grace_us = 0;
  }));
  EXPECT_TRUE(refused([](RequestOwnerOptions* o) { o->router_incarnation = 0; }));
  EXPECT_TRUE(refused([](RequestOwnerOptions* o) { o->max_requests = 0; }));
  EXPECT_TRUE(refused([](RequestOwnerOptions* o) { o->max_waiting_requests = 0; }));
  EXPECT_TRUE(refused([](RequestOwnerOptions* o) { o->max_index_entries = 0; }));
  EXPECT_TRUE(refused([](RequestOwnerOptions* o) { o->nobody_alive_grace_us = -1; }));
}

}  // namespace
}  // namespace tandem
