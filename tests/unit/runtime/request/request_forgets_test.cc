// What a router keeps of workers that are gone: nothing.

#include <array>
#include <functional>
#include <string>

#include "request_fixture.h"
#include "tests/support/growth.h"

namespace tandem {
namespace {

class RequestForgetsTest : public RequestFixture {
 protected:
  RequestForgetsTest() {
    RequestOwnerOptions options;
    options.disaggregate = DisaggregatePolicy::kAlways;
    Recreate(options);
  }
  int64_t GrowthWithoutRecords(const std::function<void(uint64_t number)>& come_and_go) {
    return Growth([&](uint64_t number) {
      come_and_go(number);
      outbox_ = {};
      incarnations_.clear();
    });
  }

  // Its attempt ends like this at the decode worker; who was paused for it works again.
  void RunOne(SessionId decode, const absl::Status& end) {
    RecordingSink sink;
    const RequestId id = Start(&sink);
    const AttemptId attempt = last_submit().attempt;
    EXPECT_EQ(attempt.request, id);
    if (end.ok()) {
      Begin(decode, attempt, 0, 3);
      Say(decode, {Token(attempt, 3, 'x', 0, FinishReason::kLength)});
    } else if (absl::IsResourceExhausted(end)) {
      Say(decode, {RefusedEvent{.attempt = attempt, .status = end, .retry_after_us = 1}});
    } else {
      Say(decode, {EndedEvent{.attempt = attempt, .status = end}});
    }
    owner_->Cancel(id, now_us_);
    Advance(5'000'000);
  }
  // A prefill worker and a decode worker of these names that have done all that leaves a trace.
  std::array<WorkerId, 2> LivePair(const std::string& number, uint64_t incarnation = 1) {
    AddWorker("p" + number, WorkerRole::kPrefill, incarnation);
    const SessionId decode = AddWorker("d" + number, WorkerRole::kDecode, incarnation);
    const std::array<WorkerId, 2> pair = {{{.name = "p" + number, .incarnation = incarnation},
                                           {.name = "d" + number, .incarnation = incarnation}}};
    for (const WorkerId& worker : pair) {
      owner_->OnKvEvents(worker, {.first_sequence = 0,
                                  .snapshot = false,
                                  .stored = HashChain(HashRoot(worker.name, "", ""), Tokens(16, 1)),
                                  .removed = {}});
    }
    for (const absl::Status& end :
         {absl::OkStatus(), absl::AbortedError("a step failed"), absl::UnavailableError("lost"),
          absl::FailedPreconditionError("no pair"), absl::ResourceExhaustedError("full")}) {
      RunOne(decode, end);
    }
    return pair;
  }
  void Drop(const WorkerId& worker) {
    owner_->OnSessionLost(owner_->fleet().Find(worker)->session, now_us_);
    owner_->OnWatchLost(worker);
  }
  // Nobody is heard, until those that are gone are forgotten.
  void ForgetGone() {
    for (int64_t us = 0; us <= Fleet::kForgetAfterUs; us += 500'000) {
      owner_->Tick(now_us_ += 500'000);
    }
  }
};

TEST_F(RequestForgetsTest, OfWorkersThatAreForgottenNothingIsLeft) {
  const int64_t growth = GrowthWithoutRecords([this](uint64_t number) {
    const std::array<WorkerId, 2> pair = LivePair(std::to_string(number));
    owner_->SetExpectedWorkers({pair[0].name + ":1", pair[1].name + ":1"});
    RecordingSink running;
    const RequestId id = Start(&running);
    for (const WorkerId& worker : pair) Drop(worker);
    owner_->Cancel(id, now_us_);
    ForgetGone();
    EXPECT_TRUE(owner_->fleet().workers().empty());
  });
  EXPECT_LT(growth, kNoGrowth);
}

TEST_F(RequestForgetsTest, OfEarlierLivesNothingIsLeft) {
  const int64_t growth = GrowthWithoutRecords([this](uint64_t number) {
    LivePair("", number);
    RecordingSink running;
    const RequestId id = Start(&running);
    AddWorker("d", WorkerRole::kDecode, number + 1);  // Its session is lost by that.
    owner_->Cancel(id, now_us_);
    Drop({.name = "d", .incarnation = number + 1});
    Drop({.name = "p", .incarnation = number});
  });
  EXPECT_LT(growth, kNoGrowth);
}

// Another name at the same address, as a pod that comes back.
TEST_F(RequestForgetsTest, OfWhoHasLostItsAddressNothingIsLeft) {
  const int64_t growth = GrowthWithoutRecords([this](uint64_t number) {
    for (const WorkerId& worker : LivePair(std::to_string(number))) {
      WorkerRegistration other = owner_->fleet().Find(worker)->registration;
      other.worker.name = worker.name.substr(0, 1);
      EXPECT_TRUE(owner_->OnRegistration(worker.name + ":1", other, now_us_).ok());
      Drop(other.worker);
      ForgetGone();
    }
    EXPECT_TRUE(owner_->fleet().workers().empty());
  });
  EXPECT_LT(growth, kNoGrowth);
}

// Asks the policy that it counts for.
struct CountingPolicy final : RoutingPolicy {
  explicit CountingPolicy(int64_t* asked) : num_asked(asked) {}
  RoutingDecision Choose(const RoutingRequest& request, const Fleet& fleet,
                         const PrefixIndex& index, int64_t now_us) override {
    ++*num_asked;
    return policy->Choose(request, fleet, index, now_us);
  }
  const std::unique_ptr<RoutingPolicy> policy = CreateLeastLoadedPrefixPolicy(1);
  int64_t* const num_asked;
};

// Streams that were told apart by who fits them are one group once there is nobody.
TEST_F(RequestForgetsTest, WhoWaitsIsNotToldApartByWorkersThatAreForgotten) {
  constexpr int kNum = 20;
  int64_t num_asked = 0;
  RequestOwnerOptions options;
  options.router_incarnation = 99;
  options.nobody_alive_grace_us = 3'600'000'000;
  owner_ = *RequestOwner::Create(options, std::make_unique<CountingPolicy>(&num_asked), &outbox_);
  std::deque<RecordingSink> sinks;
  for (int i = 1; i <= kNum; ++i) {
    max_model_tokens_ = 100 * i;
    const std::string name = "w" + std::to_string(i);
    AddWorker(name);
    owner_->OnHeartbeat({.name = name, .incarnation = 1}, {}, /*draining=*/true, now_us_);
  }
  for (int i = 1; i <= kNum; ++i) {
    ClientRequest asked = MakeRequest(&sinks.emplace_back());
    asked.spec.sampling.max_tokens = 100 * i - 3;
    asked.spec.time_left_us = 3'600'000'000;
    ASSERT_TRUE(owner_->Start(std::move(asked), now_us_).ok());
  }
  const auto asked_in_a_tick = [&] {
    num_asked = 0;
    owner_->Tick(now_us_);
    return num_asked;
  };
  EXPECT_EQ(asked_in_a_tick(), kNum);
  for (const auto& [name, worker] : std::map(owner_->fleet().workers())) Drop(worker.id());
  ForgetGone();
  ASSERT_TRUE(owner_->fleet().workers().empty());
  ASSERT_EQ(owner_->num_waiting(), kNum);
  EXPECT_EQ(asked_in_a_tick(), 1);
}

}  // namespace
}  // namespace tandem
