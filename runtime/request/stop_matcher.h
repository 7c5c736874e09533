// Finds stop strings in a stream of text. Text that may be the beginning of a stop string is held
// back until more arrives; nothing of a stop string, and nothing after it, is ever let through.
//
// The match that is complete first wins, and of several that end together the longest, so that the
// text does not depend on how it was cut into pieces.

#ifndef TANDEM_RUNTIME_REQUEST_STOP_MATCHER_H_
#define TANDEM_RUNTIME_REQUEST_STOP_MATCHER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

using StopStrings = std::shared_ptr<const std::vector<std::string>>;

class StopMatcher {
 public:
  // No string is empty. Choices of a request share them.
  explicit StopMatcher(StopStrings stops);

  // Text that may be shown now. Nothing more comes once stopped().
  std::string Append(std::string_view text);
  // The same for text in which no stop string may end, though one may begin.
  std::string AppendUnmatched(std::string_view text);
  // The text is over: what was held back.
  std::string Flush();
  bool stopped() const { return stopped_; }
  // The string that stopped it; empty before.
  const std::string& matched() const { return matched_; }

 private:
  std::string TakeCertain();
  bool MayBeginAt(size_t begin) const;

  const StopStrings stops_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_STOP_MATCHER_H_
