#include "runtime/model/host_arrays.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/create_backend.h"
#include "kernels/fenced/fenced_backend.h"

namespace tandem {
namespace {

class HostArraysTest : public testing::TestWithParam<std::string> {
 protected:
  template <typename T>
  std::vector<T> Download(DevicePtr<const T> from, size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(backend_->Download(values.data(), from, count * sizeof(T)).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return values;
  }

  std::unique_ptr<Backend> backend_ = *CreateBackend({.device = GetParam()});
};

TEST_P(HostArraysTest, EachArrayArrivesAndOtherTypesAndEmptyOnesBesideIt) {
  HostArrays arrays(backend_.get());
  for (const int32_t count : {3, 100, 7, 1000}) {  // Grows, and fits again.
    std::vector<int32_t> ids(static_cast<size_t>(count));
    std::iota(ids.begin(), ids.end(), count);
    std::vector<int64_t> slots(ids.begin() + 1, ids.end());
    const std::vector<int32_t> none;
    DevicePtr<const int32_t> device_ids, device_none;
    DevicePtr<const int64_t> device_slots;
    arrays.Add(std::span<const int32_t>(ids), &device_ids);
    arrays.Add(std::span<const int32_t>(none), &device_none);
    arrays.Add(std::span<const int64_t>(slots), &device_slots);
    ASSERT_TRUE(arrays.Upload().ok());
    const std::vector<int32_t> wanted_ids = ids;
    const std::vector<int64_t> wanted_slots = slots;
    ids.assign(ids.size(), -1);  // They have been read.
    slots.assign(slots.size(), -1);
    EXPECT_EQ(Download(device_ids, ids.size()), wanted_ids);
    EXPECT_EQ(Download(device_slots, slots.size()), wanted_slots);
    EXPECT_EQ(device_slots.address() % 64, 0u);
  }
}

TEST_P(HostArraysTest, TheNextUploadWaitsUntilTheLastWasRead) {
  HostArrays arrays(backend_.get());
  int32_t first = 0;
  DevicePtr<const int32_t> device;
  for (const int32_t value : {1, 2}) {
    arrays.Add(std::span<const int32_t>(&value, 1), &device);
    ASSERT_TRUE(arrays.Upload().ok());
    // Reads the first, in the order of the stream.
    if (value == 1) {
      ASSERT_TRUE(backend_->Download(&first, device, sizeof(first)).ok());
    }
  }
  EXPECT_EQ(Download(device, 1), std::vector<int32_t>{2});
  EXPECT_EQ(first, 1);
}

TEST(HostArraysFencedTest, WhatCouldNotBeCarriedIsForgotten) {
  const std::unique_ptr<Backend> backend = *CreateBackend({.device = "fenced"});
  HostArrays arrays(backend.get());
  std::vector<int32_t> ids(1000, 7);
  DevicePtr<const int32_t> lost, found;
  arrays.Add(std::span<const int32_t>(ids), &lost);
  FailCall(backend.get(), 1);
  EXPECT_EQ(arrays.Upload().code(), absl::StatusCode::kInternal);
  ids.assign(1, 8);
  arrays.Add(std::span<const int32_t>(ids), &found);
  ASSERT_TRUE(arrays.Upload().ok());
  EXPECT_EQ(lost, nullptr);
  int32_t there = 0;
  ASSERT_TRUE(backend->Download(&there, found, sizeof(there)).ok());
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(there, 8);
}

INSTANTIATE_TEST_SUITE_P(Cpu, HostArraysTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Fenced, HostArraysTest, testing::Values("fenced"));

}  // namespace
}  // namespace tandem
