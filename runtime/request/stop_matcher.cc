#include "runtime/request/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace tandem {

StopMatcher::StopMatcher(StopStrings stops) : stops_(std::move(stops)) {
  for (const std::string& stop : *stops_) TANDEM_CHECK(!stop.empty());
}

std::string StopMatcher::Append(std::string_view text) {
  if (stopped_) return {};
  if (stops_->empty()) return std::string(text);
  for (const char c : text) {
    held_ += c;
    size_t longest = 0;
    for (const std::string& stop : *stops_) {
      if (held_.ends_with(stop) && stop.size() > longest) {
        longest = stop.size();
        matched_ = stop;
      }
    }
    if (longest == 0) continue;
    stopped_ = true;
    held_.resize(held_.size() - longest);
    return std::exchange(held_, {});
  }
  return TakeCertain();
}

std::string StopMatcher::AppendUnmatched(std::string_view text) {
  held_ += text;
  return TakeCertain();
}

std::string StopMatcher::TakeCertain() {
  // A match can begin no earlier than the longest end of the text that begins a stop string.
  size_t begin = 0;
  while (begin < held_.size() && !MayBeginAt(begin)) ++begin;
  std::string certain = held_.substr(0, begin);
  held_.erase(0, begin);
  return certain;
}

bool StopMatcher::MayBeginAt(size_t begin) const {
  const std::string_view rest = std::string_view(held_).substr(begin);
  return std::any_of(stops_->begin(), stops_->end(), [rest](const std::string& stop) {
    return stop.size() > rest.size() && stop.starts_with(rest);
  });
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace tandem
