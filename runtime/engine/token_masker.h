// Which tokens may follow in a sequence, said by the host (a grammar) while a device computes.

#ifndef TANDEM_RUNTIME_ENGINE_TOKEN_MASKER_H_
#define TANDEM_RUNTIME_ENGINE_TOKEN_MASKER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/token_mask.h"
#include "runtime/protocol/request_spec.h"

namespace tandem {

// The masks of one sequence, which has at least one token. Engine thread only.
class SequenceMasks {
 public:
  virtual ~SequenceMasks() = default;

  // That of the token after these: the prompt, and all that has been generated. It depends on them
  // alone, so that a sequence goes on elsewhere, forks and begins again; that most calls add a
  // token to those of the one before is worth knowing for speed only. Valid until the next call.
  // Empty: it is not ready, the step at hand draws nothing, and a later one asks again.
  virtual TokenMask After(std::span<const int32_t> token_ids) = 0;
};

// Who makes them. Engine thread only.
class TokenMasker {
 public:
  virtual ~TokenMasker() = default;

  // Null: the request's tokens are drawn without a mask. Token ids of the spec may not be there;
  // it outlives what is returned.
  virtual std::unique_ptr<SequenceMasks> MasksOf(const RequestSpec& spec) = 0;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_TOKEN_MASKER_H_
