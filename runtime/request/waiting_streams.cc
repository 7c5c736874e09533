#include "runtime/request/waiting_streams.h"

#include <utility>

namespace tandem {

void WaitingStreams::Add(const StreamKey& key, const std::string& client, uint64_t turn) {
  const auto [entry, is_new] = clients_.try_emplace(client);
  entry->second.streams.insert(key);
  if (!is_new) return;
  entry->second.turn = turn > 0 ? turn : ++*last_turn_;
  turns_.emplace(entry->second.turn, client);
}

void WaitingStreams::Remove(const StreamKey& key, const std::string& client) {
  if (started_.erase(key) > 0) return;
  const auto entry = clients_.find(client);
  entry->second.streams.erase(key);
  if (!entry->second.streams.empty()) return;
  turns_.erase(entry->second.turn);
  clients_.erase(entry);
}

void WaitingStreams::TakeFirst() {
  if (!started_.empty()) {
    started_.erase(started_.begin());
    return;
  }
  auto turn = turns_.extract(turns_.begin());
  const auto entry = clients_.find(turn.mapped());
  Client& client = entry->second;
  client.streams.erase(client.streams.begin());
  if (client.streams.empty()) {
    clients_.erase(entry);
    return;
  }
  client.turn = ++*last_turn_;
  turn.key() = client.turn;
  turns_.insert(std::move(turn));
}

WaitingStreams::Place WaitingStreams::first() const {
  if (!started_.empty()) return {.turn = 0, .key = *started_.begin()};
  const auto& [turn, client] = *turns_.begin();
  return {.turn = turn, .key = *clients_.at(client).streams.begin()};
}

std::vector<WaitingStreams::Place> WaitingStreams::all() const {
  std::vector<Place> places;
  for (const StreamKey& key : started_) places.push_back({.turn = 0, .key = key});
  for (const auto& [name, client] : clients_) {
    for (const StreamKey& key : client.streams) places.push_back({.turn = client.turn, .key = key});
  }
  return places;
}

}  // namespace tandem
