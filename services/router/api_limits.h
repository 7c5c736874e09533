// Limits of the two front ends, each enforced before anything is allocated, beside those of any
// HTTP server of ours (http_limits.h), some of which hold for gRPC as well. docs/limits.md has all
// that a client meets.

#ifndef TANDEM_SERVICES_ROUTER_API_LIMITS_H_
#define TANDEM_SERVICES_ROUTER_API_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "runtime/protocol/request_spec.h"
#include "services/http/http_limits.h"

namespace tandem {

// From here on a request is long: those never have all the text threads (text_pool.h), and what of
// a text cannot be encoded in smaller parts is encoded alone.
inline constexpr size_t kLongTextBytes = size_t{16} << 10;

// ---- HTTP ----
inline constexpr int kMaxJsonDepth = 64;  // 400

// ---- gRPC ----
inline constexpr int kMaxGrpcMessageBytes = 4 << 20;  // RESOURCE_EXHAUSTED past it.
// Calls of one connection at a time; a client's library holds the next one back.
inline constexpr int kMaxGrpcStreams = 128;

// ---- Requests ----
inline constexpr double kMaxTemperature = 2.0;
inline constexpr int64_t kMaxN = kMaxChoices;
inline constexpr size_t kMaxPrompts = 256;
inline constexpr int64_t kMaxSequencesPerCall = 1024;  // Prompts × choices.
// Tokens and their logprobs in an answer that is not streamed: n × max_tokens × (1 + logprobs) of
// every prompt; prompt tokens × (1 + prompt_logprobs).
inline constexpr int64_t kMaxAnswerValues = int64_t{4} << 20;
// What a prompt's logprob takes while it is gathered and written as JSON: 227 were measured. They
// come at once, so that all of them have to fit a quarter of the memory limit.
inline constexpr int64_t kPromptLogprobBytes = 256;
// Copies of an answer in JSON: its parts, the whole, and what is being written.
inline constexpr int64_t kAnswerCopies = 3;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;
inline constexpr size_t kMaxStopIds = 256;
inline constexpr size_t kMaxCacheSaltBytes = 256;
inline constexpr int64_t kMaxLogprobs = 20;
inline constexpr size_t kMaxMessages = 4096;
inline constexpr int64_t kMaxDeadlineUs = int64_t{24} * 3600 * 1'000'000;  // Later ones are cut.

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_API_LIMITS_H_
