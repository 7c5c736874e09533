// The check of token ids that only a worker can make: kernels trust them.

#ifndef TANDEM_SERVICES_WORKER_TOKEN_CHECK_H_
#define TANDEM_SERVICES_WORKER_TOKEN_CHECK_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace tandem {

inline absl::Status CheckVocabulary(std::span<const int32_t> token_ids, int64_t vocab_size) {
  for (const int32_t token : token_ids) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "token_ids: %d, the model's vocabulary has %d tokens", token, vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_TOKEN_CHECK_H_
