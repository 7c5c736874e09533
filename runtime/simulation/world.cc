#include "runtime/simulation/world.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"

namespace tandem {

World::World(const SimulationOptions& options, Trace trace)
    : options_(options),
      faults_(options.faults),
      trace_(std::move(trace)),
      random_(Mix64(options.seed * 2 + 1)),
      network_(&events_, &random_, &faults_),
      book_(options) {}

void World::Log(std::string_view who, std::string_view what, uint64_t a, uint64_t b) {
  uint64_t hash = report_.digest ^ static_cast<uint64_t>(now_us());
  for (const char c : who) hash = Mix64(hash + static_cast<uint8_t>(c));
  for (const char c : what) hash = Mix64(hash + static_cast<uint8_t>(c));
  report_.digest = Mix64(Mix64(hash + a) + b);
  if (trace_) trace_(absl::StrFormat("%10d %-6s %s %d %d", now_us(), who, what, a, b));
}

void World::Violate(const std::string& what) {
  if (!report_.status.ok()) return;
  report_.status = absl::InternalError(absl::StrFormat("at %d us: %s", now_us(), what));
  Log("world", what);
}

void World::CountRequest(bool done, int64_t resumes) {
  ++(done ? report_.requests_done : report_.requests_failed);
  report_.resumes += resumes;
}

void World::AddWorker(const std::string& address, SimulatedWorker* worker) {
  TANDEM_CHECK(worker_at_.emplace(address, worker).second) << address << " is taken";
  all_workers_.push_back(worker);
}

SimulatedWorker* World::FindWorker(const std::string& address) {
  const auto found = worker_at_.find(address);
  return found == worker_at_.end() ? nullptr : found->second;
}

bool World::ends_are_told() const {
  return options_.supervised == 1 && options_.faults.crash_us == 0;  // A crash may be of a host.
}

}  // namespace tandem
