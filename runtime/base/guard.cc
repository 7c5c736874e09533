#include "runtime/base/guard.h"

#include <mutex>

#include "runtime/base/check.h"

namespace tandem {
namespace {

struct Registry {
  std::mutex mu;
  std::vector<Guard*> guards;
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;  // Never destroyed: guards outlive main().
  return *registry;
}

}  // namespace

Guard::Guard(const char* name) : name_(name) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  registry.guards.push_back(this);
}

std::vector<Guard*> ListGuards() {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  std::vector<Guard*> guards = registry.guards;
  std::sort(guards.begin(), guards.end(),
            [](const Guard* a, const Guard* b) { return a->name() < b->name(); });
  return guards;
}

Guard* FindGuard(std::string_view name) {
  for (Guard* guard : ListGuards()) {
    if (guard->name() == name) return guard;
  }
  return nullptr;
}

}  // namespace tandem
