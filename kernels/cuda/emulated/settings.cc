#include "kernels/cuda/emulated/settings.h"

#include <utility>

namespace tandem::emulated {

Settings& TheSettings() {
  static Settings* const settings = new Settings;
  return *settings;
}

void SetSeed(uint64_t seed) {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  settings.seed = seed;
  settings.num_launches = 0;
}

std::string TakeFault() {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  return std::exchange(settings.fault, {});
}

std::set<Site> TakeSites() {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  return std::exchange(settings.sites, {});
}

std::set<Site> TakeLaunchWaits() {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  return std::exchange(settings.launch_waits, {});
}

void WatchEarlyThreads(bool watched) {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  settings.watches_early_threads = watched;
}

void SumWarpgroupsByHalves(bool by_halves) {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  settings.warpgroups_sum_by_halves = by_halves;
}

void SetGpu(const Gpu& gpu) {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  settings.gpu = gpu;
}

Gpu TheGpu() {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  return settings.gpu;
}

void LeaveOut(const Site& site) {
  Settings& settings = TheSettings();
  const std::scoped_lock lock(settings.mutex);
  settings.left_out = site.file.empty() ? std::nullopt : std::optional(site);
}

}  // namespace tandem::emulated
