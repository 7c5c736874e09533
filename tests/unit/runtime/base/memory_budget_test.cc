#include "runtime/base/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int64_t kLimit = 1000;

struct Upload {
  Upload(MemoryBudget* budget, const std::string& client)
      : holding(budget, client, [this] { cut = true; }) {}

  bool cut = false;
  MemoryBudget::Holding holding;
};

TEST(MemoryBudgetTest, ASumOfHoldingsNeverPassesTheLimit) {
  MemoryBudget budget(kLimit);
  MemoryBudget::Holding first(&budget, "a"), second(&budget, "b");
  EXPECT_TRUE(first.Set(600).ok());
  EXPECT_TRUE(second.Set(400).ok());
  const absl::Status refused = second.Set(401);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.ToString(), HasSubstr("1 more bytes wanted"));
  EXPECT_THAT(refused.ToString(), HasSubstr("1000 of 1000"));
  EXPECT_EQ(second.bytes(), 400) << "a refusal changes nothing";
  EXPECT_TRUE(first.Set(599).ok());
  EXPECT_TRUE(second.Set(401).ok());
  EXPECT_EQ(budget.held_bytes(), kLimit);
  EXPECT_EQ(budget.num_refused(), 1);
  EXPECT_EQ(budget.returned_bytes(), 1);
}

TEST(MemoryBudgetTest, AHoldingGivesEverythingBackAtItsEnd) {
  MemoryBudget budget(kLimit);
  {
    MemoryBudget::Holding all(&budget, "a");
    EXPECT_TRUE(all.Set(kLimit).ok());
  }
  EXPECT_EQ(budget.held_bytes(), 0);
  EXPECT_EQ(budget.returned_bytes(), kLimit);
  MemoryBudget::Holding next(&budget, "b");
  EXPECT_TRUE(next.Set(kLimit).ok());
}

TEST(MemoryBudgetTest, TheLargestUploadOfTheClientThatHoldsMostIsCut) {
  MemoryBudget budget(kLimit);
  Upload small(&budget, "greedy"), large(&budget, "greedy"), honest(&budget, "honest");
  ASSERT_TRUE(small.holding.Set(300).ok());
  ASSERT_TRUE(large.holding.Set(400).ok());
  ASSERT_TRUE(honest.holding.Set(300).ok());
  Upload newcomer(&budget, "new");
  EXPECT_TRUE(newcomer.holding.Set(350).ok());
  EXPECT_TRUE(large.cut);
  EXPECT_FALSE(small.cut || honest.cut);
  EXPECT_EQ(budget.held_bytes(), 950);
  EXPECT_EQ(budget.num_cut(), 1);
  // It is over for the one that was cut.
  EXPECT_EQ(large.holding.Set(1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget.returned_bytes(), 0) << "it has not gone yet";
  EXPECT_TRUE(large.holding.Set(0).ok());
  EXPECT_EQ(budget.returned_bytes(), 400);
}

TEST(MemoryBudgetTest, WhatAClientHasGivenBackCountsAgainstItNoMore) {
  MemoryBudget budget(kLimit);
  Upload small(&budget, "was large"), large(&budget, "is large"), newcomer(&budget, "new");
  ASSERT_TRUE(small.holding.Set(900).ok());
  ASSERT_TRUE(small.holding.Set(100).ok());
  ASSERT_TRUE(large.holding.Set(800).ok());
  EXPECT_TRUE(newcomer.holding.Set(200).ok());
  EXPECT_TRUE(large.cut);
  EXPECT_FALSE(small.cut);
}

TEST(MemoryBudgetTest, WhoHoldsMostEvictsNobodyElse) {
  MemoryBudget budget(kLimit);
  Upload honest(&budget, "honest"), greedy(&budget, "greedy");
  ASSERT_TRUE(honest.holding.Set(300).ok());
  ASSERT_TRUE(greedy.holding.Set(600).ok());
  EXPECT_FALSE(greedy.holding.Set(800).ok());
  Upload another(&budget, "greedy");
  EXPECT_TRUE(another.holding.Set(200).ok()) << "its own larger one gives way";
  EXPECT_TRUE(greedy.cut);
  EXPECT_FALSE(honest.cut);
}

TEST(MemoryBudgetTest, AClientsSmallerUploadsDoNotGiveWayToALargerOneOfItsOwn) {
  MemoryBudget budget(kLimit);
  Upload small(&budget, "one"), large(&budget, "one");
  ASSERT_TRUE(small.holding.Set(400).ok());
  EXPECT_FALSE(large.holding.Set(700).ok());
  EXPECT_FALSE(small.cut);
}

TEST(MemoryBudgetTest, WhoWouldHoldMostEvictsNobodyElse) {
  MemoryBudget budget(kLimit);
  Upload honest(&budget, "honest"), newcomer(&budget, "new");
  ASSERT_TRUE(honest.holding.Set(600).ok());
  EXPECT_FALSE(newcomer.holding.Set(601).ok());
  EXPECT_FALSE(honest.cut);
  EXPECT_TRUE(newcomer.holding.Set(600).ok()) << "as much as the other: who came first gives way";
  EXPECT_TRUE(honest.cut);
}

TEST(MemoryBudgetTest, OfEqualUploadsOfOneClientTheOldestGivesWay) {
  MemoryBudget budget(kLimit);
  std::vector<std::unique_ptr<Upload>> stuck;
  for (int i = 0; i < 4; ++i) {
    stuck.push_back(std::make_unique<Upload>(&budget, "one"));
    ASSERT_TRUE(stuck.back()->holding.Set(250).ok());
  }
  Upload fresh(&budget, "one");
  EXPECT_TRUE(fresh.holding.Set(100).ok());
  EXPECT_TRUE(fresh.holding.Set(250).ok());
  EXPECT_TRUE(stuck[0]->cut);
  EXPECT_FALSE(stuck[1]->cut || stuck[2]->cut || stuck[3]->cut);
}

// What was cut is there until it has gone: a client that is quicker than that would hold more and
// more.
TEST(MemoryBudgetTest, AClientMakesRoomForItselfOnlyWhileLittleIsLeaving) {
  MemoryBudget budget(kLimit);
  std::vector<std::unique_ptr<Upload>> stuck;
  for (int i = 0; i < 10; ++i) {
    stuck.push_back(std::make_unique<Upload>(&budget, "one"));
    ASSERT_TRUE(stuck.back()->holding.Set(100).ok());
  }
  std::vector<std::unique_ptr<Upload>> fresh;
  const auto add = [&](const std::string& client) {
    fresh.push_back(std::make_unique<Upload>(&budget, client));
    return fresh.back()->holding.Set(100).ok();
  };
  EXPECT_TRUE(add("one"));
  EXPECT_TRUE(add("one"));
  EXPECT_TRUE(add("one"));
  EXPECT_TRUE(stuck[2]->cut) << "300 of 1000 are leaving";
  EXPECT_FALSE(add("one"));
  EXPECT_FALSE(stuck[3]->cut);
  EXPECT_TRUE(add("another")) << "who holds less need not wait";
  EXPECT_TRUE(stuck[3]->cut);
  EXPECT_TRUE(stuck[0]->holding.Set(0).ok());
  EXPECT_FALSE(add("one"));
  stuck[1].reset();
  EXPECT_TRUE(add("one"));
}

TEST(MemoryBudgetTest, WhatIsBeingServedIsNotCut) {
  MemoryBudget budget(kLimit);
  Upload served(&budget, "greedy");
  ASSERT_TRUE(served.holding.Set(900).ok());
  served.holding.SetMayBeCut(false);
  Upload newcomer(&budget, "new");
  EXPECT_FALSE(newcomer.holding.Set(200).ok());
  EXPECT_FALSE(served.cut);
  served.holding.SetMayBeCut(true);
  EXPECT_TRUE(newcomer.holding.Set(200).ok());
  EXPECT_TRUE(served.cut);
}

// The idle ones have many addresses, each of which holds less than one that has a request besides.
TEST(MemoryBudgetTest, IdleConnectionsGoBeforeWhatWorksAndTheOldestFirst) {
  MemoryBudget budget(25'600);  // A slack is 100.
  std::vector<std::unique_ptr<Upload>> idle;
  const auto connect = [&](const std::string& client) {
    idle.push_back(std::make_unique<Upload>(&budget, client));
    idle.back()->holding.SetIdle(true);
    return idle.back()->holding.Set(16).ok();
  };
  Upload honest(&budget, "honest");
  ASSERT_TRUE(honest.holding.Set(60).ok());
  for (int i = 0; budget.held_bytes() + 16 <= budget.limit_bytes(); ++i) {
    ASSERT_TRUE(connect("address " + std::to_string(100'000 - i)));
  }
  ASSERT_TRUE(connect("another"));
  EXPECT_TRUE(idle[0]->cut);
  EXPECT_FALSE(honest.cut || idle[1]->cut);
  EXPECT_TRUE(honest.holding.Set(92).ok());
  EXPECT_TRUE(idle[1]->cut && idle[2]->cut);
  EXPECT_FALSE(honest.cut || idle[4]->cut);
}

TEST(MemoryBudgetTest, OfAClientsIdleConnectionsTheOldestGoesHoweverLittleItHolds) {
  MemoryBudget budget(1000);
  Upload oldest(&budget, "a"), larger(&budget, "a"), other(&budget, "b");
  for (Upload* upload : {&oldest, &larger}) upload->holding.SetIdle(true);
  ASSERT_TRUE(oldest.holding.Set(300).ok());
  ASSERT_TRUE(larger.holding.Set(600).ok());
  ASSERT_TRUE(other.holding.Set(200).ok());
  EXPECT_TRUE(oldest.cut);
  EXPECT_FALSE(larger.cut);
}

TEST(MemoryBudgetTest, AnIdleConnectionCutsNobodyWhoHoldsLittleMore) {
  MemoryBudget budget(25'600);
  Upload small(&budget, "small"), rest(&budget, "rest");
  rest.holding.SetMayBeCut(false);
  ASSERT_TRUE(small.holding.Set(115).ok());
  ASSERT_TRUE(rest.holding.Set(25'600 - 115).ok());
  Upload newcomer(&budget, "new");
  newcomer.holding.SetIdle(true);
  EXPECT_FALSE(newcomer.holding.Set(16).ok());
  ASSERT_TRUE(rest.holding.Set(25'600 - 116).ok());
  ASSERT_TRUE(small.holding.Set(116).ok());
  EXPECT_TRUE(newcomer.holding.Set(16).ok());
  EXPECT_TRUE(small.cut);
}

TEST(MemoryBudgetTest, WhoHoldsMoreThanAQuarterCutsNothingIdleOfOthers) {
  MemoryBudget budget(kLimit);
  Upload idle(&budget, "idle"), greedy(&budget, "greedy");
  idle.holding.SetIdle(true);
  ASSERT_TRUE(idle.holding.Set(16).ok());
  MemoryBudget::Holding rest(&budget, "rest");
  ASSERT_TRUE(rest.Set(740).ok());
  ASSERT_TRUE(greedy.holding.Set(244).ok());
  EXPECT_FALSE(greedy.holding.Set(251).ok());
  EXPECT_FALSE(idle.cut);
  EXPECT_TRUE(greedy.holding.Set(250).ok());
  EXPECT_TRUE(idle.cut);
}

// Whoever has uploads everywhere does not push out others by connecting once more.
TEST(MemoryBudgetTest, WhoHoldsMoreThanAQuarterHasNoIdleConnectionInsteadOfOthers) {
  for (const int64_t held : {250, 251}) {
    MemoryBudget budget(kLimit);
    Upload idle(&budget, "idle"), greedy(&budget, "greedy"), next(&budget, "greedy");
    idle.holding.SetIdle(true);
    next.holding.SetIdle(true);
    ASSERT_TRUE(idle.holding.Set(16).ok());
    ASSERT_TRUE(greedy.holding.Set(held).ok());
    MemoryBudget::Holding rest(&budget, "rest");
    ASSERT_TRUE(rest.Set(kLimit - budget.held_bytes()).ok());
    EXPECT_TRUE(next.holding.Set(16).ok());
    EXPECT_EQ(idle.cut, held == 250);
    EXPECT_EQ(greedy.cut, held == 251) << "it makes room by what is its own";
  }
}

TEST(MemoryBudgetTest, WhoHasNothingToCutShieldsNobody) {
  MemoryBudget budget(kLimit);
  MemoryBudget::Holding reserve(&budget, "reserve");
  ASSERT_TRUE(reserve.Set(500).ok());
  Upload greedy(&budget, "greedy");
  ASSERT_TRUE(greedy.holding.Set(450).ok());
  Upload newcomer(&budget, "new");
  EXPECT_TRUE(newcomer.holding.Set(100).ok());
  EXPECT_TRUE(greedy.cut);
}

TEST(MemoryBudgetTest, WhoHasNoWayToBeCutIsNotWhateverItSays) {
  MemoryBudget budget(kLimit);
  MemoryBudget::Holding reserve(&budget, "reserve");
  ASSERT_TRUE(reserve.Set(900).ok());
  reserve.SetMayBeCut(true);
  Upload newcomer(&budget, "new");
  EXPECT_FALSE(newcomer.holding.Set(200).ok());
  EXPECT_EQ(budget.num_cut(), 0);
}

TEST(MemoryBudgetTest, AClientIsItsAddressWithoutThePort) {
  EXPECT_EQ(ClientOfPeer("ipv4:10.1.2.3:4000"), "10.1.2.3");
  EXPECT_EQ(ClientOfPeer("10.1.2.3:4000"), "10.1.2.3");
  EXPECT_EQ(ClientOfPeer("ipv6:%5B2001:db8::1:2:3%5D:4000"), ClientOfPeer("[2001:db8::9]:5"));
  EXPECT_NE(ClientOfPeer("[2001:db8:0:1::9]:5"), ClientOfPeer("[2001:db8:0:2::9]:5"));
  EXPECT_EQ(ClientOfPeer("[::ffff:10.1.2.3]:4000"), "10.1.2.3") << "as a socket of both names it";
  EXPECT_EQ(ClientOfPeer("[fe80::1%eth0]:5"), ClientOfPeer("[fe80::2%eth0]:5"));
  EXPECT_EQ(ClientOfPeer("unix:/tmp/x"), ClientOfPeer("unix:/tmp/y"));
}

}  // namespace
}  // namespace tandem
