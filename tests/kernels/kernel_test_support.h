// Devices under test, random arrays with a printed seed, and comparison against the reference.

#ifndef TANDEM_TESTS_KERNELS_KERNEL_TEST_SUPPORT_H_
#define TANDEM_TESTS_KERNELS_KERNEL_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/api/backend.h"
#include "kernels/api/dtype.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table_x86.h"
#include "kernels/create_backend.h"
#include "kernels/fenced/fenced_backend.h"
#include "kernels/support/host_args.h"
#include "runtime/base/random.h"

#if defined(TANDEM_EMULATED)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace tandem {

#define ASSERT_OK(expression)                        \
  do {                                               \
    const absl::Status status_ = (expression);       \
    ASSERT_TRUE(status_.ok()) << status_.ToString(); \
  } while (false)

// "cpu-" and an instruction set ("cpu-avx2"); "cpu-avx512bf16-dot", "cpu-avx512bf16-fma" and
// "cpu-avx512bf16-tiles" (8 bits by AMX) name the method, too; "reference"; "fenced". Null if the
// machine lacks it.
inline std::unique_ptr<Backend> MakeBackend(const std::string& device, int num_threads = 1) {
#if defined(__x86_64__)
  if (device.starts_with("cpu-avx512bf16-")) {
    const KernelTable* const table =
        Avx512Bf16Kernels(device == "cpu-avx512bf16-fma" ? Bf16Method::kFma : Bf16Method::kDot,
                          device == "cpu-avx512bf16-tiles" ? Int8Method::kTiles : Int8Method::kDot);
    return table == nullptr ? nullptr : CreateCpuBackend(*table, num_threads);
  }
#endif
  absl::StatusOr<std::unique_ptr<Backend>> backend = absl::InternalError("");
#if defined(TANDEM_EMULATED)
  if (device.starts_with("cuda")) {
    // Fused multiply-adds are the machine's.
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return nullptr;
    backend = CreateCudaBackend(device == "cuda" ? "fma" : "tensor");
#else
  if (device.starts_with("cuda")) {
    backend = CreateBackend({.device = "cuda", .isa = device == "cuda" ? "fma" : "tensor"});
#endif
  } else if (device == "fenced") {
    backend = CreateBackend({.device = "fenced", .num_threads = num_threads});
  } else if (device.substr(0, 4) == "cpu-") {
    backend = CreateBackend({.device = "cpu", .isa = device.substr(4), .num_threads = num_threads});
  } else {
    backend = CreateBackend({.device = device});
  }
  if (backend.ok()) return *std::move(backend);
  EXPECT_TRUE(absl::IsFailedPrecondition(backend.status())) << backend.status();
  return nullptr;
}

// A backend whose operations take arrays of the host and are done when they return.
class TestDevice {
 public:
  explicit TestDevice(std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)), fenced_(backend_->name() == "fenced") {}

  Backend& backend() { return *backend_; }

  absl::Status Embedding(const HostEmbeddingArgs& args) { return Do(args, &Backend::Embedding); }
  absl::Status RmsNorm(const HostRmsNormArgs& args) { return Do(args, &Backend::RmsNorm); }
  absl::Status LayerNorm(const HostLayerNormArgs& args) { return Do(args, &Backend::LayerNorm); }
  absl::Status Linear(const HostLinearArgs& args) { return Do(args, &Backend::Linear); }
  absl::Status RmsNormLinear(const HostRmsNormArgs& norm, const HostLinearArgs& layer) {
    return Done(backend_->RmsNormLinear(OnDevice(norm), OnDevice(layer)));
  }
  absl::Status LayerNormLinear(const HostLayerNormArgs& norm, const HostLinearArgs& layer) {
    return Done(backend_->LayerNormLinear(OnDevice(norm), OnDevice(layer)));
  }
  absl::Status SoftCap(const HostSoftCapArgs& args) { return Do(args, &Backend::SoftCap); }
  absl::Status Add(const HostAddArgs& args) { return Do(args, &Backend::Add); }
  absl::Status GatherRows(const HostGatherRowsArgs& args) { return Do(args, &Backend::GatherRows); }
  absl::Status Sample(const HostSampleArgs& args) { return Do(args, &Backend::Sample); }
  absl::Status RotaryTable(const HostRotaryTableArgs& args) {
    return Do(args, &Backend::RotaryTable);
  }
  absl::Status RotaryKvWrite(const HostRotaryKvWriteArgs& args) {
    return Do(args, &Backend::RotaryKvWrite);
  }
  absl::Status DecodeAttention(const HostDecodeAttentionArgs& args) {
    return Do(args, &Backend::DecodeAttention);
  }
  absl::Status PrefillAttention(const HostPrefillAttentionArgs& args) {
    return Do(args, &Backend::PrefillAttention);
  }
  absl::Status CopyBlocks(const HostCopyBlocksArgs& args) { return Do(args, &Backend::CopyBlocks); }
  absl::Status ChecksumBlocks(const HostChecksumBlocksArgs& args) {
    return Do(args, &Backend::ChecksumBlocks);
  }
  absl::Status DiscardBlocks(const HostDiscardBlocksArgs& args) {
    return Do(args, &Backend::DiscardBlocks);
  }

 private:
  template <template <template <typename> class> class Args>
  absl::Status Do(const Args<HostPtr>& host_args,
                  absl::Status (Backend::*operation)(const Args<DevicePtr>&)) {
    return Done((backend_.get()->*operation)(OnDevice(host_args)));
  }
  template <template <template <typename> class> class Args>
  Args<DevicePtr> OnDevice(const Args<HostPtr>& host_args) const {
    Args<DevicePtr> args = OfHost(host_args);
    std::apply(
        [this](auto&... pointer) { ((pointer = fenced_ ? AcrossFence(pointer) : pointer), ...); },
        Args<DevicePtr>::Pointers(args));
    return args;
  }
  absl::Status Done(const absl::Status& status) {
    const absl::Status done = backend_->Synchronize();
    return status.ok() ? done : status;
  }

  std::unique_ptr<Backend> backend_;
  const bool fenced_;
};

// As MakeBackend.
inline std::unique_ptr<TestDevice> MakeDevice(const std::string& device, int num_threads = 1) {
  std::unique_ptr<Backend> backend = MakeBackend(device, num_threads);
  return backend == nullptr ? nullptr : std::make_unique<TestDevice>(std::move(backend));
}

// Devices that give the same bits (docs/numerics.md, Classes).
inline const std::vector<std::string>& FmaDevices() {
  static const std::vector<std::string> devices = {
#if defined(__aarch64__)
    "cpu-neondot",
    "cpu-neon",
#else
    "cpu-avx512bf16-dot",
    "cpu-avx512bf16-fma",
    "cpu-avx512bf16-tiles",
    "cpu-avx512vnni",
    "cpu-avx512",
    "cpu-avx2vnni",
    "cpu-avx2",
#endif
#if defined(TANDEM_CUDA)
    "cuda",
#endif
  };
  return devices;
}

inline const std::vector<std::string>& TestedDevices() {
  static const std::vector<std::string> devices = [] {
    std::vector<std::string> all = FmaDevices();
    all.push_back("cpu-generic");
#if !defined(__aarch64__)
    all.push_back("cpu-amx");
#endif
#if defined(TANDEM_CUDA)
    all.push_back("cuda-tensor");
#endif
    return all;
  }();
  return devices;
}

// No GPU keeps inputs out of 8 bits.
inline bool HasOutliers(const std::string& device) { return !device.starts_with("cuda"); }

inline std::string DeviceName(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

// Tests of one device against the reference. Seeds: TANDEM_TEST_SEED in the environment, or 1.
class DeviceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* text = std::getenv("TANDEM_TEST_SEED");
    seed_ = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    random_ = std::make_unique<Random>(seed_);
    RecordProperty("seed", std::to_string(seed_));
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
    reference_ = MakeDevice("reference");
    device_ = MakeDevice(GetParam());
    if (device_ == nullptr) GTEST_SKIP() << GetParam() << " is not on this machine";
  }

  float Normal() {
    // Denormal, or a factor of denormal products.
    if (tiny_share_ > 0 && random_->Chance(tiny_share_)) {
      const float sign = random_->Chance(0.5) ? 1.0f : -1.0f;
      return sign * std::ldexp(1.0f, -static_cast<int>(Between(64, 148)));
    }
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(random_->Unit());
    return (sum - 2.0f) * 1.732f;
  }
  std::vector<float> Floats(int64_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& v : values) v = Normal() * scale;
    return values;
  }
  // An array of either type.
  std::vector<std::byte> Array(DType dtype, int64_t count, float scale = 1.0f) {
    std::vector<std::byte> bytes(count * SizeOf(dtype));
    for (int64_t i = 0; i < count; ++i) {
      const float value = Normal() * scale;
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[i * 4], &value, 4);
      } else {
        const Bfloat16 narrow = ToBfloat16(value);
        std::memcpy(&bytes[i * 2], &narrow, 2);
      }
    }
    return bytes;
  }
  int64_t Between(int64_t low, int64_t high) { return random_->Between(low, high); }
  DType AnyDType() { return random_->Chance(0.5) ? DType::kF32 : DType::kBF16; }

  double tiny_share_ = 0;  // How many of the numbers that Normal gives are tiny.
  uint64_t seed_;
  std::unique_ptr<Random> random_;
  std::unique_ptr<TestDevice> reference_;
  std::unique_ptr<TestDevice> device_;
};

inline float At(DType dtype, const std::vector<std::byte>& array, int64_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, &array[index * 4], 4);
    return value;
  }
  Bfloat16 narrow;
  std::memcpy(&narrow, &array[index * 2], 2);
  return ToFloat(narrow);
}

// |a − b| <= absolute + relative · |b| everywhere.
inline testing::AssertionResult Near(DType dtype, const std::vector<std::byte>& actual,
                                     const std::vector<std::byte>& expected, float absolute,
                                     float relative) {
  if (actual.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  const int64_t count = static_cast<int64_t>(actual.size() / SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float a = At(dtype, actual, i);
    const float e = At(dtype, expected, i);
    if (!(std::fabs(a - e) <= absolute + relative * std::fabs(e))) {
      return testing::AssertionFailure() << "element " << i << " of " << count << ": " << a
                                         << ", expected " << e << " (" << NameOf(dtype) << ")";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace tandem

#endif  // TANDEM_TESTS_KERNELS_KERNEL_TEST_SUPPORT_H_
