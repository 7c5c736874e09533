#include "services/worker/worker_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr ModelSizes kModel = {
    .max_positions = 8192, .weights_bytes = kGiB, .block_bytes = 1 << 20};
constexpr MachineLimits kMachine = {.cores = 6, .memory_bytes = 9 * kGiB};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(WorkerSizesTest, DefaultsComeFromMachineAndModel) {
  const auto sizes = SizeWorker({}, kModel, kMachine, {});
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->max_model_tokens, 8192);
  // Half of 8 GiB, less 256 MiB of --memory-limit and the reserve.
  EXPECT_EQ(sizes->kv.num_blocks, 4096 - 128 - 32);
  EXPECT_GE(sizes->max_batched_tokens, sizes->max_sequences);
}

TEST(WorkerSizesTest, NoContextIsLongerThanARequestMayBe) {
  ModelSizes model = kModel;
  model.max_positions = 16 << 20;
  model.block_bytes = 64;
  EXPECT_EQ(SizeWorker({}, model, kMachine, {})->max_model_tokens, 4 << 20);
  SizeOptions options;
  options.max_model_len = (4 << 20) + 1;
  EXPECT_THAT(Message(SizeWorker(options, model, kMachine, {}).status()),
              HasSubstr("--max-model-len: 4194305, requests have at most 4194304 tokens"));
  options.max_model_len = 4 << 20;
  EXPECT_TRUE(SizeWorker(options, model, kMachine, {}).ok());
}

// Every page of a pool is touched at start.
TEST(WorkerSizesTest, ADefaultPoolHoldsSixteenSequencesAndNoMore) {
  SizeOptions options;
  options.max_model_len = 1592;  // In 100 blocks.
  EXPECT_EQ(SizeWorker(options, kModel, kMachine, {})->kv.num_blocks, 1600);
  options.max_num_seqs = 4;
  EXPECT_EQ(SizeWorker(options, kModel, kMachine, {})->kv.num_blocks, 400);
  options.block_size = 32;
  EXPECT_EQ(SizeWorker(options, kModel, kMachine, {})->kv.num_blocks, 200);
}

TEST(WorkerSizesTest, AStepHasRoomForTwiceTheSequencesByDefault) {
  EXPECT_EQ(SizeWorker({}, kModel, kMachine, {})->max_sequences, 64);
  EXPECT_EQ(SizeWorker({}, kModel, kMachine, {})->max_batched_tokens, 512);
  SizeOptions options;
  options.max_num_seqs = 300;
  EXPECT_EQ(SizeWorker(options, kModel, kMachine, {})->max_batched_tokens, 600);
}

TEST(WorkerSizesTest, FlagsWin) {
  SizeOptions options;
  options.max_model_len = 512;
  options.max_num_seqs = 3;
  options.max_batched_tokens = 100;
  options.kv_memory = {100 << 20};
  const auto sizes = SizeWorker(options, kModel, kMachine, {});
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->max_model_tokens, 512);
  EXPECT_EQ(sizes->max_sequences, 3);
  EXPECT_EQ(sizes->max_batched_tokens, 100);
  EXPECT_EQ(sizes->kv.num_blocks, 100);
}

TEST(WorkerSizesTest, PoolTooSmallForOneSequenceNamesTheNumbers) {
  SizeOptions options;
  options.kv_memory = {100 << 20};
  const auto sizes = SizeWorker(options, kModel, kMachine, {});
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(sizes.status()), HasSubstr("100 blocks"));
  EXPECT_THAT(Message(sizes.status()), HasSubstr("512 blocks"));
  EXPECT_THAT(Message(sizes.status()), HasSubstr("8192 tokens"));
}

TEST(WorkerSizesTest, PoolBeyondMemoryIsRefused) {
  SizeOptions options;
  options.kv_memory = {9 * kGiB};
  const auto sizes = SizeWorker(options, kModel, kMachine, {});
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(sizes.status()), HasSubstr("9.00 GiB"));
}

// 1,024 tokens of window and 512 of a step are in 96 blocks of 16, and two at their edges.
TEST(WorkerSizesTest, PoolNeedsToHoldOnlyWhatTheWindowLeaves) {
  ModelSizes model = kModel;
  model.window = 1024;
  SizeOptions options;
  options.max_batched_tokens = 512;
  options.kv_memory = {98 << 20};
  const auto sizes = SizeWorker(options, model, kMachine, {});
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->max_model_tokens, 8192);
  EXPECT_EQ(sizes->kv.num_blocks, 98);
  options.kv_memory = {97 << 20};
  EXPECT_THAT(Message(SizeWorker(options, model, kMachine, {}).status()),
              HasSubstr("one sequence of 8192 tokens needs 98 blocks"));
  // A length between that of 97 blocks and 8,192 would need 98 as well.
  EXPECT_THAT(Message(SizeWorker(options, model, kMachine, {}).status()),
              HasSubstr("; raise --kv-memory or lower --max-model-len to 1552 ("));
  options.max_model_len = 1553;
  EXPECT_FALSE(SizeWorker(options, model, kMachine, {}).ok());
  options.max_model_len = 1552;
  EXPECT_TRUE(SizeWorker(options, model, kMachine, {}).ok());
  options.max_model_len = 0;
  // A worker that computes for others alone keeps all blocks of a prompt.
  options.role = "prefill";
  EXPECT_THAT(Message(SizeWorker(options, model, kMachine, {}).status()),
              HasSubstr("one sequence of 8192 tokens needs 512 blocks"));
  // A default is for texts that are computed for others, too.
  EXPECT_EQ(SizeWorker({}, model, kMachine, {})->kv.num_blocks, 4096 - 128 - 32);
}

// A pool that just fits beside the weights would end in the kernel's hands, not in an error.
TEST(WorkerSizesTest, WhatTheProcessTakesBesideThePoolIsLeftToIt) {
  ModelSizes model = kModel;
  model.token_scratch_bytes = 1 << 20;
  model.logit_scratch_bytes = 100 << 20;
  SizeOptions options;
  options.memory_limit = {300 << 20};
  options.max_batched_tokens = 200;
  const int64_t own_bytes = int64_t{300 + 100 + 200 + 64} << 20;
  options.kv_memory = {8 * kGiB - own_bytes};
  const auto fits = SizeWorker(options, model, kMachine, {});
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->kv.num_blocks * model.block_bytes, options.kv_memory.bytes);
  options.kv_memory.bytes += 1;
  const std::string refused = Message(SizeWorker(options, model, kMachine, {}).status());
  for (const char* part :
       {"--kv-memory: 7893680129 B, but 7528 MiB are left", "of the 9.00 GiB",
        "weights take 1.00 GiB", "--memory-limit takes 300.00 MiB",
        "computing 200 tokens in a step 300.00 MiB", "the process itself 64.00 MiB"}) {
    EXPECT_THAT(refused, HasSubstr(part));
  }
  options.kv_memory = {0};
  const auto half = SizeWorker(options, model, kMachine, {});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(half->kv.num_blocks, (8192 - 664) / 2);
}

TEST(WorkerSizesTest, WhatTakesMostOfTheMemoryIsNamedFirst) {
  ModelSizes model = kModel;
  model.token_scratch_bytes = 1 << 20;
  const auto why = [&model](const SizeOptions& options) {
    return Message(SizeWorker(options, model, kMachine, {}).status());
  };
  SizeOptions options;
  options.memory_limit = {9 * kGiB};
  EXPECT_THAT(why(options), StartsWith("--memory-limit: no memory is left for KV"));
  EXPECT_THAT(why(options), HasSubstr("--memory-limit takes 9.00 GiB"));
  options = {};
  options.max_batched_tokens = 9 << 10;
  EXPECT_THAT(why(options), StartsWith("--max-batched-tokens: no memory is left for KV"));
  options = {};
  model.weights_bytes = 10 * kGiB;
  EXPECT_THAT(why(options), StartsWith("--model: no memory is left for KV"));
}

// Each would fit alone.
TEST(WorkerSizesTest, WorkersOfOneMachineShareItsMemory) {
  SizeOptions options;
  options.memory_limit = {448 << 20};  // With the process itself half a GiB.
  options.kv_memory = {7 * kGiB};
  EXPECT_TRUE(SizeWorker(options, kModel, kMachine, {}).ok());
  options.machine_share = 2;
  const auto why = [&options](const ModelSizes& model) {
    return Message(SizeWorker(options, model, kMachine, {}).status());
  };
  EXPECT_THAT(why(kModel), HasSubstr("--kv-memory: 7.00 GiB, but 3072 MiB are left"));
  EXPECT_THAT(why(kModel),
              HasSubstr("weights take 1.00 GiB in each of 2 workers (--cache-dir has no room"));
  EXPECT_THAT(why(kModel), HasSubstr("each of 2 workers may have 3584 MiB more"));
  EXPECT_THAT(why(kModel), HasSubstr("or run fewer workers here"));
  ModelSizes mapped = kModel;
  mapped.weights_are_shared = true;
  EXPECT_THAT(why(mapped), HasSubstr("weights take 1.00 GiB once"));
  EXPECT_THAT(why(mapped), HasSubstr("but 3584 MiB are left"));
  options.router_bytes = kGiB;
  EXPECT_THAT(why(mapped), HasSubstr("the router 1.00 GiB"));
  EXPECT_THAT(why(mapped), HasSubstr("but 3072 MiB are left"));
  options.kv_memory = {3 * kGiB};
  EXPECT_TRUE(SizeWorker(options, mapped, kMachine, {}).ok());
  options.kv_memory = {0};
  const auto half = SizeWorker(options, mapped, kMachine, {});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(half->kv.num_blocks, 3072 / 2);
}

// One that finds no packed weights converts them, matrix by matrix; without a cache all do.
TEST(WorkerSizesTest, WhatPackingTakesMustBeThere) {
  SizeOptions options;
  options.machine_share = 3;
  ModelSizes model = kModel;
  model.weights_are_shared = true;
  model.packing_bytes = 8 * kGiB;
  EXPECT_TRUE(SizeWorker(options, model, kMachine, {}).ok());
  model.packing_bytes = 9 * kGiB;
  EXPECT_THAT(Message(SizeWorker(options, model, kMachine, {}).status()),
              HasSubstr("--model: its largest matrix takes 9.00 GiB while it is packed, as numbers "
                        "that kernels can read, and of the 9.00 GiB that the machine or its cgroup "
                        "allows 9152 MiB are left: give"));
  model.weights_are_shared = false;
  model.packing_bytes = 2 * kGiB;  // (9 − 3) / 3, but for what a process itself takes.
  EXPECT_THAT(Message(SizeWorker(options, model, kMachine, {}).status()),
              HasSubstr("1984 MiB are left in each of 3 workers"));
  model.packing_bytes = kGiB;
  EXPECT_TRUE(SizeWorker(options, model, kMachine, {}).ok());
}

TEST(WorkerSizesTest, ASmallSharedMemoryIsNamedWhereItIsTheReason) {
  SizeOptions options;
  options.machine_share = 3;
  const SharedMemory shared = {.total_bytes = 100 << 20, .free_bytes = 100 << 20};
  ModelSizes model = kModel;
  model.max_positions = 512;
  EXPECT_THAT(
      Message(SizeWorker(options, model, kMachine, {.shared = shared}).status()),
      testing::AllOf(HasSubstr("are left for KV: the ucx transport keeps its pools in /dev/shm, "
                               "which has 100.00 MiB"),
                     HasSubstr("for 3 workers"), HasSubstr("--shm-size"),
                     HasSubstr("--transport grpc"), Not(HasSubstr("9.00 GiB"))));
}

TEST(WorkerSizesTest, ManyWorkersHaveSmallLimitsByDefault) {
  SizeOptions options;
  EXPECT_EQ(MemoryLimit(options, kMachine), 256 << 20);
  options.machine_share = 9;
  EXPECT_EQ(MemoryLimit(options, kMachine), kGiB / 10);
  options.memory_limit = {300 << 20};
  EXPECT_EQ(MemoryLimit(options, kMachine), 300 << 20);
}

// It would fill /dev/shm, each worker having found it free.
TEST(WorkerSizesTest, PoolsOfAllWorkersFitIntoSharedMemory) {
  SizeOptions options;
  options.kv_memory = {kGiB};
  const WorkerMemory shm{.shared = SharedMemory{.total_bytes = 3 * kGiB, .free_bytes = 3 * kGiB},
                         .device = {}};
  options.machine_share = 2;
  EXPECT_TRUE(SizeWorker(options, kModel, kMachine, shm).ok());
  options.machine_share = 3;
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, shm).status()),
              HasSubstr("--kv-memory: 1.00 GiB in each of 3 workers"));
}

TEST(WorkerSizesTest, PoolBeyondSharedMemoryIsRefused) {
  SizeOptions options;
  options.kv_memory = {kGiB};
  const WorkerMemory shm{.shared = SharedMemory{.total_bytes = 3 * kGiB, .free_bytes = kGiB},
                         .device = {}};
  const auto sizes = SizeWorker(options, kModel, kMachine, shm);
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(sizes.status()), HasSubstr("/dev/shm"));
}

TEST(WorkerSizesTest, DefaultPoolStaysWithinSharedMemory) {
  const WorkerMemory shm{.shared = SharedMemory{.total_bytes = 2 * kGiB, .free_bytes = 2 * kGiB},
                         .device = {}};
  const auto sizes = SizeWorker({}, kModel, kMachine, shm);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->kv.num_blocks, (2048 - 64) / 2) << "half, and something for UCX itself";
}

TEST(WorkerSizesTest, DefaultPoolIsTheSameBesideOthers) {
  SizeOptions options;
  options.machine_share = 3;
  const WorkerMemory empty{.shared = SharedMemory{.total_bytes = 8 * kGiB, .free_bytes = 8 * kGiB},
                           .device = {}};
  const WorkerMemory shared{.shared = SharedMemory{.total_bytes = 8 * kGiB, .free_bytes = 3 * kGiB},
                            .device = {}};
  const auto first = SizeWorker(options, kModel, kMachine, empty);
  const auto again = SizeWorker(options, kModel, kMachine, shared);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(first->kv.num_blocks, again->kv.num_blocks);
}

TEST(WorkerSizesTest, SharedMemoryTooSmallForOneSequenceIsNamed) {
  const WorkerMemory docker{.shared = SharedMemory{.total_bytes = 64 << 20, .free_bytes = 64 << 20},
                            .device = {}};
  const auto sizes = SizeWorker({}, kModel, kMachine, docker);
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"/dev/shm", "64.00 MiB", "--shm-size", "--transport grpc"}) {
    EXPECT_THAT(Message(sizes.status()), HasSubstr(part));
  }
}

TEST(WorkerSizesTest, OneSequenceFitsIntoSharedMemoryExactly) {
  SizeOptions options;
  options.max_model_len = 320;
  constexpr int64_t kSequence = 20 * kModel.block_bytes, kReserve = 64 << 20;
  WorkerMemory shm{.shared = SharedMemory{.total_bytes = kGiB, .free_bytes = kSequence + kReserve},
                   .device = {}};
  options.kv_memory = {kSequence};
  const auto sizes = SizeWorker(options, kModel, kMachine, shm);
  EXPECT_TRUE(sizes.ok()) << sizes.status();
  --shm.shared->free_bytes;
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, shm).status()),
              HasSubstr("one sequence of 320 tokens needs 20.00 MiB"));
}

TEST(WorkerSizesTest, OnlyWhatTheWindowLeavesHasToFitIntoSharedMemory) {
  ModelSizes model = kModel;
  model.window = 1024;
  SizeOptions options;
  options.max_batched_tokens = 512;
  options.kv_memory = {98 << 20};
  const WorkerMemory shm{
      .shared = SharedMemory{.total_bytes = (98 + 64) << 20, .free_bytes = (98 + 64) << 20},
      .device = {}};
  const auto sizes = SizeWorker(options, model, kMachine, shm);
  EXPECT_TRUE(sizes.ok()) << sizes.status();
}

// A sequence fits into all of /dev/shm, and not into the part of one of two workers.
TEST(WorkerSizesTest, WhereSharedMemoryHasNoMoreNobodyIsToldToRaiseThePool) {
  SizeOptions options;
  options.machine_share = 2;
  options.kv_memory = {100 << 20};
  WorkerMemory shm{.shared = SharedMemory{.total_bytes = kGiB, .free_bytes = kGiB}, .device = {}};
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, shm).status()),
              HasSubstr("; lower --max-model-len to 1600, make /dev/shm larger"));
  shm.shared = {.total_bytes = 2 * kGiB, .free_bytes = 2 * kGiB};
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, shm).status()),
              HasSubstr("; raise --kv-memory or lower --max-model-len to 1600, or run fewer"));
}

TEST(WorkerSizesTest, WhereThePoolHasNoBlockNoLengthFits) {
  SizeOptions options;
  options.kv_memory = {kModel.block_bytes - 1};
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, {}).status()),
              HasSubstr("; raise --kv-memory ("));
}

TEST(WorkerSizesTest, CoresAreEverybodysAndPrefillLetsOthersGoFirst) {
  SizeOptions options;
  EXPECT_EQ(NumThreads(options, kMachine), 6);
  for (const char* role : {"hybrid", "prefill", "decode"}) {
    options.role = role;
    options.machine_share = 1;
    EXPECT_EQ(Niceness(options), 0) << role;
    options.machine_share = 3;
    EXPECT_EQ(Niceness(options), options.role == "prefill" ? 8 : 0) << role;
    EXPECT_EQ(NumThreads(options, kMachine), 6) << role;
  }
  options.threads = 5;
  EXPECT_EQ(NumThreads(options, kMachine), 5);
}

TEST(WorkerSizesTest, ContextBeyondTheModelIsRefused) {
  SizeOptions options;
  options.max_model_len = 8193;
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, {}).status()), HasSubstr("8192"));
  options.max_model_len = 8192;
  EXPECT_TRUE(SizeWorker(options, kModel, kMachine, {}).ok());
}

TEST(WorkerSizesTest, ContextWithoutRoomForATokenAfterThePromptIsRefused) {
  SizeOptions options;
  options.max_model_len = 1;
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, {}).status()),
              HasSubstr("--max-model-len: 1, want at least 2"));
  options.max_model_len = 2;
  EXPECT_TRUE(SizeWorker(options, kModel, kMachine, {}).ok());
}

TEST(WorkerSizesTest, StepBudgetBelowTheBatchIsRefused) {
  SizeOptions options;
  options.max_num_seqs = 64;
  for (const int32_t tokens : {63, 64}) {  // A step would compute no prompt of these.
    options.max_batched_tokens = tokens;
    EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, {}).status()),
                HasSubstr("--max-batched-tokens"));
  }
  options.max_batched_tokens = 65;
  EXPECT_TRUE(SizeWorker(options, kModel, kMachine, {}).ok());
}

// 1 GiB of weights, one for CUDA; the machine's own memory, and its cgroup's, is another matter.
class DeviceSizesTest : public testing::Test {
 protected:
  absl::StatusOr<WorkerSizes> Sizes(int64_t free_bytes) const {
    return SizeWorker(options_, kModel, kMachine,
                      {.shared = {},
                       .device = DeviceMemory{.total_bytes = 80 * kGiB, .free_bytes = free_bytes},
                       .transport_bytes = transport_bytes_,
                       .transport_owner = "slots",
                       .pinned_bytes = pinned_bytes_});
  }

  SizeOptions options_;
  int64_t transport_bytes_ = 0, pinned_bytes_ = 0;
};

TEST_F(DeviceSizesTest, APoolIsAllThatUtilizationLeaves) {
  EXPECT_EQ(Sizes(79 * kGiB)->kv.num_blocks, (72 - 2) << 10);
  options_.gpu_memory_utilization = 0.5;
  EXPECT_EQ(Sizes(79 * kGiB)->kv.num_blocks, (40 - 2) << 10);
  options_.machine_share = 2;
  EXPECT_EQ(Sizes(79 * kGiB)->kv.num_blocks, (20 - 2) << 10) << "each has weights of its own";
  options_.machine_share = 7;
  options_.gpu_share = 2;
  EXPECT_EQ(Sizes(79 * kGiB)->kv.num_blocks, (20 - 2) << 10) << "others have other GPUs";
  options_.kv_memory = {18 * kGiB};
  EXPECT_EQ(Sizes(79 * kGiB)->kv.num_blocks, 18 << 10);
  options_.kv_memory = {18 * kGiB + 1};
  EXPECT_THAT(
      Message(Sizes(79 * kGiB).status()),
      HasSubstr("18432 MiB are left: of the 40.00 GiB that --gpu-memory-utilization 0.5 "
                "allows of the GPU's 80.00 GiB, weights take 1.00 GiB in each of 2 workers"));
}

TEST_F(DeviceSizesTest, WhatATransportTakesIsNamedAndNotKvs) {
  transport_bytes_ = 369 << 20;
  pinned_bytes_ = 8 << 20;
  EXPECT_EQ(Sizes(79 * kGiB)->kv.num_blocks, ((72 - 2) << 10) - 369);
  const char kBill[] =
      "computing 512 tokens in a step 0 B, slots 369.00 MiB and "
      "CUDA and its workspaces 1.00 GiB (and of the host's, pinned for blocks on their way, 8.00 "
      "MiB)";
  EXPECT_THAT(Sizes(79 * kGiB)->memory,
              testing::AllOf(HasSubstr(kBill), HasSubstr("; KV has 69.64 GiB")));
  options_.kv_memory = {70 * kGiB};
  EXPECT_THAT(Message(Sizes(79 * kGiB).status()), HasSubstr(kBill));
}

TEST_F(DeviceSizesTest, WhatOthersHoldIsNotToBeHad) {
  constexpr int64_t kHalf = kGiB / 2;
  EXPECT_TRUE(Sizes(72 * kGiB - kHalf).ok()) << "CUDA has begun to take its part";
  EXPECT_THAT(Message(Sizes(72 * kGiB - kHalf - 1).status()),
              HasSubstr("--gpu-memory-utilization: 0.9 of the GPU's 80.00 GiB are 72.00 GiB, but "
                        "only 73215 MiB are free: end what holds the rest, or lower it to 0.89"));
}

TEST_F(DeviceSizesTest, WeightsThatLeaveNothingAreNamed) {
  options_.gpu_memory_utilization = 0.02;
  EXPECT_THAT(Message(Sizes(79 * kGiB).status()),
              testing::AllOf(StartsWith("--model: no memory is left for KV"),
                             HasSubstr("CUDA and its workspaces 1.00 GiB"),
                             HasSubstr("are missing: raise --gpu-memory-utilization")));
}

}  // namespace
}  // namespace tandem
