#include "runtime/request/waiting_streams.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace tandem {
namespace {

class WaitingStreamsTest : public testing::Test {
 protected:
  // The requests, in the order in which they go.
  static std::string TakeAll(WaitingStreams* streams) {
    std::string order;
    for (; !streams->empty(); streams->TakeFirst()) {
      order += std::to_string(streams->first().key.request);
    }
    return order;
  }

  uint64_t last_turn_ = 0;
  WaitingStreams streams_{&last_turn_};
};

TEST_F(WaitingStreamsTest, ClientsTakeTurnsEachWithItsOldest) {
  for (const uint64_t request : {4, 2, 3}) streams_.Add({.request = request}, "a", 0);
  for (const uint64_t request : {5, 6}) streams_.Add({.request = request}, "b", 0);
  streams_.Add({.request = 7}, "c", 0);
  EXPECT_EQ(TakeAll(&streams_), "257364");
}

TEST_F(WaitingStreamsTest, WhatHasStartedGoesFirstAndTakesNobodysTurn) {
  streams_.Add({.request = 1}, "a", 0);
  streams_.Add({.request = 2}, "a", 0);
  streams_.Add({.request = 3}, "b", 0);
  streams_.AddStarted({.request = 9, .stream = 1});
  streams_.AddStarted({.request = 8});
  streams_.AddStarted({.request = 9});
  EXPECT_EQ(TakeAll(&streams_), "899132");
}

TEST_F(WaitingStreamsTest, WhoeverComesAgainIsAtTheEnd) {
  streams_.Add({.request = 1}, "a", 0);
  streams_.Add({.request = 2}, "a", 0);
  streams_.Add({.request = 3}, "b", 0);
  streams_.TakeFirst();
  streams_.TakeFirst();
  streams_.Add({.request = 4}, "b", 0);
  EXPECT_EQ(TakeAll(&streams_), "24");
}

TEST_F(WaitingStreamsTest, AClientKeepsItsTurnWhenItsFirstIsRemoved) {
  streams_.AddStarted({.request = 9});
  streams_.Add({.request = 1}, "a", 0);
  streams_.Add({.request = 2}, "a", 0);
  streams_.Add({.request = 3}, "b", 0);
  streams_.Remove({.request = 1}, "a");
  streams_.Remove({.request = 9}, "a");
  EXPECT_EQ(streams_.first().key.request, 2u);
  streams_.Remove({.request = 2}, "a");
  EXPECT_EQ(streams_.first().key.request, 3u) << "one that has nothing has no turn";
  streams_.Remove({.request = 3}, "b");
  EXPECT_TRUE(streams_.empty());
}

TEST_F(WaitingStreamsTest, OneThatComesBackHasTheTurnItHadUnlessItsClientWaits) {
  streams_.Add({.request = 1}, "a", 0);
  streams_.Add({.request = 2}, "b", 0);
  const uint64_t turn = streams_.first().turn;
  streams_.TakeFirst();
  streams_.Add({.request = 1}, "a", turn);
  EXPECT_EQ(streams_.first().key.request, 1u);
  streams_.Add({.request = 3}, "a", 0);
  streams_.TakeFirst();
  streams_.Add({.request = 1}, "a", turn);
  EXPECT_EQ(TakeAll(&streams_), "213");
}

TEST_F(WaitingStreamsTest, SeveralShareOneLine) {
  WaitingStreams others(&last_turn_);
  streams_.Add({.request = 1}, "a", 0);
  streams_.Add({.request = 2}, "a", 0);
  others.Add({.request = 3}, "b", 0);
  EXPECT_LT(streams_.first(), others.first());
  streams_.TakeFirst();
  EXPECT_GT(streams_.first(), others.first());
  others.AddStarted({.request = 4});
  EXPECT_LT(others.first(), streams_.first());
}

TEST_F(WaitingStreamsTest, AllAreThereInTheirClientsPlace) {
  streams_.AddStarted({.request = 9});
  streams_.Add({.request = 1}, "b", 0);
  streams_.Add({.request = 2}, "b", 0);
  streams_.Add({.request = 3}, "a", 0);
  using Place = WaitingStreams::Place;
  const std::vector<Place> expected = {Place{0, {.request = 9}}, Place{2, {.request = 3}},
                                       Place{1, {.request = 1}}, Place{1, {.request = 2}}};
  EXPECT_EQ(streams_.all(), expected);
}

}  // namespace
}  // namespace tandem
