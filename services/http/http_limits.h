// Limits of an HTTP server, each enforced before anything is allocated. Of a router those of its
// gRPC clients are the same, where they have the same meaning.

#ifndef TANDEM_SERVICES_HTTP_HTTP_LIMITS_H_
#define TANDEM_SERVICES_HTTP_HTTP_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tandem {

// ---- gRPC, too ----
// A client whose machine or network is gone is noticed within the sum; its requests are cancelled.
inline constexpr std::chrono::seconds kKeepaliveTime{20};
inline constexpr std::chrono::seconds kKeepaliveTimeout{10};
// What a server that ends gives its clients to read their last events.
inline constexpr std::chrono::seconds kFlushTimeout{1};
inline constexpr size_t kMaxHeaderBytes = size_t{16} << 10;  // 431; RESOURCE_EXHAUSTED.
inline constexpr std::chrono::seconds kBodyTimeout{30};      // To send it.
inline constexpr std::chrono::seconds kWriteTimeout{60};     // Without a byte taken by the client.
// A longer one is not used (HTTP), or INVALID_ARGUMENT.
inline constexpr size_t kMaxRequestIdBytes = 128;
// What may wait of one stream that its client does not read, when more is to be written; then it is
// cancelled.
inline constexpr size_t kMaxUnsentBytes = size_t{1} << 20;

// ---- HTTP alone ----
inline constexpr size_t kMaxHeaderFields = 100;  // 431
// All chunk extensions of a request; 431 past it. Trailers count as header, and so does an
// unfinished line.
inline constexpr size_t kMaxChunkExtensionBytes = size_t{64} << 10;
inline constexpr size_t kMaxBodyBytes = size_t{4} << 20;  // 413
// What a client may send of requests before the answer to the one before: past it that answer is
// the connection's last.
inline constexpr size_t kMaxReadAheadBytes = size_t{64} << 10;
inline constexpr size_t kMaxTargetBytes = 2048;
inline constexpr std::chrono::seconds kHeaderTimeout{10};
// How long a connection is kept without a request (proxies use 90 s).
inline constexpr std::chrono::seconds kIdleTimeout{120};
// The same once the server drains: what is on its way to a connection that its client was told to
// keep still comes, and is answered. As long as gRPC's clients have to hear a goodbye.
inline constexpr std::chrono::seconds kLastRequestTimeout{1};
inline constexpr int64_t kMaxConnections = 16384;  // 503, or the client with most loses one.
inline constexpr int64_t kMaxAdminConnections = 64;
inline constexpr int64_t kHttpConnectionBytes = int64_t{16} << 10;  // Charged for each.

}  // namespace tandem

#endif  // TANDEM_SERVICES_HTTP_HTTP_LIMITS_H_
