#include "services/server/open_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/eventually.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr milliseconds kNever{3'600'000};

// A message may have 4 MiB and has all the time it wants.
OpenCalls::Options WithTurns(milliseconds turn) {
  return {.max_message_bytes = 4 * kMiB, .message_timeout = kNever, .turn = turn};
}

struct TestCall {
  TestCall(OpenCalls* calls, const std::string& peer)
      : call(
            calls, peer, [this] { receiving = true; }, [this] { cancelled = true; }) {}

  std::atomic<bool> receiving{false};
  std::atomic<bool> cancelled{false};
  OpenCalls::Call call;
};

std::vector<std::unique_ptr<TestCall>> Open(OpenCalls* calls, const std::string& peer, int count) {
  std::vector<std::unique_ptr<TestCall>> opened;
  for (int i = 0; i < count; ++i) {
    opened.push_back(std::make_unique<TestCall>(calls, peer));
    EXPECT_TRUE(opened.back()->call.AwaitMessage().ok());
  }
  return opened;
}

TEST(OpenCallsTest, CallsWithoutTheirMessageAreBoundedTogetherAndTheOldestGivesWay) {
  MemoryBudget budget(256 * kMiB);
  OpenCalls calls(&budget, WithTurns(kNever));
  const int kMost = static_cast<int>(kMaxWaitingBytes / kCallBytes);
  const auto set_aside = budget.held_bytes();
  auto silent = Open(&calls, "ipv4:10.0.0.1:1", kMost);
  auto honest = Open(&calls, "ipv4:10.0.0.2:1", 1);
  EXPECT_TRUE(silent[0]->cancelled);
  EXPECT_FALSE(silent[1]->cancelled || honest[0]->cancelled);
  auto more = Open(&calls, "ipv4:10.0.0.1:2", 100);
  const auto num_cancelled = [](const auto& opened) {
    return std::count_if(opened.begin(), opened.end(),
                         [](const auto& call) { return call->cancelled.load(); });
  };
  EXPECT_EQ(num_cancelled(silent) + num_cancelled(more), 101);
  EXPECT_EQ(budget.num_cut(), 101);
  EXPECT_FALSE(honest[0]->cancelled);
  EXPECT_LE(budget.held_bytes() - set_aside, kMaxWaitingBytes + 101 * kCallBytes);
  silent.clear();
  more.clear();
  honest.clear();
  EXPECT_EQ(budget.held_bytes(), set_aside);
}

TEST(OpenCallsTest, OfASmallBudgetAQuarterIsForCallsWithoutTheirMessage) {
  constexpr int kMost = 64 * kMiB / 4 / kCallBytes;
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, WithTurns(kNever));
  auto silent = Open(&calls, "ipv4:10.0.0.1:1", kMost);
  EXPECT_FALSE(silent[0]->cancelled);
  auto next = Open(&calls, "ipv4:10.0.0.1:1", 1);
  EXPECT_TRUE(silent[0]->cancelled);
  EXPECT_FALSE(silent[1]->cancelled || next[0]->cancelled);
}

TEST(OpenCallsTest, OnlySoManyMessagesAreReceivedAtATimeAndHalfOfThemOfOneClient) {
  MemoryBudget budget(64 * kMiB);  // Four messages.
  OpenCalls calls(&budget, WithTurns(kNever));
  auto many = Open(&calls, "ipv4:10.0.0.1:1", 6);
  EXPECT_TRUE(many[0]->receiving && many[1]->receiving);
  EXPECT_FALSE(many[2]->receiving);
  auto others = Open(&calls, "ipv4:10.0.0.2:1", 2);
  EXPECT_TRUE(others[0]->receiving && others[1]->receiving);
  auto last = Open(&calls, "ipv4:10.0.0.3:1", 1);
  EXPECT_FALSE(last[0]->receiving);
  EXPECT_TRUE(many[1]->call.Settle());
  EXPECT_TRUE(last[0]->receiving) << "who has none goes first";
  EXPECT_FALSE(many[2]->receiving);
  others.clear();
  EXPECT_TRUE(many[5]->receiving) << "the newest";
  EXPECT_FALSE(many[2]->receiving);
}

// Streams that are answered one request after the other, and stay open.
TEST(OpenCallsTest, WhoHasHadAnAnswerWaitsBehindWhoHasHadNone) {
  MemoryBudget budget(64 * kMiB);  // Four messages, two of a client.
  OpenCalls calls(&budget, WithTurns(kNever));
  auto stuck = Open(&calls, "ipv4:10.0.0.1:1", 1);
  auto answered = Open(&calls, "ipv4:10.0.0.1:1", 1);
  auto waiting = Open(&calls, "ipv4:10.0.0.1:1", 2);
  EXPECT_FALSE(waiting[0]->receiving || waiting[1]->receiving);
  answered[0]->receiving = false;
  ASSERT_TRUE(answered[0]->call.Settle());
  EXPECT_TRUE(waiting[1]->receiving);
  ASSERT_TRUE(answered[0]->call.AwaitAnother().ok());
  ASSERT_TRUE(waiting[1]->call.Settle());
  EXPECT_TRUE(waiting[0]->receiving);
  EXPECT_FALSE(answered[0]->receiving);
  ASSERT_TRUE(waiting[0]->call.Settle());
  EXPECT_TRUE(answered[0]->receiving);
}

TEST(OpenCallsTest, AMessageThatTakesItsTimeGivesWayToThoseThatWait) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, WithTurns(milliseconds(1)));
  auto honest = Open(&calls, "ipv4:10.0.0.2:1", 1);
  auto stuck = Open(&calls, "ipv4:10.0.0.1:1", 2);
  auto another = Open(&calls, "ipv4:10.0.0.3:1", 1);
  EXPECT_FALSE(stuck[0]->cancelled) << "nobody waits";
  auto next = Open(&calls, "ipv4:10.0.0.4:2", 1);
  EXPECT_TRUE(Eventually([&] { return next[0]->receiving.load(); }));
  EXPECT_TRUE(stuck[0]->cancelled);
  EXPECT_FALSE(honest[0]->cancelled || stuck[1]->cancelled);
  EXPECT_EQ(budget.num_cut(), 1);
}

TEST(OpenCallsTest, ClientsTakeTurnsWhateverTheirNamesAre) {
  MemoryBudget budget(64 * kMiB);  // Four messages.
  OpenCalls calls(&budget, WithTurns(kNever));
  auto stuck = Open(&calls, "ipv4:10.0.0.1:1", 2);
  auto others = Open(&calls, "ipv4:10.0.0.2:1", 2);
  auto first = Open(&calls, "ipv4:10.0.0.3:1", 2);
  auto last = Open(&calls, "ipv4:10.0.0.9:1", 1);
  others.erase(others.begin());
  EXPECT_TRUE(first[1]->receiving);
  first.erase(first.begin() + 1);
  EXPECT_TRUE(last[0]->receiving) << "10.0.0.3 has just had one";
}

TEST(OpenCallsTest, WhoHasFewestTurnsGoesBeforeWhoseTurnItWouldBe) {
  MemoryBudget budget(64 * kMiB);  // Four messages.
  OpenCalls calls(&budget, WithTurns(kNever));
  auto many = Open(&calls, "ipv4:10.0.0.2:1", 3);
  auto others = Open(&calls, "ipv4:10.0.0.1:1", 2);
  auto last = Open(&calls, "ipv4:10.0.0.3:1", 1);
  others.erase(others.begin());
  EXPECT_TRUE(last[0]->receiving);
  EXPECT_FALSE(many[2]->receiving);
}

TEST(OpenCallsTest, OfSeveralClientsWithAsManyTurnsTheSlowestGivesWay) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, WithTurns(milliseconds(1)));
  auto second = Open(&calls, "ipv4:10.0.0.2:1", 1);
  auto first = Open(&calls, "ipv4:10.0.0.1:1", 1);
  auto third = Open(&calls, "ipv4:10.0.0.3:1", 1);
  auto fourth = Open(&calls, "ipv4:10.0.0.4:1", 1);
  auto next = Open(&calls, "ipv4:10.0.0.5:1", 1);
  EXPECT_TRUE(Eventually([&] { return next[0]->receiving.load(); }));
  EXPECT_TRUE(second[0]->cancelled);
  EXPECT_FALSE(first[0]->cancelled);
}

TEST(OpenCallsTest, OfSeveralClientsWithAsManyCallsTheOldestGivesWay) {
  constexpr int kMost = 64 * kMiB / 4 / kCallBytes;
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, WithTurns(kNever));
  auto oldest = Open(&calls, "ipv4:10.0.0.9:1", kMost / 2);
  auto newest = Open(&calls, "ipv4:10.0.0.1:1", kMost / 2);
  auto next = Open(&calls, "ipv4:10.0.0.5:1", 1);
  EXPECT_TRUE(oldest[0]->cancelled);
  EXPECT_FALSE(newest[0]->cancelled);
}

TEST(OpenCallsTest, AMessageAndAWriteHaveTheirTime) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls slow_messages(&budget,
                          {.max_message_bytes = 4 * kMiB, .message_timeout = milliseconds(1)});
  auto silent = Open(&slow_messages, "ipv4:10.0.0.1:1", 1);
  EXPECT_TRUE(Eventually([&] { return silent[0]->cancelled.load(); }));
  EXPECT_FALSE(silent[0]->call.Settle());
  OpenCalls slow_writes(&budget, {.max_message_bytes = 4 * kMiB,
                                  .message_timeout = kNever,
                                  .write_timeout = milliseconds(200)});
  const auto writing = [&slow_writes](const std::string& peer) {
    auto call = std::make_unique<TestCall>(&slow_writes, peer);
    EXPECT_TRUE(call->call.AwaitMessage().ok());
    EXPECT_TRUE(call->call.Settle());
    EXPECT_TRUE(call->call.Keep(0).ok());
    call->call.BeginWrite();
    return call;
  };
  const auto written = writing("ipv4:10.0.0.1:2");
  written->call.EndWrite();
  for (const char* const peer : {"ipv4:10.0.0.1:3", "ipv4:10.0.0.1:4"}) {
    const auto overdue = writing(peer);
    EXPECT_TRUE(Eventually([&] { return overdue->cancelled.load(); }));
  }
  EXPECT_FALSE(written->cancelled) << "what is made after a write has all the time it wants";
}

TEST(OpenCallsTest, AMessageIsChargedAsLongAsItIsKept) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, WithTurns(kNever));
  const auto before = budget.held_bytes();
  TestCall call(&calls, "ipv4:10.0.0.1:1");
  ASSERT_TRUE(call.call.AwaitMessage().ok());
  ASSERT_TRUE(call.call.Settle());
  auto holding = call.call.Keep(kMiB);
  ASSERT_TRUE(holding.ok());
  EXPECT_EQ(budget.held_bytes(), before + kCallBytes + kMiB);
  holding->reset();
  EXPECT_EQ(budget.held_bytes(), before + kCallBytes);
  EXPECT_TRUE(absl::IsResourceExhausted(call.call.Keep(64 * kMiB).status()));
}

// A call that runs and keeps most of what there is.
struct LargeCall {
  LargeCall() {
    EXPECT_TRUE(call.AwaitMessage().ok());
    EXPECT_TRUE(call.Settle());
    kept.emplace(call.Keep(40 * kMiB));
    EXPECT_TRUE(kept->ok());
    room = budget.limit_bytes() - budget.held_bytes();
  }
  // Whether it does for another client that wants more than is left.
  bool GivesWay() { return other.Set(room + 1).ok() && opened.cancelled; }

  MemoryBudget budget{64 * kMiB};
  OpenCalls calls{&budget,
                  {.max_message_bytes = 4 * kMiB,
                   .message_timeout = kNever,
                   .write_timeout = kNever,
                   .turn = kNever}};
  TestCall opened{&calls, "ipv4:10.0.0.1:1"};
  OpenCalls::Call& call = opened.call;
  std::optional<decltype(call.Keep(0))> kept;
  MemoryBudget::Holding other{&budget, "10.0.0.2"};
  int64_t room = 0;
};

TEST(OpenCallsTest, AnUnreadWriteGivesWayAndARunningCallDoesNot) {
  LargeCall large;
  EXPECT_FALSE(large.GivesWay());
  large.call.BeginWrite();
  large.call.EndWrite();
  EXPECT_FALSE(large.GivesWay());
  EXPECT_FALSE(large.opened.cancelled);
  large.call.BeginWrite();
  EXPECT_TRUE(large.GivesWay());
}

// Else idle streams, as many as there is room for, keep everybody else out.
TEST(OpenCallsTest, WhoAwaitsAnEventOrAnotherMessageGivesWay) {
  for (const bool another : {false, true}) {
    LargeCall large;
    EXPECT_FALSE(large.GivesWay());
    large.opened.receiving = false;
    if (another) {
      ASSERT_TRUE(large.call.AwaitAnother().ok());
    } else {
      large.call.AwaitEvent();
    }
    EXPECT_EQ(large.opened.receiving.load(), another);
    EXPECT_TRUE(large.GivesWay());
  }
}

TEST(OpenCallsTest, WithoutRoomACallIsRefusedAtOnce) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, WithTurns(kNever));
  MemoryBudget::Holding others(&budget, "10.0.0.9");
  ASSERT_TRUE(others.Set(budget.limit_bytes() - budget.held_bytes()).ok());
  TestCall call(&calls, "ipv4:10.0.0.1:1");
  EXPECT_TRUE(absl::IsResourceExhausted(call.call.AwaitMessage()));
  EXPECT_FALSE(call.receiving || call.cancelled);
}

TEST(OpenCallsTest, WhoHasBeenToldWhyIsNotCountedAmongTheRefused) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, {.max_message_bytes = 4 * kMiB});
  for (int i = 0; i < 100; ++i) {
    TestCall refused(&calls, "ipv4:10.0.0.1:1");
    refused.call.Refuse();
    EXPECT_FALSE(refused.cancelled);
  }
}

TEST(OpenCallsTest, OfTheRefusedOnlySoManyAreToldWhy) {
  MemoryBudget budget(64 * kMiB);
  OpenCalls calls(&budget, {.max_message_bytes = 4 * kMiB});
  std::vector<std::unique_ptr<TestCall>> refused;
  for (int i = 0; i < 65; ++i) {
    refused.push_back(std::make_unique<TestCall>(&calls, "ipv4:10.0.0.1:1"));
    EXPECT_FALSE(refused[0]->cancelled);
    refused.back()->call.Refuse();
  }
  EXPECT_TRUE(refused[0]->cancelled);
  EXPECT_FALSE(refused[1]->cancelled);
}

}  // namespace
}  // namespace tandem
