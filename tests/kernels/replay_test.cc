// Backend::Replay: what is enqueued again does what was enqueued, on what its memory holds by then.

#include <numeric>

#include "tests/kernels/float_buffers.h"
#include "tests/kernels/kernel_test_support.h"

#if defined(TANDEM_EMULATED)
#include "kernels/cuda/emulated/cuda_runtime.h"
#endif

namespace tandem {
namespace {

class ReplayTest : public FloatBuffers<testing::TestWithParam<std::string>> {
 protected:
  void SetUp() override {
    backend_ = MakeBackend(GetParam());
    if (backend_ == nullptr) GTEST_SKIP() << GetParam() << " is not on this machine";
  }

  absl::Status ReplayAdd(int64_t key, const DeviceBuffer& accumulator, const DeviceBuffer& addend) {
    return backend_->Replay(std::vector<int64_t>{7, key}, [&] {
      ++num_calls_;
      return Add(accumulator, addend);
    });
  }

  int num_calls_ = 0;  // of what Replay was given
};

TEST_P(ReplayTest, TheSameOperationsReadWhatIsThereByThen) {
  const DeviceBuffer sum = Upload({0, 0}), one = Upload({1, 2}), other = Upload({100, 200});
  for (int i = 1; i <= 5; ++i) ASSERT_OK(ReplayAdd(0, sum, one));
  EXPECT_EQ(Download(sum), std::vector<float>({5, 10}));
  for (int i = 1; i <= 3; ++i) ASSERT_OK(ReplayAdd(1, sum, other));
  EXPECT_EQ(Download(sum), std::vector<float>({305, 610}));
  Upload(one, {-1, -2});
  ASSERT_OK(ReplayAdd(0, sum, one));
  ASSERT_OK(ReplayAdd(1, sum, other));
  EXPECT_EQ(Download(sum), std::vector<float>({404, 808}));
  const std::string device = GetParam();
  EXPECT_EQ(num_calls_, device == "cuda" ? 4 : device == "fenced" ? 2 : 10);  // Twice each; once.
}

// Scratch memory that grows in between is elsewhere by then.
TEST_P(ReplayTest, ABiggerLayerInBetweenDisturbsNothing) {
  const LinearSpec spec{.in_features = 1024,
                        .out_features = 24,
                        .weight_type = WeightType::kF32,
                        .compute_dtype = DType::kF32,
                        .output_dtype = DType::kF32,
                        .segmented = true};
  const std::vector<float> weights(1024 * 24, 0.5f);
  const auto format = backend_->GetPackedFormat(spec);
  ASSERT_TRUE(format.ok()) << format.status();
  std::vector<std::byte> host(format->size_bytes + 64);
  std::byte* const aligned = host.data() + 64 - reinterpret_cast<uintptr_t>(host.data()) % 64;
  const std::span<std::byte> packed(aligned, format->size_bytes);
  const WeightPart part{.data = weights.data(), .out_features = 24, .dtype = DType::kF32};
  ASSERT_OK(backend_->PackLinear(spec, {&part, 1}, packed));
  const auto placed = backend_->PlaceWeights(packed);
  ASSERT_TRUE(placed.ok()) << placed.status();
  const auto op = backend_->PrepareLinear(spec, placed->data(), packed.size());
  ASSERT_TRUE(op.ok()) << op.status();
  constexpr int64_t kMany = 300;
  const DeviceBuffer input = Upload(std::vector<float>(1024 * kMany, 1.0f));
  const DeviceBuffer output = Upload(std::vector<float>(24 * kMany));
  const auto linear = [&](int64_t rows) {
    return backend_->Linear(
        {.op = op->get(), .input = input.data(), .output = output.data(), .num_rows = rows});
  };
  for (const int64_t rows : std::vector<int64_t>{1, 1, kMany, 1, 1, 1}) {
    Upload(output, std::vector<float>(24 * kMany));
    if (rows == kMany) {
      ASSERT_OK(linear(rows));
    } else {
      ASSERT_OK(backend_->Replay(std::vector<int64_t>{1}, [&] { return linear(1); }));
    }
    const std::vector<float> values = Download(output);
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0.0f),
              512.0f * 24 * static_cast<float>(rows));
  }
}

TEST_P(ReplayTest, NothingIsKeptBeyondAFree) {
  const DeviceBuffer sum = Upload({0});
  for (const float value : {1.0f, 10.0f, 100.0f}) {
    const DeviceBuffer addend = Upload({value});
    const int calls = num_calls_;
    for (int i = 0; i < 3; ++i) ASSERT_OK(ReplayAdd(0, sum, addend));
    EXPECT_GT(num_calls_, calls);
  }
  EXPECT_EQ(Download(sum), std::vector<float>({333}));
}

TEST_P(ReplayTest, WhatFailsIsNotKept) {
  const DeviceBuffer sum = Upload({0}), one = Upload({1});
  const auto fail = [&] {
    return backend_->Replay(std::vector<int64_t>{3}, [&] {
      const absl::Status added = Add(sum, one);
      return added.ok() ? absl::InternalError("no") : added;
    });
  };
  const auto replay = [&] {
    return backend_->Replay(std::vector<int64_t>{3}, [&] { return Add(sum, one); });
  };
  EXPECT_EQ(fail().message(), "no");
  ASSERT_OK(replay());
  if (GetParam() == "cuda") {
    EXPECT_EQ(fail().message(), "no");  // while it is captured
  }
  Upload(sum, {0});
  for (int i = 0; i < 3; ++i) ASSERT_OK(replay());
  EXPECT_EQ(Download(sum), std::vector<float>({3}));
}

#if defined(TANDEM_EMULATED)
class EmulatedReplayTest : public ReplayTest {};

// A call of the runtime fails once, wherever: that is an error, and what comes after is right.
TEST_P(EmulatedReplayTest, AnyCallOfTheRuntimeMayFail) {
  for (int call = 1; call <= 6; ++call) {
    const DeviceBuffer sum = Upload({0}), one = Upload({1});
    emulated::FailCall(call, cudaErrorInvalidDevice);
    int failed = 0;
    for (int i = 0; i < 3; ++i) failed += ReplayAdd(call, sum, one).ok() ? 0 : 1;
    emulated::FailCall(0, cudaSuccess);
    EXPECT_EQ(failed, 1) << call;
    ASSERT_OK(ReplayAdd(call, sum, one));
    EXPECT_EQ(Download(sum), std::vector<float>({3})) << call;
  }
}

// A graph is what a step can do without: where memory lacks for one, it is enqueued.
TEST_P(EmulatedReplayTest, WithoutMemoryForAGraphOperationsAreEnqueued) {
  for (const int call : {1, 3, 4, 5}) {  // Begin of the capture, its end, making and launching it.
    const DeviceBuffer sum = Upload({0}), one = Upload({1});
    ASSERT_OK(ReplayAdd(call, sum, one));
    emulated::FailCall(call, cudaErrorMemoryAllocation);
    for (int i = 0; i < 3; ++i) ASSERT_OK(ReplayAdd(call, sum, one));
    EXPECT_NE(emulated::FailedCall(), "");
    EXPECT_EQ(Download(sum), std::vector<float>({4})) << call;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, EmulatedReplayTest, testing::Values("cuda"), DeviceName);
#endif

INSTANTIATE_TEST_SUITE_P(All, ReplayTest,
                         testing::Values("reference", "cpu-generic", "fenced"
#if defined(TANDEM_CUDA) || defined(TANDEM_EMULATED)
                                         ,
                                         "cuda"
#endif
                                         ),
                         DeviceName);

}  // namespace
}  // namespace tandem
