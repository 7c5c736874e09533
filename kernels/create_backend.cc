#include "kernels/create_backend.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/fenced/fenced_backend.h"
#include "kernels/reference/reference_backend.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

#if defined(TANDEM_CUDA)
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/visible_gpus.h"
#else
#include <filesystem>
#include <system_error>
#endif

namespace tandem {
namespace {

using BackendOr = absl::StatusOr<std::unique_ptr<Backend>>;

constexpr char kOneGpu[] = "cuda:";

// As NVIDIA's tools write it.
bool IsUuidOfGpu(std::string_view name) {
  constexpr std::string_view kForm = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  return std::equal(name.begin(), name.end(), kForm.begin(), kForm.end(), [](char c, char form) {
    return form == 'x' ? absl::ascii_isxdigit(static_cast<unsigned char>(c)) : c == form;
  });
}

// What follows in "cuda:N" and "cuda:UUID"; empty for any other name.
std::string NameOfOneGpu(const std::string& device) {
  if (!absl::StartsWith(device, kOneGpu)) return "";
  const std::string name = device.substr(sizeof(kOneGpu) - 1);
  int number = 0;
  const bool counts = absl::SimpleAtoi(name, &number) && number >= 0;
  return counts || IsUuidOfGpu(name) ? name : "";
}

BackendOr CreateCpu(const BackendOptions& options) {
  return CreateCpuBackend(
      {.isa = options.isa, .num_threads = options.num_threads, .niceness = options.niceness});
}

constexpr const char* kIsasOfGpus[] = {"tensor", "mma", "fma"};

bool IsOfGpu(const std::string& isa) {
  return std::find(std::begin(kIsasOfGpus), std::end(kIsasOfGpus), isa) != std::end(kIsasOfGpus);
}

bool IsOfCpu(const std::string& isa) {
  const std::span<const Isa> known = KnownIsas();
  return std::any_of(known.begin(), known.end(), [&](const Isa& one) { return one.name == isa; });
}

// That the instruction set is one of that device, before anything is asked of the machine.
absl::Status CheckIsa(const std::string& device, const std::string& isa) {
  const bool gpu = absl::StartsWith(device, "cuda");
  const bool any = device == "auto";
  const bool of_gpu = IsOfGpu(isa), of_cpu = IsOfCpu(isa);
  const bool fits = any ? of_gpu || of_cpu : gpu ? of_gpu : of_cpu;
  if (isa == "auto" || fits) return absl::OkStatus();
  const std::string of_gpus = absl::StrCat("a GPU has auto, ", absl::StrJoin(kIsasOfGpus, ", "));
  const std::string of_cpus = absl::StrCat(
      "the cpu has auto, ", absl::StrJoin(KnownIsas(), ", ", [](std::string* out, const Isa& one) {
        absl::StrAppend(out, one.name);
      }));
  const std::string known = any ? absl::StrCat(of_gpus, "; ", of_cpus) : gpu ? of_gpus : of_cpus;
  const char* why = "there is no such";
  if (of_gpu) why = "that is a GPU's";
  if (of_cpu) why = "that is the cpu's";
  return absl::InvalidArgumentError(
      absl::StrFormat("device %s, instruction set \"%s\": %s; %s", device, isa, why, known));
}

#if defined(TANDEM_CUDA)

BackendOr CreateGpu(const BackendOptions& options) {
  if (const std::string name = NameOfOneGpu(options.device); !name.empty()) {
    int number = 0;
    TANDEM_RETURN_IF_ERROR(absl::SimpleAtoi(name, &number) ? SeeOneGpu(number) : SeeOneGpu(name));
  }
  return CreateCudaBackend(options.isa);
}

BackendOr CreateBest(const BackendOptions& options) {
  if (IsOfGpu(options.isa)) return CreateGpu(options);
  if (options.isa != "auto") return CreateCpu(options);
  BackendOr gpu = CreateGpu(options);
  if (gpu.ok()) return gpu;
  TANDEM_RETURN_IF_ERROR(MayDoWithoutGpu(gpu.status(), options.root));
  LogWarning("the CPU computes", {{"why", std::string(gpu.status().message())}});
  return CreateCpu(options);
}

std::vector<std::string> UuidsOfGpus() { return VisibleGpus(); }

#else

std::vector<std::string> UuidsOfGpus() { return {}; }

BackendOr CreateGpu(const BackendOptions& options) {
  return absl::FailedPreconditionError(
      absl::StrFormat("device %s, instruction set %s: this program was built without CUDA; take a "
                      "build of the preset cuda (the image tandem-worker-cuda), or --device cpu",
                      options.device, options.isa));
}

BackendOr CreateBest(const BackendOptions& options) {
  if (IsOfGpu(options.isa)) return CreateGpu(options);
  // The driver's; containers that were given no GPU have none.
  std::error_code error;
  if (options.isa == "auto" && std::filesystem::exists(options.root + "dev/nvidiactl", error)) {
    LogWarning("the CPU computes",
               {{"why",
                 "this machine has a GPU (/dev/nvidiactl), and this program was built without "
                 "CUDA: take a build of the preset cuda (the image tandem-worker-cuda), or choose "
                 "--device cpu if that is meant"}});
  }
  return CreateCpu(options);
}

#endif

}  // namespace

std::vector<std::string> IsaChoices() {
  std::vector<std::string> choices = {"auto"};
  for (const Isa& isa : KnownIsas()) choices.emplace_back(isa.name);
  choices.insert(choices.end(), std::begin(kIsasOfGpus), std::end(kIsasOfGpus));
  return choices;
}

absl::Status CheckDevice(const std::string& device) {
  if (device == "auto" || device == "cpu" || device == "cuda" || !NameOfOneGpu(device).empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "\"%s\", want auto, cpu, cuda, cuda:N, N from 0 on, or cuda:GPU-UUID", device));
}

std::vector<std::string> ListGpus(const BackendOptions& options) {
  const bool any = options.device == "cuda" ||
                   (options.device == "auto" && (options.isa == "auto" || IsOfGpu(options.isa)));
  std::vector<std::string> devices;
  if (!any) return devices;
  for (const std::string& uuid : UuidsOfGpus()) devices.push_back(absl::StrCat(kOneGpu, uuid));
  return devices;
}

BackendOr CreateBackend(const BackendOptions& options) {
  if (options.device == "reference") return CreateReferenceBackend();
  const bool fenced = options.device == "fenced" || options.device == "fenced_pool";
  if (const absl::Status known = CheckDevice(options.device); !known.ok() && !fenced) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device: %s; or, for tests, reference, fenced or fenced_pool",
                        std::string(known.message())));
  }
  TANDEM_RETURN_IF_ERROR(CheckIsa(options.device, options.isa));
  if (options.device == "cpu") return CreateCpu(options);
  if (fenced) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Backend> cpu, CreateCpu(options));
    return CreateFencedBackend(
        std::move(cpu), options.device == "fenced" ? MemoryKind::kHost : MemoryKind::kDevice);
  }
  return options.device == "auto" ? CreateBest(options) : CreateGpu(options);
}

}  // namespace tandem
