#include "runtime/routing/routing_policy.h"

#include <gmock/gmock.h>

#include <set>

namespace tandem {
namespace {

class RoutingPolicyTest : public testing::Test {
 protected:
  WorkerId Add(const std::string& name, WorkerRole role, const std::string& numerics = "n",
               int32_t max_model_tokens = 2048, int64_t num_blocks = 128) {
    WorkerRegistration r;
    r.worker = {.name = name, .incarnation = 1};
    r.role = role;
    r.model = "m";
    r.terms.kv_class = "kv";
    r.terms.numerics_id = numerics;
    r.kv.block_tokens = 16;
    r.max_model_tokens = max_model_tokens;
    r.kv.num_blocks = num_blocks;
    r.max_sequences = 1000;
    EXPECT_TRUE(fleet_.OnRegistration(name + ":1", r, 0).ok());
    fleet_.OnSessionUp(r.worker, ++last_session_);
    index_.AddWorker(r.worker, 16);
    index_.Apply(r.worker, {.first_sequence = 0, .snapshot = true, .stored = {}, .removed = {}});
    return r.worker;
  }
  void Holds(const WorkerId& worker, size_t blocks) {
    index_.Apply(worker, {.first_sequence = 0,
                          .snapshot = true,
                          .stored = {chain_.begin(), chain_.begin() + static_cast<long>(blocks)},
                          .removed = {}});
  }
  RoutingDecision Choose() { return policy_->Choose(request_, fleet_, index_, 0); }

  SessionId last_session_ = 0;
  Fleet fleet_{LivenessTimes{}};
  PrefixIndex index_{1000};
  const std::vector<int32_t> tokens_ = std::vector<int32_t>(320, 7);
  const std::vector<BlockHash> chain_ = HashChain(HashRoot("m", "", ""), tokens_);
  RoutingRequest request_{.chain = chain_,
                          .num_tokens = 320,
                          .max_total_tokens = 400,
                          .model = "m",
                          .numerics_id = "",
                          .disaggregate = DisaggregatePolicy::kAuto};
  std::unique_ptr<RoutingPolicy> policy_ = CreateLeastLoadedPrefixPolicy(1);
};

TEST_F(RoutingPolicyTest, TheLongestKnownPrefixWinsAmongSimilarLoads) {
  Add("a", WorkerRole::kDecode);
  const WorkerId b = Add("b", WorkerRole::kDecode);
  Holds(b, 10);
  fleet_.AddLive(b, {.sequences = 4});
  const RoutingDecision decision = Choose();
  ASSERT_TRUE(decision.route.has_value());
  EXPECT_EQ(decision.route->decode, b);
  EXPECT_EQ(decision.route->known_prefix_tokens, 160);
}

TEST_F(RoutingPolicyTest, ARouteSaysWhatDecided) {
  const WorkerId a = Add("a", WorkerRole::kDecode);
  Holds(a, 10);
  EXPECT_EQ(Choose().route->reason, RouteReason::kOnly);
  const WorkerId b = Add("b", WorkerRole::kDecode);
  EXPECT_EQ(Choose().route->reason, RouteReason::kPrefix);
  fleet_.AddLive(a, {.sequences = 5});
  EXPECT_EQ(Choose().route->decode, b);
  EXPECT_EQ(Choose().route->reason, RouteReason::kLoad) << "although another knows more";
  Holds(b, 10);
  EXPECT_EQ(Choose().route->reason, RouteReason::kLoad) << "both know as much";
}

TEST_F(RoutingPolicyTest, LoadWinsOverAffinityBeyondTheSlack) {
  const WorkerId a = Add("a", WorkerRole::kDecode);
  const WorkerId b = Add("b", WorkerRole::kDecode);
  Holds(b, 10);
  fleet_.AddLive(b, {.sequences = 5});
  EXPECT_EQ(Choose().route->decode, a);
}

TEST_F(RoutingPolicyTest, OfEqualPrefixesTheLeastLoadedWins) {
  const WorkerId a = Add("a", WorkerRole::kDecode);
  const WorkerId b = Add("b", WorkerRole::kDecode);
  fleet_.AddLive(a, {.sequences = 1});
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Choose().route->decode, b);
}

TEST_F(RoutingPolicyTest, TheSlackGrowsWithTheLoad) {
  const WorkerId a = Add("a", WorkerRole::kDecode);
  const WorkerId b = Add("b", WorkerRole::kDecode);
  Holds(b, 10);
  fleet_.AddLive(a, {.sequences = 40});
  fleet_.AddLive(b, {.sequences = 50});
  EXPECT_EQ(Choose().route->decode, b);
  fleet_.AddLive(b, {.sequences = 1});
  EXPECT_EQ(Choose().route->decode, a) << "by a quarter";
}

TEST_F(RoutingPolicyTest, WhoMustRunAloneIsComputedWhereItDecodes) {
  Add("p", WorkerRole::kPrefill);
  const WorkerId d = Add("d", WorkerRole::kDecode);
  request_.runs_alone = true;
  EXPECT_EQ(Choose().route->decode, d);
  EXPECT_EQ(Choose().route->prefill, std::nullopt);
}

TEST_F(RoutingPolicyTest, APromptAvoidsThePrefillWorkerWhereItsStepFailed) {
  Add("d", WorkerRole::kDecode);
  const WorkerId p = Add("p", WorkerRole::kPrefill);
  request_.avoid = {p};
  EXPECT_EQ(Choose().route->prefill, std::nullopt);
  const WorkerId q = Add("q", WorkerRole::kPrefill);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Choose().route->prefill, q);
}

TEST_F(RoutingPolicyTest, TiesAreBrokenByLotFromTheSeed) {
  for (const char* name : {"a", "b", "c"}) Add(name, WorkerRole::kHybrid);
  std::set<std::string> chosen;
  std::vector<std::string> first, second;
  for (int i = 0; i < 50; ++i) first.push_back(Choose().route->decode.name);
  policy_ = CreateLeastLoadedPrefixPolicy(1);
  for (int i = 0; i < 50; ++i) second.push_back(Choose().route->decode.name);
  EXPECT_EQ(first, second);
  chosen.insert(first.begin(), first.end());
  EXPECT_EQ(chosen.size(), 3u);
}

TEST_F(RoutingPolicyTest, RolesDecideWhatIsSent) {
  const WorkerId p = Add("p", WorkerRole::kPrefill);
  const WorkerId d = Add("d", WorkerRole::kDecode);
  RoutingDecision decision = Choose();
  EXPECT_EQ(decision.route->decode, d);
  EXPECT_EQ(decision.route->prefill, p);
  request_.disaggregate = DisaggregatePolicy::kNever;
  EXPECT_EQ(Choose().route->prefill, std::nullopt);
  // Short prompts stay local, unless all shall travel.
  request_.disaggregate = DisaggregatePolicy::kAuto;
  request_.num_tokens = kAutoDisaggregateTokens - 1;
  EXPECT_EQ(Choose().route->prefill, std::nullopt);
  request_.num_tokens = kAutoDisaggregateTokens;
  EXPECT_EQ(Choose().route->prefill, p);
  request_.num_tokens = 1;
  request_.disaggregate = DisaggregatePolicy::kAlways;
  EXPECT_EQ(Choose().route->prefill, p);
}

TEST_F(RoutingPolicyTest, WithoutPrefillWorkersDecodeWorkersPrefillAndTheOtherWayRound) {
  const WorkerId d = Add("d", WorkerRole::kDecode);
  EXPECT_EQ(Choose().route->prefill, std::nullopt);
  const WorkerId p = Add("p", WorkerRole::kPrefill);
  fleet_.OnSessionLost(1);
  const RoutingDecision decision = Choose();
  EXPECT_EQ(decision.route->decode, p);
  EXPECT_EQ(decision.route->prefill, std::nullopt);
}

TEST_F(RoutingPolicyTest, AFullDecodeWorkerIsWaitedForNotReplacedByAPrefillWorker) {
  const WorkerId d = Add("d", WorkerRole::kDecode);
  Add("p", WorkerRole::kPrefill);
  fleet_.AddLive(d, {.attempts = 2});
  fleet_.OnFull(d, 0, 0);
  const RoutingDecision decision = Choose();
  EXPECT_FALSE(decision.route.has_value());
  EXPECT_EQ(decision.why_not, NoRoute::kAllFull);
}

TEST_F(RoutingPolicyTest, AStreamGoesOnOnlyWithinItsNumerics) {
  Add("a", WorkerRole::kDecode, "other");
  request_.numerics_id = "n";
  EXPECT_EQ(Choose().why_not, NoRoute::kNobodyAlive);
  const WorkerId b = Add("b", WorkerRole::kDecode, "n");
  Add("p", WorkerRole::kPrefill, "other");
  EXPECT_EQ(Choose().route->decode, b);
  EXPECT_EQ(Choose().route->prefill, std::nullopt) << "a prefill worker computes other bits";
}

TEST_F(RoutingPolicyTest, WhatFitsNobodyIsToldApartFromWhatMustWait) {
  Add("a", WorkerRole::kDecode);
  request_.max_total_tokens = 2049;
  EXPECT_EQ(Choose().why_not, NoRoute::kTooLong);
  request_.model = "another";
  EXPECT_EQ(Choose().why_not, NoRoute::kNobodyAlive);
}

TEST_F(RoutingPolicyTest, ARequestGoesOnlyWhereAllOfItFits) {
  Add("context", WorkerRole::kDecode, "n", 399);
  Add("blocks", WorkerRole::kDecode, "n", 2048, 24);
  EXPECT_EQ(Choose().why_not, NoRoute::kTooLong);
  const WorkerId exact = Add("exact", WorkerRole::kDecode, "n", 400, 25);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Choose().route->decode, exact);
  // Where it once was, it would fit: who has begun waits, who is new does for a while.
  fleet_.OnSessionLost(3);
  EXPECT_EQ(Choose().why_not, NoRoute::kNobodyAlive);
}

TEST_F(RoutingPolicyTest, APrefillWorkerNeedsRoomForThePromptAndOneToken) {
  Add("d", WorkerRole::kDecode);
  Add("context", WorkerRole::kPrefill, "n", 320);
  Add("blocks", WorkerRole::kPrefill, "n", 2048, 19);
  EXPECT_EQ(Choose().route->prefill, std::nullopt);
  const WorkerId exact = Add("exact", WorkerRole::kPrefill, "n", 321, 20);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Choose().route->prefill, exact);
}

TEST_F(RoutingPolicyTest, APrefillWorkerThatIsOnlyFullIsWaitedFor) {
  Add("d", WorkerRole::kDecode);
  const WorkerId p = Add("p", WorkerRole::kPrefill);
  fleet_.AddLive(p, {.prompts = 1});
  fleet_.OnPromptRefused(p, 0, 0);
  const RoutingDecision decision = Choose();
  EXPECT_EQ(decision.why_not, NoRoute::kAllFull);
  EXPECT_EQ(decision.awaited, "") << "nobody is kept from d";
  const WorkerId full = Add("full", WorkerRole::kDecode);
  fleet_.AddLive(full, {.attempts = 1});
  fleet_.OnFull(full, 0, 0);
  EXPECT_EQ(Choose().awaited, "") << "nor from one that has no room either";
  request_.num_tokens = 255;
  EXPECT_TRUE(Choose().route.has_value()) << "what stays local does not wait for it";
  request_.num_tokens = 320;
  fleet_.AddLive(p, {.prompts = -1});
  EXPECT_EQ(Choose().route->prefill, p);
  fleet_.OnPeerLost(p);
  EXPECT_EQ(Choose().route->prefill, std::nullopt) << "one that is lost is not";
}

TEST_F(RoutingPolicyTest, OneDecodeWorkersFullPrefillWorkersAreNotEverybodys) {
  const WorkerId other = Add("other", WorkerRole::kDecode, "o");
  const WorkerId p = Add("p", WorkerRole::kPrefill, "o");
  Holds(other, 10);
  fleet_.AddLive(p, {.prompts = 1});
  fleet_.OnPromptRefused(p, 0, 0);
  EXPECT_EQ(Choose().why_not, NoRoute::kAllFull);
  const WorkerId d = Add("d", WorkerRole::kDecode, "n");
  const WorkerId q = Add("q", WorkerRole::kPrefill, "n");
  for (int i = 0; i < 8; ++i) {
    const RoutingDecision decision = Choose();
    ASSERT_TRUE(decision.route.has_value());
    EXPECT_EQ(decision.route->decode, d);
    EXPECT_EQ(decision.route->prefill, q);
  }
}

TEST_F(RoutingPolicyTest, TheRoomThatSomebodyOlderWaitsForIsLeftToHim) {
  const WorkerId a = Add("a", WorkerRole::kDecode);
  const WorkerId b = Add("b", WorkerRole::kDecode);
  fleet_.AddLive(a, {.sequences = 2, .prompt_tokens = 10});
  fleet_.AddLive(b, {.sequences = 1, .prompt_tokens = 10});
  RoutingRequest older = request_;
  older.runs_alone = true;
  const RoutingDecision waits = policy_->Choose(older, fleet_, index_, 0);
  EXPECT_EQ(waits.why_not, NoRoute::kAllFull);
  EXPECT_EQ(waits.awaited, "b") << "the one with less to do";
  std::set<std::string> spoken_for = {waits.awaited};
  request_.spoken_for = &spoken_for;
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Choose().route->decode, a);
  older.spoken_for = &spoken_for;
  EXPECT_EQ(policy_->Choose(older, fleet_, index_, 0).awaited, "a") << "each waits for another";
  spoken_for.insert("a");
  const RoutingDecision last = Choose();
  EXPECT_EQ(last.why_not, NoRoute::kAllFull);
  EXPECT_EQ(last.awaited, "");
}

TEST_F(RoutingPolicyTest, PrefillGoesToTheLeastQueuedWorker) {
  Add("d", WorkerRole::kDecode);
  const WorkerId p = Add("p", WorkerRole::kPrefill);
  const WorkerId q = Add("q", WorkerRole::kPrefill);
  fleet_.AddLive(p, {.prompt_tokens = 4000});
  EXPECT_EQ(Choose().route->prefill, q);
  fleet_.AddLive(q, {.prompt_tokens = 4000});
  Holds(p, 3);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Choose().route->prefill, p) << "it holds more of it";
  fleet_.AddLive(p, {.prompt_tokens = 2048});
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Choose().route->prefill, p);
  fleet_.AddLive(p, {.prompt_tokens = 1});
  EXPECT_EQ(Choose().route->prefill, q) << "it has too much to do";
}

}  // namespace
}  // namespace tandem
