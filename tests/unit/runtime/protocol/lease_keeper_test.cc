#include "runtime/protocol/lease_keeper.h"

#include <thread>

#include "gmock/gmock.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

AttemptId Id(uint64_t counter) { return {.request = {.counter = counter}, .attempt = 1}; }
const WorkerId kOne{.name = "one", .incarnation = 1};
const WorkerId kTwo{.name = "two", .incarnation = 1};

TEST(LeaseKeeperTest, RenewsInOneMessageAPeer) {
  LeaseKeeper keeper;
  keeper.AddLease(kOne, Id(1));
  keeper.AddLease(kTwo, Id(2));
  keeper.AddLease(kOne, Id(3));
  keeper.AddLease(kOne, Id(3));
  const auto renewals = keeper.LeaseRenewals();
  ASSERT_EQ(renewals.size(), 2u);
  EXPECT_EQ(renewals[0].first, kOne);
  EXPECT_THAT(renewals[0].second.attempts, ElementsAre(Id(1), Id(3)));
  EXPECT_THAT(renewals[1].second.attempts, ElementsAre(Id(2)));
}

TEST(LeaseKeeperTest, ForgetsWhatEnded) {
  LeaseKeeper keeper;
  keeper.AddLease(kOne, Id(1));
  keeper.RemoveLease(kTwo, Id(1));
  EXPECT_EQ(keeper.LeaseRenewals().size(), 1u);
  keeper.RemoveLease(kOne, Id(1));
  keeper.RemoveLease(kOne, Id(1));
  EXPECT_THAT(keeper.LeaseRenewals(), IsEmpty());
}

TEST(LeaseKeeperTest, LeasesAndReservationsAreApart) {
  LeaseKeeper keeper;
  keeper.AddLease(kOne, Id(1));
  keeper.AddReservation(7, Id(1));
  keeper.AddReservation(7, Id(2));
  keeper.AddReservation(8, Id(3));
  keeper.RemoveReservation(8, Id(3));
  keeper.RemoveReservation(7, Id(1));
  keeper.RemoveReservation(9, Id(1));
  const auto reservations = keeper.ReservationRenewals();
  ASSERT_EQ(reservations.size(), 1u);
  EXPECT_EQ(reservations[0].first, 7u);
  EXPECT_THAT(reservations[0].second.attempts, ElementsAre(Id(2)));
  EXPECT_EQ(keeper.LeaseRenewals().size(), 1u);
}

TEST(LeaseKeeperTest, ATimerThreadMayAskWhileTheEngineChangesIt) {
  LeaseKeeper keeper;
  keeper.AddLease(kTwo, Id(0));
  std::thread engine([&keeper] {
    for (uint64_t i = 1; i <= 2000; ++i) {
      keeper.AddLease(kOne, Id(i));
      if (i > 1) keeper.RemoveLease(kOne, Id(i - 1));
    }
  });
  bool always_two = true;
  for (int i = 0; i < 500; ++i) {
    bool found = false;
    for (const auto& [worker, renew] : keeper.LeaseRenewals()) {
      found = found || (worker == kTwo && renew.attempts.size() == 1);
    }
    always_two = always_two && found;
  }
  engine.join();
  EXPECT_TRUE(always_two);
  EXPECT_EQ(keeper.LeaseRenewals().size(), 2u);
}

}  // namespace
}  // namespace tandem
