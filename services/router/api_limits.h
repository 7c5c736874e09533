// Limits of the two front ends, each enforced before anything is allocated. docs/limits.md has all
// that a client meets.

#ifndef TANDEM_SERVICES_ROUTER_API_LIMITS_H_
#define TANDEM_SERVICES_ROUTER_API_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "runtime/protocol/generation.h"

namespace tandem {

// ---- Both front ends ----
// A client whose machine or network is gone is noticed within the sum; its requests are cancelled.
inline constexpr std::chrono::seconds kKeepaliveTime{20};
inline constexpr std::chrono::seconds kKeepaliveTimeout{10};
// What a router that ends gives its clients to read their last events.
inline constexpr std::chrono::seconds kFlushTimeout{1};
inline constexpr size_t kMaxHeaderBytes = size_t{16} << 10;  // 431; RESOURCE_EXHAUSTED.
inline constexpr std::chrono::seconds kBodyTimeout{30};      // To send it.
inline constexpr std::chrono::seconds kWriteTimeout{60};     // Without a byte taken by the client.
// A longer one is not used (HTTP), or INVALID_ARGUMENT.
inline constexpr size_t kMaxRequestIdBytes = 128;

// From here on a request is long: those never have all the text threads (text_pool.h), and what of
// a text cannot be encoded in smaller parts is encoded alone.
inline constexpr size_t kLongTextBytes = size_t{16} << 10;

// ---- HTTP ----
inline constexpr size_t kMaxHeaderFields = 100;  // 431
// Of all chunks of a request; 431 past it. Trailers count as header, and so does an unfinished
// line.
inline constexpr size_t kMaxChunkExtensionBytes = size_t{64} << 10;
inline constexpr size_t kMaxBodyBytes = size_t{4} << 20;  // 413
// Of requests that a client sends before the answer to the one before: past it that answer is the
// connection's last.
inline constexpr size_t kMaxReadAheadBytes = size_t{64} << 10;
inline constexpr int kMaxJsonDepth = 64;  // 400
inline constexpr std::chrono::seconds kHeaderTimeout{10};
inline constexpr std::chrono::seconds kIdleTimeout{
    120};                                          // Of a kept connection (proxies use 90 s).
inline constexpr int64_t kMaxConnections = 16384;  // 503, or the client with most loses one.
inline constexpr int64_t kHttpConnectionBytes = int64_t{16} << 10;  // Charged for each.
inline constexpr size_t kMaxTargetBytes = 2048;

// ---- gRPC ----
inline constexpr int kMaxGrpcMessageBytes = 4 << 20;  // RESOURCE_EXHAUSTED past it.
// Calls of one connection at a time; a client's library holds the next one back.
inline constexpr int kMaxGrpcStreams = 128;

// ---- Requests ----
inline constexpr double kMaxTemperature = 2.0;
inline constexpr int64_t kMaxN = kMaxChoices;
inline constexpr size_t kMaxPrompts = 256;
inline constexpr int64_t kMaxSequencesPerCall = 1024;  // Prompts × choices.
// Tokens and their logprobs in an answer that is made whole: n × max_tokens × (1 + logprobs) of
// every prompt; prompt tokens × (1 + prompt_logprobs).
inline constexpr int64_t kMaxAnswerValues = int64_t{4} << 20;
// Of each logprob of a prompt, while it is gathered and written as JSON: 227 were measured. They
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

// ---- What waits for a slow reader ----
// Of one stream when more is to be written; then it is cancelled.
inline constexpr size_t kMaxUnsentBytes = size_t{1} << 20;

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_API_LIMITS_H_
