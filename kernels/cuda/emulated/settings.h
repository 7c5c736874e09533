// What tests of the emulated GPU have set, and what is kept for them to take (block.h).

#ifndef TANDEM_KERNELS_CUDA_EMULATED_SETTINGS_H_
#define TANDEM_KERNELS_CUDA_EMULATED_SETTINGS_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "kernels/cuda/emulated/block.h"

namespace tandem::emulated {

// With its lock.
struct Settings {
  std::mutex mutex;
  uint64_t seed = 1;
  uint64_t num_launches = 0;
  std::string fault;
  std::set<Site> sites;
  std::set<Site> launch_waits;
  std::optional<Site> left_out;
  bool watches_early_threads = false;
  bool warpgroups_sum_by_halves = false;
  Gpu gpu;
};
Settings& TheSettings();

}  // namespace tandem::emulated

#endif  // TANDEM_KERNELS_CUDA_EMULATED_SETTINGS_H_
