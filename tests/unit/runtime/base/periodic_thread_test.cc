#include "runtime/base/periodic_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tandem {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

TEST(PeriodicThreadTest, WorksAgainAndAgainAndRestsBeforeEachTime) {
  constexpr milliseconds kRest{20};
  std::vector<Clock::time_point> begun{Clock::now()};
  std::promise<void> often;
  {
    PeriodicThread thread("again", kRest, [&] {
      begun.push_back(Clock::now());
      if (begun.size() == 5) often.set_value();
    });
    often.get_future().wait();
  }
  for (size_t i = 1; i < begun.size(); ++i) EXPECT_GE(begun[i] - begun[i - 1], kRest) << i;
}

TEST(PeriodicThreadTest, WhatRestsIsStoppedAtOnceAndAgain) {
  int times = 0;
  PeriodicThread thread("rests", std::chrono::hours(1), [&] { ++times; });
  thread.Stop();
  thread.Stop();
  EXPECT_EQ(times, 0);
}

TEST(PeriodicThreadTest, WhatWorksIsWaitedForAndWorksNoMore) {
  std::promise<void> begun, go_on;
  std::atomic<int> num_begun = 0, num_done = 0;
  auto thread = std::make_unique<PeriodicThread>("works", milliseconds(0), [&] {
    if (++num_begun > 1) return;
    begun.set_value();
    go_on.get_future().wait();
    ++num_done;
  });
  begun.get_future().wait();
  std::thread goes_on([&] { go_on.set_value(); });
  thread.reset();
  EXPECT_EQ(num_done, 1);
  goes_on.join();
}

TEST(PeriodicThreadTest, HasItsNameAndTakesNoSignal) {
  std::promise<std::string> named;
  std::promise<bool> blocked;
  std::atomic<bool> told = false;
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const PeriodicThread thread("fifteen letters", milliseconds(1), [&] {
    if (told.exchange(true)) return;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    named.set_value(name);
    blocked.set_value(sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGHUP) == 1 &&
                      sigismember(&mask, SIGSEGV) == 0);
  });
  EXPECT_EQ(named.get_future().get(), "fifteen letters");
  EXPECT_TRUE(blocked.get_future().get());
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << "of whoever made it";
  }
}

}  // namespace
}  // namespace tandem
