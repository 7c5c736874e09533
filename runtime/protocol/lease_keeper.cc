#include "runtime/protocol/lease_keeper.h"

namespace tandem {
namespace {

template <typename Peer>
using Attempts = std::map<Peer, std::set<AttemptId>>;

template <typename Peer>
void Remove(const Peer& peer, const AttemptId& attempt, Attempts<Peer>* from) {
  const auto attempts = from->find(peer);
  if (attempts == from->end()) return;
  attempts->second.erase(attempt);
  if (attempts->second.empty()) from->erase(attempts);
}

template <typename Peer>
std::vector<std::pair<Peer, Renew>> Renewals(const Attempts<Peer>& of) {
  std::vector<std::pair<Peer, Renew>> renewals;
  renewals.reserve(of.size());
  for (const auto& [peer, attempts] : of) {
    renewals.emplace_back(peer, Renew{.attempts = {attempts.begin(), attempts.end()}});
  }
  return renewals;
}

}  // namespace

void LeaseKeeper::AddLease(const WorkerId& prefill, const AttemptId& attempt) {
  MutexLock lock(&mu_);
  leases_[prefill].insert(attempt);
}

void LeaseKeeper::RemoveLease(const WorkerId& prefill, const AttemptId& attempt) {
  MutexLock lock(&mu_);
  Remove(prefill, attempt, &leases_);
}

void LeaseKeeper::AddReservation(SessionId decode, const AttemptId& attempt) {
  MutexLock lock(&mu_);
  reservations_[decode].insert(attempt);
}

void LeaseKeeper::RemoveReservation(SessionId decode, const AttemptId& attempt) {
  MutexLock lock(&mu_);
  Remove(decode, attempt, &reservations_);
}

std::vector<std::pair<WorkerId, Renew>> LeaseKeeper::LeaseRenewals() const {
  MutexLock lock(&mu_);
  return Renewals(leases_);
}

std::vector<std::pair<SessionId, Renew>> LeaseKeeper::ReservationRenewals() const {
  MutexLock lock(&mu_);
  return Renewals(reservations_);
}

}  // namespace tandem
