// --drain-seconds: how long a program may take from the signal that asks it to end until it has.
// Kubernetes, compose and `tandem serve` kill what takes longer, so each is to allow a margin.

#ifndef TANDEM_SERVICES_SERVER_DRAIN_TIME_H_
#define TANDEM_SERVICES_SERVER_DRAIN_TIME_H_

#include <cstdint>

namespace tandem {

inline constexpr int32_t kMinDrainSeconds = 3;  // To hear a goodbye, to end, and to be told.
inline constexpr int32_t kMaxDrainSeconds = 3600;
inline constexpr int32_t kRouterDrainSeconds = 25;
// What runs at a worker moves at once; this is for what is still being written or fetched.
inline constexpr int32_t kWorkerDrainSeconds = 8;
// Until whoever has started the process may kill it.
inline constexpr int32_t kDrainMarginSeconds = 5;

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_DRAIN_TIME_H_
