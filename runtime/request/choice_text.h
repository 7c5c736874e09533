// The text of one choice: detokenizer, then stop matcher.

#ifndef TANDEM_RUNTIME_REQUEST_CHOICE_TEXT_H_
#define TANDEM_RUNTIME_REQUEST_CHOICE_TEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/protocol/sampled_token.h"
#include "runtime/request/detokenizer.h"
#include "runtime/request/stop_matcher.h"

namespace tandem {

class ChoiceText {
 public:
  // Stop strings that are complete within the first `min_tokens` tokens do not count.
  ChoiceText(std::unique_ptr<Detokenizer> detokenizer, StopStrings stops, int32_t min_tokens)
      : detokenizer_(std::move(detokenizer)), matcher_(std::move(stops)), min_tokens_(min_tokens) {}

  // Text that is certain after `token`. `finish` is the worker's word; it becomes kStop if a stop
  // string is complete.
  std::string Append(int32_t token, FinishReason* finish) {
    ++num_tokens_;
    std::string text;
    // A stop token is no text, but it ends what was waiting.
    if (*finish != FinishReason::kStop) text = Match(detokenizer_->Append(token));
    if (*finish != FinishReason::kNone && !matcher_.stopped()) {
      text += Match(detokenizer_->Finish());
      text += matcher_.Flush();
    }
    if (matcher_.stopped()) *finish = FinishReason::kStop;
    return text;
  }
  // The stop string that ended it; empty if none did.
  const std::string& stop_string() const { return matcher_.matched(); }

 private:
  std::string Match(const std::string& text) {
    return num_tokens_ <= min_tokens_ ? matcher_.AppendUnmatched(text) : matcher_.Append(text);
  }

  std::unique_ptr<Detokenizer> detokenizer_;
  StopMatcher matcher_;
  const int32_t min_tokens_;
  int32_t num_tokens_ = 0;  // Over all attempts.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_CHOICE_TEXT_H_
