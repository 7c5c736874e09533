// Streams that wait for a worker, in groups that may go to the same ones: while the first of a
// group finds nobody, so does every other, so that a walk costs as much as there are groups.
//
// One thread.

#ifndef TANDEM_RUNTIME_REQUEST_WAITING_GROUPS_H_
#define TANDEM_RUNTIME_REQUEST_WAITING_GROUPS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "runtime/request/waiting_streams.h"

namespace tandem {

class WaitingGroups {
 public:
  // What decides which workers a stream may go to: those of equal needs are a group.
  struct Need {
    std::string model;
    std::string numerics_id;
    int64_t offer = 0;         // The least that a worker offers and it still fits.
    int64_t prompt_offer = 0;  // The same of prefill workers, for its prompt; 0: it stays local.
    // What may kill workers waits for one of its own, and where a step failed it goes last.
    std::optional<StreamKey> apart;
    auto operator<=>(const Need&) const = default;
  };
  struct Group {
    WaitingStreams streams;
    int64_t nobody_since_us = -1;  // -1: somebody that they fit is alive.
  };
  struct Waiter {
    Need need;
    bool started = false;  // It has tokens, and goes before those that have none.
    std::string client;
    uint64_t turn = 0;  // As of WaitingStreams::Add.
  };

  WaitingGroups() = default;
  WaitingGroups(const WaitingGroups&) = delete;  // Groups share last_turn_.
  WaitingGroups& operator=(const WaitingGroups&) = delete;

  void Add(const StreamKey& key, const Waiter& waiter);
  // It does not go to a worker. Nothing happens if it does not wait.
  void Remove(const StreamKey& key, const std::string& client);
  // The first of the group goes to a worker.
  void TakeFirst(Group* group);

  int64_t size() const { return std::ssize(groups_of_); }
  bool empty() const { return groups_of_.empty(); }
  bool WaitsFor(uint64_t request) const;  // Some stream of it.

  // Calls `place` with the group whose first stream is next, until nothing waits or every group was
  // put off: `place` returns false where neither that stream nor one behind it goes anywhere now.
  // Streams may come and go meanwhile.
  void Walk(const std::function<bool(Group* group)>& place);

  // What fits where has changed: all find their groups again, clients keeping their turns.
  // `waiter_of` is called for each, by turns; `place` says with which turn it waited.
  void Regroup(const std::function<Waiter(const WaitingStreams::Place& place)>& waiter_of);

 private:
  using Groups = std::map<Need, Group>;

  uint64_t last_turn_ = 0;  // In the line of all groups.
  Groups groups_;
  std::map<StreamKey, Groups::iterator> groups_of_;  // Where each stream that waits is.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_WAITING_GROUPS_H_
