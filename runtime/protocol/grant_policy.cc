#include "runtime/protocol/grant_policy.h"

#include "runtime/base/check.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {

void GrantPolicy::Want(JobId job, int32_t blocks) {
  TANDEM_CHECK(blocks > 0) << blocks;
  waiting_[job] = blocks;
}

bool GrantPolicy::OldestMayHave() const {
  if (waiting_.empty()) return false;
  const int64_t with_it = int64_t{granted_blocks_} + wanted_blocks();
  return granted_.empty() || 2 * with_it < pool_blocks_;
}

std::optional<JobId> GrantPolicy::Next(int32_t available_blocks) {
  if (!OldestMayHave() || wanted_blocks() > available_blocks) return std::nullopt;
  const auto [job, blocks] = *waiting_.begin();
  waiting_.erase(waiting_.begin());
  granted_[job] = blocks;
  granted_blocks_ += blocks;
  return job;
}

void GrantPolicy::Remove(JobId job) {
  waiting_.erase(job);
  const auto granted = granted_.find(job);
  if (granted == granted_.end()) return;
  granted_blocks_ -= granted->second;
  granted_.erase(granted);
}

void GrantPolicy::AppendState(std::string* bytes) const {
  for (const auto* jobs : {&waiting_, &granted_}) {
    for (const auto& [job, blocks] : *jobs) {
      AppendBytes(job, bytes);
      AppendBytes(blocks, bytes);
    }
    bytes->push_back('|');
  }
}

}  // namespace tandem
