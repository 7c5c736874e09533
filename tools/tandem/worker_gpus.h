// Which GPU each of some workers of a machine computes on.

#ifndef TANDEM_TOOLS_TANDEM_WORKER_GPUS_H_
#define TANDEM_TOOLS_TANDEM_WORKER_GPUS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"

namespace tandem {

// Workers are dealt out to GPUs one by one. With fewer than two GPUs each has the device that all
// were given, and shares it with all.
struct WorkerGpus {
  std::string device;  // --device, as given
  int32_t num_workers = 0;
  std::vector<std::string> gpus;  // Each a --device, by its UUID: the same card in every process.

  bool dealt() const { return gpus.size() > 1; }
  const std::string& device_of(int32_t worker) const {
    return dealt() ? gpus[static_cast<size_t>(worker % num_gpus())] : device;
  }
  // How many have that worker's GPU, itself included.
  int32_t share_of(int32_t worker) const {
    if (!dealt()) return num_workers;
    const int32_t gpu = worker % num_gpus();
    return num_workers / num_gpus() + (gpu < num_workers % num_gpus() ? 1 : 0);
  }
  // Who has a machine with eight finds two at work, and is told why. Empty: nobody chose among
  // GPUs.
  std::string Summary() const {
    if (gpus.empty()) return "";
    const int32_t used = std::min(num_workers, num_gpus());
    return absl::StrFormat("GPUs used: %d of %d, workers: %d%s", used, num_gpus(), num_workers,
                           used < num_gpus() ? "; each computes on one GPU, and --prefill, "
                                               "--decode and --hybrid say how many there are"
                                             : "");
  }

 private:
  int32_t num_gpus() const { return static_cast<int32_t>(gpus.size()); }
};

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_WORKER_GPUS_H_
