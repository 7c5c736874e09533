#include "tools/tandem/load_report.h"

#include <algorithm>
#include <cmath>

namespace tandem {

double Percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double rank = percent / 100 * static_cast<double>(sorted.size());
  const size_t index = static_cast<size_t>(std::max(0.0, std::ceil(rank) - 1));
  return sorted[std::min(index, sorted.size() - 1)];
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

LoadReport Summarise(const LoadResult& load, const LoadTargets& targets) {
  LoadReport report;
  report.wall_seconds = static_cast<double>(load.wall_us) * 1e-6;
  for (const RequestRecord& request : load.requests) {
    if (request.outcome == CallOutcome::kRejected) ++report.rejected;
    if (request.outcome == CallOutcome::kFailed) ++report.failed;
    if (request.outcome != CallOutcome::kCompleted) {
      ++report.errors[request.error];
      continue;
    }
    ++report.completed;
    report.prompt_tokens += request.prompt_tokens;
    report.cached_tokens += request.cached_tokens;
    report.output_tokens += request.output_tokens;
    report.e2e.push_back(static_cast<double>(request.end_us - request.due_us) * 1e-6);
    if (request.token_us.empty()) continue;
    const double ttft = static_cast<double>(request.token_us.front() - request.due_us) * 1e-6;
    std::vector<double> gaps;
    for (size_t i = 1; i < request.token_us.size(); ++i) {
      gaps.push_back(static_cast<double>(request.token_us[i] - request.token_us[i - 1]) * 1e-6);
    }
    report.ttft.push_back(ttft);
    report.itl.insert(report.itl.end(), gaps.begin(), gaps.end());
    if (!gaps.empty()) report.tpot.push_back(Mean(gaps));
    std::sort(gaps.begin(), gaps.end());
    if (ttft <= targets.ttft_seconds && Percentile(gaps, 99) <= targets.itl_seconds) {
      ++report.met_targets;
    }
  }
  for (std::vector<double>* values : {&report.ttft, &report.itl, &report.tpot, &report.e2e}) {
    std::sort(values->begin(), values->end());
  }
  return report;
}

}  // namespace tandem
