// Which transfer gets its blocks next. Granted but uncommitted blocks stay under half of the pool,
// except that one transfer is always granted while no other is; all of its blocks or none; oldest
// first, so that a large one is not overtaken for ever.

#ifndef TANDEM_RUNTIME_PROTOCOL_GRANT_POLICY_H_
#define TANDEM_RUNTIME_PROTOCOL_GRANT_POLICY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "runtime/protocol/identity.h"

namespace tandem {

// Engine thread only.
class GrantPolicy {
 public:
  explicit GrantPolicy(int32_t pool_blocks) : pool_blocks_(pool_blocks) {}

  // It started and wants `blocks`. Once a job, whose number is its age: lower is older.
  void Want(JobId job, int32_t blocks);
  // The oldest waits for nothing but blocks.
  bool OldestMayHave() const;
  // The oldest, if it may have its blocks now and `available_blocks` suffice; it then counts as
  // granted. Call until it gives nothing.
  std::optional<JobId> Next(int32_t available_blocks);
  // Committed or ended, whether it waited or was granted. Unknown: nothing.
  void Remove(JobId job);

  int32_t granted_blocks() const { return granted_blocks_; }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // What the oldest waits for, and its number; 0 and the largest number if none waits.
  int32_t wanted_blocks() const { return waiting_.empty() ? 0 : waiting_.begin()->second; }
  JobId oldest() const {
    return waiting_.empty() ? std::numeric_limits<JobId>::max() : waiting_.begin()->first;
  }

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  int32_t pool_blocks_;
  std::map<JobId, int32_t> waiting_;  // And the blocks that each wants,
  std::map<JobId, int32_t> granted_;  // or has.
  int32_t granted_blocks_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_GRANT_POLICY_H_
