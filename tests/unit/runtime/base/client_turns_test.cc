#include "runtime/base/client_turns.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

size_t First(const std::string&, const ClientTurns<int>::Queue&) { return 0; }

std::string Order(ClientTurns<int>* turns) {
  std::string order;
  while (const auto next = turns->Next(First)) order += std::to_string(*next);
  return order;
}

TEST(ClientTurnsTest, ClientsTakeTurnsAndEachKeepsItsOrder) {
  ClientTurns<int> turns;
  for (const int item : {1, 2, 3, 4}) turns.Add("a", item);
  turns.Add("b", 5);
  turns.Add("c", 6);
  turns.Add("c", 7);
  EXPECT_EQ(Order(&turns), "1562734");
  EXPECT_TRUE(turns.empty());
}

TEST(ClientTurnsTest, AClientThatComesAgainIsNotServedTwiceInARow) {
  ClientTurns<int> turns;
  turns.Add("a", 1);
  turns.Add("b", 2);
  EXPECT_EQ(turns.Next(First), 1);
  turns.Add("a", 3);
  EXPECT_EQ(turns.Next(First), 2);
  EXPECT_EQ(turns.Next(First), 3);
}

TEST(ClientTurnsTest, WhoHasNothingThatMayGoIsPassedOver) {
  ClientTurns<int> turns;
  turns.Add("a", 1);
  turns.Add("b", 2);
  turns.Add("b", 30);
  const auto large = [](const std::string&, const ClientTurns<int>::Queue& queue) {
    size_t place = 0;
    while (place < queue.size() && queue[place] < 10) ++place;
    return place;
  };
  EXPECT_EQ(turns.Next(large), 30);
  EXPECT_FALSE(turns.Next(large).has_value());
  ASSERT_NE(turns.Of("b"), nullptr);
  EXPECT_EQ(turns.Of("b")->size(), 1u);
  EXPECT_EQ(turns.Of("c"), nullptr);
  EXPECT_EQ(Order(&turns), "12");
}

}  // namespace
}  // namespace tandem
