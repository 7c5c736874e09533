#include "runtime/request/waiting_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/request/unplaced_requests.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using Group = WaitingGroups::Group;

WaitingGroups::Waiter WaiterOf(const std::string& client, int64_t offer) {
  return {.need = {.model = "m", .offer = offer}, .client = client};
}

// Takes all that wait, in their order.
std::vector<uint64_t> Placed(WaitingGroups* groups) {
  std::vector<uint64_t> placed;
  groups->Walk([&](Group* group) {
    placed.push_back(group->streams.first().key.request);
    groups->TakeFirst(group);
    return true;
  });
  return placed;
}

TEST(WaitingGroupsTest, OneLineOfAllGroups) {
  WaitingGroups groups;
  groups.Add({1, 0}, WaiterOf("a", 100));
  groups.Add({2, 0}, WaiterOf("b", 200));
  groups.Add({3, 0}, WaiterOf("c", 100));
  EXPECT_EQ(groups.size(), 3);
  EXPECT_THAT(Placed(&groups), ElementsAre(1, 2, 3));
  EXPECT_TRUE(groups.empty());
}

TEST(WaitingGroupsTest, OnceTheFirstOfAGroupFindsNobodyNoOtherIsAsked) {
  WaitingGroups groups;
  for (uint64_t request = 1; request <= 9; ++request) {
    groups.Add({request, 0}, WaiterOf("a", 100));
  }
  int asked = 0;
  groups.Walk([&](Group*) {
    ++asked;
    return false;
  });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(groups.size(), 9);
}

TEST(WaitingGroupsTest, WhatLeavesDuringAWalkIsNotPlaced) {
  WaitingGroups groups;
  groups.Add({1, 0}, WaiterOf("a", 100));
  groups.Add({2, 0}, WaiterOf("b", 200));
  std::vector<uint64_t> asked;
  groups.Walk([&](Group* group) {
    asked.push_back(group->streams.first().key.request);
    groups.Remove({2, 0}, "b");
    groups.Remove({1, 0}, "a");
    return true;
  });
  EXPECT_THAT(asked, ElementsAre(1));
  EXPECT_FALSE(groups.WaitsFor(1) || groups.WaitsFor(2));
}

TEST(WaitingGroupsTest, RegroupingKeepsTurnsAndTheLatestPatience) {
  WaitingGroups groups;
  groups.Add({1, 0}, WaiterOf("a", 100));
  groups.Add({2, 0}, WaiterOf("b", 200));
  groups.Add({3, 0}, WaiterOf("a", 100));
  groups.Walk([&](Group* group) {  // a's first one goes: b is before its second now.
    if (group->streams.first().key.request != 1) return false;
    group->nobody_since_us = 70;
    groups.TakeFirst(group);
    return false;
  });
  groups.Walk([](Group* group) {
    if (group->nobody_since_us < 0) group->nobody_since_us = 30;
    return false;
  });
  groups.Regroup([&](const WaitingStreams::Place& place) {
    WaitingGroups::Waiter waiter = WaiterOf(place.key.request == 2 ? "b" : "a", 300);
    waiter.turn = place.turn;
    return waiter;
  });
  int num_groups = 0;
  groups.Walk([&](Group* group) {
    ++num_groups;
    EXPECT_EQ(group->nobody_since_us, 70);
    return false;
  });
  EXPECT_EQ(num_groups, 1);
  EXPECT_THAT(Placed(&groups), ElementsAre(2, 3));
}

TEST(WaitingGroupsTest, TheLatestPatienceCountsWhereverItIsInTheLine) {
  for (const int64_t first_us : {30, 70}) {
    WaitingGroups groups;
    groups.Add({1, 0}, WaiterOf("a", 100));
    groups.Add({2, 0}, WaiterOf("b", 200));
    groups.Walk([&](Group* group) {
      const bool first = group->streams.first().key.request == 1;
      group->nobody_since_us = first ? first_us : 100 - first_us;
      return false;
    });
    groups.Regroup([](const WaitingStreams::Place&) { return WaiterOf("a", 300); });
    groups.Walk([](Group* group) {
      EXPECT_EQ(group->nobody_since_us, 70);
      return false;
    });
  }
}

TEST(WaitingGroupsTest, WaitsForLooksAtEveryStreamOfARequestAndAtNoOther) {
  WaitingGroups groups;
  groups.Add({5, 3}, WaiterOf("a", 100));
  EXPECT_TRUE(groups.WaitsFor(5));
  EXPECT_FALSE(groups.WaitsFor(4) || groups.WaitsFor(6));
}

TEST(UnplacedRequestsTest, CountsEachOnce) {
  UnplacedRequests unplaced;
  unplaced.Add("a", 1);
  unplaced.Add("a", 1);
  unplaced.Add("b", 2);
  EXPECT_EQ(unplaced.size(), 2);
  unplaced.Remove("a", 2);
  unplaced.Remove("c", 1);
  EXPECT_EQ(unplaced.size(), 2);
  unplaced.Remove("a", 1);
  unplaced.Remove("a", 1);
  EXPECT_EQ(unplaced.size(), 1);
}

TEST(UnplacedRequestsTest, TheYoungestOfWhoHasTwoMoreGivesWay) {
  UnplacedRequests unplaced;
  EXPECT_FALSE(unplaced.WhoGivesWayTo("a").has_value());
  unplaced.Add("b", 4);
  unplaced.Add("b", 9);
  ASSERT_TRUE(unplaced.WhoGivesWayTo("a").has_value());
  EXPECT_EQ(unplaced.WhoGivesWayTo("a")->request, 9u);
  EXPECT_EQ(unplaced.WhoGivesWayTo("a")->of_its_client, 2);
  EXPECT_FALSE(unplaced.WhoGivesWayTo("b").has_value());
  unplaced.Add("a", 10);
  EXPECT_FALSE(unplaced.WhoGivesWayTo("a").has_value());
}

}  // namespace
}  // namespace tandem
