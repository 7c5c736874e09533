#include "services/worker/worker_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/create_backend.h"
#include "runtime/execution/model_executor.h"
#include "runtime/model/packed_image.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

class WorkerPlanTest : public testing::Test {
 protected:
  WorkerPlanTest() {
    options_.model = TANDEM_TEST_DATA "/demo_model";
    options_.transport = "grpc";
    options_.cache_dir = "/the/cache";
  }
  absl::StatusOr<WorkerPlan> Plan() const {
    return PlanWorker(options_, {.cores = 2, .memory_bytes = 1024 * kGiB}, *backend_);
  }
  std::string Refusal() const { return std::string(Plan().status().message()); }

  const std::unique_ptr<Backend> backend_ =
      *CreateBackend({.device = "cpu", .isa = "auto", .num_threads = 1});
  SizeOptions options_;
};

TEST_F(WorkerPlanTest, AWorkerLoadsWhatItsFlagsName) {
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->model_options.folder, options_.model);
  EXPECT_EQ(plan->model_options.cache_dir, "/the/cache");
  EXPECT_EQ(plan->model_options.load_format, LoadFormat::kSafetensors);
  options_.load_format = "dummy";
  options_.cache_dir.clear();
  EXPECT_EQ(Plan()->model_options.load_format, LoadFormat::kDummy);
  EXPECT_EQ(Plan()->model_options.cache_dir, DefaultCacheDir());
  options_.dtype = "f32";
  EXPECT_EQ(Plan()->model_options.dtype, "f32");
  options_.weights = "int8";
  options_.output_weights = "dtype";
  options_.int8_outliers = 6;
  options_.kv_dtype = "int8g8";
  EXPECT_EQ(Plan()->model.types.weights, WeightType::kInt8);
  EXPECT_TRUE(Plan()->model.types.output_is_plain);
  EXPECT_EQ(Plan()->model.types.int8_outliers, 6.0f);
  EXPECT_EQ(Plan()->model.types.kv, KvType::kInt8G8);
}

TEST_F(WorkerPlanTest, ItsSizesAreThoseOfItsModel) {
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->sizes.max_model_tokens, plan->model.config.max_positions);
  EXPECT_EQ(plan->sizes.kv.block_bytes, static_cast<int64_t>(plan->layout.block_bytes));
  EXPECT_EQ(plan->sizes.kv.block_tokens, 16);
  options_.block_size = 32;
  EXPECT_GT(Plan()->sizes.kv.block_bytes, plan->sizes.kv.block_bytes);

  options_.kv_memory = {2048 * kGiB};
  options_.machine_share = 2;
  EXPECT_THAT(
      Refusal(),
      HasSubstr("weights take " +
                FormatByteSize(static_cast<int64_t>(plan->model.weights.packed_bytes)) + " once"));
  const ModelConfig& config = plan->model.config;
  const auto compute = plan->model.types.compute;
  EXPECT_THAT(Refusal(),
              HasSubstr("computing 512 tokens in a step " +
                        FormatByteSize(ModelExecutor::LogitScratchBytes(config, compute) +
                                       512 * ModelExecutor::TokenScratchBytes(config, compute))));
}

TEST_F(WorkerPlanTest, WhatMovesBlocksIsWhatReachesThePool) {
  EXPECT_EQ(Plan()->transport, "grpc");
  options_.kv_memory = {64 << 20};
  for (const char* const transport : {"ucx", "auto"}) {
    options_.transport = transport;
    EXPECT_EQ(Plan()->transport, "ucx") << Plan().status();
  }
  const auto device = *CreateBackend({.device = "fenced_pool"});
  const auto plan_on_device = [&] {
    return PlanWorker(options_, {.cores = 2, .memory_bytes = 1024 * kGiB}, *device);
  };
  EXPECT_EQ(plan_on_device()->transport, "grpc");
  options_.transport = "ucx";  // To whom it may say no (CheckUcxMemory).
  EXPECT_EQ(plan_on_device()->transport, "ucx");
  // What blocks pass through on their way.
  const int64_t block_bytes = Plan()->sizes.kv.block_bytes;
  options_.transport = "grpc";
  EXPECT_EQ(Plan()->memory.pinned_bytes, 0);
  EXPECT_EQ(plan_on_device()->memory.pinned_bytes, 8 * block_bytes);
  EXPECT_EQ(plan_on_device()->memory.transport_bytes, 0);
  options_.transport = "nccl";
  EXPECT_EQ(plan_on_device()->memory.pinned_bytes, 0);
  EXPECT_EQ(plan_on_device()->memory.transport_bytes,
            (2 * 16 + 2) * block_bytes + ((8 * 37) << 20));
  EXPECT_EQ(plan_on_device()->memory.transport_owner, "NCCL's slots and communicators of 8 links");
  options_.gpu_share = 2;
  EXPECT_THAT(std::string(plan_on_device().status().message()),
              HasSubstr("2 workers share this one (--gpu-share)"));
  options_.gpu_share = 0;
  options_.transport = "ucx";
  EXPECT_EQ(plan_on_device()->memory.pinned_bytes, 0);
  EXPECT_EQ(plan_on_device()->memory.transport_bytes, (2 + 8 * 2) * block_bytes);
  EXPECT_EQ(plan_on_device()->memory.transport_owner, "UCX's slots for 8 links");
  EXPECT_FALSE(plan_on_device()->memory.shared.has_value());  // Nothing of it lies there.
  EXPECT_EQ(Plan()->memory.transport_bytes, 0);
}

// The pool of the other transport is nowhere but in the process's own memory.
TEST_F(WorkerPlanTest, SharedMemoryIsMeasuredWhereThePoolIsThere) {
  options_.kv_memory = {900 * kGiB};
  EXPECT_TRUE(Plan().ok()) << Plan().status();
  options_.transport = "ucx";
  EXPECT_THAT(Refusal(), HasSubstr("the ucx transport keeps its pools in /dev/shm"));
}

TEST_F(WorkerPlanTest, NcclMovesNoMemoryOfTheHosts) {
  options_.transport = "nccl";
  EXPECT_THAT(Refusal(), HasSubstr("nccl moves a GPU's memory"));
}

}  // namespace
}  // namespace tandem
