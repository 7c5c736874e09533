#include "services/worker/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr ModelFacts kModel = {
    .max_positions = 8192, .weights_bytes = kGiB, .block_bytes = 1 << 20};
constexpr MachineLimits kMachine = {.cpus = 6, .memory_bytes = 9 * kGiB};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(WorkerOptionsTest, DefaultsComeFromMachineAndModel) {
  const auto sizes = SizeWorker({}, kModel, kMachine, std::nullopt);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->max_model_tokens, 8192);
  // Half of 8 GiB, less 256 MiB of --memory-limit and the reserve.
  EXPECT_EQ(sizes->num_blocks, 4096 - 128 - 32);
  EXPECT_GE(sizes->max_batched_tokens, sizes->max_sequences);
}

TEST(WorkerOptionsTest, FlagsWin) {
  WorkerOptions options;
  options.max_model_len = 512;
  options.max_num_seqs = 3;
  options.max_batched_tokens = 100;
  options.kv_memory = {100 << 20};
  const auto sizes = SizeWorker(options, kModel, kMachine, std::nullopt);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->max_model_tokens, 512);
  EXPECT_EQ(sizes->max_sequences, 3);
  EXPECT_EQ(sizes->max_batched_tokens, 100);
  EXPECT_EQ(sizes->num_blocks, 100);
}

TEST(WorkerOptionsTest, PoolTooSmallForOneSequenceNamesTheNumbers) {
  WorkerOptions options;
  options.kv_memory = {100 << 20};
  const auto sizes = SizeWorker(options, kModel, kMachine, std::nullopt);
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(sizes.status()), HasSubstr("100 blocks"));
  EXPECT_THAT(Message(sizes.status()), HasSubstr("512 blocks"));
  EXPECT_THAT(Message(sizes.status()), HasSubstr("8192 tokens"));
}

TEST(WorkerOptionsTest, PoolBeyondMemoryIsRefused) {
  WorkerOptions options;
  options.kv_memory = {9 * kGiB};
  const auto sizes = SizeWorker(options, kModel, kMachine, std::nullopt);
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(sizes.status()), HasSubstr("9.00 GiB"));
}

// A pool that just fits beside the weights would end in the kernel's hands, not in an error.
TEST(WorkerOptionsTest, WhatTheProcessTakesBesideThePoolIsLeftToIt) {
  ModelFacts model = kModel;
  model.token_scratch_bytes = 1 << 20;
  model.logit_scratch_bytes = 100 << 20;
  WorkerOptions options;
  options.memory_limit = {300 << 20};
  options.max_batched_tokens = 200;
  const int64_t own_bytes = int64_t{300 + 100 + 200 + 64} << 20;
  options.kv_memory = {8 * kGiB - own_bytes};
  const auto fits = SizeWorker(options, model, kMachine, std::nullopt);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->num_blocks * model.block_bytes, options.kv_memory.bytes);
  options.kv_memory.bytes += 1;
  const std::string refused = Message(SizeWorker(options, model, kMachine, std::nullopt).status());
  for (const char* part : {"--kv-memory", "weights of 1.00 GiB", "--memory-limit of 300.00 MiB",
                           "300.00 MiB to compute 200 tokens", "reserve of 64.00 MiB",
                           "leave 7.35 GiB of the 9.00 GiB"}) {
    EXPECT_THAT(refused, HasSubstr(part));
  }
  options.kv_memory = {0};
  const auto half = SizeWorker(options, model, kMachine, std::nullopt);
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(half->num_blocks, (8192 - 664) / 2);
  options.memory_limit = {9 * kGiB};
  EXPECT_THAT(Message(SizeWorker(options, model, kMachine, std::nullopt).status()),
              HasSubstr("--memory-limit of 9.00 GiB"));
}

TEST(WorkerOptionsTest, WeightsBeyondMemoryAreRefused) {
  ModelFacts model = kModel;
  model.weights_bytes = 10 * kGiB;
  EXPECT_EQ(SizeWorker({}, model, kMachine, std::nullopt).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(WorkerOptionsTest, PoolBeyondSharedMemoryIsRefused) {
  WorkerOptions options;
  options.kv_memory = {kGiB};
  const SharedMemory shm{.total_bytes = 3 * kGiB, .free_bytes = kGiB};
  const auto sizes = SizeWorker(options, kModel, kMachine, shm);
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(sizes.status()), HasSubstr("/dev/shm"));
}

TEST(WorkerOptionsTest, DefaultPoolStaysWithinSharedMemory) {
  const SharedMemory shm{.total_bytes = 2 * kGiB, .free_bytes = 2 * kGiB};
  const auto sizes = SizeWorker({}, kModel, kMachine, shm);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_LE(sizes->num_blocks * kModel.block_bytes, kGiB);
}

TEST(WorkerOptionsTest, DefaultPoolIsTheSameBesideOthers) {
  WorkerOptions options;
  options.machine_share = 3;
  const SharedMemory empty{.total_bytes = 8 * kGiB, .free_bytes = 8 * kGiB};
  const SharedMemory shared{.total_bytes = 8 * kGiB, .free_bytes = 3 * kGiB};
  const auto first = SizeWorker(options, kModel, kMachine, empty);
  const auto again = SizeWorker(options, kModel, kMachine, shared);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(first->num_blocks, again->num_blocks);
}

TEST(WorkerOptionsTest, SharedMemoryTooSmallForOneSequenceIsNamed) {
  const SharedMemory docker{.total_bytes = 64 << 20, .free_bytes = 64 << 20};
  const auto sizes = SizeWorker({}, kModel, kMachine, docker);
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"/dev/shm", "64.00 MiB", "--shm-size", "--transport grpc"}) {
    EXPECT_THAT(Message(sizes.status()), HasSubstr(part));
  }
}

TEST(WorkerOptionsTest, ThreadsAreDividedUnlessNamed) {
  WorkerOptions options;
  EXPECT_EQ(NumThreads(options, kMachine), 6);
  options.machine_share = 3;
  EXPECT_EQ(NumThreads(options, kMachine), 2);
  options.machine_share = 7;
  EXPECT_EQ(NumThreads(options, kMachine), 1);
  options.threads = 5;
  EXPECT_EQ(NumThreads(options, kMachine), 5);
}

TEST(WorkerOptionsTest, ContextBeyondTheModelIsRefused) {
  WorkerOptions options;
  options.max_model_len = 8193;
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, std::nullopt).status()),
              HasSubstr("8192"));
}

TEST(WorkerOptionsTest, ContextWithoutRoomForATokenAfterThePromptIsRefused) {
  WorkerOptions options;
  options.max_model_len = 1;
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, std::nullopt).status()),
              HasSubstr("--max-model-len: 1, want at least 2"));
}

TEST(WorkerOptionsTest, StepBudgetBelowTheBatchIsRefused) {
  WorkerOptions options;
  options.max_num_seqs = 64;
  options.max_batched_tokens = 63;
  EXPECT_THAT(Message(SizeWorker(options, kModel, kMachine, std::nullopt).status()),
              HasSubstr("--max-batched-tokens"));
}

TEST(WorkerOptionsTest, FlagsThatCannotBeRightAreNamed) {
  WorkerOptions good;
  good.model = "folder";
  EXPECT_TRUE(CheckWorkerOptions(good).ok());
  EXPECT_THAT(Message(CheckWorkerOptions({})), HasSubstr("--model"));
  WorkerOptions block = good;
  block.block_size = 24;
  EXPECT_THAT(Message(CheckWorkerOptions(block)), HasSubstr("24"));
  WorkerOptions address = good;
  for (const char* listen : {"nowhere", "127.0.0.1:", "127.0.0.1:99999", ":7000"}) {
    address.listen = listen;
    EXPECT_THAT(Message(CheckWorkerOptions(address)), HasSubstr("--listen")) << listen;
  }
}

TEST(WorkerOptionsTest, PublicAddressNeedsTheOperatorsWord) {
  WorkerOptions options;
  options.model = "folder";
  options.listen = "0.0.0.0:7000";
  const absl::Status refused = CheckWorkerOptions(options);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused), HasSubstr("--listen"));
  EXPECT_THAT(Message(refused), HasSubstr("--fleet-tls-cert"));
  WorkerOptions secure = options;
  secure.fleet.tls.certificate = secure.fleet.tls.key = secure.fleet.tls.authorities = "file";
  EXPECT_TRUE(CheckWorkerOptions(secure).ok());
  options.insecure_public_listen = true;
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
}

TEST(WorkerOptionsTest, ProbesAndMetricsMayBeAtAnyAddress) {
  WorkerOptions options;
  options.model = "folder";
  options.admin = "[::]:7001";
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  EXPECT_EQ((*AdminAddress(options))->ToString(), "[::]:7001");
  options.admin = "nowhere";
  EXPECT_THAT(Message(CheckWorkerOptions(options)), HasSubstr("--admin"));
}

TEST(WorkerOptionsTest, FleetTlsNeedsItsThreeFiles) {
  WorkerOptions options;
  options.model = "folder";
  for (std::string FleetTlsFlags::*const flag :
       {&FleetTlsFlags::certificate, &FleetTlsFlags::key, &FleetTlsFlags::authorities,
        &FleetTlsFlags::name}) {
    options.fleet.tls = {};
    options.fleet.tls.*flag = "file";
    EXPECT_THAT(Message(CheckWorkerOptions(options)), HasSubstr("--fleet-tls-ca"));
  }
}

TEST(WorkerOptionsTest, OnlyAddressesOfThisMachineAreLoopback) {
  WorkerOptions options;
  options.model = "folder";
  for (const char* listen : {"127.0.0.1:0", "127.9.8.7:7000", "localhost:7000", "[::1]:7000",
                             "[::ffff:127.0.0.1]:7000", "unix:/run/worker"}) {
    options.listen = listen;
    EXPECT_TRUE(CheckWorkerOptions(options).ok()) << listen;
  }
  for (const char* listen :
       {"127.example.org:7000", "127.0.0.1.nip.io:7000", "127.:7000", "localhost.example:7000",
        "[localhost]:7000", "[::]:7000", "[::ffff:10.0.0.1]:7000", "128.0.0.1:7000"}) {
    options.listen = listen;
    EXPECT_THAT(Message(CheckWorkerOptions(options)), HasSubstr("not loopback")) << listen;
  }
}

TEST(WorkerOptionsTest, EngineFlagsReachAWorkerAsTheyWereGiven) {
  const std::vector<std::string> given = {"--served-model-name=m", "--transport=ucx",
                                          "--kv-memory=123456",    "--max-model-len=512",
                                          "--max-num-seqs=7",      "--max-batched-tokens=99",
                                          "--block-size=32",       "--threads=3",
                                          "--dtype=bf16",          "--isa=avx2",
                                          "--load-format=dummy",   "--cache-dir=/c",
                                          "--liveness-scale=2.5"};
  WorkerOptions options;
  ASSERT_TRUE(WorkerFlags(&options).Parse(given).ok());
  EXPECT_EQ(options.Arguments(), given);
  EXPECT_EQ(options.kv_memory.bytes, 123456);
  EngineFlags untouched;
  FlagSet flags("program", "");
  untouched.Declare(&flags);
  ASSERT_TRUE(flags.Parse(EngineFlags().Arguments()).ok()) << "defaults are good values, too";
}

TEST(WorkerOptionsTest, HelpNamesEveryFlagWithItsDefault) {
  WorkerOptions options;
  const std::string help = WorkerFlags(&options).Help();
  for (const char* flag :
       {"--model", "--name", "--role", "--listen", "--transport", "--ucx-devices", "--kv-memory",
        "--max-model-len", "--max-num-seqs", "--block-size", "--threads", "--dtype", "--isa",
        "--load-format", "--cache-dir", "--served-model-name", "--liveness-scale",
        "--max-batched-tokens", "--port-file"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

TEST(WorkerOptionsTest, EndedLivesAreCheckedBeforeAnythingIsLoaded) {
  WorkerOptions options;
  options.model = "folder";
  options.ended = "5:outside,6:crash";
  EXPECT_TRUE(CheckWorkerOptions(options).ok());
  options.ended = "5:outside,6:kill";
  const absl::Status status = CheckWorkerOptions(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("--ended: \"6:kill\""));
}

}  // namespace
}  // namespace tandem
