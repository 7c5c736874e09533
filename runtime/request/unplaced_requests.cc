#include "runtime/request/unplaced_requests.h"

#include <algorithm>

namespace tandem {

void UnplacedRequests::Add(const std::string& client, uint64_t request) {
  if (requests_[client].insert(request).second) ++size_;
}

void UnplacedRequests::Remove(const std::string& client, uint64_t request) {
  const auto of_client = requests_.find(client);
  if (of_client == requests_.end() || of_client->second.erase(request) == 0) return;
  --size_;
  if (of_client->second.empty()) requests_.erase(of_client);
}

std::optional<UnplacedRequests::Youngest> UnplacedRequests::WhoGivesWayTo(
    const std::string& client) const {
  const auto most = std::max_element(
      requests_.begin(), requests_.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  const auto own = requests_.find(client);
  const size_t num_own = own == requests_.end() ? 0 : own->second.size();
  if (most == requests_.end() || most->second.size() < num_own + 2) return std::nullopt;
  return Youngest{.request = *most->second.rbegin(),
                  .of_its_client = static_cast<int32_t>(most->second.size())};
}

}  // namespace tandem
