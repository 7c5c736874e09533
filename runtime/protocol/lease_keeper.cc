#include "runtime/protocol/lease_keeper.h"

namespace tandem {

void LeaseKeeper::Add(const WorkerId& prefill, const AttemptId& attempt) {
  MutexLock lock(&mu_);
  held_[prefill].insert(attempt);
}

void LeaseKeeper::Remove(const WorkerId& prefill, const AttemptId& attempt) {
  MutexLock lock(&mu_);
  const auto attempts = held_.find(prefill);
  if (attempts == held_.end()) return;
  attempts->second.erase(attempt);
  if (attempts->second.empty()) held_.erase(attempts);
}

std::vector<std::pair<WorkerId, Renew>> LeaseKeeper::Renewals() const {
  MutexLock lock(&mu_);
  std::vector<std::pair<WorkerId, Renew>> renewals;
  renewals.reserve(held_.size());
  for (const auto& [prefill, attempts] : held_) {
    renewals.emplace_back(prefill, Renew{.attempts = {attempts.begin(), attempts.end()}});
  }
  return renewals;
}

}  // namespace tandem
