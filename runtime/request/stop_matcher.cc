#include "runtime/request/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace tandem {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) TANDEM_CHECK(!stop.empty());
}

std::string StopMatcher::Append(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  // From the left: the first place where a stop string stands, or could still come to stand.
  for (size_t begin = 0; begin < held_.size(); ++begin) {
    const std::string_view rest = std::string_view(held_).substr(begin);
    bool may_begin_here = false;
    for (const std::string& stop : stops_) {
      if (rest.starts_with(stop)) {
        // Of those that begin here the shortest was complete first.
        if (!stopped_ || stop.size() < matched_.size()) matched_ = stop;
        stopped_ = true;
      } else if (std::string_view(stop).starts_with(rest)) {
        may_begin_here = true;
      }
    }
    if (!stopped_ && !may_begin_here) continue;
    std::string certain = held_.substr(0, begin);
    if (stopped_) {
      held_.clear();
    } else {
      held_.erase(0, begin);
    }
    return certain;
  }
  return std::exchange(held_, {});
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace tandem
