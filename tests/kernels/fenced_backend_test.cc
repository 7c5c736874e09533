// The fenced backend catches what it is for, and what it gives is right.

#include "kernels/fenced/fenced_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/support/host_memory.h"
#include "kernels/support/staging_ring.h"
#include "runtime/base/crc32c.h"
#include "tests/kernels/float_buffers.h"
#include "tests/kernels/kernel_test_support.h"

namespace tandem {
namespace {

class FencedBackendTest : public FloatBuffers<testing::Test> {
 protected:
  FencedBackendTest() {
    backend_ = MakeBackend("fenced", /*num_threads=*/2);
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(FencedBackendTest, AHostThatFollowsAnAddressOfTheDeviceFaults) {
  const DeviceBuffer buffer = Upload({1.0f});
  EXPECT_DEATH(std::printf("%f\n", static_cast<double>(*OnHost(buffer.as<float>()))), "");
  EXPECT_DEATH(*OnHost(buffer.as<float>()) = 2.0f, "");
}

TEST_F(FencedBackendTest, AnOperationOnAnAddressOfTheHostFaults) {
  const DeviceBuffer addend = Upload({1.0f});
  float accumulator = 0.0f;
  const auto add = [&] {
    static_cast<void>(backend_->Add(
        {.accumulator = OfHost(&accumulator), .addend = addend.as<float>(), .count = 1}));
    static_cast<void>(backend_->Synchronize());
  };
  EXPECT_DEATH(add(), "");
}

TEST_F(FencedBackendTest, MemoryIsNaNsUntilItIsWritten) {
  for (const float value : Download(Allocate(1000 * sizeof(float)))) {
    ASSERT_TRUE(std::isnan(value));
  }
  const auto mirror = backend_->AllocateMirror(64);
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  for (const float value : Download(mirror->device)) ASSERT_TRUE(std::isnan(value));
  std::vector<std::byte> memory(4096 + 64);
  auto* const base = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  const auto pool = backend_->AllocatePool(4096, {.base = base, .bytes = 4096});
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(pool->data(), AcrossFence(OfHost(base)));
  for (const float value : Download(*pool)) ASSERT_TRUE(std::isnan(value));
}

TEST_F(FencedBackendTest, APoolMayLieInMemoryOfItsOwn) {
  const DeviceBuffer own = Upload(std::vector<float>(1024, 1.0f));
  const auto pool = backend_->AllocatePool(
      4096, {.base = OnHost(own.data()), .bytes = own.size_bytes(), .kind = MemoryKind::kDevice});
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(pool->data(), own.data());
  for (const float value : Download(own)) ASSERT_TRUE(std::isnan(value));
}

TEST_F(FencedBackendTest, APoolOfItsOwnHasACopierThatWaitsForNoStep) {
  EXPECT_TRUE(absl::IsFailedPrecondition(backend_->CreateCopier().status()));
  const auto far = MakeBackend("fenced_pool");
  const auto pool = far->AllocatePool(128, {});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto copier = far->CreateCopier();
  ASSERT_TRUE(copier.ok()) << copier.status();
  auto* const block = reinterpret_cast<void*>(pool->data().address() + 64);
  const std::vector<float> values(16, 2.5f);
  const auto crc32c = (*copier)->Upload(block, values.data(), 64);
  ASSERT_TRUE(crc32c.ok()) << crc32c.status();
  EXPECT_EQ(*crc32c, Crc32c(values.data(), 64));
  std::vector<float> back(32);
  const int32_t source = 1, destination = 0;
  ASSERT_OK(far->CopyBlocks({.base = pool->data(),
                             .block_stride_bytes = 64,
                             .sources = &source,
                             .destinations = &destination,
                             .count = 1}));
  ASSERT_OK((*copier)->Download(back.data(), OnHost(pool->data()), 128));
  EXPECT_TRUE(std::isnan(back[0])) << "the step was not waited for";
  EXPECT_EQ(back[16], 2.5f);
  ASSERT_OK(far->Synchronize());
  ASSERT_OK((*copier)->Download(back.data(), OnHost(pool->data()), 128));
  EXPECT_EQ(back[0], 2.5f);
  const std::vector<float> others(16, 7.5f);
  ASSERT_TRUE((*copier)->Upload(block, others.data(), 64).ok());
  const auto moved = (*copier)->CopyWithin(OnHost(pool->data()), block, 64);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(*moved, Crc32c(others.data(), 64));
  ASSERT_OK((*copier)->Download(back.data(), OnHost(pool->data()), 128));
  EXPECT_EQ(back, std::vector<float>(32, 7.5f));
}

TEST_F(FencedBackendTest, AResultIsThereOnceItWasWaitedForAndNoSooner) {
  const DeviceBuffer sum = Upload({1.0f}), addend = Upload({2.0f});
  ASSERT_OK(Add(sum, addend));
  float result = 0.0f;
  ASSERT_OK(backend_->Download(&result, sum.data(), sizeof(result)));
  EXPECT_TRUE(std::isnan(result));
  const DeviceEvent downloaded = backend_->Record();
  ASSERT_OK(Add(sum, addend));  // After the event: not waited for.
  ASSERT_OK(backend_->Wait(downloaded));
  EXPECT_EQ(result, 3.0f);
  EXPECT_EQ(Download(sum), std::vector<float>{5.0f});
}

TEST_F(FencedBackendTest, WhatIsChangedTooEarlyIsSeenChanged) {
  const DeviceBuffer buffer = Upload({1.0f});
  float value = 2.0f;
  ASSERT_OK(backend_->Upload(buffer.data(), &value, sizeof(value)));
  value = 3.0f;
  ASSERT_OK(backend_->Synchronize());
  EXPECT_EQ(Download(buffer), std::vector<float>{3.0f});
}

TEST_F(FencedBackendTest, ADrawIsThereOnceItWasWaitedForAndNoSooner) {
  const DeviceBuffer logits = Upload({1.0f, 3.0f, 2.0f});
  const SampleQuery query{.temperature = 0};
  absl::StatusOr<SampleResult> result = SampleResult{};
  ASSERT_OK(backend_->Sample({.logits = logits.as<float>(),
                              .num_rows = 1,
                              .vocabulary = 3,
                              .queries = &query,
                              .results = &result,
                              .count = 1}));
  EXPECT_TRUE(absl::IsInternal(result.status()));
  ASSERT_OK(backend_->Synchronize());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->token, 1);
}

TEST_F(FencedBackendTest, CopiesAndFreesKeepTheOrderOfTheCalls) {
  const float value = 7.0f;
  float back = 0.0f;
  {
    const DeviceBuffer buffer = Allocate(sizeof(value));
    ASSERT_OK(backend_->Upload(buffer.data(), &value, sizeof(value)));
    ASSERT_OK(backend_->Download(&back, buffer.data(), sizeof(value)));
  }
  ASSERT_OK(backend_->Synchronize());
  EXPECT_EQ(back, value);
}

TEST_F(FencedBackendTest, DiscardedBlocksAreNaNsAtOnceAndTheOthersStay) {
  std::vector<float> values(4 * 16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const DeviceBuffer pool = Upload(values);
  std::vector<float> before(values.size());
  ASSERT_OK(
      backend_->Download(before.data(), pool.data(), pool.size_bytes()));  // Reads them first.
  const std::vector<int32_t> blocks = {3, 1};
  ASSERT_OK(backend_->DiscardBlocks({.base = pool.data(),
                                     .block_stride_bytes = 16 * sizeof(float),
                                     .blocks = blocks.data(),
                                     .count = 2}));
  const float* const now = OnHost(AcrossFence(pool.as<float>()));
  for (size_t i = 0; i < values.size(); ++i) {
    const bool discarded = i / 16 == 1 || i / 16 == 3;
    EXPECT_EQ(std::isnan(now[i]), discarded) << i;
    EXPECT_TRUE(discarded || now[i] == values[i]) << i;
  }
  ASSERT_OK(backend_->Synchronize());
  EXPECT_EQ(before, values);
}

TEST_F(FencedBackendTest, ErrorsOfArgumentsComeAtOnce) {
  const DeviceBuffer sum = Upload({1.0f});
  EXPECT_TRUE(absl::IsInvalidArgument(
      backend_->Add({.accumulator = sum.as<float>(), .addend = nullptr, .count = 1})));
  ASSERT_OK(backend_->Synchronize());
}

TEST_F(FencedBackendTest, ARingCarriesMoreThanItHolds) {
  auto ring = StagingRing::Create(backend_.get(), /*buffer_bytes=*/96, /*num_buffers=*/2);
  ASSERT_TRUE(ring.ok()) << ring.status();
  std::vector<float> values;
  for (int i = 0; i < 1009; ++i) values.push_back(static_cast<float>(i));
  for (const size_t count : {size_t{0}, size_t{1}, size_t{24}, size_t{48}, values.size()}) {
    const DeviceBuffer buffer = Allocate(count * sizeof(float));
    std::vector<float> source(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
    const std::vector<float> expected = source;
    ASSERT_OK(ring->Upload(buffer.data(), std::as_bytes(std::span(source))));
    std::fill(source.begin(), source.end(), -1.0f);  // It has been read.
    EXPECT_EQ(Download(buffer), expected);
  }
}

TEST_F(FencedBackendTest, WeightsAreCopiedAndWhereMemoryIsTheHostsTheyAreNot) {
  std::byte* const weights = *AllocateHostMemory(300'000);
  for (int i = 0; i < 300'000; ++i) weights[i] = static_cast<std::byte>(i * 7 >> 3);
  const std::span<const std::byte> bytes(weights, 300'000);
  {
    const auto placed = backend_->PlaceWeights(bytes);
    ASSERT_TRUE(placed.ok()) << placed.status();
    std::vector<std::byte> copy(bytes.size());
    ASSERT_OK(backend_->Download(copy.data(), placed->data(), copy.size()));
    ASSERT_OK(backend_->Synchronize());
    EXPECT_TRUE(std::equal(copy.begin(), copy.end(), bytes.begin()));
    EXPECT_NE(placed->data(), AcrossFence(OfHost(weights)));
    const auto cpu = MakeBackend("cpu-generic");
    EXPECT_EQ(cpu->PlaceWeights(bytes)->data(), OfHost(weights));
    const auto mirror = cpu->AllocateMirror(1000);
    EXPECT_EQ(mirror->device.data(), OfHost(mirror->host.data()));
  }
  FreeHostMemory(weights, bytes.size());
}

TEST_F(FencedBackendTest, ChecksumsOfManyBlocksAreThoseOfEach) {
  for (const char* const name : {"fenced", "cpu-generic", "reference"}) {
    const auto backend = MakeBackend(name);
    std::vector<std::byte> bytes(5 * 128);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + i / 128);
    const auto pool = backend->AllocatePool(bytes.size(), {});
    ASSERT_TRUE(pool.ok()) << pool.status();
    ASSERT_OK(backend->Upload(pool->data(), bytes.data(), bytes.size()));
    ASSERT_OK(backend->Synchronize());
    const std::vector<int32_t> blocks = {4, 0, 2, 4};
    std::vector<uint32_t> checksums(blocks.size());
    ASSERT_OK(backend->ChecksumBlocks({.base = pool->data(),
                                       .block_stride_bytes = 128,
                                       .blocks = blocks.data(),
                                       .checksums = checksums.data(),
                                       .count = 4}));
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(checksums[i], Crc32c(&bytes[static_cast<size_t>(blocks[i]) * 128], 128)) << name;
    }
  }
}

}  // namespace
}  // namespace tandem
