// simulate_seeds --seeds A..B [--guard-off NAME] [--trace SEED] [--overlap on|off] [--max-drawn N]
//     [--window POSITIONS] [--masks on|off]
//
// Runs the seeds from A up to B (exclusive) and prints each one that breaks an invariant, then
// totals. Exit status 1 if there was one. --trace prints the event log of one seed.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "runtime/base/guard.h"
#include "runtime/simulation/simulation.h"

int main(int argc, char** argv) {
  uint64_t first = 0, end = 100;
  bool trace = false;
  std::optional<bool> overlap, masks;
  std::optional<int32_t> max_drawn, window;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (flag == "--seeds" && value != nullptr &&
        std::sscanf(value, "%" SCNu64 "..%" SCNu64, &first, &end) == 2) {
      continue;
    }
    if (flag == "--trace" && value != nullptr && std::sscanf(value, "%" SCNu64, &first) == 1) {
      end = first + 1;
      trace = true;
      continue;
    }
    if (flag == "--overlap" && value != nullptr) {
      overlap = std::strcmp(value, "on") == 0;
      continue;
    }
    if (flag == "--masks" && value != nullptr) {
      masks = std::strcmp(value, "on") == 0;
      continue;
    }
    if (flag == "--max-drawn" && value != nullptr && std::atoi(value) >= 1) {
      max_drawn = std::atoi(value);
      continue;
    }
    if (flag == "--window" && value != nullptr && (std::atoi(value) >= 2 || *value == '0')) {
      window = std::atoi(value);
      continue;
    }
    if (flag == "--guard-off" && value != nullptr && tandem::FindGuard(value) != nullptr) {
      tandem::FindGuard(value)->set_enabled(false);
      continue;
    }
    std::fprintf(stderr,
                 "usage: simulate_seeds --seeds A..B [--guard-off NAME] [--trace SEED] [--overlap "
                 "on|off] [--max-drawn N] [--window POSITIONS] [--masks on|off]\nguards:");
    for (const tandem::Guard* guard : tandem::ListGuards()) {
      std::fprintf(stderr, " %s", std::string(guard->name()).c_str());
    }
    std::fprintf(stderr, "\n");
    return 2;
  }

  tandem::SimulationReport total;
  uint64_t broken = 0;
  for (uint64_t seed = first; seed < end; ++seed) {
    if (std::getenv("TANDEM_SIMULATION_PROGRESS") != nullptr) {
      std::fprintf(stderr, "seed %" PRIu64 "\n", seed);
    }
    tandem::SimulationOptions options = tandem::SimulationOptions::FromSeed(seed);
    options.shape.overlap_steps = overlap.value_or(options.shape.overlap_steps);
    options.shape.max_drawn = max_drawn.value_or(options.shape.max_drawn);
    options.shape.window = window.value_or(options.shape.window);
    options.masks = masks.value_or(options.masks);
    tandem::Simulation simulation(options,
                                  trace ? [](const std::string& line) { std::puts(line.c_str()); }
                                        : tandem::Simulation::Trace());
    const tandem::SimulationReport report = simulation.Run();
    if (!report.status.ok()) {
      ++broken;
      std::printf("seed %" PRIu64 ": %s\n", seed, report.status.ToString().c_str());
      std::fflush(stdout);
    }
    total.digest = total.digest * 31 + report.digest;
    total.events += report.events;
    total.requests_done += report.requests_done;
    total.requests_failed += report.requests_failed;
    total.resumes += report.resumes;
    total.frames += report.frames;
    total.preemptions += report.preemptions;
    total.faults += report.faults;
    total.replacements += report.replacements;
    total.virtual_us += report.virtual_us;
  }
  std::printf("%" PRIu64 " seeds, %" PRIu64 " broken; %" PRId64 " requests done, %" PRId64
              " failed for a reason; %" PRId64 " resumes, %" PRId64 " frames, %" PRId64
              " preemptions, %" PRId64 " faults, %" PRId64 " workers replaced, %" PRId64
              " events in %.0f virtual s; digest %016" PRIx64 "\n",
              end - first, broken, total.requests_done, total.requests_failed, total.resumes,
              total.frames, total.preemptions, total.faults, total.replacements, total.events,
              static_cast<double>(total.virtual_us) * 1e-6, total.digest);
  for (const tandem::Guard* guard : tandem::ListGuards()) {
    std::printf("  %-26s %" PRIu64 " rejections\n", std::string(guard->name()).c_str(),
                guard->rejections());
  }
  return broken == 0 ? 0 : 1;
}
