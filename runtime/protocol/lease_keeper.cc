#include "runtime/protocol/lease_keeper.h"

namespace tandem {
namespace {

template <typename Peer>
using Jobs = std::map<Peer, std::set<JobId>>;

template <typename Peer>
void Remove(const Peer& peer, JobId job, Jobs<Peer>* from) {
  const auto jobs = from->find(peer);
  if (jobs == from->end()) return;
  jobs->second.erase(job);
  if (jobs->second.empty()) from->erase(jobs);
}

template <typename Peer>
std::vector<std::pair<Peer, Renew>> Renewals(const Jobs<Peer>& of) {
  std::vector<std::pair<Peer, Renew>> renewals;
  renewals.reserve(of.size());
  for (const auto& [peer, jobs] : of) {
    renewals.emplace_back(peer, Renew{.jobs = {jobs.begin(), jobs.end()}});
  }
  return renewals;
}

}  // namespace

LeaseKeeper::LeaseKeeper(const LeaseKeeper& other) {
  MutexLock theirs(&other.mu_);
  MutexLock lock(&mu_);
  leases_ = other.leases_;
  reservations_ = other.reservations_;
}

void LeaseKeeper::AddLease(const WorkerId& prefill, JobId job) {
  MutexLock lock(&mu_);
  leases_[prefill].insert(job);
}

void LeaseKeeper::RemoveLease(const WorkerId& prefill, JobId job) {
  MutexLock lock(&mu_);
  Remove(prefill, job, &leases_);
}

void LeaseKeeper::AddReservation(SessionId decode, JobId job) {
  MutexLock lock(&mu_);
  reservations_[decode].insert(job);
}

void LeaseKeeper::RemoveReservation(SessionId decode, JobId job) {
  MutexLock lock(&mu_);
  Remove(decode, job, &reservations_);
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
