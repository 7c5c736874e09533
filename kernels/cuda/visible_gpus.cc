#include "kernels/cuda/visible_gpus.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";
constexpr char kUuidPrefix[] = "GPU-";

}  // namespace

absl::StatusOr<std::string> NameOfGpu(const char* visible, int number) {
  if (visible == nullptr) return absl::StrCat(number);
  const std::vector<std::string> names = absl::StrSplit(visible, ',', absl::SkipWhitespace());
  if (number < static_cast<int>(names.size())) return names[static_cast<size_t>(number)];
  return absl::InvalidArgumentError(
      absl::StrFormat("GPU %d, counted from 0, is not there: %s=%s names %d", number, kVariable,
                      visible, names.size()));
}

std::string UuidOfGpu(std::string_view bytes) {
  std::string hex = absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
  for (const size_t dash : {20, 16, 12, 8}) hex.insert(dash, 1, '-');
  return kUuidPrefix + hex;
}

std::vector<std::string> VisibleGpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<std::string> uuids;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) return {};
    uuids.push_back(UuidOfGpu({properties.uuid.bytes, sizeof(properties.uuid.bytes)}));
  }
  return uuids;
}

absl::Status SeeOneGpu(int number) {
  TANDEM_ASSIGN_OR_RETURN(const std::string name, NameOfGpu(std::getenv(kVariable), number));
  setenv(kVariable, name.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

absl::Status SeeOneGpu(const std::string& uuid) {
  setenv(kVariable, uuid.c_str(), /*overwrite=*/1);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 1) return absl::OkStatus();
  // Without a driver, or with one that is too old, nothing is known of any GPU.
  const std::string why = error == cudaSuccess || error == cudaErrorNoDevice
                              ? "it is none of this machine's GPUs now"
                              : cudaGetErrorString(error);
  return absl::FailedPreconditionError(absl::StrCat(uuid, " cannot be used: ", why));
}

}  // namespace tandem
