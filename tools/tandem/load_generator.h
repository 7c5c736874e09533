// Sends streamed completion requests and records when each token arrived.
//
// Closed loop: every connection sends its next request when the last one ends. Open loop: requests
// are due at the times of a Poisson process, and all times count from when a request was due, so
// that a slow server cannot slow the clock that judges it.

#ifndef TANDEM_TOOLS_TANDEM_LOAD_GENERATOR_H_
#define TANDEM_TOOLS_TANDEM_LOAD_GENERATOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/tandem/http_client.h"

namespace tandem {

struct TokenRange {
  int32_t low = 0;
  int32_t high = 0;
};

struct LoadOptions {
  HttpTarget target;
  std::string model = "default";
  int32_t requests = 200;
  int32_t connections = 16;
  double rate_per_second = 0;  // 0: closed loop.
  TokenRange prompt_tokens;
  TokenRange output_tokens;
  int32_t shared_prefix_tokens = 0;  // Equal at the start of every prompt.
  int32_t vocabulary = 1000;         // Prompt ids are drawn below it.
  double temperature = 0;
  double timeout_s = 600;  // A server may say nothing for so long: its own default deadline.
  uint64_t seed = 1;
};

enum class CallOutcome : uint8_t { kCompleted, kRejected, kFailed };

struct RequestRecord {
  CallOutcome outcome = CallOutcome::kFailed;
  std::string error;   // Empty if completed.
  int64_t due_us = 0;  // From the start of the run.
  int64_t end_us = 0;
  std::vector<int64_t> token_us;  // When each chunk with tokens arrived.
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t output_tokens = 0;
};

struct LoadResult {
  std::vector<RequestRecord> requests;
  int64_t wall_us = 0;
};

// Blocks until every request has ended. `on_progress` hears the number of ended requests, from one
// thread at a time.
LoadResult GenerateLoad(const LoadOptions& options, const std::function<void(int)>& on_progress);

}  // namespace tandem

#endif  // TANDEM_TOOLS_TANDEM_LOAD_GENERATOR_H_
