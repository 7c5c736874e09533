// A process's memory budget, its metrics, and the way of what was given back to the kernel: the
// allocator would keep the pages of an attack for ever.

#ifndef TANDEM_SERVICES_SERVER_MEMORY_KEEPER_H_
#define TANDEM_SERVICES_SERVER_MEMORY_KEEPER_H_

#include <cstdint>

#include "runtime/base/memory_budget.h"
#include "runtime/base/periodic_thread.h"
#include "services/server/metrics_registry.h"

namespace tandem {

class MemoryKeeper {
 public:
  // `registry` outlives this and is not collected after it. Goes after all holdings.
  MemoryKeeper(int64_t limit_bytes, MetricsRegistry* registry);

  MemoryBudget* budget() { return &budget_; }

 private:
  void Trim();  // The trimmer's thread.

  MemoryBudget budget_;
  int64_t seen_bytes_ = 0, trimmed_bytes_ = 0;  // The trimmer's.
  int num_quiet_ = 0;
  PeriodicThread trimmer_;  // Last: uses the rest.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_MEMORY_KEEPER_H_
