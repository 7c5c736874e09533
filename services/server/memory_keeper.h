// A process's memory budget, its metrics, and the way of what was given back to the kernel: the
// allocator would keep the pages of an attack for ever.

#ifndef TANDEM_SERVICES_SERVER_MEMORY_KEEPER_H_
#define TANDEM_SERVICES_SERVER_MEMORY_KEEPER_H_

#include <cstdint>
#include <thread>

#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "services/server/metrics_registry.h"

namespace tandem {

class MemoryKeeper {
 public:
  // `registry` outlives this and is not collected after it.
  MemoryKeeper(int64_t limit_bytes, MetricsRegistry* registry);
  ~MemoryKeeper();  // After all holdings.

  MemoryBudget* budget() { return &budget_; }

 private:
  void Run() EXCLUDES(mu_);

  MemoryBudget budget_;
  Mutex mu_;
  CondVar stop_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_MEMORY_KEEPER_H_
