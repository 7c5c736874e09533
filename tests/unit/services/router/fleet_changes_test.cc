#include "services/router/fleet_changes.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace tandem {
namespace {

class FleetChangesTest : public testing::Test {
 protected:
  static WorkerRegistration Of(const std::string& name, WorkerRole role) {
    WorkerRegistration r;
    r.worker = {.name = name, .incarnation = 1};
    r.role = role;
    r.model = "m";
    r.terms.kv_class = "k";
    r.terms.numerics_id = "n";
    r.terms.transport = "grpc";
    r.terms.protocol_min = r.terms.protocol_max = 2;
    r.kv.block_tokens = 16;
    return r;
  }
  void Register(const WorkerRegistration& r) {
    ASSERT_TRUE(fleet_.OnRegistration(r.worker.name + ":1", r, kNowUs).ok());
  }
  // Names, addresses and roles; why is never empty.
  static std::vector<std::string> Names(const std::vector<LostWorker>& lost) {
    std::vector<std::string> names;
    for (const LostWorker& worker : lost) {
      EXPECT_NE(worker.why, "");
      names.push_back(worker.name + " " + worker.address + " " +
                      std::string(WorkerRoleName(worker.role)));
    }
    return names;
  }
  using Strings = std::vector<std::string>;
  Strings Lost(int64_t now_us = kNowUs) { return Names(LostWorkers(fleet_, now_us)); }
  Strings NewlyLost() { return Names(changes_.TakeLost(LostWorkers(fleet_, kNowUs))); }
  // In what each differs.
  Strings Unpaired() {
    Strings differs;
    for (const UnpairedWorker& worker : UnpairedWorkers(fleet_)) {
      EXPECT_EQ(worker.name, "p");
      EXPECT_EQ(worker.address, "p:1");
      differs.push_back(worker.differs);
    }
    return differs;
  }

  static constexpr int64_t kNowUs = 1'000'000;
  const LivenessTimes times_;
  Fleet fleet_{times_};
  FleetChanges changes_;
  const WorkerId d_{.name = "d", .incarnation = 1}, p_{.name = "p", .incarnation = 1};
};

TEST_F(FleetChangesTest, WhoseConnectionEndsIsLostAndToldOnce) {
  Register(Of("d", WorkerRole::kDecode));
  EXPECT_EQ(NewlyLost(), Strings());
  fleet_.OnWatchLost(d_);
  EXPECT_EQ(NewlyLost(), Strings{"d d:1 decode"});
  EXPECT_EQ(NewlyLost(), Strings()) << "it has been told";
  Register(Of("d", WorkerRole::kDecode));
  EXPECT_EQ(NewlyLost(), Strings());
  fleet_.OnWatchLost(d_);
  EXPECT_EQ(NewlyLost(), Strings{"d d:1 decode"}) << "another loss";
}

TEST_F(FleetChangesTest, WhoIsSilentOrStandsStillIsLost) {
  Register(Of("d", WorkerRole::kDecode));
  const int64_t later_us = kNowUs + times_.move_streams_after_us;
  EXPECT_EQ(Lost(later_us - 1), Strings());
  EXPECT_EQ(Lost(later_us), Strings{"d d:1 decode"});
  EXPECT_EQ(LostWorkers(fleet_, later_us + 500'000)[0].why,
            "it was heard 2500 ms ago, at most 2000 are allowed");
  WorkerLoad load;
  load.has_work = true;
  load.since_progress_us = times_.move_streams_after_us + 500'000;
  fleet_.OnHeartbeat(d_, load, /*draining=*/false, kNowUs);
  EXPECT_EQ(Lost(), Strings{"d d:1 decode"});
  EXPECT_EQ(LostWorkers(fleet_, kNowUs)[0].why,
            "its engine has work and made no progress for 2500 ms, at most 2000 are allowed");
  fleet_.OnWatchLost(d_);
  EXPECT_EQ(LostWorkers(fleet_, kNowUs + 700'000)[0].why,
            "its connection ended; it was heard 700 ms ago");
}

TEST_F(FleetChangesTest, WhoLeavesIsLostOnceItIsMissed) {
  fleet_.Expect({"d:1", "p:1"});
  Register(Of("d", WorkerRole::kDecode));
  Register(Of("p", WorkerRole::kPrefill));
  fleet_.OnDraining(d_);
  fleet_.OnWatchLost(d_);
  fleet_.OnWatchLost(p_);
  EXPECT_EQ(Lost(), Strings{"p p:1 prefill"});
  const int64_t later_us = kNowUs + Fleet::kForgetAfterUs + 1;
  EXPECT_EQ(fleet_.ForgetGone(later_us).size(), 2u);
  EXPECT_EQ(Lost(later_us), (Strings{"d d:1 decode", "p p:1 prefill"}));
  EXPECT_EQ(LostWorkers(fleet_, later_us)[0].why, "it left, and nobody came there again for 60 s");
  EXPECT_EQ(LostWorkers(fleet_, later_us)[1].why, "it was not heard for 60 s");
}

TEST_F(FleetChangesTest, APrefillWorkerWithoutAPartnerIsToldInWhatTheyDiffer) {
  const std::vector<std::pair<std::string, std::function<void(WorkerRegistration*)>>> cases = {
      {"model", [](WorkerRegistration* r) { r->model = "other"; }},
      {"protocol",
       [](WorkerRegistration* r) { r->terms.protocol_min = r->terms.protocol_max = 3; }},
      {"protocol",
       [](WorkerRegistration* r) { r->terms.protocol_min = r->terms.protocol_max = 1; }},
      {"kv_class", [](WorkerRegistration* r) { r->terms.kv_class = "other"; }},
      {"numerics_id", [](WorkerRegistration* r) { r->terms.numerics_id = "other"; }},
      {"transport", [](WorkerRegistration* r) { r->terms.transport = "ucx"; }},
      {"kv_shard", [](WorkerRegistration* r) { r->terms.shard.count = 2; }},
      {"block size", [](WorkerRegistration* r) { r->kv.block_tokens = 32; }},
      {"block bytes", [](WorkerRegistration* r) { r->kv.block_bytes = 1; }},
      {"kv_class, transport",
       [](WorkerRegistration* r) {
         r->terms.kv_class = "other";
         r->terms.transport = "ucx";
       }},
  };
  Register(Of("d", WorkerRole::kDecode));
  Register(Of("e", WorkerRole::kDecode));  // As near.
  for (const char* name : {"a", "z"}) {    // These have nothing in common with them.
    WorkerRegistration far = Of(name, WorkerRole::kHybrid);
    far.model = far.terms.kv_class = far.terms.numerics_id = far.terms.transport = "far";
    Register(far);
  }
  Register(Of("p", WorkerRole::kPrefill));
  EXPECT_EQ(Unpaired(), Strings());
  for (const auto& [differs, change] : cases) {
    WorkerRegistration prefill = Of("p", WorkerRole::kPrefill);
    change(&prefill);
    Register(prefill);
    EXPECT_EQ(Unpaired(), Strings{differs});
    if (differs.starts_with("block")) continue;  // A kv_class has it in it.
    EXPECT_FALSE(fleet_.MayPair(*fleet_.Find({.name = "d", .incarnation = 1}),
                                *fleet_.Find({.name = "p", .incarnation = 1}), kNowUs));
  }
  const UnpairedWorker last = UnpairedWorkers(fleet_)[0];
  EXPECT_EQ(
      last.why,
      "kv_class: it has other, the decode worker k; transport: it has ucx, the decode worker grpc");
  EXPECT_EQ(last.decode, "d") << "the first of the nearest";
  EXPECT_EQ(last.num_decode, 4);
}

TEST_F(FleetChangesTest, OnlyWhoIsThereIsComparedAndOnlyIfSomebodyDecodes) {
  WorkerRegistration prefill = Of("p", WorkerRole::kPrefill);
  prefill.terms.transport = "ucx";
  Register(prefill);
  EXPECT_EQ(Unpaired(), Strings()) << "nobody decodes";
  Register(Of("d", WorkerRole::kDecode));
  EXPECT_EQ(Unpaired(), Strings{"transport"});
  fleet_.OnWatchLost(p_);
  EXPECT_EQ(Unpaired(), Strings()) << "it is not there";
  Register(prefill);
  fleet_.OnWatchLost(d_);
  EXPECT_EQ(Unpaired(), Strings()) << "nobody decodes any more";
}

TEST_F(FleetChangesTest, WhatAPrefillWorkerLacksIsToldOncePerChange) {
  const auto take = [&] { return changes_.TakeUnpaired(UnpairedWorkers(fleet_)).size(); };
  Register(Of("d", WorkerRole::kDecode));
  WorkerRegistration prefill = Of("p", WorkerRole::kPrefill);
  prefill.terms.transport = "ucx";
  Register(prefill);
  EXPECT_EQ(take(), 1u);
  EXPECT_EQ(take(), 0u);
  prefill.terms.kv_class = "other";
  Register(prefill);
  EXPECT_EQ(take(), 1u) << "it is something else now";
  Register(Of("p", WorkerRole::kPrefill));
  EXPECT_EQ(take(), 0u);
  Register(prefill);
  EXPECT_EQ(take(), 1u);
}

}  // namespace
}  // namespace tandem
