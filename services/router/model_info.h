// What a router knows of the model that its workers serve: names, limits, end tokens and sampling
// defaults, read from the small files of the checkpoint's folder. Weights are not needed.

#ifndef TANDEM_SERVICES_ROUTER_MODEL_INFO_H_
#define TANDEM_SERVICES_ROUTER_MODEL_INFO_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

struct ModelInfo {
  std::string served_name;  // "default" names it too.
  std::string folder;
  int64_t vocab_size = 0;
  int64_t max_model_tokens = 0;  // Of the checkpoint; workers may serve less.
  std::vector<int32_t> eos_token_ids;

  // generation_config.json's, else OpenAI's.
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;

  bool Names(std::string_view name) const {
    return name.empty() || name == served_name || name == "default";
  }
};

// Reads folder/config.json (must be there) and folder/generation_config.json (may be missing).
// An empty `served_name` is the folder's own name. InvalidArgument naming file and field.
absl::StatusOr<ModelInfo> ReadModelInfo(const std::string& folder, std::string_view served_name);

// The same from the files' contents; an empty generation_config is a missing file.
absl::StatusOr<ModelInfo> ParseModelInfo(std::string_view config_json,
                                         std::string_view generation_config_json);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_MODEL_INFO_H_
