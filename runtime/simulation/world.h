// N workers and M routers under one virtual clock and network, with faults from a seed. What serves
// traffic is what runs here: engines, transfer machines and request owners are the real ones.
//
// After every event the invariants of the protocol are checked; the first that is broken ends the
// run with a message. Runs replay exactly: the same options give the same digest.

#ifndef TANDEM_RUNTIME_SIMULATION_WORLD_H_
#define TANDEM_RUNTIME_SIMULATION_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/simulation/event_queue.h"
#include "runtime/simulation/request_book.h"
#include "runtime/simulation/simulated_router.h"
#include "runtime/simulation/simulated_worker.h"
#include "runtime/simulation/virtual_network.h"

namespace tandem {

struct SimulationReport {
  absl::Status status;  // Internal: the invariant that was broken, and when.
  uint64_t digest = 0;  // Of the log of all events.
  int64_t events = 0;
  int64_t requests_done = 0;
  int64_t requests_failed = 0;    // With an error that its faults explain.
  int64_t requests_too_long = 0;  // Of them, those that fit no worker.
  int64_t resumes = 0;
  int64_t frames = 0;
  int64_t preemptions = 0;
  int64_t newcomers = 0;  // That NewcomerJudge has judged.
  int64_t overtaken = 0;  // Requests, by others whose turn it was.
  int64_t faults = 0;
  int64_t kills = 0;         // Of them, of workers that computed, from outside.
  int64_t replacements = 0;  // Of workers whose quarantine was stuck.
  int64_t virtual_us = 0;
};

class World {
 public:
  // Every line of the event log; empty: only its digest is kept.
  using Trace = std::function<void(const std::string& line)>;

  explicit World(const SimulationOptions& options, Trace trace = nullptr);
  ~World();

  SimulationReport Run();

  // ---- For workers and routers ----
  const SimulationOptions& options() const { return options_; }
  VirtualNetwork* network() { return &network_; }
  RequestBook* book() { return &book_; }
  Random* random() { return &random_; }
  int64_t now_us() const { return events_.now_us(); }
  // Null: nobody has this address.
  SimulatedWorker* FindWorker(const std::string& address);
  const std::vector<std::unique_ptr<SimulatedWorker>>& workers() const { return workers_; }
  bool calm() const { return calm_; }
  // Of every worker that ends, its next life says how.
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

 private:
  void ScheduleArrivals();
  void ScheduleFaults();
  // Runs `fault` at the times of a Poisson process until the load is over.
  void Recur(int64_t mean_us, std::function<void()> fault);
  SimulatedWorker* AnyWorker();
  VirtualProcess* AnyProcess();
  void CalmDown();
  void AuditAll();
  // Runs events until `done`, or the time, or a violation.
  void RunUntil(int64_t until_us, const std::function<bool()>& done);

  const SimulationOptions options_;
  SimulatedFaults faults_;  // As they are now.
  const Trace trace_;
  EventQueue events_;
  Random random_;
  VirtualNetwork network_;
  RequestBook book_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::vector<std::unique_ptr<SimulatedRouter>> routers_;
  std::set<int32_t> offers_;
  bool calm_ = false;
  int32_t to_arrive_ = 0;
  SimulationReport report_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_WORLD_H_
