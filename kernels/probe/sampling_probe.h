// What a backend draws: a part of the numerics probe.

#ifndef TANDEM_KERNELS_PROBE_SAMPLING_PROBE_H_
#define TANDEM_KERNELS_PROBE_SAMPLING_PROBE_H_

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/base/sha256.h"

namespace tandem {

// Draws from a fixed row with every kind of cut, and their log-probabilities. Engine thread only.
absl::StatusOr<Sha256Digest> ProbeSampling(Backend& backend);

}  // namespace tandem

#endif  // TANDEM_KERNELS_PROBE_SAMPLING_PROBE_H_
