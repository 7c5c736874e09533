#include "runtime/request/waiting_groups.h"

#include <algorithm>
#include <utility>

namespace tandem {

void WaitingGroups::Add(const StreamKey& key, const Waiter& waiter) {
  const Group none = {.streams = WaitingStreams(&last_turn_)};
  const auto group = groups_.try_emplace(waiter.need, none).first;
  if (waiter.started) {
    group->second.streams.AddStarted(key);
  } else {
    group->second.streams.Add(key, waiter.client, waiter.turn);
  }
  groups_of_.emplace(key, group);
}

void WaitingGroups::Remove(const StreamKey& key, const std::string& client) {
  const auto found = groups_of_.find(key);
  if (found == groups_of_.end()) return;
  found->second->second.streams.Remove(key, client);
  groups_of_.erase(found);
}

void WaitingGroups::TakeFirst(Group* group) {
  groups_of_.erase(group->streams.first().key);
  group->streams.TakeFirst();
}

bool WaitingGroups::WaitsFor(uint64_t request) const {
  const auto first = groups_of_.lower_bound({request, 0});
  return first != groups_of_.end() && first->first.request == request;
}

void WaitingGroups::Walk(const std::function<bool(Group* group)>& place) {
  std::erase_if(groups_, [](const auto& entry) { return entry.second.streams.empty(); });
  std::map<WaitingStreams::Place, Group*> firsts;  // Each group's first stream.
  for (auto& [need, group] : groups_) firsts.emplace(group.streams.first(), &group);
  while (!firsts.empty()) {
    Group* const group = firsts.extract(firsts.begin()).mapped();
    // What a request that has failed left behind is not there any more.
    if (group->streams.empty() || !place(group)) continue;
    if (!group->streams.empty()) firsts.emplace(group->streams.first(), group);
  }
}

void WaitingGroups::Regroup(
    const std::function<Waiter(const WaitingStreams::Place& place)>& waiter_of) {
  const Groups groups = std::exchange(groups_, {});
  groups_of_.clear();
  std::map<WaitingStreams::Place, const Group*> line;  // Clients stay in it as they are.
  for (const auto& [need, group] : groups) {
    for (const WaitingStreams::Place& place : group.streams.all()) line.emplace(place, &group);
  }
  for (const auto& [place, group] : line) {
    Add(place.key, waiter_of(place));
    // The latest of those that it is made of: nobody's patience ends before its time.
    int64_t& since_us = groups_of_.at(place.key)->second.nobody_since_us;
    since_us = std::max(since_us, group->nobody_since_us);
  }
}

}  // namespace tandem
