// What waits, by turns of clients: one after the other each has one of its own taken, so that
// nobody waits behind all that another has sent.

#ifndef TANDEM_RUNTIME_BASE_CLIENT_TURNS_H_
#define TANDEM_RUNTIME_BASE_CLIENT_TURNS_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace tandem {

// One thread at a time.
template <typename T>
class ClientTurns {
 public:
  using Queue = std::deque<T>;  // One client's, oldest first.

  void Add(const std::string& client, T item) { waiting_[client].push_back(std::move(item)); }

  bool empty() const { return waiting_.empty(); }
  // Null: nothing of the client waits.
  const Queue* Of(const std::string& client) const {
    const auto found = waiting_.find(client);
    return found == waiting_.end() ? nullptr : &found->second;
  }

  // Takes from the first client behind the last one for which `pick(client, queue)` is a place in
  // its queue, and not the queue's size. Nullopt if there is none.
  template <typename Pick>
  std::optional<T> Next(Pick pick) {
    auto next = waiting_.upper_bound(last_);
    for (size_t left = waiting_.size(); left > 0; --left, ++next) {
      if (next == waiting_.end()) next = waiting_.begin();
      Queue& queue = next->second;
      const size_t place = pick(next->first, std::as_const(queue));
      if (place == queue.size()) continue;
      last_ = next->first;
      const auto picked = queue.begin() + static_cast<std::ptrdiff_t>(place);
      std::optional<T> item = std::move(*picked);
      queue.erase(picked);
      if (queue.empty()) waiting_.erase(next);
      return item;
    }
    return std::nullopt;
  }

 private:
  std::map<std::string, Queue> waiting_;
  std::string last_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_CLIENT_TURNS_H_
