// Calls of the CUDA runtime that fail, one after the other, over all that a worker does with a GPU:
// its start, steps, checksums and copies of blocks. On an emulated one (kernels/cuda/emulated).

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulated/cuda_runtime.h"
#include "kernels/support/host_args.h"
#include "runtime/base/status_macros.h"
#include "runtime/execution/model_executor.h"
#include "runtime/model/model.h"
#include "runtime/transport/stream/staging_buffers.h"
#include "tests/support/model_format.h"
#include "tests/support/test_backend.h"

namespace tandem {
namespace {

constexpr int32_t kBlocks = 16;
constexpr int32_t kPromptTokens = 6;
constexpr int32_t kVocabulary = 96;

// All of a worker that its GPU has a part in, in the order of its start.
struct Parts {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  DeviceBuffer pool;
  std::unique_ptr<DeviceCopier> copier;
  std::unique_ptr<StagingBuffers> staging;
  std::unique_ptr<ModelExecutor> executor;
};

absl::StatusOr<Parts> Start() {
  Parts parts;
  TANDEM_ASSIGN_OR_RETURN(parts.backend, CreateCudaBackend("fma"));
  TANDEM_RETURN_IF_ERROR(parts.backend->MeasureMemory().status());
  TANDEM_ASSIGN_OR_RETURN(
      parts.model,
      Model::Load(InFormat(TANDEM_TEST_DATA "/tiny_models/llama_mqa_head256_buffers", "bf16"),
                  parts.backend.get()));
  TANDEM_ASSIGN_OR_RETURN(
      const KvLayout layout,
      KvLayout::Make(parts.model->config(), *parts.backend, parts.model->types(), 16));
  const size_t pool_bytes = layout.block_bytes * kBlocks;
  TANDEM_ASSIGN_OR_RETURN(parts.pool, parts.backend->AllocatePool(pool_bytes, {}));
  TANDEM_ASSIGN_OR_RETURN(parts.copier, parts.backend->CreateCopier());
  TANDEM_ASSIGN_OR_RETURN(parts.staging,
                          StagingBuffers::Create(parts.copier.get(), layout.block_bytes));
  TANDEM_ASSIGN_OR_RETURN(
      parts.executor,
      ModelExecutor::Create(
          {.num_blocks = kBlocks,
           .max_sequences = 4,
           .max_batched_tokens = 64,
           .max_model_tokens = 64},
          parts.model.get(), parts.backend.get(),
          {.base = OnHost(parts.pool.data()), .bytes = pool_bytes, .kind = MemoryKind::kDevice}));
  return parts;
}

// What a worker does, over and over: each piece can be done again, and gives the same.
class Script {
 public:
  explicit Script(Parts* parts) : parts_(*parts), bytes_(parts->executor->block_bytes()) {
    for (int32_t i = 0; i < kPromptTokens; ++i) tokens_.push_back((5 + 7 * i) % kVocabulary);
    drawn_.num_logprobs = 2;
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * 31 % 251);
  }

  static constexpr int kPieces = 8;
  // Says what it gave, in words.
  absl::StatusOr<std::string> Do(int piece) {
    switch (piece) {
      case 0:  // A prompt, and a block that is copied.
        return Step(0, kPromptTokens, {{{.source = 5, .destination = 6}}});
      case 1:  // A token: enqueued, then captured on its way, then replayed.
      case 2:
      case 3:
        return Step(kPromptTokens - 1, kPromptTokens, {});
      case 4: {
        uint32_t checksums[2] = {};
        const BlockId blocks[] = {kTable[0], kTable[1]};
        TANDEM_RETURN_IF_ERROR(parts_.executor->BlockChecksums(blocks, checksums));
        return std::to_string(checksums[0]) + " " + std::to_string(checksums[1]);
      }
      case 5:
        return Sum(parts_.copier->Upload(Block(9), bytes_.data(), bytes_.size()));
      case 6:
        return Sum(parts_.copier->CopyWithin(Block(10), Block(9), bytes_.size()));
      default: {
        std::vector<std::byte> back(bytes_.size());
        TANDEM_RETURN_IF_ERROR(parts_.copier->Download(back.data(), Block(10), back.size()));
        return back == bytes_ ? "the same" : "others";
      }
    }
  }

 private:
  static constexpr BlockId kTable[] = {3, 1};

  std::byte* Block(BlockId block) { return OnHost(parts_.executor->BlockAddress(block)); }
  static absl::StatusOr<std::string> Sum(const absl::StatusOr<uint32_t>& crc32c) {
    TANDEM_RETURN_IF_ERROR(crc32c.status());
    return std::to_string(*crc32c);
  }
  absl::StatusOr<std::string> Step(int32_t first, int32_t end, std::vector<BlockCopy> copies) {
    const Draw draw{.sampling = &drawn_, .prompt_tokens = kPromptTokens};
    const std::vector<SequenceRun> runs = {
        {.token_ids = std::span<const int32_t>(tokens_).subspan(first, end - first),
         .first_position = first,
         .block_table = kTable,
         .draws = {&draw, 1}}};
    StepOutput output;
    TANDEM_RETURN_IF_ERROR(parts_.executor->Execute({.copies = copies, .runs = runs}, &output));
    TANDEM_RETURN_IF_ERROR(output.runs[0].status);
    const SampledToken& token = output.runs[0].drawn.at(0);
    return std::to_string(token.token) + " " + std::to_string(token.logprob) + " " +
           std::to_string(token.top.at(1).token);
  }

  Parts& parts_;
  std::vector<int32_t> tokens_;
  SamplingParams drawn_;
  std::vector<std::byte> bytes_;
};

// What the runtime was asked, as a message has it.
std::string DoingOf(const std::string& call) {
  if (call == "cudaMalloc" || call == "cudaMallocHost") return "allocating";
  if (call == "cudaStreamCreateWithPriority" || call == "cudaEventCreateWithFlags")
    return "creating";
  if (call == "cudaEventRecord") return "recording an event";
  if (call == "cudaStreamSynchronize" || call == "cudaEventSynchronize") return "waiting for";
  if (call == "cudaStreamBeginCapture" || call == "cudaStreamEndCapture") return "capturing";
  if (call == "cudaGraphInstantiate") return "instantiating";
  if (call == "cudaGraphLaunch") return "launching a graph";
  if (call == "cudaMemGetInfo") return "measuring device memory";
  if (call == "cudaGetDeviceProperties") {
    return "no GPU can be used";
  }
  return "ing ";  // Enqueueing, copying, summing.
}

// Nobody has to be told: who waits for a point that was not recorded waits for all, and memory is
// given back after a wait that has failed, too.
bool CanBeDoneWithout(const std::string& call) {
  return call == "cudaEventCreateWithFlags" || call == "cudaEventRecord" ||
         call == "cudaStreamSynchronize";
}

class EmulatedFaultsTest : public testing::TestWithParam<cudaError_t> {
 protected:
  void SetUp() override {
    if (!CreateTestBackend({.device = kEmulatedDevice}).ok()) {
      GTEST_SKIP() << "this machine lacks AVX2 or FMA";
    }
    objects_ = emulated::NumObjects();
  }
  void TearDown() override {
    emulated::FailCall(0, cudaSuccess);
    EXPECT_EQ(emulated::NumObjects(), objects_) << "not given back";
  }
  // An error that says what failed, and why.
  void ExpectNamed(const absl::Status& status, int call) const {
    const std::string name = emulated::FailedCall(), said(status.message());
    EXPECT_NE(said.find(DoingOf(name)), std::string::npos) << call << ", " << name << ": " << said;
    EXPECT_NE(said.find(cudaGetErrorString(GetParam())), std::string::npos) << said;
    // FailedPrecondition: another backend may do.
    if (DoingOf(name) == "no GPU can be used") return;
    EXPECT_EQ(absl::IsResourceExhausted(status), GetParam() == cudaErrorMemoryAllocation) << status;
  }

  int64_t objects_ = 0;
};

TEST_P(EmulatedFaultsTest, AStartIsRefusedAtAnyCallAndKeepsNothing) {
  int call = 1, refusals = 0;
  while (true) {
    emulated::FailCall(call, GetParam());
    {
      const auto parts = Start();
      if (emulated::FailedCall().empty()) {
        ASSERT_TRUE(parts.ok()) << parts.status();
        break;
      }
      if (parts.ok()) {
        EXPECT_TRUE(CanBeDoneWithout(emulated::FailedCall()))
            << "call " << call << ", " << emulated::FailedCall();
      } else {
        ++refusals;
        ExpectNamed(parts.status(), call);
      }
    }
    ASSERT_EQ(emulated::NumObjects(), objects_) << "call " << call;
    ++call;
  }
  std::printf("%d of %d calls of a start refuse it\n", refusals, call - 1);
  EXPECT_GT(refusals, 20);
}

TEST_P(EmulatedFaultsTest, WorkFailsAtAnyCallAndIsRightTheNextTime) {
  std::vector<std::string> want;
  {
    auto parts = Start();
    ASSERT_TRUE(parts.ok()) << parts.status();
    Script script(&*parts);
    for (int piece = 0; piece < Script::kPieces; ++piece) {
      const auto gave = script.Do(piece);
      ASSERT_TRUE(gave.ok()) << piece << ": " << gave.status();
      want.push_back(*gave);
    }
  }
  std::optional<Parts> parts = *Start();
  Script script(&*parts);
  int errors = 0, calls = 0;
  int64_t held = 0;  // Once all that grows has grown.
  for (int piece = 0; piece < Script::kPieces; ++piece) {
    for (int call = 1; true; ++call) {
      if (piece < 2) {  // What grows has not grown yet.
        parts.reset();
        parts.emplace(*Start());
        if (piece == 1) {
          ASSERT_TRUE(script.Do(0).ok());
        }
      }
      // Without graphs, as whoever frees memory begins again; then with those that are there by
      // then.
      ASSERT_TRUE(parts->backend->Allocate(1).ok());
      for (int before = 1; before < piece && piece <= 3; ++before) {
        ASSERT_TRUE(script.Do(before).ok());
      }
      emulated::FailCall(call, GetParam());
      absl::StatusOr<std::string> gave = script.Do(piece);
      const bool failed = !emulated::FailedCall().empty();
      if (!gave.ok()) {
        ++errors;
        ExpectNamed(gave.status(), call);
        gave = script.Do(piece);
      }
      if (!failed) emulated::FailCall(0, cudaSuccess);
      ASSERT_TRUE(gave.ok()) << "piece " << piece << ", call " << call << ": " << gave.status();
      ASSERT_EQ(*gave, want[piece]) << "piece " << piece << ", call " << call;
      if (!failed) break;
      ++calls;
    }
    if (piece == 0) held = emulated::NumObjects();
  }
  std::printf("%d of %d calls of work are errors\n", errors, calls);
  EXPECT_GT(errors, 80);
  // Graphs, the copier's checksum, and an event or two of steps that failed.
  EXPECT_LE(emulated::NumObjects(), held + 8) << "pieces of memory, after " << errors << " errors";
}

INSTANTIATE_TEST_SUITE_P(Errors, EmulatedFaultsTest,
                         testing::Values(cudaErrorInvalidDevice, cudaErrorMemoryAllocation),
                         [](const auto& test) { return cudaGetErrorName(test.param); });

// A kernel's own error stays: the first step says that the device is lost, and every one fails from
// then on.
TEST(EmulatedStickyTest, AfterAKernelHasFailedEveryStepFails) {
  constexpr int kStepsAfter = 4;  // Each piece of the script.
  int sticky = 0;
  for (int call = 1; true; ++call) {
    auto parts = Start();
    if (!parts.ok()) GTEST_SKIP() << parts.status();
    Script script(&*parts);
    emulated::FailCall(call, cudaErrorLaunchFailure);
    const absl::Status first = script.Do(0).status();
    const std::string name = emulated::FailedCall();
    emulated::FailCall(0, cudaSuccess);
    if (name.empty()) break;
    if (name != "a kernel's launch" && name != "cudaMemcpyAsync") continue;
    ++sticky;
    EXPECT_TRUE(absl::IsDataLoss(first)) << first;
    for (int step = 1; step <= kStepsAfter; ++step) {
      const absl::Status failed = script.Do(step % 4).status();
      EXPECT_NE(failed.ToString().find("unspecified launch failure"), std::string::npos)
          << call << ", " << name << ", step " << step << ": " << failed;
    }
  }
  EXPECT_GT(sticky, 20);
}

}  // namespace
}  // namespace tandem
