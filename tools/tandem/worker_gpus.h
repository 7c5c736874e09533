// Which GPU each of some workers of a machine computes on.

#ifndef TANDEM_TOOLS_TANDEM_WORKER_GPUS_H_
#define TANDEM_TOOLS_TANDEM_WORKER_GPUS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem {

// Workers are dealt out to GPUs one by one. With fewer than two GPUs each has the device that all
// were given, and shares it with all.
struct WorkerGpus {
  std::string device;  // --device, as given
  int32_t num_workers = 0;
  int32_t num_gpus = 0;

  bool dealt() const { return num_gpus > 1; }
  std::string device_of(int32_t worker) const {
    return dealt() ? absl::StrCat("cuda:", worker % num_gpus) : device;
  }
  // How many have that worker's GPU, itself included.
  int32_t share_of(int32_t worker) const {
    if (!dealt()) return num_workers;
    const int32_t gpu = worker % num_gpus;
    return num_workers / num_gpus + (gpu < num_workers % num_gpus ? 1 : 0);
  }
};

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_WORKER_GPUS_H_
