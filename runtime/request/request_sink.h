// What a client asks of a request owner, and what it hears.

#ifndef TANDEM_RUNTIME_REQUEST_REQUEST_SINK_H_
#define TANDEM_RUNTIME_REQUEST_REQUEST_SINK_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/request/detokenizer.h"

namespace tandem {

// What happened to one choice. Spans and views live during the call.
struct Delta {
  int32_t choice = 0;
  int32_t position = 0;                 // Where `token` is, in prompt + generated.
  const SampledToken* token = nullptr;  // Never null at a sink.
  // Text that is certain: may be empty, may belong to earlier tokens. Text that could begin a stop
  // string comes later or never; a stop string and a stop token have none.
  std::string_view text;
  FinishReason finish = FinishReason::kNone;  // Not kNone: last delta of this choice.
  std::string_view stop_string;               // The one that finished it, where one did.
};

struct PromptReport {
  int32_t cached_tokens = 0;
  std::span<const SampledToken> prompt_logprobs;
  std::string_view numerics_id;  // The same for the whole request.
  int64_t arrived_us = 0;        // As in RequestReport.
  int64_t first_submit_us = 0;
};

struct RequestReport {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;  // In all choices, stop tokens included.
  int32_t cached_tokens = 0;
  int32_t attempts = 0;
  int32_t resumes = 0;
  int64_t arrived_us = 0;
  int64_t first_submit_us = 0;  // 0: never sent to a worker.
};

inline constexpr int64_t kDefaultDeadlineUs = 600'000'000;

// Where a request's results go. OnPrompt comes once and before the first OnDelta; exactly one of
// OnDone and OnError comes, last. Never called inside Start.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnPrompt(const PromptReport& prompt) = 0;
  virtual void OnDelta(const Delta& delta) = 0;  // One per token.
  virtual void OnDone(const RequestReport& report) = 0;
  // Cancelled, DeadlineExceeded, Unavailable, ResourceExhausted, InvalidArgument, Internal.
  virtual void OnError(const absl::Status& status, const RequestReport& report) = 0;
};

// One prompt of a client's call, as its owner takes it.
struct ClientRequest {
  std::string client;  // Who asks: clients share the places of those that wait, and take turns.
  RequestSpec spec;    // What to generate; time_left_us 0: kDefaultDeadlineUs.
  // The client set no max_tokens: what `spec` says is the most that it may get. Its first
  // placement fixes that to what the largest worker has room for, and then it is a promise.
  bool open_ended = false;
  std::vector<std::string> stop_strings;
  DetokenizerFactory make_detokenizer;  // Null: no text; then no stop strings either.
  std::string model;
  RequestSink* sink = nullptr;  // Lives until OnDone or OnError.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_REQUEST_SINK_H_
