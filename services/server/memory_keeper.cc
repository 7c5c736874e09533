#include "services/server/memory_keeper.h"

#include <malloc.h>

#include <chrono>

namespace tandem {
namespace {

constexpr std::chrono::seconds kPeriod{1};
// Trimming takes milliseconds: it is worth so much, and once more when all is quiet.
constexpr int64_t kTrimBytes = int64_t{8} << 20;
constexpr int kQuietPeriods = 5;

void RaiseCounter(prometheus::Counter* counter, int64_t value) {
  const double more = static_cast<double>(value) - counter->Value();
  if (more > 0) counter->Increment(more);
}

}  // namespace

MemoryKeeper::MemoryKeeper(int64_t limit_bytes, MetricsRegistry* registry)
    : budget_(limit_bytes), trimmer_("memory", kPeriod, [this] { Trim(); }) {
  registry->Gauge("tandem_memory_limit_bytes", "What --memory-limit allows.")
      .Set(static_cast<double>(limit_bytes));
  prometheus::Gauge& held = registry->Gauge(
      "tandem_memory_held_bytes", "Held for clients and peers, as charged to --memory-limit.");
  const char* const help =
      "Times that --memory-limit was reached: refused, or cut to make room for somebody else.";
  prometheus::Counter& refused =
      registry->Counter("tandem_memory_refusals_total", help, {{"how", "refused"}});
  prometheus::Counter& cut =
      registry->Counter("tandem_memory_refusals_total", help, {{"how", "cut"}});
  registry->AddRefresh([this, &held, &refused, &cut] {
    held.Set(static_cast<double>(budget_.held_bytes()));
    RaiseCounter(&refused, budget_.num_refused());
    RaiseCounter(&cut, budget_.num_cut());
  });
}

void MemoryKeeper::Trim() {
  const int64_t returned_bytes = budget_.returned_bytes();
  num_quiet_ = returned_bytes == seen_bytes_ ? num_quiet_ + 1 : 0;
  seen_bytes_ = returned_bytes;
  if (returned_bytes - trimmed_bytes_ < kTrimBytes && num_quiet_ != kQuietPeriods) return;
  trimmed_bytes_ = returned_bytes;
  malloc_trim(0);
}

}  // namespace tandem
