// Which transfer gets its blocks next. Granted but uncommitted blocks stay under half of the pool,
// except that one transfer is always granted while no other is; all of its blocks or none; in the
// order in which they started, so that a large one is not overtaken for ever.

#ifndef TANDEM_RUNTIME_PROTOCOL_GRANT_POLICY_H_
#define TANDEM_RUNTIME_PROTOCOL_GRANT_POLICY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "runtime/protocol/identity.h"

namespace tandem {

// Engine thread only.
class GrantPolicy {
 public:
  explicit GrantPolicy(int32_t pool_blocks) : pool_blocks_(pool_blocks) {}

  // False: refuse at Submit. `sequence_blocks` is what the whole prompt needs, hits included.
  bool CanEverFit(int32_t sequence_blocks) const { return sequence_blocks <= pool_blocks_; }

  // It started and wants `blocks`. Once an attempt.
  void Want(const AttemptId& attempt, int32_t blocks);
  // The oldest, if it may have its blocks now and `available_blocks` suffice; it then counts as
  // granted. Call until it gives nothing.
  std::optional<AttemptId> Next(int32_t available_blocks);
  // Committed or ended, whether it waited or was granted. Unknown: nothing.
  void Remove(const AttemptId& attempt);

  int32_t granted_blocks() const { return granted_blocks_; }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // What the oldest waits for; 0 if none waits.
  int32_t wanted_blocks() const { return waiting_.empty() ? 0 : waiting_.front().second; }

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  int32_t pool_blocks_;
  std::deque<std::pair<AttemptId, int32_t>> waiting_;
  std::map<AttemptId, int32_t> granted_;
  int32_t granted_blocks_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_GRANT_POLICY_H_
