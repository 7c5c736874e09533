#include "runtime/protocol/peer_pauses.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

constexpr LivenessTimes kTimes;
constexpr uint64_t kMany = 1024;  // More are not remembered once their pauses are over.

WorkerId Peer(uint64_t number) {
  return {.name = "p" + std::to_string(number), .incarnation = number + 1};
}

TEST(PeerPausesTest, APauseGrowsUntilATransferWorks) {
  PeerPauses pauses(kTimes);
  EXPECT_FALSE(pauses.Paused(Peer(0), 0));
  EXPECT_TRUE(pauses.OnFailed(Peer(0), 0));
  EXPECT_FALSE(pauses.OnFailed(Peer(0), 1)) << "of before";
  EXPECT_TRUE(pauses.Paused(Peer(0), kTimes.first_pause_us - 1));
  EXPECT_FALSE(pauses.Paused(Peer(1), 0));
  EXPECT_TRUE(pauses.OnFailed(Peer(0), kTimes.first_pause_us));
  EXPECT_TRUE(pauses.Paused(Peer(0), 3 * kTimes.first_pause_us - 1));
  EXPECT_FALSE(pauses.Paused(Peer(0), 3 * kTimes.first_pause_us));
  pauses.OnWorked(Peer(0));
  EXPECT_TRUE(pauses.OnFailed(Peer(0), 0));
  EXPECT_FALSE(pauses.Paused(Peer(0), kTimes.first_pause_us));
}

TEST(PeerPausesTest, WhereThereAreTooManyThoseThatAreOverAreForgotten) {
  PeerPauses pauses(kTimes);
  for (uint64_t i = 0; i <= kMany; ++i) EXPECT_TRUE(pauses.OnFailed(Peer(i), 0));
  for (uint64_t i = 0; i <= kMany; ++i) EXPECT_TRUE(pauses.Paused(Peer(i), 0)) << i;
  const int64_t later_us = 2 * kTimes.first_pause_us;
  EXPECT_TRUE(pauses.OnFailed(Peer(kMany + 1), later_us));
  EXPECT_TRUE(pauses.OnFailed(Peer(0), later_us));
  EXPECT_FALSE(pauses.Paused(Peer(0), later_us + kTimes.first_pause_us)) << "as if for the first";
}

TEST(PeerPausesTest, APauseOfOneThatIsRememberedGrowsHoweverManyThereAre) {
  PeerPauses pauses(kTimes);
  for (uint64_t i = 0; i < kMany; ++i) EXPECT_TRUE(pauses.OnFailed(Peer(i), 0));
  EXPECT_TRUE(pauses.OnFailed(Peer(0), kTimes.first_pause_us));
  EXPECT_TRUE(pauses.Paused(Peer(0), 3 * kTimes.first_pause_us - 1));
}

TEST(PeerPausesTest, WhateverIsNamedSoManyAreRemembered) {
  PeerPauses pauses(kTimes);
  for (uint64_t i = 0; i < 5 * kMany; ++i) EXPECT_TRUE(pauses.OnFailed(Peer(i), 0));
  uint64_t remembered = 0;
  for (uint64_t i = 0; i < 5 * kMany; ++i) remembered += pauses.Paused(Peer(i), 0) ? 1 : 0;
  EXPECT_EQ(remembered, 2 * kMany);
  EXPECT_TRUE(pauses.Paused(Peer(5 * kMany - 1), 0));
}

}  // namespace
}  // namespace tandem
