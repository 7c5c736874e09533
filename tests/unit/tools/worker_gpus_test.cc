#include "tools/tandem/worker_gpus.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(WorkerGpusTest, WorkersAreDealtOutToAllGpus) {
  const WorkerGpus gpus{
      .device = "auto", .num_workers = 5, .gpus = {"cuda:GPU-a", "cuda:GPU-b", "cuda:GPU-c"}};
  const std::string devices[] = {"cuda:GPU-a", "cuda:GPU-b", "cuda:GPU-c", "cuda:GPU-a",
                                 "cuda:GPU-b"};
  const int32_t shares[] = {2, 2, 1, 2, 2};
  for (int32_t worker = 0; worker < 5; ++worker) {
    EXPECT_EQ(gpus.device_of(worker), devices[worker]);
    EXPECT_EQ(gpus.share_of(worker), shares[worker]);
  }
}

TEST(WorkerGpusTest, OneDeviceIsSharedByAll) {
  for (const size_t num_gpus : {0, 1}) {
    for (const char* const device : {"cpu", "auto", "cuda:1"}) {
      const WorkerGpus gpus{.device = device,
                            .num_workers = 3,
                            .gpus = std::vector<std::string>(num_gpus, "cuda:GPU-a")};
      EXPECT_EQ(gpus.device_of(2), device);
      EXPECT_EQ(gpus.share_of(2), 3);
    }
  }
}

TEST(WorkerGpusTest, WhoLeavesGpusIdleIsToldWhatUsesThem) {
  const auto summary = [](int32_t num_workers, size_t num_gpus) {
    return WorkerGpus{.device = "auto",
                      .num_workers = num_workers,
                      .gpus = std::vector<std::string>(num_gpus, "cuda:GPU-a")}
        .Summary();
  };
  EXPECT_EQ(summary(2, 8),
            "GPUs used: 2 of 8, workers: 2; each computes on one GPU, and --prefill, --decode and "
            "--hybrid say how many there are");
  EXPECT_EQ(summary(8, 8), "GPUs used: 8 of 8, workers: 8");
  EXPECT_EQ(summary(3, 2), "GPUs used: 2 of 2, workers: 3");
  EXPECT_EQ(summary(2, 1), "GPUs used: 1 of 1, workers: 2");
  EXPECT_EQ(summary(2, 0), "");
}

}  // namespace
}  // namespace tandem
