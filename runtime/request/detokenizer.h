// Token ids to text, as the request owner needs it; runtime/text has the real one.

#ifndef TANDEM_RUNTIME_REQUEST_DETOKENIZER_H_
#define TANDEM_RUNTIME_REQUEST_DETOKENIZER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tandem {

// One per choice. The pieces it returns, concatenated, are the text; a piece ends at a character
// border, so bytes of an unfinished character wait for the next token.
class Detokenizer {
 public:
  virtual ~Detokenizer() = default;
  virtual std::string Append(int32_t token) = 0;
  virtual std::string Finish() = 0;  // What still waits. Last call.
};

using DetokenizerFactory = std::function<std::unique_ptr<Detokenizer>()>;

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_DETOKENIZER_H_
