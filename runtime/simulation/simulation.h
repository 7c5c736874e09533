// N workers and M routers under one virtual clock and network, with faults from a seed. What serves
// traffic is what runs here: engines, transfer machines and request owners are the real ones.
//
// After every event the invariants of the protocol are checked; the first that is broken ends the
// run with a message. Runs replay exactly: the same options give the same digest.

#ifndef TANDEM_RUNTIME_SIMULATION_SIMULATION_H_
#define TANDEM_RUNTIME_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/simulation/simulated_router.h"
#include "runtime/simulation/simulated_worker.h"
#include "runtime/simulation/world.h"

namespace tandem {

class Simulation : private World {
 public:
  using Trace = World::Trace;

  explicit Simulation(const SimulationOptions& options, Trace trace = nullptr);

  SimulationReport Run();

 private:
  void ScheduleArrivals();
  void ScheduleLinkFaults();
  void ScheduleCrashes();
  void ScheduleTroubles();  // What befalls processes that go on.
  // Runs `fault` at the times of a Poisson process until the load is over.
  void Recur(int64_t mean_us, std::function<void()> fault);
  SimulatedWorker* AnyWorker();
  VirtualProcess* AnyProcess();
  void CalmDown();
  void AuditAll();
  // Runs events until `done`, or the time, or a violation.
  void RunUntil(int64_t until_us, const std::function<bool()>& done);

  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::vector<std::unique_ptr<SimulatedRouter>> routers_;
  int32_t to_arrive_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_SIMULATION_H_
