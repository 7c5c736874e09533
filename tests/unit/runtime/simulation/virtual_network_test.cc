#include "runtime/simulation/virtual_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class VirtualNetworkTest : public testing::Test {
 protected:
  VirtualNetworkTest() {
    network_.set_after([](VirtualProcess*) {});
    from_.life = to_.life = 1;
    link_ = network_.Connect({.process = &from_, .life = 1, .on_lost = [] {}},
                             {.process = &to_, .life = 1, .on_lost = [this] { ++losses_; }});
  }
  void Say(int number) {
    link_->Send(0, [this, number] { heard_.push_back(number); });
  }
  void RunUntil(int64_t at_us) {
    while (!events_.empty() && events_.next_us() <= at_us) events_.RunNext();
  }

  EventQueue events_;
  Random random_{1};
  SimulatedFaults faults_;
  VirtualNetwork network_{&events_, &random_, &faults_};
  VirtualProcess from_, to_;
  std::shared_ptr<VirtualLink> link_;
  std::vector<int> heard_;
  int losses_ = 0;
};

TEST_F(VirtualNetworkTest, APausedProcessWorksOffWhatCameInItsOrder) {
  to_.paused_until_us = 10'000;
  Say(1);
  RunUntil(5'000);
  to_.paused_until_us = 20'000;  // Longer, before the first pause is over.
  Say(2);
  RunUntil(19'999);
  EXPECT_THAT(heard_, IsEmpty());
  Say(3);
  RunUntil(30'000);
  EXPECT_THAT(heard_, ElementsAre(1, 2, 3));

  to_.paused_until_us = 60'000;
  Say(4);
  RunUntil(35'000);
  to_.paused_until_us = 40'000;  // Shorter.
  RunUntil(40'000);
  Say(5);
  RunUntil(70'000);
  EXPECT_THAT(heard_, ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(VirtualNetworkTest, WhatWasSentToAnEarlierLifeNeverArrives) {
  to_.paused_until_us = 10'000;
  Say(1);
  RunUntil(5'000);
  to_.life = 2;
  to_.paused_until_us = 0;
  bool ran = false;
  network_.InProcess(&to_, /*delay_us=*/1, [&] { ran = true; });
  RunUntil(6'000);
  EXPECT_TRUE(ran) << "nor does it hold up the new one";
  RunUntil(20'000);
  EXPECT_THAT(heard_, IsEmpty());
}

// Whatever moment it breaks at, what arrives is how the stream began.
TEST_F(VirtualNetworkTest, ABrokenLinkLosesItsEndOnly) {
  int num_cut = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    random_ = Random(seed);
    heard_.clear();
    losses_ = 0;
    link_ = network_.Connect({.process = &from_, .life = 1, .on_lost = [] {}},
                             {.process = &to_, .life = 1, .on_lost = [this] { ++losses_; }});
    const int64_t begin_us = events_.now_us();
    for (int i = 0; i < 20; ++i) {
      Say(i);
      if (i == 5) to_.paused_until_us = begin_us + random_.Between(1, 20'000);
      if (i == 8) to_.paused_until_us = begin_us + random_.Between(1, 20'000);
      if (i == 12) link_->Break();
      RunUntil(events_.now_us() + 100);
    }
    RunUntil(begin_us + 10'000'000);
    EXPECT_EQ(losses_, 1);
    for (size_t i = 0; i < heard_.size(); ++i) ASSERT_EQ(heard_[i], static_cast<int>(i));
    num_cut += heard_.size() < 13 ? 1 : 0;
  }
  EXPECT_GT(num_cut, 20);
}

TEST_F(VirtualNetworkTest, WhatACutHasSwallowedDoesNotComeWithTheNext) {
  Say(1);
  RunUntil(5'000);
  link_->Cut(/*side=*/1);
  to_.paused_until_us = 10'000;
  Say(2);
  RunUntil(9'000);
  link_->Cut(/*side=*/1);
  RunUntil(20'000);
  EXPECT_THAT(heard_, ElementsAre(1));
}

TEST_F(VirtualNetworkTest, WhatAProcessHasSentOutlivesIt) {
  faults_.slow_message = 1;  // Up to 60 ms, when most losses have long been noticed.
  for (int number = 1; number <= 20; ++number) Say(number);
  network_.EndLinksOf(&from_);
  Say(21);  // By nobody.
  RunUntil(5'000'000);
  EXPECT_EQ(heard_.size(), 20u);
  EXPECT_EQ(losses_, 1);
}

}  // namespace
}  // namespace tandem
