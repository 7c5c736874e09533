// What an operator is told of the fleet beside metrics: who is lost, and which prefill workers have
// nobody to compute for.
//
// One thread, every method.

#ifndef TANDEM_SERVICES_ROUTER_FLEET_CHANGES_H_
#define TANDEM_SERVICES_ROUTER_FLEET_CHANGES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/fleet/fleet.h"

namespace tandem {

struct LostWorker {
  std::string name, address;
  WorkerRole role = WorkerRole::kHybrid;
  std::string why;
};

struct UnpairedWorker {
  std::string name, address;
  std::string decode;      // The decode worker that it has most in common with.
  std::string differs;     // In what: "kv_class, transport".
  std::string why;         // The same with both values of each.
  int32_t num_decode = 0;  // How many it was compared with.
};

// Workers that were there and are not heard or make no progress: now, in order of names, without
// those that leave as they said; last, those that the fleet has forgotten and still expects.
std::vector<LostWorker> LostWorkers(const Fleet& fleet, int64_t now_us);
// Prefill workers that no decode worker which is there can take blocks from, whoever is healthy or
// paused just now. None while nobody decodes, which is another matter.
std::vector<UnpairedWorker> UnpairedWorkers(const Fleet& fleet);

class FleetChanges {
 public:
  // What has become so since the last call. The second changes only with who is there.
  std::vector<LostWorker> TakeLost(const std::vector<LostWorker>& lost);
  std::vector<UnpairedWorker> TakeUnpaired(const std::vector<UnpairedWorker>& unpaired);

 private:
  std::set<std::string> lost_;                   // Addresses.
  std::map<std::string, std::string> unpaired_;  // Why, by address.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_FLEET_CHANGES_H_
