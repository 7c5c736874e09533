#include "runtime/routing/prefix_index.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace tandem {
namespace {

constexpr int64_t kSweepPerChange = 64;

}  // namespace

void PrefixIndex::AddWorker(const WorkerId& worker, int32_t block_tokens) {
  TANDEM_CHECK(block_tokens > 0 && block_tokens % kHashTokens == 0)
      << "block_tokens " << block_tokens;
  if (const auto it = source_of_.find(worker.name); it != source_of_.end()) {
    Source& source = sources_[it->second];
    if (source.incarnation == worker.incarnation) {
      source.gap_told = false;
      return;
    }
    RemoveWorker(WorkerId{.name = worker.name, .incarnation = source.incarnation});
  }
  const auto free = std::find_if(sources_.begin(), sources_.end(), [](auto& s) { return !s.used; });
  const auto index = static_cast<uint32_t>(free - sources_.begin());
  if (free == sources_.end()) sources_.emplace_back();
  Source& source = sources_[index];
  source.name = worker.name;
  source.incarnation = worker.incarnation;
  source.used = true;
  source.synchronised = false;
  source.gap_told = false;
  source.stride = block_tokens / kHashTokens;
  source_of_[worker.name] = index;
}

void PrefixIndex::RemoveWorker(const WorkerId& worker) {
  const auto it = source_of_.find(worker.name);
  if (it == source_of_.end() || sources_[it->second].incarnation != worker.incarnation) return;
  Source& source = sources_[it->second];
  source.used = false;
  ++source.epoch;
  source_of_.erase(it);
  to_sweep_ = static_cast<int64_t>(order_.size());
}

bool PrefixIndex::Apply(const WorkerId& worker, const KvEvents& events) {
  const auto it = source_of_.find(worker.name);
  if (it == source_of_.end() || sources_[it->second].incarnation != worker.incarnation) return true;
  const uint32_t index = it->second;
  Source& source = sources_[index];
  if (events.snapshot) {
    ++source.epoch;
    to_sweep_ = static_cast<int64_t>(order_.size());
    source.synchronised = true;
    source.gap_told = false;
    source.next_sequence = events.first_sequence;  // The number of the first event after it.
  } else {
    if (source.synchronised && events.first_sequence != source.next_sequence) {
      ++source.epoch;
      to_sweep_ = static_cast<int64_t>(order_.size());
      source.synchronised = false;
    }
    if (!source.synchronised) return std::exchange(source.gap_told, true);
    source.next_sequence += events.stored.size() + events.removed.size();
  }
  for (const BlockHash& hash : events.stored) Store(index, hash);
  for (const BlockHash& hash : events.removed) Remove(index, hash);
  Sweep(std::min(to_sweep_, kSweepPerChange));
  return true;
}

void PrefixIndex::Store(uint32_t source, const BlockHash& hash) {
  const auto [it, fresh] = entries_.try_emplace(hash);
  std::vector<Holder>& holders = it->second;
  std::erase_if(holders, [&](const Holder& h) { return !Valid(h) || h.source == source; });
  holders.push_back({.source = source, .epoch = sources_[source].epoch});
  if (!fresh) return;
  order_.push_back(hash);
  while (num_entries() > max_entries_) ForgetOldest();
}

void PrefixIndex::Remove(uint32_t source, const BlockHash& hash) {
  const auto it = entries_.find(hash);
  if (it == entries_.end()) return;
  // An entry without holders goes when its turn in order_ comes: order_ names every entry once.
  std::erase_if(it->second, [&](const Holder& h) { return !Valid(h) || h.source == source; });
  if (it->second.empty() && to_sweep_ == 0) to_sweep_ = static_cast<int64_t>(order_.size());
}

void PrefixIndex::ForgetOldest() {
  entries_.erase(order_.front());
  order_.pop_front();
  to_sweep_ = std::min(to_sweep_, static_cast<int64_t>(order_.size()));
}

void PrefixIndex::Sweep(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const BlockHash hash = order_.front();
    order_.pop_front();
    --to_sweep_;
    const auto it = entries_.find(hash);
    std::erase_if(it->second, [&](const Holder& h) { return !Valid(h); });
    if (it->second.empty()) {
      entries_.erase(it);
    } else {
      order_.push_back(hash);
    }
  }
}

std::map<std::string, int32_t> PrefixIndex::LongestPrefixes(
    std::span<const BlockHash> chain) const {
  struct Match {
    uint32_t source;
    int32_t hashes;  // Held from the start on.
  };
  std::vector<Match> matches;
  int32_t longest_stride = 1;
  for (const Source& source : sources_) {
    if (source.used) longest_stride = std::max(longest_stride, source.stride);
  }
  int32_t last_advance = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(chain.size()); ++i) {
    if (i - last_advance >= longest_stride) break;  // Nobody goes on from here.
    const auto it = entries_.find(chain[static_cast<size_t>(i)]);
    if (it == entries_.end()) continue;
    for (const Holder& holder : it->second) {
      if (!Valid(holder)) continue;
      auto match = std::find_if(matches.begin(), matches.end(),
                                [&](const Match& m) { return m.source == holder.source; });
      if (match == matches.end()) match = matches.insert(match, {holder.source, 0});
      if (match->hashes + sources_[holder.source].stride == i + 1) {
        match->hashes = i + 1;
        last_advance = i + 1;
      }
    }
  }
  std::map<std::string, int32_t> tokens;
  for (const Match& match : matches) {
    if (match.hashes > 0) tokens[sources_[match.source].name] = match.hashes * kHashTokens;
  }
  return tokens;
}

}  // namespace tandem
