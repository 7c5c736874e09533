// What simulated workers and routers have around them: clock, network, chance, each other, and
// somebody who hears what is wrong. Knows nothing of what they are.

#ifndef TANDEM_RUNTIME_SIMULATION_WORLD_H_
#define TANDEM_RUNTIME_SIMULATION_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/simulation/event_queue.h"
#include "runtime/simulation/request_book.h"
#include "runtime/simulation/virtual_network.h"

namespace tandem {

struct SimulationReport {
  absl::Status status;  // Internal: the invariant that was broken, and when.
  uint64_t digest = 0;  // A hash of the log of all events.
  int64_t events = 0;
  int64_t requests_done = 0;
  int64_t requests_failed = 0;    // With an error that its faults explain.
  int64_t requests_too_long = 0;  // Failed because they fit no worker.
  int64_t resumes = 0;
  int64_t frames = 0;
  int64_t preemptions = 0;
  int64_t newcomers = 0;  // Prompts that NewcomerJudge has judged.
  int64_t overtaken = 0;  // Requests, by others whose turn it was.
  int64_t faults = 0;
  int64_t kills = 0;         // Faults that ended workers from outside, while they computed.
  int64_t replacements = 0;  // Workers whose quarantine was stuck.
  int64_t served_us = 0;     // When the last request had ended.
  int64_t virtual_us = 0;
};

class SimulatedWorker;

class World {
 public:
  // Every line of the event log; empty: only its digest is kept.
  using Trace = std::function<void(const std::string& line)>;

  World(const SimulationOptions& options, Trace trace);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const SimulationOptions& options() const { return options_; }
  VirtualNetwork* network() { return &network_; }
  RequestBook* book() { return &book_; }
  Random* random() { return &random_; }
  int64_t now_us() const { return events_.now_us(); }
  // Null: nobody has this address.
  SimulatedWorker* FindWorker(const std::string& address);
  const std::vector<SimulatedWorker*>& workers() const { return all_workers_; }
  bool calm() const { return calm_; }
  // The next life of every worker that ends says how.
  bool ends_are_told() const;

  void Log(std::string_view who, std::string_view what, uint64_t a = 0, uint64_t b = 0);
  void Violate(const std::string& what);  // The first one counts.
  void CountFrame() { ++report_.frames; }
  void CountReplacement() { ++report_.replacements; }
  void CountKill() {
    ++report_.faults;
    ++report_.kills;
  }
  void CountPreemptions(int64_t count) { report_.preemptions += count; }
  void CountNewcomers(int64_t count) { report_.newcomers += count; }
  void CountRequest(bool done, int64_t resumes);
  void CountTooLong() { ++report_.requests_too_long; }
  // Tokens that some worker holds, or once did.
  std::set<int32_t>* offers() { return &offers_; }

 protected:
  // Outlives this.
  void AddWorker(const std::string& address, SimulatedWorker* worker);

  const SimulationOptions options_;
  SimulatedFaults faults_;  // As they are now.
  const Trace trace_;
  EventQueue events_;
  Random random_;
  VirtualNetwork network_;
  RequestBook book_;
  bool calm_ = false;
  SimulationReport report_;

 private:
  std::vector<SimulatedWorker*> all_workers_;
  std::map<std::string, SimulatedWorker*> worker_at_;  // By address.
  std::set<int32_t> offers_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_WORLD_H_
