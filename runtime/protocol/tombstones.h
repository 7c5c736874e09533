// Aborts that overtook their submit: the late submit must find them. One lives until the request's
// own deadline, after which a submit is refused for its deadline alone.

#ifndef TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_
#define TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "runtime/protocol/identity.h"

namespace tandem {

// Engine thread only.
class Tombstones {
 public:
  // Past `max_entries` the one that would expire first goes.
  explicit Tombstones(int32_t max_entries) : max_entries_(max_entries) {}

  // False: past its deadline already, nothing was kept.
  bool Add(const AttemptId& attempt, int64_t deadline_us, int64_t now_us);
  // May this submit run? Not if its abort has been here.
  bool Admits(const AttemptId& attempt) const;
  void Expire(int64_t now_us);

  int32_t size() const { return static_cast<int32_t>(deadlines_.size()); }

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  void EraseFirst();

  int32_t max_entries_;
  std::map<AttemptId, int64_t> deadlines_;
  std::set<std::pair<int64_t, AttemptId>> by_deadline_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_TOMBSTONES_H_
