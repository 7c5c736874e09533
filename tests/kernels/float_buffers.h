// Numbers in a backend's memory, for tests of what a backend does with memory.

#ifndef TANDEM_TESTS_KERNELS_FLOAT_BUFFERS_H_
#define TANDEM_TESTS_KERNELS_FLOAT_BUFFERS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/api/backend.h"

namespace tandem {

// A fixture derived from `Base`; the test sets the backend.
template <typename Base>
class FloatBuffers : public Base {
 protected:
  DeviceBuffer Allocate(size_t size_bytes) {
    auto buffer = backend_->Allocate(size_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  DeviceBuffer Upload(const std::vector<float>& values) {
    DeviceBuffer buffer = Allocate(values.size() * sizeof(float));
    Upload(buffer, values);
    return buffer;
  }
  void Upload(const DeviceBuffer& buffer, const std::vector<float>& values) {
    EXPECT_TRUE(backend_->Upload(buffer.data(), values.data(), buffer.size_bytes()).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
  }
  std::vector<float> Download(const DeviceBuffer& buffer) {
    std::vector<float> values(buffer.size_bytes() / sizeof(float));
    EXPECT_TRUE(backend_->Download(values.data(), buffer.data(), buffer.size_bytes()).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return values;
  }
  absl::Status Add(const DeviceBuffer& accumulator, const DeviceBuffer& addend) {
    return backend_->Add({.accumulator = accumulator.as<float>(),
                          .addend = addend.as<float>(),
                          .count = static_cast<int64_t>(addend.size_bytes() / sizeof(float))});
  }

  std::unique_ptr<Backend> backend_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_FLOAT_BUFFERS_H_
