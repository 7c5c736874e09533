// What a worker keeps alive at its peers while they are busy elsewhere: leases at the prefill
// workers that compute for it, and reservations at the decode workers that it computes for. The
// engine adds a job the moment it matters and removes it when it ends; a timer thread, which
// no forward pass can block, sends one Renew a peer every renew_us.
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
  LeaseKeeper() = default;
  // As it is now: for who explores what may happen.
  LeaseKeeper(const LeaseKeeper& other) EXCLUDES(other.mu_);
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // From Submit to the end of the transfer.
  void AddLease(const WorkerId& prefill, JobId job) EXCLUDES(mu_);
  void RemoveLease(const WorkerId& prefill, JobId job) EXCLUDES(mu_);
  // From Start until the last frame has left. Adding what is there, and removing what is not:
  // nothing.
  void AddReservation(SessionId decode, JobId job) EXCLUDES(mu_);
  void RemoveReservation(SessionId decode, JobId job) EXCLUDES(mu_);

  // One message for each peer.
  std::vector<std::pair<WorkerId, Renew>> LeaseRenewals() const EXCLUDES(mu_);
  std::vector<std::pair<SessionId, Renew>> ReservationRenewals() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::map<WorkerId, std::set<JobId>> leases_ GUARDED_BY(mu_);
  std::map<SessionId, std::set<JobId>> reservations_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_LEASE_KEEPER_H_
