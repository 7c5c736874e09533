#include "runtime/protocol/grant_policy.h"

#include "runtime/base/check.h"
#include "runtime/protocol/append_bytes.h"

namespace tandem {

void GrantPolicy::Want(const AttemptId& attempt, uint64_t order, int32_t blocks) {
  TANDEM_CHECK(blocks > 0) << blocks;
  waiting_[order] = {.attempt = attempt, .blocks = blocks};
}

bool GrantPolicy::OldestMayHave() const {
  if (waiting_.empty()) return false;
  const int64_t with_it = int64_t{granted_blocks_} + wanted_blocks();
  return granted_.empty() || 2 * with_it < pool_blocks_;
}

std::optional<AttemptId> GrantPolicy::Next(int32_t available_blocks) {
  if (!OldestMayHave() || wanted_blocks() > available_blocks) return std::nullopt;
  const auto [attempt, blocks] = waiting_.begin()->second;
  waiting_.erase(waiting_.begin());
  granted_[attempt] = blocks;
  granted_blocks_ += blocks;
  return attempt;
}

void GrantPolicy::Remove(const AttemptId& attempt) {
  const auto granted = granted_.find(attempt);
  if (granted != granted_.end()) {
    granted_blocks_ -= granted->second;
    granted_.erase(granted);
    return;
  }
  std::erase_if(waiting_, [&attempt](const auto& wish) { return wish.second.attempt == attempt; });
}

void GrantPolicy::AppendState(std::string* bytes) const {
  const auto append = [bytes](const AttemptId& attempt, int32_t blocks) {
    AppendBytes(attempt.request.counter, bytes);
    AppendBytes(attempt.attempt, bytes);
    AppendBytes(blocks, bytes);
  };
  for (const auto& [order, wish] : waiting_) append(wish.attempt, wish.blocks);
  bytes->push_back('|');
  for (const auto& [attempt, blocks] : granted_) append(attempt, blocks);
}

}  // namespace tandem
