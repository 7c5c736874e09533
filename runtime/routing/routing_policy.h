// Which workers serve a request.
//
// Roles only decide what routers send: prefill workers get prefills, decode and hybrid workers get
// requests. With no prefill worker alive decode workers prefill; with no decode or hybrid worker
// alive a prefill worker serves alone.

#ifndef TANDEM_RUNTIME_ROUTING_ROUTING_POLICY_H_
#define TANDEM_RUNTIME_ROUTING_ROUTING_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/fleet/fleet.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/routing/prefix_index.h"

namespace tandem {

// When prompts go to prefill workers.
enum class DisaggregatePolicy : uint8_t {
  kAuto,    // From kAutoDisaggregateTokens missing tokens on.
  kAlways,  // Whenever the decode side lacks a block.
  kNever,
};
inline constexpr int32_t kAutoDisaggregateTokens = 256;

// Submit::disaggregate_from_tokens; 0 for kNever, where no prefill worker is named.
int32_t DisaggregateFromTokens(DisaggregatePolicy policy);

struct RoutingRequest {
  std::span<const BlockHash> chain;  // HashChain of what has to be in the cache.
  int32_t num_tokens = 0;            // Prompt, and what earlier attempts generated.
  int64_t max_total_tokens = 0;      // Prompt and all that may be generated: where it all fits.
  bool runs_alone = false;  // Where no other prompt of ours is, and without a prefill worker.
  std::string model;
  std::string numerics_id;  // Empty: any. Otherwise a stream goes on, and only there may it.
  DisaggregatePolicy disaggregate = DisaggregatePolicy::kAuto;
  // Names of workers for whose room somebody older waits. Null: none.
  const std::set<std::string>* spoken_for = nullptr;
  // A step failed while it computed this stream: only if nobody else can take it.
  std::vector<WorkerId> avoid;
};

// What decided on the worker that decodes (label of tandem_attempts_total).
enum class RouteReason : uint8_t {
  kOnly,    // No other could take it.
  kPrefix,  // It knows a longer prefix than some other.
  kLoad,    // It has less to do than some other, or the lot fell on it.
};
inline constexpr size_t kNumRouteReasons = 3;
std::string_view RouteReasonName(RouteReason reason);  // "only"

struct Route {
  WorkerId decode;
  std::optional<WorkerId> prefill;
  int32_t known_prefix_tokens = 0;  // Held by `decode`, as far as is known.
  RouteReason reason = RouteReason::kOnly;
};

// Why nobody was chosen.
enum class NoRoute : uint8_t {
  kNobodyAlive,  // No healthy worker that it fits (of this numerics_id) has a session.
  kTooLong,      // There are workers of this model, alive or lost, and it fits none of them.
  kAllFull,      // Some would do, once they have room.
};

struct RoutingDecision {
  std::optional<Route> route;
  NoRoute why_not = NoRoute::kNobodyAlive;  // If no route.
  // kAllFull: the one of them with the least to do, if no other may take its room. Empty: it is the
  // room of prefill workers that is missing, or older ones wait for all of them.
  std::string awaited;
};

// One thread.
class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  virtual RoutingDecision Choose(const RoutingRequest& request, const Fleet& fleet,
                                 const PrefixIndex& index, int64_t now_us) = 0;
};

// Among the workers whose load is within a small distance of the least, the one that knows the
// longest prefix; then the less loaded; then by lot. Affinity never outweighs more than
// max(kSlackSequences, a quarter of the least load) sequences.
std::unique_ptr<RoutingPolicy> CreateLeastLoadedPrefixPolicy(uint64_t seed);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ROUTING_ROUTING_POLICY_H_
