#include "runtime/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

constexpr int64_t kMaxEvents = 3'000'000;
constexpr int64_t kAuditAllEvery = 256;
constexpr int64_t kUntilAllEndUs = 700'000'000;  // Past every deadline.
// Once nothing goes wrong any more, everybody who has a worker to wait for has it before: past
// every pause, hold and back-off, and the work of all requests one after the other.
constexpr int64_t kUntilServedUs = 150'000'000;
constexpr int64_t kUntilHeardUs = 1'000'000;
constexpr int64_t kUntilQuietUs = 20'000'000;  // Past leases, the slowest frame, quarantines.

}  // namespace

Simulation::Simulation(const SimulationOptions& options, Trace trace)
    : World(options, std::move(trace)) {
  World* const world = this;
  network_.set_after([this](VirtualProcess* process) {
    for (const auto& worker : workers_) {
      if (worker->process() == process) worker->AfterEvent();
    }
  });
  const auto add = [&](int32_t count, char letter, WorkerRole role) {
    for (int32_t i = 0; i < count; ++i) {
      const auto numerics = random_.Below(static_cast<uint64_t>(options.num_numerics));
      const auto format = random_.Below(static_cast<uint64_t>(options.num_kv_formats));
      const std::string address = absl::StrFormat("%c%d", letter, i);
      const size_t num_workers =
          static_cast<size_t>(options.num_prefill) + options.num_decode + options.num_hybrid;
      const bool namesake =
          options.namesakes && !workers_.empty() && workers_.size() + 1 == num_workers;
      const std::string name = namesake ? workers_.front()->address() : address;
      SimulatedWorker* const worker =
          workers_
              .emplace_back(std::make_unique<SimulatedWorker>(
                  world, address, name, role, options.DrawShape(&random_), numerics, format,
                  random_.Chance(options.supervised)))
              .get();
      AddWorker(address, worker);
    }
  };
  add(options.num_prefill, 'p', WorkerRole::kPrefill);
  add(options.num_decode, 'd', WorkerRole::kDecode);
  add(options.num_hybrid, 'h', WorkerRole::kHybrid);
  for (int32_t i = 0; i < options.num_routers; ++i) {
    routers_.push_back(std::make_unique<SimulatedRouter>(world, absl::StrFormat("r%d", i)));
  }
  Random drift(Mix64(options.seed * 2 + 2));
  const auto draw_rate = [&](VirtualProcess* process) {
    process->clock_rate = 1 + options.clock_drift * (2 * drift.Unit() - 1);
  };
  for (const auto& worker : workers_) draw_rate(worker->process());
  for (const auto& router : routers_) draw_rate(router->process());
}

SimulatedWorker* Simulation::AnyWorker() { return workers_[random_.Below(workers_.size())].get(); }

VirtualProcess* Simulation::AnyProcess() {
  const uint64_t index = random_.Below(workers_.size() + routers_.size());
  return index < workers_.size() ? workers_[index]->process()
                                 : routers_[index - workers_.size()]->process();
}

void Simulation::ScheduleArrivals() {
  to_arrive_ = options_.num_requests;
  const int32_t poisonous =
      options_.poison ? static_cast<int32_t>(random_.Below(options_.num_requests)) : -1;
  for (int32_t i = 0; i < options_.num_requests; ++i) {
    AskedRequest asked = book_.Draw(&random_);
    if (i == poisonous) RequestBook::Poison(&asked, &random_);
    std::optional<int64_t> leaves_us;
    if (random_.Chance(options_.client_cancel)) leaves_us = random_.Between(0, 500'000);
    SimulatedRouter* const router = routers_[random_.Below(routers_.size())].get();
    events_.At(random_.Between(1'000, options_.load_us), [=, this]() mutable {
      if (router->process()->up) {  // Else nobody answers; the client goes elsewhere.
        network_.InProcess(router->process(), 0, [=] { router->Ask(asked, leaves_us); });
      }
      // Once it is among what the router has to do: else everybody seems idle for a moment.
      events_.At(now_us(), [this] { --to_arrive_; });
    });
  }
}

void Simulation::Recur(int64_t mean_us, std::function<void()> fault) {
  if (mean_us == 0) return;
  events_.At(now_us() + random_.Between(1, 2 * mean_us), [this, mean_us, fault] {
    if (calm_) return;
    ++report_.faults;
    fault();
    Recur(mean_us, fault);
  });
}

void Simulation::ScheduleLinkFaults() {
  Recur(faults_.broken_link_us, [this] {
    const auto links = network_.LiveLinks();
    if (links.empty()) return;
    Log("world", "break a link");
    links[random_.Below(links.size())]->Break();
  });
  Recur(faults_.unnoticed_break_us, [this] {
    // Links between workers have the decode worker at end 0.
    const auto is_worker = [this](const VirtualProcess* process) {
      return FindWorker(process->name) != nullptr;
    };
    auto links = network_.LiveLinks();
    std::erase_if(links, [&](const auto& link) {
      return !is_worker(link->process(0)) || !is_worker(link->process(1));
    });
    if (links.empty()) return;
    Log("world", "break a peer link, unnoticed");
    links[random_.Below(links.size())]->Break(/*unnoticed_by=*/1);
  });
  Recur(faults_.one_way_cut_us, [this] {
    const auto links = network_.LiveLinks();
    if (links.empty()) return;
    Log("world", "cut a link one way");
    const auto& link = links[random_.Below(links.size())];
    link->Cut(static_cast<int>(random_.Below(2)));
    events_.At(now_us() + random_.Between(500'000, 2'000'000), [link] { link->Break(); });
  });
}

void Simulation::ScheduleCrashes() {
  Recur(faults_.crash_us, [this] {
    SimulatedWorker* const worker = AnyWorker();
    if (!worker->accepting()) return;
    if (random_.Chance(0.5)) {
      worker->Crash(EndCause::kOutside);
    } else {
      worker->LoseHost();
    }
    if (random_.Chance(faults_.upgrade)) worker->set_numerics(random_.Below(kMaxNumerics));
    if (random_.Chance(faults_.upgrade)) worker->set_shape(options_.DrawShape(&random_));
    events_.At(now_us() + random_.Between(1'000, 1'000'000), [worker] {
      if (!worker->accepting()) worker->Start();
    });
  });
  Recur(faults_.router_crash_us, [this] {
    SimulatedRouter* const router = routers_[random_.Below(routers_.size())].get();
    if (!router->process()->up) return;
    router->Crash();
    events_.At(now_us() + random_.Between(1'000, 500'000), [router] { router->Start(); });
  });
}

void Simulation::ScheduleTroubles() {
  Recur(faults_.pause_us, [this] {
    VirtualProcess* const process = AnyProcess();
    Log("world", "pause " + process->name);
    process->paused_until_us = now_us() + random_.Between(10'000, 4'000'000);
    // Keepalives do not come back: peers give its connections up.
    events_.At(now_us() + 2'000'000, [this, process, life = process->life] {
      if (process->life == life && process->paused_until_us > now_us()) {
        network_.BreakLinksOf(process);
      }
    });
  });
  Recur(faults_.stall_us, [this] {
    SimulatedWorker* const worker = AnyWorker();
    Log("world", "stall " + worker->address());
    worker->StallUntil(now_us() + random_.Between(100'000, 4'000'000));
  });
  Recur(faults_.hang_us, [this] {
    SimulatedWorker* const worker = AnyWorker();
    if (!worker->accepting()) return;
    Log("world", "hang " + worker->address());
    // Longer than anybody waits for it.
    const int64_t killed_us = now_us() + random_.Between(5'000'000, 11'000'000);
    worker->StallUntil(killed_us + 1);
    events_.At(killed_us, [worker, life = worker->process()->life] {
      if (worker->process()->life == life) worker->Replace();
    });
  });
  Recur(faults_.sick_us, [this] {
    SimulatedWorker* const worker = AnyWorker();
    Log("world", "steps fail at " + worker->address());
    worker->FailStepsUntil(now_us() + random_.Between(1'000, 3'000'000));
  });
  Recur(faults_.clock_jump_us, [this] {
    VirtualProcess* const process = AnyProcess();
    Log("world", "clock jump " + process->name);
    process->clock_offset_us += random_.Between(1'000, 5'000'000);
  });
  Recur(faults_.drain_us, [this] { AnyWorker()->Drain(); });
}

void Simulation::CalmDown() {
  Log("world", "calm");
  calm_ = true;
  faults_ = {};
}

void Simulation::AuditAll() {
  for (const auto& worker : workers_) {
    if (const absl::Status status = worker->Audit(); !status.ok()) {
      Violate(std::string(status.message()));
    }
  }
}

void Simulation::RunUntil(int64_t until_us, const std::function<bool()>& done) {
  while (report_.status.ok() && !events_.empty() && events_.next_us() <= until_us && !done()) {
    events_.RunNext();
    if (++report_.events % kAuditAllEvery == 0) AuditAll();
    if (report_.events > kMaxEvents) Violate("it goes on and on");
  }
}

SimulationReport Simulation::Run() {
  for (const auto& worker : workers_) worker->Start();
  for (const auto& router : routers_) router->Start();
  ScheduleArrivals();
  ScheduleLinkFaults();
  ScheduleCrashes();
  ScheduleTroubles();
  const auto all_idle = [this] {
    // What a client asks of a router that is paused is still to be heard.
    return to_arrive_ == 0 && std::all_of(routers_.begin(), routers_.end(), [](const auto& router) {
             return router->process()->arrivals.empty() && router->idle();
           });
  };
  RunUntil(options_.faults_us, all_idle);
  CalmDown();
  RunUntil(now_us() + kUntilServedUs, all_idle);
  for (const auto& router : routers_) {
    if (report_.status.ok() && !router->process()->arrivals.empty()) {
      Violate(router->process()->name + " still has a request to hear of");
    }
    // What only a worker of a kind that is gone could go on with waits for its deadline.
    const std::string waiting = router->Unfinished(/*only_servable=*/true);
    if (report_.status.ok() && !waiting.empty()) {
      Violate(router->process()->name + " still waits:" + waiting);
    }
  }
  RunUntil(now_us() + kUntilAllEndUs, all_idle);
  report_.served_us = now_us();
  for (const auto& router : routers_) {
    if (!router->idle()) Violate(router->process()->name + " never ended" + router->Unfinished());
  }
  if (options_.NothingGoesWrong() && report_.resumes > 0) {
    Violate(absl::StrFormat("%d attempts were made again, though nothing had gone wrong",
                            report_.resumes));
  }
  RunUntil(now_us() + kUntilQuietUs, [] { return false; });
  // What routers that dial in vain say at this moment is still to be heard.
  RunUntil(now_us() + kUntilHeardUs, [this] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker->AuditQuiet().ok(); });
  });
  AuditAll();
  for (const auto& worker : workers_) {
    const absl::Status status = worker->AuditQuiet();
    if (!status.ok()) Violate(std::string(status.message()));
  }
  for (const auto& router : routers_) {
    const absl::Status status = router->AuditQuiet();
    if (!status.ok()) Violate(std::string(status.message()));
  }
  // A router blames those that it named itself, and hears of.
  if (!options_.faults.TouchProcesses() && !options_.any_peer) {
    const absl::Status status = book_.AuditKills();
    if (!status.ok()) Violate(std::string(status.message()));
  }
  for (const auto& router : routers_) report_.overtaken += router->num_overtaken();
  report_.virtual_us = now_us();
  return report_;
}

}  // namespace tandem
