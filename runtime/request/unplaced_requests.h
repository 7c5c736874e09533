// Requests that have no token and no worker that would make one, by client: so many may wait, and
// the client with most of them makes room for others.
//
// Adding, removing and asking cost O(log n) and O(clients). One thread.

#ifndef TANDEM_RUNTIME_REQUEST_UNPLACED_REQUESTS_H_
#define TANDEM_RUNTIME_REQUEST_UNPLACED_REQUESTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace tandem {

class UnplacedRequests {
 public:
  // Requests are named by their counters. Nothing happens if it is there, or not there, already.
  void Add(const std::string& client, uint64_t request);
  void Remove(const std::string& client, uint64_t request);

  int32_t size() const { return size_; }
  // The youngest request of the client that has most of them.
  struct Youngest {
    uint64_t request = 0;
    int32_t of_its_client = 0;
  };
  // Who gives way to a newcomer of `client`. Nothing: nobody has two more than that.
  std::optional<Youngest> WhoGivesWayTo(const std::string& client) const;

 private:
  std::map<std::string, std::set<uint64_t>> requests_;  // By client; never empty.
  int32_t size_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_UNPLACED_REQUESTS_H_
