#include "services/server/log_level_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr char kWanted[] =
    "want YAML with one mapping, and in it log-level: debug, info, warning or error";

// At its line, which an exception may not know.
absl::Status Wrong(const YAML::Mark& mark, const std::string& what) {
  const std::string line = mark.is_null() ? "" : absl::StrCat("line ", mark.line + 1, ": ");
  return absl::InvalidArgumentError(absl::StrCat(line, what, "; ", kWanted));
}

absl::StatusOr<LogLevel> LevelIn(const absl::StatusOr<FollowedFiles::Texts>& texts,
                                 LogLevel otherwise) {
  TANDEM_RETURN_IF_ERROR(texts.status());
  try {
    const YAML::Node file = YAML::Load(texts->front());
    if (!file.IsMap() && !file.IsNull()) return Wrong(file.Mark(), "no mapping");
    const YAML::Node line = file["log-level"];
    if (!line.IsDefined()) return otherwise;
    const std::optional<LogLevel> level =
        line.IsScalar() ? ParseLogLevel(line.Scalar()) : std::nullopt;
    if (level.has_value()) return *level;
    return Wrong(line.Mark(), "no level");
  } catch (const YAML::Exception& error) {
    return Wrong(error.mark, error.msg);
  }
}

}  // namespace

std::unique_ptr<FollowedFiles> LogLevelFile(std::string path, LogLevel otherwise) {
  return std::make_unique<FollowedFiles>(
      std::vector<std::string>{path}, [path, otherwise](const auto& texts) {
        const absl::StatusOr<LogLevel> level = LevelIn(texts, otherwise);
        if (!level.ok()) {
          LogWarning("the log's level stays as it is",
                     {{"file", path}, {"why", std::string(level.status().message())}});
          return true;
        }
        if (*level == CurrentLogLevel()) return true;
        // So that the line is seen where either level shows it.
        SetLogLevel(std::min(*level, CurrentLogLevel()));
        LogInfo("the log's level changes", {{"now", LogLevelName(*level)}, {"file", path}});
        SetLogLevel(*level);
        return true;
      });
}

}  // namespace tandem
