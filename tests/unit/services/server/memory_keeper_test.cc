#include "services/server/memory_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/eventually.h"

namespace tandem {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(MemoryKeeperTest, WhatWasGivenBackGoesBackToTheKernel) {
  constexpr int64_t kBytes = 64 * kMiB;
  constexpr size_t kPieceBytes = 16 << 10;
  MetricsRegistry registry;
  MemoryKeeper keeper(2 * kBytes, &registry);
  auto holding = keeper.budget()->Hold("client", kBytes);
  ASSERT_TRUE(holding.ok()) << holding.status();
  malloc_trim(0);  // What earlier tests left would be given out again.
  const int64_t before = ResidentBytes();
  std::vector<std::unique_ptr<std::byte[]>> pieces(kBytes / kPieceBytes);
  for (auto& piece : pieces) piece = std::make_unique<std::byte[]>(kPieceBytes);
  // On top of them: what lies below stays with the allocator by itself.
  const auto last = std::make_unique<std::byte[]>(kPieceBytes);
  EXPECT_GT(ResidentBytes(), before + kBytes - 4 * kMiB);
  pieces.clear();
  EXPECT_GT(ResidentBytes(), before + kBytes / 2);
  holding->reset();
  EXPECT_TRUE(Eventually([&] { return ResidentBytes() < before + 4 * kMiB; }));
}

TEST(MemoryKeeperTest, WhatIsHeldRefusedAndCutIsShownOnce) {
  MetricsRegistry registry;
  MemoryKeeper keeper(kMiB, &registry);
  const auto held = keeper.budget()->Hold("client", 1024);
  EXPECT_FALSE(keeper.budget()->Hold("client", 2 * kMiB).ok());
  for (int i = 0; i < 2; ++i) keeper.budget()->CountCut();
  registry.Collect();  // So that a count that is added each time shows.
  const std::string shown = MetricsToText(registry.Collect());
  for (const char* const line :
       {"tandem_memory_limit_bytes 1048576\n", "tandem_memory_held_bytes 1024\n",
        "tandem_memory_refusals_total{how=\"refused\"} 1\n",
        "tandem_memory_refusals_total{how=\"cut\"} 2\n"}) {
    EXPECT_THAT(shown, testing::HasSubstr(line));
  }
}

}  // namespace
}  // namespace tandem
