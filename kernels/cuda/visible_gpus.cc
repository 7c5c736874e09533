#include "kernels/cuda/visible_gpus.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";
constexpr char kUuidPrefix[] = "GPU-";
constexpr char kVendor[] = "0x10de";       // NVIDIA's, as the kernel writes it.
constexpr char kDisplayClass[] = "0x03";   // Also of those that drive no display.
constexpr size_t kMaxFileBytes = 1 << 16;  // The kernel says that its files have a page.

bool IsGpu(const std::filesystem::path& device) {
  const auto begins = [&device](const char* file, const char* with) {
    const absl::StatusOr<std::string> text = ReadSmallFile(device / file, kMaxFileBytes);
    return text.ok() && absl::StartsWith(*text, with);
  };
  return begins("vendor", kVendor) && begins("class", kDisplayClass);
}

// What shows that the machine has a GPU; empty: nothing does.
std::string TraceOfGpu(const std::string& root) {
  std::error_code error;
  const std::filesystem::directory_iterator devices(root + "sys/bus/pci/devices", error), end;
  for (auto device = devices; !error && device != end; device.increment(error)) {
    if (IsGpu(device->path())) return "PCI device " + device->path().filename().string();
  }
  return std::filesystem::exists(root + "dev/nvidiactl", error) ? "/dev/nvidiactl" : "";
}

// As who wants no GPU writes it; what is merely wrong is a mistake.
bool NamesNone(const char* visible) {
  if (visible == nullptr) return false;
  const absl::string_view text = absl::StripAsciiWhitespace(visible);
  return text.empty() || absl::StartsWith(text, "-") || text == "NoDevFiles";
}

// Whether it has the form of an index or of the UUID of a GPU or of a slice of one.
bool MayNameGpu(absl::string_view name) {
  int index = 0;
  const bool digits = std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  return (digits && absl::SimpleAtoi(name, &index)) || absl::StartsWith(name, kUuidPrefix) ||
         absl::StartsWith(name, "MIG-");
}

bool SameIndex(absl::string_view a, absl::string_view b) {
  int first = 0, second = 0;
  return absl::SimpleAtoi(a, &first) && absl::SimpleAtoi(b, &second) && first == second;
}

}  // namespace

absl::StatusOr<std::string> NameOfGpu(const char* visible, int number) {
  if (visible == nullptr) return absl::StrCat(number);
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "GPU %d, counted from 0, is not there: %s=%s %s", number, kVariable, visible, why));
  };
  std::vector<absl::string_view> names;
  std::string end;
  for (absl::string_view name : absl::StrSplit(visible, ',')) {
    name = absl::StripAsciiWhitespace(name);
    if (!MayNameGpu(name)) {
      end = absl::StrCat(" before \"", name, "\", which is no GPU and ends the list");
      break;
    }
    for (const absl::string_view before : names) {
      if (name == before || SameIndex(name, before)) {
        return refused(absl::StrCat("names ", name, " twice, for which CUDA shows no GPU at all"));
      }
    }
    names.push_back(name);
  }
  if (number < static_cast<int>(names.size())) {
    return std::string(names[static_cast<size_t>(number)]);
  }
  return refused(absl::StrCat("names ", names.size(), end));
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

absl::Status MayDoWithoutGpu(const absl::Status& why, const std::string& root) {
  if (NamesNone(std::getenv(kVariable))) return absl::OkStatus();
  const std::string trace = TraceOfGpu(root);
  if (trace.empty()) return absl::OkStatus();
  return absl::Status(
      why.code(),
      absl::StrCat(why.message(), "; but this machine has one (", trace,
                   "): repair it or its driver, let this process have it, or choose --device cpu"));
}

}  // namespace tandem
