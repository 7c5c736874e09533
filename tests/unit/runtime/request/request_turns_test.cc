// Whose request is the next one that a worker gets.

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "request_fixture.h"

namespace tandem {
namespace {

// Counts the placements that are tried.
class CountingPolicy final : public RoutingPolicy {
 public:
  explicit CountingPolicy(int64_t* num_tried) : num_tried_(num_tried) {}
  RoutingDecision Choose(const RoutingRequest& request, const Fleet& fleet,
                         const PrefixIndex& index, int64_t now_us) override {
    ++*num_tried_;
    return policy_->Choose(request, fleet, index, now_us);
  }

 private:
  const std::unique_ptr<RoutingPolicy> policy_ = CreateLeastLoadedPrefixPolicy(1);
  int64_t* const num_tried_;
};

// Clients are letters. A worker has room for two attempts, until one is heard for long.
class RequestTurnsTest : public RequestFixture {
 protected:
  static constexpr int32_t kLargeTokens = 1000, kSmallWorkerTokens = 300;

  RequestTurnsTest() { max_sequences_ = 1; }

  void Ask(const std::string& clients, int32_t max_tokens = 8, int32_t choices = 1) {
    for (const char client : clients) {
      ClientRequest asked = MakeRequest(&sinks_.emplace_back(), choices);
      asked.client = client;
      asked.spec.sampling.max_tokens = max_tokens;
      // A capital: it needs a large worker.
      const bool large = max_tokens == kLargeTokens;
      Name(last_request_ = *owner_->Start(std::move(asked), now_us_),
           large ? static_cast<char>(std::toupper(client)) : client);
    }
  }
  // The clients whose streams were sent to workers since the last call, in that order.
  std::string Placed() {
    std::string placed;
    for (auto& [session, submit] : std::exchange(outbox_.submits, {})) {
      placed += names_.at(submit.attempt.request.counter);
      running_[session].push_back(submit.attempt);
    }
    return placed;
  }
  // The one that has run there for longest ends, `times` times.
  std::string End(SessionId session, int times = 1) {
    std::string placed;
    for (; times > 0; --times) {
      const AttemptId attempt = running_[session].front();
      running_[session].pop_front();
      Say(session, {Token(attempt, 3, 'x', 0, FinishReason::kStop)});
      placed += Placed();
    }
    return placed;
  }
  // A large and a small one, which have no room.
  std::pair<SessionId, SessionId> FullWorkers() {
    const auto full = [this](const char* name, int32_t max_model_tokens) {
      max_model_tokens_ = max_model_tokens;
      const SessionId worker = AddWorker(name);
      Ask("xx");
      EXPECT_EQ(Placed(), "xx");
      return worker;
    };
    const SessionId large = full("large", 2048);
    return {large, full("small", kSmallWorkerTokens)};
  }

  std::deque<RecordingSink> sinks_;
  RequestId last_request_;
  std::map<SessionId, std::deque<AttemptId>> running_;

 private:
  // Start may send it before its number is known.
  void Name(const RequestId& id, char name) { names_[id.counter] = name; }

  std::map<uint64_t, char> names_;
};

TEST_F(RequestTurnsTest, ANewcomerIsBehindOneOfAnotherClientsThousand) {
  const SessionId w = AddWorker("w");
  Ask(std::string(1000, 'a'));
  ASSERT_EQ(Placed(), "aa");
  Ask("bcb");
  EXPECT_EQ(End(w, 7), "abcabaa");
}

TEST_F(RequestTurnsTest, WhoAsksAgainAtOnceTakesTurnsAsWell) {
  const SessionId w = AddWorker("w");
  Ask("aaaaaaaaab");
  ASSERT_EQ(Placed(), "aa");
  std::string placed;
  for (int i = 0; i < 8; ++i) {
    placed += End(w);
    if (placed.back() == 'b') Ask("b");
  }
  EXPECT_EQ(placed, "abababab");
}

TEST_F(RequestTurnsTest, EverNewClientsDoNotHoldUpWhoWaits) {
  const SessionId w = AddWorker("w");
  Ask("xxaab");
  ASSERT_EQ(Placed(), "xx");
  std::string placed;
  for (const char* newcomer : {"c", "d", "e", "f"}) {
    Ask(newcomer);
    placed += End(w);
  }
  EXPECT_EQ(placed, "abca");
}

TEST_F(RequestTurnsTest, WhatHasStartedGoesBeforeNewcomersTheOldestFirst) {
  const SessionId w = AddWorker("w");
  Ask("xxaaab");
  ASSERT_EQ(Placed(), "xx");
  Ask("y", 8, /*choices=*/2);
  ASSERT_EQ(End(w, 4), "abya");
  const AttemptId y = running_[w][0], a = running_[w][1];
  Say(w, {Token(a, 3, 'x'), Token(y, 3, 'x', 0), Token(y, 3, 'y', 1)});
  Ask("bc");
  owner_->OnSessionLost(w, now_us_);
  max_sequences_ = 2;
  AddWorker("v");
  EXPECT_EQ(Placed(), "ayya");
}

TEST_F(RequestTurnsTest, WhatWasRefusedKeepsItsTurn) {
  const SessionId w = AddWorker("w");
  Ask("xxbac");
  ASSERT_EQ(Placed(), "xx");
  ASSERT_EQ(End(w), "b");
  Say(w, {RefusedEvent{.attempt = running_[w].back(),
                       .status = absl::ResourceExhaustedError("full")}});
  running_[w].pop_back();
  EXPECT_EQ(End(w), "b");
  EXPECT_EQ(End(w, 2), "ac");
}

TEST_F(RequestTurnsTest, AClientsManyLargeRequestsHoldUpNobodyElse) {
  const auto [large, small] = FullWorkers();
  Ask(std::string(20, 'a'), kLargeTokens);
  Ask("bbb");
  EXPECT_EQ(End(large, 4), "AbAb");
  EXPECT_EQ(End(small), "b") << "none of the large ones goes there";
}

TEST_F(RequestTurnsTest, ALargeRequestDoesNotStarveBehindSmallOnes) {
  for (const char* client : {"a", "b"}) {  // Another one's, and its own.
    Recreate({});
    const auto [large, small] = FullWorkers();
    Ask(std::string(20, 'b'));
    Ask(client, kLargeTokens);
    EXPECT_EQ(End(small, 8), "bbbbbbbb") << client;
    Ask("cde");
    const std::string first = End(large);
    EXPECT_EQ(first, client[0] == 'a' ? "A" : "B");
    EXPECT_EQ(End(large, 4), "bcde") << client;
  }
}

TEST_F(RequestTurnsTest, WorkersThatComeLeaveTheLineAsItIs) {
  const SessionId w = AddWorker("w");
  Ask("xxaaab");
  ASSERT_EQ(Placed(), "xx");
  ASSERT_EQ(End(w), "a");
  max_model_tokens_ = 1024;  // The streams that wait are grouped anew.
  AddWorker("v");
  EXPECT_EQ(Placed(), "ba");
}

TEST_F(RequestTurnsTest, ClientsKeepTheirTurnWhenARequestOfTheirsIsCancelled) {
  const SessionId w = AddWorker("w");
  Ask("xxa");
  const RequestId cancelled = last_request_;
  ASSERT_EQ(Placed(), "xx");
  Ask("aba");
  owner_->Cancel(cancelled, now_us_);
  EXPECT_EQ(End(w, 3), "aba");
}

TEST_F(RequestTurnsTest, AWakeUpTriesOnePlacementMoreThanItMakes) {
  int64_t num_tried = 0;
  owner_ = *RequestOwner::Create({.router_incarnation = 99},
                                 std::make_unique<CountingPolicy>(&num_tried), &outbox_);
  const SessionId w = AddWorker("w");
  for (int i = 0; i < 100; ++i) Ask("abcdefghij");
  ASSERT_EQ(Placed().size(), 2u);
  for (int i = 0; i < 100; ++i) {
    num_tried = 0;
    EXPECT_EQ(End(w).size(), 1u);
    EXPECT_EQ(num_tried, 2);
  }
  num_tried = 0;
  owner_->Tick(now_us_);
  EXPECT_EQ(num_tried, 1);
}

}  // namespace
}  // namespace tandem
