// What the proof runs (bitwise_proof.h): a few requests of every kind, and others that fill
// batches.

#ifndef TANDEM_TESTS_INTEGRATION_PROOF_REQUESTS_H_
#define TANDEM_TESTS_INTEGRATION_PROOF_REQUESTS_H_

#include <cstdint>

#include "tests/integration/proof_cases.h"

namespace tandem {

// Prompts of 17 to 100 tokens.
ProofSet ShortSet(int32_t vocabulary);
// Prompts of 1 to 1,100 tokens, which cross every border that there is.
ProofSet LongSet(int32_t vocabulary);

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_PROOF_REQUESTS_H_
