#include "runtime/simulation/virtual_network.h"

#include <algorithm>
#include <utility>

namespace tandem {

VirtualLink::VirtualLink(VirtualNetwork* network, End a, End b) : network_(network) {
  sides_[0].end = std::move(a);
  sides_[1].end = std::move(b);
}

void VirtualLink::Send(int side, std::function<void()> deliver, bool overtake) {
  if (Side(side).gone || broken_) return;
  const int to = 1 - side;
  const int64_t now_us = network_->events()->now_us();
  int64_t at_us = now_us + network_->Delay();
  if (overtake) {
    at_us = now_us + 1;
  } else {
    at_us = std::max(at_us, Side(to).last_arrival_us);
    Side(to).last_arrival_us = at_us;
  }
  Deliver(to, at_us, deliver);
  if (network_->random()->Chance(network_->faults().repeated_message)) {
    const int64_t again_us = std::max(at_us + network_->Delay(), Side(to).last_arrival_us);
    Side(to).last_arrival_us = again_us;
    Deliver(to, again_us, deliver);
  }
}

void VirtualLink::Deliver(int to, int64_t at_us, const std::function<void()>& deliver) {
  network_->InProcess(Side(to).end.process, Side(to).end.life, at_us,
                      [self = shared_from_this(), to, at_us, deliver] {
                        const State& state = self->Side(to);
                        if (!state.gone && at_us <= state.cut_us) deliver();
                      });
}

// Most losses are seen at once, some only by a keepalive.
int64_t VirtualLink::NoticeDelay() const {
  return network_->random()->Chance(0.8) ? network_->random()->Between(0, 2'000)
                                         : network_->random()->Between(2'000, 2'000'000);
}

void VirtualLink::EndAt(int side) {
  Side(side).gone = true;
  if (std::exchange(broken_, true)) return;
  State& other = Side(1 - side);
  const int64_t seen_us =
      std::max(network_->events()->now_us() + NoticeDelay(), other.last_arrival_us);
  network_->InProcess(other.end.process, other.end.life, seen_us,
                      [self = shared_from_this(), side] {
                        State& lost = self->Side(1 - side);
                        if (std::exchange(lost.gone, true)) return;
                        lost.end.on_lost();
                      });
}

void VirtualLink::Notice(int side) {
  const int64_t seen_us = NoticeDelay();
  State& state = Side(side);
  state.cut_us = std::min(state.cut_us,
                          network_->events()->now_us() + network_->random()->Between(0, seen_us));
  network_->InProcess(state.end.process, state.end.life, network_->events()->now_us() + seen_us,
                      [self = shared_from_this(), side] {
                        State& lost = self->Side(side);
                        if (std::exchange(lost.gone, true)) return;
                        lost.end.on_lost();
                      });
}

void VirtualLink::Close(int side) {
  Side(side).gone = true;
  if (std::exchange(broken_, true)) return;
  Notice(1 - side);
}

void VirtualLink::Cut(int side) {
  Side(side).cut_us = std::min(Side(side).cut_us, network_->events()->now_us());
}

void VirtualLink::Break(int unnoticed_by) {
  if (std::exchange(broken_, true)) return;
  for (int side = 0; side < 2; ++side) {
    if (side != unnoticed_by) Notice(side);
  }
}

void VirtualNetwork::InProcess(VirtualProcess* process, uint64_t life, int64_t at_us,
                               std::function<void()> run) {
  events_->At(at_us, [this, process, life, run = std::move(run)]() mutable {
    process->arrivals.push_back({.life = life, .run = std::move(run)});
    WorkOff(process);
  });
}

void VirtualNetwork::WorkOff(VirtualProcess* process) {
  while (!process->arrivals.empty()) {
    if (process->arrivals.front().life != process->life) {
      process->arrivals.pop_front();
      continue;
    }
    if (process->paused_until_us > events_->now_us()) {
      if (std::exchange(process->wakes_at_us, process->paused_until_us) !=
          process->paused_until_us) {
        events_->At(process->paused_until_us, [this, process] { WorkOff(process); });
      }
      return;
    }
    const std::function<void()> run = std::move(process->arrivals.front().run);
    process->arrivals.pop_front();
    run();
    after_(process);
  }
}

std::shared_ptr<VirtualLink> VirtualNetwork::Connect(VirtualLink::End a, VirtualLink::End b) {
  auto link = std::make_shared<VirtualLink>(this, std::move(a), std::move(b));
  links_.push_back(link);
  return link;
}

std::vector<std::shared_ptr<VirtualLink>> VirtualNetwork::LiveLinks() {
  std::vector<std::shared_ptr<VirtualLink>> live;
  std::erase_if(links_, [&](const std::weak_ptr<VirtualLink>& weak) {
    auto link = weak.lock();
    if (link == nullptr || link->broken()) return true;
    live.push_back(std::move(link));
    return false;
  });
  return live;
}

void VirtualNetwork::BreakLinksOf(const VirtualProcess* process) {
  for (const auto& link : LiveLinks()) {
    if (link->process(0) == process || link->process(1) == process) link->Break();
  }
}

void VirtualNetwork::EndLinksOf(const VirtualProcess* process) {
  for (const auto& link : LiveLinks()) {
    for (int side = 0; side < 2; ++side) {
      if (link->process(side) == process) link->EndAt(side);
    }
  }
}

int64_t VirtualNetwork::Delay() {
  return random_->Chance(faults_->slow_message) ? random_->Between(400, 60'000)
                                                : random_->Between(50, 400);
}

}  // namespace tandem
