// What a router knows of the model that its workers serve: names, limits, end tokens and sampling
// defaults, read from the small files of the checkpoint's folder by the workers' own rules. Weights
// are not needed.

#ifndef TANDEM_SERVICES_ROUTER_MODEL_INFO_H_
#define TANDEM_SERVICES_ROUTER_MODEL_INFO_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/config/generation_config.h"

namespace tandem {

struct ModelInfo {
  std::string served_name;  // "default" names it too.
  std::string folder;
  int64_t vocab_size = 0;
  int64_t max_model_tokens = 0;  // The checkpoint's; workers may serve less.
  GenerationConfig generation;

  bool Names(std::string_view name) const {
    return name.empty() || name == served_name || name == "default";
  }
};

// Reads folder/config.json, which must be there and name a model that workers can serve, and
// folder/generation_config.json, which may be missing; warns once of what the latter asks for in
// vain. An empty `served_name` is the folder's own name. Errors name file and field.
absl::StatusOr<ModelInfo> ReadModelInfo(const std::string& folder, std::string_view served_name);

// NotFound, with the field that has the name, for one that `model` does not have.
absl::Status NotServed(const ModelInfo& model, std::string_view name, std::string_view field);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_MODEL_INFO_H_
