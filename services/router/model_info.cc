#include "services/router/model_info.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/config/json.h"
#include "runtime/config/model_config.h"
#include "services/router/api_error.h"

namespace tandem {

absl::StatusOr<ModelInfo> ReadModelInfo(const std::string& folder, std::string_view served_name) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(folder, error);
  if (error) return absl::NotFoundError(absl::StrCat(folder, ": ", error.message()));
  TANDEM_ASSIGN_OR_RETURN(const std::string config_text,
                          ReadSmallFile(path / "config.json", kConfigLimits.max_bytes));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Parse(config_text));
  absl::StatusOr<std::string> generation_text =
      ReadSmallFile(path / "generation_config.json", kConfigLimits.max_bytes);
  if (absl::IsNotFound(generation_text.status())) generation_text = std::string();
  TANDEM_RETURN_IF_ERROR(generation_text.status());

  TANDEM_ASSIGN_OR_RETURN(std::string name, ServedName(folder, served_name));
  ModelInfo info{.served_name = std::move(name),
                 .folder = path.string(),
                 .vocab_size = config.vocab_size,
                 .max_model_tokens = config.max_positions};
  TANDEM_ASSIGN_OR_RETURN(
      info.generation, GenerationConfig::Parse(config_text, *generation_text, config.vocab_size));
  if (!info.generation.ignored.empty()) {
    LogWarning("generation defaults are left out",
               {{"folder", info.folder}, {"why", absl::StrJoin(info.generation.ignored, "; ")}});
  }
  return info;
}

absl::Status NotServed(const ModelInfo& model, std::string_view name, std::string_view field) {
  constexpr size_t kMaxShownBytes = 256;
  return WithApiCode(WithField(absl::NotFoundError(absl::StrCat(
                                   "the model \"", ToValidUtf8(name.substr(0, kMaxShownBytes)),
                                   "\" is not served here; \"", model.served_name, "\" is")),
                               field),
                     kModelNotFound);
}

}  // namespace tandem
