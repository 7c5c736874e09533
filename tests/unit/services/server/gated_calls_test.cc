#include "services/server/gated_calls.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(GatedCallsTest, OneClientHasHalfOfThePlacesAtMost) {
  int rooms = 0;
  const auto calls = std::make_shared<UnservedCalls>(8, [&] { ++rooms; });
  GatedConnection one(calls, "ipv4:127.0.0.1:1"), again(calls, "ipv4:127.0.0.1:2");
  GatedConnection other(calls, "ipv4:127.0.0.2:1");
  EXPECT_EQ(one.client(), "127.0.0.1");
  one.SetOpen(3);
  EXPECT_TRUE(calls->HasRoomOrAwait(one.client()));
  again.SetOpen(1);
  EXPECT_FALSE(calls->HasRoomOrAwait(one.client()));
  EXPECT_TRUE(calls->HasRoomOrAwait(other.client()));
  again.SetOpen(0);
  EXPECT_EQ(rooms, 1);
  again.SetOpen(2);
  again.SetOpen(0);
  EXPECT_EQ(rooms, 1) << "nobody has asked again";
  EXPECT_TRUE(calls->HasRoomOrAwait(one.client()));
}

TEST(GatedCallsTest, AllTogetherHaveThePlacesThatThereAre) {
  int rooms = 0;
  const auto calls = std::make_shared<UnservedCalls>(8, [&] { ++rooms; });
  GatedConnection one(calls, "ipv4:127.0.0.1:1"), two(calls, "ipv4:127.0.0.2:1");
  one.SetOpen(4);
  two.SetOpen(4);
  EXPECT_EQ(calls->count(), 8);
  EXPECT_FALSE(calls->HasRoomOrAwait("127.0.0.3"));
  two.SetOpen(3);
  EXPECT_EQ(rooms, 1);
  EXPECT_TRUE(calls->HasRoomOrAwait("127.0.0.3"));
}

}  // namespace
}  // namespace tandem
