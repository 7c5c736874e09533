// What class of bits a backend computes: every operation on fixed inputs, hashed.
//
// Two workers whose probes agree may continue each other's streams (with the digest of the weights
// and the formats, the probe makes up numerics_id). It does not depend on threads.

#ifndef TANDEM_KERNELS_API_NUMERICS_PROBE_H_
#define TANDEM_KERNELS_API_NUMERICS_PROBE_H_

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/base/sha256.h"

namespace tandem {

// Of the orders in docs/numerics.md: a change to one of them is a new version.
inline constexpr int kNumericsVersion = 1;

// A few milliseconds on a CPU. Engine thread only.
absl::StatusOr<Sha256Digest> ProbeNumerics(Backend& backend);

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_NUMERICS_PROBE_H_
