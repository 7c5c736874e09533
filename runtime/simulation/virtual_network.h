// Processes and the connections between them, in virtual time. A link keeps the order of what is
// sent over it, like a gRPC stream, until it breaks: then each side gets what was already under way
// up to a moment of its own, and hears of the loss (or, where told so, never does).

#ifndef TANDEM_RUNTIME_SIMULATION_VIRTUAL_NETWORK_H_
#define TANDEM_RUNTIME_SIMULATION_VIRTUAL_NETWORK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/simulation/event_queue.h"
#include "runtime/simulation/simulation_options.h"

namespace tandem {

// To connect, beside what the network takes.
inline constexpr int64_t kDialUs = 500;

// A process: what is addressed to an earlier life never arrives; a paused one works off what came
// in the meantime, in its order, when it goes on.
struct VirtualProcess {
  std::string name;
  uint64_t life = 0;  // 0: never started. Grows with every start and every end.
  bool up = false;
  int64_t paused_until_us = 0;
  // How far the process's monotonic clock is ahead of the world's, and how fast it goes.
  int64_t clock_offset_us = 0;
  double clock_rate = 1;
  int64_t ClockAt(int64_t at_us) const {
    return static_cast<int64_t>(static_cast<double>(at_us) * clock_rate) + clock_offset_us;
  }
  int64_t WhenClockIs(int64_t clock_us) const {
    return static_cast<int64_t>(static_cast<double>(clock_us - clock_offset_us) / clock_rate);
  }

  struct Arrival {
    uint64_t life = 0;
    std::function<void()> run;
  };
  std::deque<Arrival> arrivals;  // Not worked off yet.
  int64_t wakes_at_us = 0;       // The latest moment for which a look at them is planned.
};

class VirtualNetwork;

class VirtualLink : public std::enable_shared_from_this<VirtualLink> {
 public:
  struct End {
    VirtualProcess* process = nullptr;
    uint64_t life = 0;
    std::function<void()> on_lost;  // Once, unless this end closed the link itself.
  };

  VirtualLink(VirtualNetwork* network, End a, End b);

  // From end `side` (0 or 1) to the other. `deliver` runs in the other process, or never.
  void Send(int side, std::function<void()> deliver, bool overtake = false);
  // By end `side`, which hears nothing more of it.
  void Close(int side);
  // By the world. `unnoticed_by`: an end that is never told; -1: none.
  void Break(int unnoticed_by = -1);
  // By the world: nothing more arrives at end `side`, and nobody is told.
  void Cut(int side);
  // The process at end `side` has ended: what it had sent arrives before the other hears of it.
  void EndAt(int side);

  bool broken() const { return broken_; }
  const VirtualProcess* process(int side) const { return Side(side).end.process; }

 private:
  struct State {
    End end;
    bool gone = false;  // Knows that the link is over.
    int64_t last_arrival_us = 0;
    int64_t cut_us = std::numeric_limits<int64_t>::max();  // What arrives later, does not.
  };
  State& Side(int side) { return sides_[static_cast<size_t>(side)]; }
  const State& Side(int side) const { return sides_[static_cast<size_t>(side)]; }
  void Deliver(int to, int64_t at_us, const std::function<void()>& deliver);
  void Notice(int side);
  int64_t NoticeDelay() const;

  VirtualNetwork* const network_;
  std::array<State, 2> sides_;
  bool broken_ = false;
};

class VirtualNetwork {
 public:
  VirtualNetwork(EventQueue* events, Random* random, const SimulatedFaults* faults)
      : events_(events), random_(random), faults_(faults) {}

  // Runs `run` in the process at that time, if it still is in that life; later if it is paused.
  void InProcess(VirtualProcess* process, uint64_t life, int64_t at_us, std::function<void()> run);
  void InProcess(VirtualProcess* process, int64_t delay_us, std::function<void()> run) {
    InProcess(process, process->life, events_->now_us() + delay_us, std::move(run));
  }
  // Called after everything that ran in a process.
  void set_after(std::function<void(VirtualProcess*)> after) { after_ = std::move(after); }

  std::shared_ptr<VirtualLink> Connect(VirtualLink::End a, VirtualLink::End b);
  // The links between living processes, for the fault driver.
  std::vector<std::shared_ptr<VirtualLink>> LiveLinks();
  void BreakLinksOf(const VirtualProcess* process);
  // As a process ends whose machine goes on.
  void EndLinksOf(const VirtualProcess* process);

  int64_t Delay();  // How long one message takes.
  EventQueue* events() { return events_; }
  Random* random() { return random_; }
  const SimulatedFaults& faults() const { return *faults_; }

 private:
  void WorkOff(VirtualProcess* process);

  EventQueue* const events_;
  Random* const random_;
  const SimulatedFaults* const faults_;  // The world turns them off at the end.
  std::function<void(VirtualProcess*)> after_;
  std::vector<std::weak_ptr<VirtualLink>> links_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_VIRTUAL_NETWORK_H_
