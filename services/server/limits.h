// What a message between our processes may hold at most, checked before anything is allocated from
// it. Clients' limits are the router's; those of a RequestSpec are in runtime/protocol.

#ifndef TANDEM_SERVICES_SERVER_LIMITS_H_
#define TANDEM_SERVICES_SERVER_LIMITS_H_

#include <cstdint>

#include "runtime/protocol/request_spec.h"

namespace tandem {

inline constexpr int kMaxMessageBytes = 64 << 20;  // A control message; gRPC refuses more.
inline constexpr int kMaxPeerStreams = 64;         // On one connection to a worker.
inline constexpr int32_t kMaxNameBytes = 256;      // Worker, model, label.
inline constexpr int32_t kMaxTextBytes = 4096;     // Status message, trace context, class.
inline constexpr int32_t kMaxTransportAddressBytes = 64 << 10;
inline constexpr int32_t kMaxRenewedJobs = 1 << 16;
inline constexpr int32_t kMaxEventsPerBatch = 1 << 20;
// Hashes in a Watch's message, and what a worker of ours says at most in one: a router deals with
// them in some ten milliseconds.
inline constexpr int32_t kMaxHashesPerEvent = 1 << 17, kHashesPerEvent = 1 << 16;
inline constexpr int64_t kMaxDurationUs = int64_t{7} * 24 * 3600 * 1'000'000;
inline constexpr int32_t kMaxMetricFamilies = 1024;
inline constexpr int32_t kMaxMetricSamples = 16384;  // In one family.
inline constexpr int32_t kMaxHistogramBuckets = 256;
inline constexpr int64_t kMaxMetricsBytes = 1 << 20;  // All families together.

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_LIMITS_H_
