// What a load says of a server: counts, rates and times.

#ifndef TANDEM_TOOLS_TANDEM_LOAD_REPORT_H_
#define TANDEM_TOOLS_TANDEM_LOAD_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/tandem/load_generator.h"

namespace tandem {

struct LoadTargets {
  double ttft_seconds = 1e300;
  double itl_seconds = 1e300;
};

struct LoadReport {
  int32_t completed = 0, rejected = 0, failed = 0;
  int32_t met_targets = 0;  // Completed, its TTFT and its 99th percentile ITL within the targets.
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;  // Completed requests'.
  double wall_seconds = 0;
  std::vector<double> ttft, itl, tpot, e2e;  // Seconds, sorted; from when a request was due.
  std::map<std::string, int> errors;
};

LoadReport Summarise(const LoadResult& load, const LoadTargets& targets);

// Nearest rank. `sorted` may be empty: 0.
double Percentile(const std::vector<double>& sorted, double percent);
double Mean(const std::vector<double>& values);

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_LOAD_REPORT_H_
