// Which attempts this decode worker wants its prefill peers to keep alive. The engine adds one the
// moment it is queued and removes it when it ends; a timer thread, which no forward pass can block,
// sends one Renew a peer every renew_us.
//
// Thread-safe.

#ifndef TANDEM_RUNTIME_PROTOCOL_LEASE_KEEPER_H_
#define TANDEM_RUNTIME_PROTOCOL_LEASE_KEEPER_H_

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"

namespace tandem {

class LeaseKeeper {
 public:
  void Add(const WorkerId& prefill, const AttemptId& attempt) EXCLUDES(mu_);
  void Remove(const WorkerId& prefill, const AttemptId& attempt) EXCLUDES(mu_);

  // One message for each peer that holds something for us.
  std::vector<std::pair<WorkerId, Renew>> Renewals() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::map<WorkerId, std::set<AttemptId>> held_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_LEASE_KEEPER_H_
