#include "kernels/cuda/visible_gpus.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

}  // namespace

absl::StatusOr<std::string> NameOfGpu(const char* visible, int number) {
  if (visible == nullptr) return absl::StrCat(number);
  const std::vector<std::string> names = absl::StrSplit(visible, ',', absl::SkipWhitespace());
  if (number < static_cast<int>(names.size())) return names[static_cast<size_t>(number)];
  return absl::InvalidArgumentError(
      absl::StrFormat("GPU %d, counted from 0, of the %d that %s=%s names", number, names.size(),
                      kVariable, visible));
}

int NumVisibleGpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

absl::Status SeeOneGpu(int number) {
  TANDEM_ASSIGN_OR_RETURN(const std::string name, NameOfGpu(std::getenv(kVariable), number));
  setenv(kVariable, name.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

}  // namespace tandem
