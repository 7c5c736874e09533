// Who waits for a worker, behind whom, and for how long.

#include <deque>
#include <map>
#include <string>

#include "request_fixture.h"

namespace tandem {
namespace {

class RequestWaitingTest : public RequestFixture {};

TEST_F(RequestWaitingTest, OnlyWhoWaitsForAFirstTokenCountsAsWaiting) {
  RequestOwnerOptions options;
  options.max_waiting_requests = 1;
  Recreate(options);
  for (int i = 0; i < 3; ++i) {
    RecordingSink gone;
    owner_->Cancel(Start(&gone), now_us_);  // Start fails if the ones before are still counted.
  }
  const SessionId a = AddWorker("a");
  Start(&sink_);
  Say(a, {Token(last_submit().attempt, 3, 'x')});
  owner_->OnSessionLost(a, now_us_);
  RecordingSink newcomer;
  EXPECT_TRUE(owner_->Start(MakeRequest(&newcomer), now_us_).ok());
  EXPECT_EQ(owner_->num_waiting(), 2);
}

TEST_F(RequestWaitingTest, ThePlacesOfThoseThatWaitAreShared) {
  RequestOwnerOptions options;
  options.max_waiting_requests = 4;
  Recreate(options);
  std::map<std::string, std::deque<RecordingSink>> sinks;
  const auto start = [&](const std::string& client) {
    ClientRequest asked = MakeRequest(&sinks[client].emplace_back());
    asked.client = client;
    return owner_->Start(std::move(asked), now_us_).ok();
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(start("many"));
  EXPECT_FALSE(start("many"));
  EXPECT_TRUE(start("few"));
  EXPECT_TRUE(start("few"));
  EXPECT_FALSE(start("few")) << "that would be more than the other has";
  EXPECT_TRUE(start("one"));
  EXPECT_FALSE(start("one"));
  EXPECT_EQ(owner_->num_waiting(), 4);
  // The youngest gave way, each time, and of two clients with as many the first by name.
  std::string waiting;
  for (const auto& [client, its] : sinks) {
    for (const RecordingSink& sink : its) waiting += sink.ended() ? '-' : client[0];
  }
  EXPECT_EQ(waiting, "f-fmm--moo");  // Who was refused has not ended: its sink is never called.
  for (const size_t i : {2, 3}) {
    EXPECT_TRUE(absl::IsResourceExhausted(sinks.at("many")[i].error)) << sinks.at("many")[i].error;
  }
  AddWorker("a");
  EXPECT_EQ(outbox_.submits.size(), 4u);
  EXPECT_TRUE(start("many")) << "nobody waits any more";
}

TEST_F(RequestWaitingTest, TheRoomOfOneThatEndsIsTheNextOnesAtOnce) {
  const SessionId a = AddWorker("a");
  Start(&sink_);
  const AttemptId first = last_submit().attempt;
  Say(a, {Token(first, 3, 'x')});
  RecordingSink next;
  Start(&next);
  Say(a, {RefusedEvent{.attempt = last_submit().attempt,
                       .status = absl::ResourceExhaustedError("full")}});
  ASSERT_EQ(owner_->num_waiting(), 1);
  Say(a, {Token(first, 4, 'y', 0, FinishReason::kLength)});
  EXPECT_EQ(owner_->num_waiting(), 0);
}

TEST_F(RequestWaitingTest, RequestsOfOtherModelsDoNotWaitBehindEachOther) {
  model_ = "other";
  owner_->OnSessionLost(AddWorker("b"), now_us_);
  model_ = "m";
  const SessionId a = AddWorker("a");
  ClientRequest asked = MakeRequest(&sink_);
  asked.model = "other";
  ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  RecordingSink younger;
  Start(&younger);
  EXPECT_EQ(owner_->num_waiting(), 1);
  EXPECT_EQ(last_target(), a);
}

TEST_F(RequestWaitingTest, ShortPromptsDoNotWaitBehindLongOnesThatTravel) {
  // The prefill worker comes before the long one, and while it waits.
  for (const bool early : {true, false}) {
    Recreate({});
    const SessionId d = AddWorker("d", WorkerRole::kDecode);
    if (early) AddWorker("p", WorkerRole::kPrefill);
    RecordingSink running, long_one, short_one;
    const RequestId runs = Start(&running);
    Say(d, {Token(last_submit().attempt, 3, 'x')});
    ClientRequest asked = MakeRequest(&long_one);
    SetPrompt(&asked, Tokens(kAutoDisaggregateTokens, 1));
    ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
    if (!early) {
      Say(d, {RefusedEvent{.attempt = last_submit().attempt,
                           .status = absl::ResourceExhaustedError("full")}});
      ASSERT_EQ(owner_->num_waiting(), 1);
      AddWorker("p", WorkerRole::kPrefill);
      owner_->Cancel(runs, now_us_);
    }
    ASSERT_EQ(last_submit().prefill.worker.name, "p");
    Say(d, {RefusedEvent{.attempt = last_submit().attempt,
                         .status = absl::ResourceExhaustedError("full"),
                         .by_prefill = true,
                         .retry_after_us = 1'000'000}});
    const RequestId next = Start(&short_one);
    EXPECT_EQ(owner_->num_waiting(), 1) << early;
    EXPECT_EQ(last_submit().attempt.request, next) << early;
  }
}

// A worker that is full is there.
TEST_F(RequestWaitingTest, NobodysPatienceEndsBecauseOfFullWorkers) {
  const SessionId b = AddWorker("b");
  const WorkerId worker = {.name = "b", .incarnation = 1};
  RecordingSink running;
  Start(&running);
  Say(b, {Token(last_submit().attempt, 3, 'x')});
  Start(&sink_);
  Say(b, {RefusedEvent{.attempt = last_submit().attempt,
                       .status = absl::ResourceExhaustedError("full"),
                       .retry_after_us = 6'400'000}});
  owner_->OnHeartbeat(worker, {}, /*draining=*/true, now_us_);
  Advance(6'000'000);
  owner_->OnHeartbeat(worker, {}, /*draining=*/false, now_us_);
  ASSERT_EQ(owner_->num_waiting(), 1);
  owner_->OnHeartbeat(worker, {}, /*draining=*/true, now_us_);
  Advance(6'000'000);
  EXPECT_FALSE(sink_.ended());
  Advance(5'000'000);
  EXPECT_TRUE(absl::IsUnavailable(sink_.error));
}

}  // namespace
}  // namespace tandem
