// What ends a text and how it is drawn unless a request says otherwise: generation_config.json, and
// config.json for the tokens that the former does not name.
//
// Nothing in these files stops a server that could serve without it: what is out of range, or asks
// for what is not done here, is left out and listed.

#ifndef TANDEM_RUNTIME_CONFIG_GENERATION_CONFIG_H_
#define TANDEM_RUNTIME_CONFIG_GENERATION_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

inline constexpr int64_t kMaxEosTokens = 64;

struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;  // Each ends a text; sorted, none twice; may be empty.
  int32_t bos_token_id = -1;           // -1: none.

  // OpenAI's defaults where the file has none.
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;  // 0: all.

  // What the files say and nobody does, one sentence each, for a warning.
  std::vector<std::string> ignored;

  // From the texts of the files; an empty `generation_config` is a missing file. Ids outside a
  // vocabulary of `vocab_size` can never be drawn and are ignored.
  // InvalidArgument if a file is no JSON object or a token id no integer.
  static absl::StatusOr<GenerationConfig> Parse(std::string_view config,
                                                std::string_view generation_config,
                                                int64_t vocab_size);
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_CONFIG_GENERATION_CONFIG_H_
