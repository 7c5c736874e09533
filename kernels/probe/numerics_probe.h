// What class of bits a backend computes: every operation that a model runs on fixed inputs, hashed.
//
// Two workers whose probes agree may continue each other's streams (with the digest of the weights
// and the formats, the probe makes up numerics_id). It does not depend on threads.
//
// Inputs come in two kinds: numbers as models have them, and hostile ones, which are where
// instructions differ: sums around 2^-126, denormals, zeros of both signs, infinities, NaNs, and
// values at and past the end of a format's range. A NaN counts as a NaN whatever its payload, which
// depends on the order of an instruction's operands and never survives to a token.

#ifndef TANDEM_KERNELS_PROBE_NUMERICS_PROBE_H_
#define TANDEM_KERNELS_PROBE_NUMERICS_PROBE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "kernels/api/dtype.h"
#include "runtime/base/sha256.h"

namespace tandem {

// Counts the orders of docs/numerics.md, and what of them is measured for every model: a change to
// either is a new version.
inline constexpr int kNumericsVersion = 3;

// Options that only some models' layers have. What a model has none of is not probed for it, so
// that an option's arrival, or a change to it, is none for the others.
struct ProbedOptions {
  bool window = false;
  bool head_norms = false;
  bool score_cap = false;
  bool logit_cap = false;
  bool int8_weights = false;
  bool int8_outliers = false;
  bool int4_weights = false;
  bool fp8_weights = false;            // Some layer's are kept so.
  std::optional<KvType> kv_type = {};  // Where KV is not kept in what is computed in.
  std::optional<int> head_dim = {};    // Where such heads have an attention of their own.
};

// Every operation, linear layers in each form that models have, and the sampler. A few milliseconds
// on a CPU. Engine thread only.
absl::StatusOr<Sha256Digest> ProbeNumerics(Backend& backend, const ProbedOptions& options = {});

// Sizes of what is probed. The defaults: no multiple of a vector where a tail matters; inputs of a
// linear layer above one segment; positions above a segment of attention.
struct ProbeShape {
  int64_t rows = 5;
  int64_t many_rows = 20;  // Linear layers once more: not for kernels of few rows.
  int64_t features = 331;  // In and out of row operations, into linear layers.
  int64_t outputs = 75;
  int64_t vocabulary = 523;  // Capped logits.
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 48;
  int block_tokens = 16;
  int32_t positions = 1100;
  int64_t prefill_rows = 21;  // The last so many positions.
  // Attention once more with these, after all else; 0 and false: not.
  int64_t window = 0;
  bool head_norms = false;
  float score_cap = 0.0f;
  // After that, these.
  float logit_cap = 0.0f;
  bool int8_weights = false;
  float int8_outliers = 0.0f;  // LinearSpec::outlier_threshold.
  bool int4_weights = false;
  bool fp8_weights = false;
  std::optional<KvType> kv_type = {};  // Attention with the options above, and KV so kept.
};

// The operation that only who flushes denormals before rounding has (numerics_probe.cc).
inline constexpr char kFlushesBeforeRounding[] = "flushes before rounding";

// One operation and the digest of what it gave.
struct ProbedOperation {
  std::string name;
  Sha256Digest digest;
};

// ProbeNumerics's parts, over other shapes and inputs: what tests compare paths with.
absl::StatusOr<std::vector<ProbedOperation>> ProbeOperations(Backend& backend,
                                                             const ProbeShape& shape,
                                                             uint64_t seed);

}  // namespace tandem

#endif  // TANDEM_KERNELS_PROBE_NUMERICS_PROBE_H_
