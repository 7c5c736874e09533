#include "runtime/protocol/lease_keeper.h"

#include <thread>

#include "gmock/gmock.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const WorkerId kOne{.name = "one", .incarnation = 1};
const WorkerId kTwo{.name = "two", .incarnation = 1};

TEST(LeaseKeeperTest, RenewsInOneMessageAPeer) {
  LeaseKeeper keeper;
  keeper.AddLease(kOne, 1);
  keeper.AddLease(kTwo, 2);
  keeper.AddLease(kOne, 3);
  keeper.AddLease(kOne, 3);
  const auto renewals = keeper.LeaseRenewals();
  ASSERT_EQ(renewals.size(), 2u);
  EXPECT_EQ(renewals[0].first, kOne);
  EXPECT_THAT(renewals[0].second.jobs, ElementsAre(1, 3));
  EXPECT_THAT(renewals[1].second.jobs, ElementsAre(2));
}

TEST(LeaseKeeperTest, ForgetsWhatEnded) {
  LeaseKeeper keeper;
  keeper.AddLease(kOne, 1);
  keeper.RemoveLease(kTwo, 1);
  EXPECT_EQ(keeper.LeaseRenewals().size(), 1u);
  keeper.RemoveLease(kOne, 1);
  keeper.RemoveLease(kOne, 1);
  EXPECT_THAT(keeper.LeaseRenewals(), IsEmpty());
}

TEST(LeaseKeeperTest, LeasesAndReservationsAreApart) {
  LeaseKeeper keeper;
  keeper.AddLease(kOne, 1);
  keeper.AddReservation(7, 1);
  keeper.AddReservation(7, 2);
  keeper.AddReservation(8, 3);
  keeper.RemoveReservation(8, 3);
  keeper.RemoveReservation(7, 1);
  keeper.RemoveReservation(9, 1);
  const auto reservations = keeper.ReservationRenewals();
  ASSERT_EQ(reservations.size(), 1u);
  EXPECT_EQ(reservations[0].first, 7u);
  EXPECT_THAT(reservations[0].second.jobs, ElementsAre(2));
  EXPECT_EQ(keeper.LeaseRenewals().size(), 1u);
}

TEST(LeaseKeeperTest, ATimerThreadMayAskWhileTheEngineChangesIt) {
  LeaseKeeper keeper;
  keeper.AddLease(kTwo, 0);
  std::thread engine([&keeper] {
    for (uint64_t i = 1; i <= 2000; ++i) {
      keeper.AddLease(kOne, i);
      if (i > 1) keeper.RemoveLease(kOne, i - 1);
    }
  });
  bool always_two = true;
  for (int i = 0; i < 500; ++i) {
    bool found = false;
    for (const auto& [worker, renew] : keeper.LeaseRenewals()) {
      found = found || (worker == kTwo && renew.jobs.size() == 1);
    }
    always_two = always_two && found;
  }
  engine.join();
  EXPECT_TRUE(always_two);
  EXPECT_EQ(keeper.LeaseRenewals().size(), 2u);
}

}  // namespace
}  // namespace tandem
