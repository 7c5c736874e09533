// Ids to text, one token at a time.

#ifndef TANDEM_RUNTIME_TEXT_STREAM_DETOKENIZER_H_
#define TANDEM_RUNTIME_TEXT_STREAM_DETOKENIZER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace tandem {

// Turns a growing list of ids into text. What Append and Finish return is always valid UTF-8 and
// never ends inside a character; joined, it is what Tokenizer::Decode adds for those ids behind
// the prompt's (exactly, for the decoder kinds kBytes and kSentencePiece).
//
// The state depends on the prompt and the ids alone: a stream is taken up elsewhere by a new
// StreamDetokenizer that is given the same ids. One thread at a time.
class StreamDetokenizer {
 public:
  // `prompt` is what the ids follow: with SentencePiece only a text's first token loses its
  // leading space. `tokenizer` outlives this.
  StreamDetokenizer(const Tokenizer* tokenizer, std::span<const int32_t> prompt,
                    bool skip_special_tokens = true);

  // The text that is complete now that `id` has come; often empty.
  std::string Append(int32_t id);

  // What Append held back; a character that never became complete is U+FFFD. Append may not
  // follow.
  std::string Finish();

 private:
  std::string AppendBytes(std::string_view bytes);
  std::string AppendPiece(int32_t id);
  std::string TakeByteRun();
  std::string StripSpaces(std::string text);
  std::string AppendWindow(int32_t id);
  std::string TakeWindow();
  std::string DecodeWindow(size_t num_ids) const;

  const Tokenizer* const tokenizer_;
  const bool skip_special_tokens_;
  int spaces_to_strip_ = 0;      // kSentencePiece: while the text has not begun.
  std::string pending_;          // kBytes: an unfinished character; kSentencePiece: a byte run.
  std::vector<int32_t> window_;  // kOther: ids whose text may still change, and their context.
  size_t num_context_ = 0;       // kOther: how many of window_ are context, already returned.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TEXT_STREAM_DETOKENIZER_H_
