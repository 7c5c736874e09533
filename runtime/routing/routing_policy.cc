#include "runtime/routing/routing_policy.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "runtime/base/guard.h"

namespace tandem {
namespace {

constexpr int64_t kSlackSequences = 4;
constexpr int64_t kSlackPromptTokens = 2048;

struct Candidate {
  const FleetWorker* worker;
  int64_t load;
  int32_t prefix_tokens;
};

// Affinity inside the slack, then load, then lot.
const Candidate& Pick(const std::vector<Candidate>& candidates, int64_t slack, Random* random) {
  const auto by_load = [](const Candidate& a, const Candidate& b) { return a.load < b.load; };
  const int64_t least = std::min_element(candidates.begin(), candidates.end(), by_load)->load;
  const int64_t most = least + std::max(slack, least / 4);
  const Candidate* best = nullptr;
  uint64_t ties = 0;
  for (const Candidate& candidate : candidates) {
    if (candidate.load > most) continue;
    const auto better = [](const Candidate& a, const Candidate& b) {
      return std::pair(-a.prefix_tokens, a.load) < std::pair(-b.prefix_tokens, b.load);
    };
    if (best == nullptr || better(candidate, *best)) {
      best = &candidate;
      ties = 1;
    } else if (!better(*best, candidate) && random->Below(++ties) == 0) {
      best = &candidate;
    }
  }
  return *best;
}

RouteReason ReasonFor(const Candidate& chosen, const std::vector<Candidate>& candidates) {
  if (candidates.size() == 1) return RouteReason::kOnly;
  const bool longer = std::any_of(
      candidates.begin(), candidates.end(),
      [&](const Candidate& other) { return other.prefix_tokens < chosen.prefix_tokens; });
  return longer ? RouteReason::kPrefix : RouteReason::kLoad;
}

int32_t PrefixOf(const std::map<std::string, int32_t>& prefixes, const FleetWorker& worker) {
  const auto it = prefixes.find(worker.id().name);
  return it == prefixes.end() ? 0 : it->second;
}

bool ToAvoid(const RoutingRequest& request, const FleetWorker& worker) {
  return std::find(request.avoid.begin(), request.avoid.end(), worker.id()) != request.avoid.end();
}

class LeastLoadedPrefixPolicy final : public RoutingPolicy {
 public:
  explicit LeastLoadedPrefixPolicy(uint64_t seed) : random_(seed) {}

  RoutingDecision Choose(const RoutingRequest& request, const Fleet& fleet,
                         const PrefixIndex& index, int64_t now_us) override {
    const std::map<std::string, int32_t> prefixes = index.LongestPrefixes(request.chain);
    // A decode worker that is only full is waited for; so is any that is not to be avoided.
    struct Tier {
      bool any = false;
      std::vector<Candidate> candidates;
      const FleetWorker* awaited = nullptr;
    };
    std::array<Tier, 4> tiers;  // To decode, to prefill; those to be avoided.
    bool any_registered = false, any_fits = false;
    for (const auto& [name, worker] : fleet.workers()) {
      if (worker.registration.model != request.model) continue;
      any_registered = true;
      if (request.max_total_tokens > worker.offered_tokens()) continue;
      any_fits = true;
      if (worker.session == 0 || !fleet.Healthy(worker, now_us)) continue;
      if (!request.numerics_id.empty() &&
          !TANDEM_GUARD("resume_numerics",
                        worker.registration.terms.numerics_id == request.numerics_id)) {
        continue;
      }
      const size_t prefills = worker.registration.role == WorkerRole::kPrefill ? 1 : 0;
      Tier& tier = tiers[prefills + (ToAvoid(request, worker) ? 2 : 0)];
      tier.any = true;
      const bool spoken_for = request.spoken_for != nullptr && request.spoken_for->contains(name);
      if (spoken_for) continue;
      if (!fleet.MayTakeWork(worker, request.runs_alone, now_us)) {
        if (tier.awaited == nullptr ||
            worker.estimated_sequences() < tier.awaited->estimated_sequences()) {
          tier.awaited = &worker;
        }
      } else {
        tier.candidates.push_back(
            {&worker, worker.estimated_sequences(), PrefixOf(prefixes, worker)});
      }
    }
    const auto tier = std::find_if(tiers.begin(), tiers.end(), [](const Tier& t) { return t.any; });
    if (tier == tiers.end()) {
      return {.route = std::nullopt,
              .why_not = any_registered && !any_fits ? NoRoute::kTooLong : NoRoute::kNobodyAlive,
              .awaited = {}};
    }
    RoutingDecision full{.route = std::nullopt, .why_not = NoRoute::kAllFull, .awaited = {}};
    if (tier->candidates.empty() && tier->awaited != nullptr) {
      full.awaited = tier->awaited->id().name;
    }
    while (!tier->candidates.empty()) {
      const Candidate chosen = Pick(tier->candidates, kSlackSequences, &random_);
      const Prefills prefills = FindPrefills(request, fleet, prefixes, chosen, now_us);
      if (!prefills.any || !prefills.with_room.empty()) {
        Route route{.decode = chosen.worker->id(),
                    .prefill = std::nullopt,
                    .known_prefix_tokens = chosen.prefix_tokens,
                    .reason = ReasonFor(chosen, tier->candidates)};
        if (prefills.any) {
          route.prefill = Pick(prefills.with_room, kSlackPromptTokens, &random_).worker->id();
        }
        return {.route = std::move(route), .awaited = {}};
      }
      // Computed at this one it would be in the way of everybody's tokens.
      std::erase_if(tier->candidates,
                    [&](const Candidate& other) { return other.worker == chosen.worker; });
    }
    return full;
  }

 private:
  struct Prefills {
    bool any = false;  // Some would do, once they have room.
    std::vector<Candidate> with_room;
  };

  static Prefills FindPrefills(const RoutingRequest& request, const Fleet& fleet,
                               const std::map<std::string, int32_t>& prefixes,
                               const Candidate& decode, int64_t now_us) {
    Prefills found;
    const int32_t from = DisaggregateFromTokens(request.disaggregate);
    if (request.runs_alone || from == 0 || request.num_tokens < from) return found;
    if (decode.worker->registration.role == WorkerRole::kPrefill) return found;
    for (const auto& [name, worker] : fleet.workers()) {
      if (worker.registration.role != WorkerRole::kPrefill || !fleet.MayPrefill(worker, now_us) ||
          request.num_tokens > worker.offered_prompt_tokens() || ToAvoid(request, worker) ||
          !fleet.MayPair(*decode.worker, worker, now_us)) {
        continue;
      }
      found.any = true;
      if (!fleet.HasPromptRoom(worker, now_us)) continue;
      found.with_room.push_back(
          {&worker, worker.estimated_prompt_tokens(), PrefixOf(prefixes, worker)});
    }
    return found;
  }

  Random random_;
};

}  // namespace

std::string_view RouteReasonName(RouteReason reason) {
  constexpr std::string_view kNames[] = {"only", "prefix", "load"};
  return kNames[static_cast<size_t>(reason)];
}

int32_t DisaggregateFromTokens(DisaggregatePolicy policy) {
  switch (policy) {
    case DisaggregatePolicy::kAuto:
      return kAutoDisaggregateTokens;
    case DisaggregatePolicy::kAlways:
      return 1;
    case DisaggregatePolicy::kNever:
      return 0;
  }
  return 0;
}

std::unique_ptr<RoutingPolicy> CreateLeastLoadedPrefixPolicy(uint64_t seed) {
  return std::make_unique<LeastLoadedPrefixPolicy>(seed);
}

}  // namespace tandem
