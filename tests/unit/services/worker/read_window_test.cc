#include "services/worker/read_window.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

constexpr int64_t kWindow = ReadWindow::kBytes;

class ReadWindowTest : public testing::Test {
 protected:
  // A message of so many bytes has been read, and waits.
  CommandCharge Read(int64_t bytes) {
    absl::StatusOr<CommandCharge> charge = window_->AdmitBytes(bytes);
    EXPECT_TRUE(charge.ok()) << charge.status();
    window_->ReadNext();
    return *std::move(charge);
  }

  MemoryBudget budget_{3 * kWindow};
  int num_reads_ = 0;
  const std::shared_ptr<ReadWindow> window_ =
      std::make_shared<ReadWindow>(&budget_, "peer", [this] { ++num_reads_; });
};

TEST_F(ReadWindowTest, ReadsOnUntilTheWindowIsFullAndThenAsTheEngineTakes) {
  window_->ReadNext();
  std::vector<CommandCharge> waiting;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(num_reads_, i + 1);
    waiting.push_back(Read(kWindow / 4));
  }
  EXPECT_EQ(num_reads_, 4) << "four are read, and no fifth";
  waiting.pop_back();
  EXPECT_EQ(num_reads_, 5);
  waiting.clear();
  EXPECT_EQ(num_reads_, 5) << "one at a time";
  EXPECT_EQ(budget_.held_bytes(), 0) << "the stream is charged for its window";
}

TEST_F(ReadWindowTest, WhatExceedsTheWindowIsCharged) {
  CommandCharge large = Read(2 * kWindow);
  EXPECT_EQ(budget_.held_bytes(), kWindow);
  EXPECT_EQ(num_reads_, 0);
  EXPECT_EQ(window_->AdmitBytes(4 * kWindow).status().code(), absl::StatusCode::kResourceExhausted);
  large.reset();
  EXPECT_EQ(budget_.held_bytes(), 0);
  EXPECT_EQ(num_reads_, 1);
}

TEST_F(ReadWindowTest, AStreamThatHasEndedReadsNoMore) {
  CommandCharge waiting = Read(kWindow);
  window_->Close();
  waiting.reset();
  window_->ReadNext();
  EXPECT_EQ(num_reads_, 0);
}

TEST_F(ReadWindowTest, AStreamThatIsLostIsReadToItsEndWithoutTheEngine) {
  const CommandCharge waiting = Read(kWindow);
  window_->Lift();
  EXPECT_EQ(num_reads_, 1);
  const CommandCharge more = Read(kWindow);
  EXPECT_EQ(num_reads_, 2);
}

// The engine's queue may go last.
TEST_F(ReadWindowTest, ACommandOutlivesItsStream) {
  CommandCharge waiting = Read(kWindow);
  window_->Close();
  const_cast<std::shared_ptr<ReadWindow>&>(window_).reset();
  waiting.reset();
  EXPECT_EQ(num_reads_, 0);
}

}  // namespace
}  // namespace tandem
