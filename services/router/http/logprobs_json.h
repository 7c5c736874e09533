// Logprobs in the three forms that clients know: of completions (parallel lists), of chats (a list
// of objects) and vLLM's of prompts (a list of maps by token id).

#ifndef TANDEM_SERVICES_ROUTER_HTTP_LOGPROBS_JSON_H_
#define TANDEM_SERVICES_ROUTER_HTTP_LOGPROBS_JSON_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/protocol/sampled_token.h"
#include "runtime/text/tokenizer.h"

namespace tandem {

// The shortest decimal that reads back as the same float, so that equal bits are equal text.
// Minus infinity, which JSON lacks, is -9999, as in peers.
void AppendLogprob(float logprob, std::string* out);
void AppendIds(std::span<const int32_t> ids, std::string* out);

// How tokens are written. Without a tokenizer, or if asked for, "token_id:17".
class TokenNames {
 public:
  TokenNames() = default;
  TokenNames(const Tokenizer* tokenizer, bool as_ids) : tokenizer_(as_ids ? nullptr : tokenizer) {}
  std::string Text(int32_t id) const;
  // As a JSON list; null where there are none.
  std::string BytesJson(int32_t id) const;

 private:
  const Tokenizer* tokenizer_ = nullptr;
};

// Gathers the logprobs of one choice, of all tokens or of one chunk at a time.
class LogprobsJson {
 public:
  void Add(const SampledToken& token, int num_top, bool chat, const TokenNames& names);
  std::string Json(bool chat) const;  // The object.
  void Clear();                       // The next ones go on from here (their text offsets do).
  int64_t num_bytes() const;

 private:
  void AddCompletion(const SampledToken& token, int num_top, const TokenNames& names);
  void AddChat(const SampledToken& token, int num_top, const TokenNames& names);

  std::string content_;  // The list "content" of a chat's logprobs.
  std::string tokens_, token_logprobs_, top_logprobs_, text_offset_;
  int64_t offset_ = 0;  // In characters.
};

// [null, {"17": {"logprob", "rank", "decoded_token"}, ...}, ...]: `logprobs` are of the prompt's
// tokens but the first.
std::string PromptLogprobsJson(std::span<const SampledToken> logprobs, const TokenNames& names);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_LOGPROBS_JSON_H_
