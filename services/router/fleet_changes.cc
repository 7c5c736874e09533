#include "services/router/fleet_changes.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

// Empty: it is there, or has left.
std::string WhyLost(const Fleet& fleet, const FleetWorker& worker, int64_t now_us) {
  if (worker.draining) return "";
  if (!worker.watched) {
    return absl::StrFormat("its connection ended; it was heard %d ms ago",
                           (now_us - worker.heard_us) / 1000);
  }
  switch (fleet.FaultOf(worker, now_us)) {
    case WorkerFault::kNone:
      return "";
    case WorkerFault::kSilent:
      return absl::StrFormat("it was heard %d ms ago, at most %d are allowed",
                             (now_us - worker.heard_us) / 1000,
                             fleet.times().move_streams_after_us / 1000);
    case WorkerFault::kStalled:
      return absl::StrFormat(
          "its engine has work and made no progress for %d ms, at most %d are allowed",
          worker.load.since_progress_us / 1000, fleet.times().move_streams_after_us / 1000);
  }
  return "";
}

using Difference = std::pair<const char*, std::string>;

std::vector<Difference> Differences(const WorkerRegistration& prefill,
                                    const WorkerRegistration& decode) {
  std::vector<Difference> found;
  const auto compare = [&](const char* what, const std::string& its, const std::string& other) {
    if (its == other) return;
    found.emplace_back(what,
                       absl::StrFormat("%s: it has %s, the decode worker %s", what, its, other));
  };
  compare("model", prefill.model, decode.model);
  if (!ShareProtocol(prefill.terms, decode.terms)) {
    found.emplace_back("protocol",
                       absl::StrFormat("protocol: it speaks %d to %d, the decode worker %d to %d",
                                       prefill.terms.protocol_min, prefill.terms.protocol_max,
                                       decode.terms.protocol_min, decode.terms.protocol_max));
  }
  compare("kv_class", prefill.terms.kv_class, decode.terms.kv_class);
  // What most often makes a kv_class another one, in the words of its flag.
  if (prefill.kv.block_tokens != decode.kv.block_tokens) {
    found.emplace_back("block size",
                       absl::StrFormat("--block-size: it has %d, the decode worker %d",
                                       prefill.kv.block_tokens, decode.kv.block_tokens));
  } else if (prefill.kv.block_bytes != decode.kv.block_bytes) {
    found.emplace_back("block bytes",
                       absl::StrFormat("a block has %d bytes, the decode worker's %d: another "
                                       "--dtype, --kv-dtype or --weights, or another model",
                                       prefill.kv.block_bytes, decode.kv.block_bytes));
  }
  compare("numerics_id", prefill.terms.numerics_id, decode.terms.numerics_id);
  compare("transport", prefill.terms.transport, decode.terms.transport);
  compare("kv_shard", prefill.terms.shard.ToString(), decode.terms.shard.ToString());
  return found;
}

}  // namespace

std::vector<LostWorker> LostWorkers(const Fleet& fleet, int64_t now_us) {
  std::vector<LostWorker> lost;
  for (const auto& [name, worker] : fleet.workers()) {
    const std::string why = WhyLost(fleet, worker, now_us);
    if (why.empty()) continue;
    lost.push_back(
        {.name = name, .address = worker.address, .role = worker.registration.role, .why = why});
  }
  for (const auto& [address, missing] : fleet.missing()) {
    lost.push_back({.name = missing.name,
                    .address = address,
                    .role = missing.role,
                    .why = absl::StrFormat(missing.was_draining
                                               ? "it left, and nobody came there again for %d s"
                                               : "it was not heard for %d s",
                                           Fleet::kForgetAfterUs / 1'000'000)});
  }
  return lost;
}

std::vector<UnpairedWorker> UnpairedWorkers(const Fleet& fleet) {
  std::vector<UnpairedWorker> unpaired;
  for (const auto& [name, prefill] : fleet.workers()) {
    if (prefill.registration.role != WorkerRole::kPrefill || !prefill.watched) continue;
    const FleetWorker* nearest = nullptr;
    std::vector<Difference> least;
    int32_t num_decode = 0;
    for (const auto& [other_name, decode] : fleet.workers()) {
      if (decode.registration.role == WorkerRole::kPrefill || !decode.watched) continue;
      ++num_decode;
      std::vector<Difference> found = Differences(prefill.registration, decode.registration);
      if (nearest != nullptr && found.size() >= least.size()) continue;
      nearest = &decode;
      least = std::move(found);
      if (least.empty()) break;
    }
    if (nearest == nullptr || least.empty()) continue;
    const auto name_of = [](std::string* out, const Difference& d) { out->append(d.first); };
    const auto text_of = [](std::string* out, const Difference& d) { out->append(d.second); };
    unpaired.push_back({.name = name,
                        .address = prefill.address,
                        .decode = nearest->id().name,
                        .differs = absl::StrJoin(least, ", ", name_of),
                        .why = absl::StrJoin(least, "; ", text_of),
                        .num_decode = num_decode});
  }
  return unpaired;
}

std::vector<LostWorker> FleetChanges::TakeLost(const std::vector<LostWorker>& lost) {
  std::vector<LostWorker> changed;
  std::set<std::string> now;
  for (const LostWorker& worker : lost) {
    now.insert(worker.address);
    if (!lost_.contains(worker.address)) changed.push_back(worker);
  }
  lost_ = std::move(now);
  return changed;
}

std::vector<UnpairedWorker> FleetChanges::TakeUnpaired(
    const std::vector<UnpairedWorker>& unpaired) {
  std::vector<UnpairedWorker> changed;
  std::map<std::string, std::string> now;
  for (const UnpairedWorker& worker : unpaired) {
    now[worker.address] = worker.why;
    if (unpaired_[worker.address] != worker.why) changed.push_back(worker);
  }
  unpaired_ = std::move(now);
  return changed;
}

}  // namespace tandem
