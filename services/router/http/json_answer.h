// Answers of /v1/completions and /v1/chat/completions: a call's outputs as one JSON object, or as
// events of a stream.
//
// Forms follow OpenAI's API and vLLM's additions (stop_reason, token_ids, prompt_token_ids,
// prompt_logprobs). In a stream the role travels with the first token of its choice, the usage in a
// last chunk without choices, and an error as an event {"error": ...}, after which no [DONE] comes.

#ifndef TANDEM_SERVICES_ROUTER_HTTP_JSON_ANSWER_H_
#define TANDEM_SERVICES_ROUTER_HTTP_JSON_ANSWER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer.h"
#include "services/router/generate_request.h"
#include "services/router/http/logprobs_json.h"
#include "services/router/running_call.h"

namespace tandem {

struct AnswerOptions {
  bool chat = false;
  std::string id;     // "cmpl-..." or "chatcmpl-..."
  std::string model;  // The served name.
  int64_t created_s = 0;
  int num_prompts = 1;
  int num_choices = 1;  // For each prompt.
  bool include_usage = false;
  bool return_token_ids = false;
  int num_logprobs = -1;
  int num_prompt_logprobs = -1;
  TokenNames names;
  std::function<const std::vector<int32_t>&(int)> prompt_token_ids;  // By prompt.
};

class JsonAnswer {
 public:
  explicit JsonAnswer(AnswerOptions options);

  // Appends what a stream sends for this output: complete events, maybe none.
  void AppendEvents(const CallOutput& output, std::string* out);

  // Gathers what Json() will hold.
  void Add(const CallOutput& output);
  // The size of what was gathered.
  int64_t num_bytes() const;
  // Once CallEnd has been added and was OK.
  std::string Json() const;

 private:
  struct Choice {
    bool started = false;  // In a stream: its first chunk was sent.
    std::string text;
    LogprobsJson logprobs;
    std::vector<int32_t> token_ids;
    FinishReason finish = FinishReason::kNone;
    std::string stop_reason = "null";
  };

  void AppendHead(std::string_view object, std::string* out) const;
  void AppendChoiceTail(int index, const Choice& choice, std::string* out) const;
  void AppendUsage(std::string* out) const;
  void AppendChoiceEvent(const ChoiceOutput& output, std::string* out);
  void AppendEndEvents(const CallEnd& end, std::string* out);
  void AddToken(const ChoiceOutput& output);

  const AnswerOptions options_;
  std::vector<Choice> choices_;
  std::vector<std::string> prompt_logprobs_;  // By prompt, rendered.
  std::string fingerprint_;
  Usage usage_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_HTTP_JSON_ANSWER_H_
