#include "runtime/transport/nccl/turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/kv_side.h"

namespace tandem {
namespace {

Turns::Time Soon() { return Turns::Time::clock::now() + kPatience; }
bool Wants() { return true; }

TEST(TurnsTest, PlacesAreHadByOneAtATime) {
  constexpr int kPlaces = 2, kThreads = 6, kTimes = 200;
  Turns turns(kPlaces);
  std::atomic<int> taken[kPlaces] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int time = 0; time < kTimes; ++time) {
        const std::optional<Turns::Turn> place = turns.Take(Soon(), Wants);
        ASSERT_TRUE(place.has_value());
        ASSERT_GE(place->number(), 0);
        ASSERT_LT(place->number(), kPlaces);
        EXPECT_EQ(taken[place->number()].fetch_add(1), 0);
        EXPECT_EQ(taken[place->number()].fetch_sub(1), 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TurnsTest, WhoAskedFirstHasItFirst) {
  constexpr int kThreads = 8;
  Turns turns(1);
  std::optional<Turns::Turn> place = turns.Take(Soon(), Wants);
  std::vector<int> order;  // Whoever has the place adds to it.
  std::vector<std::thread> threads;
  std::atomic<bool> all_wait[kThreads] = {};
  for (int i = 0; i < kThreads; ++i) {
    std::atomic<bool>& waits = all_wait[i];
    threads.emplace_back([&turns, &order, &waits, i] {
      const std::optional<Turns::Turn> had = turns.Take(Soon(), [&] {
        waits.store(true);
        waits.notify_one();
        return true;
      });
      ASSERT_TRUE(had.has_value());
      order.push_back(i);
    });
    waits.wait(false);
  }
  place.reset();
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(TurnsTest, WhoWantsItNoMoreIsInNobodysWay) {
  Turns turns(1);
  std::optional<Turns::Turn> place = turns.Take(Soon(), Wants);
  EXPECT_FALSE(turns.Take(Turns::Time::clock::now(), Wants).has_value());  // Out of time.
  std::atomic<bool> wants{true}, waits{false};
  std::thread waiting([&] {
    const auto had = turns.Take(Soon(), [&] {
      waits.store(true);
      waits.notify_one();
      return wants.load();
    });
    EXPECT_FALSE(had.has_value());
  });
  waits.wait(false);
  wants = false;
  turns.Wake();
  waiting.join();
  place.reset();
  EXPECT_TRUE(turns.Take(Turns::Time::clock::now(), Wants).has_value());
}

}  // namespace
}  // namespace tandem
