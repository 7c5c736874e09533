#include "services/server/program_config.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/fleet_secret.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "services/server/api_keys.h"
#include "services/server/build_info.h"
#include "services/server/log_level_file.h"

namespace tandem {
namespace {

constexpr std::string_view kPrefix = "TANDEM_";
constexpr size_t kMaxFileBytes = size_t{1} << 20;

// Asks for one answer instead of a program that runs.
bool AsksOnly(std::string_view flag) { return flag == "print-config" || flag == "version"; }

// Nor does ToYaml say these.
bool MayBeInFile(std::string_view flag) { return flag != "config" && !AsksOnly(flag); }

// No flag, lest it be seen on a command line.
bool IsSecret(std::string_view variable) {
  return variable == kFleetSecretVariable || variable == kApiKeyVariable;
}

std::string VariableOf(std::string_view flag) {
  std::string name(flag);
  std::replace(name.begin(), name.end(), '-', '_');
  return absl::StrCat(std::string(kPrefix), absl::AsciiStrToUpper(name));
}

std::pair<std::string, std::string> SplitVariable(const std::string& variable) {
  const size_t equals = variable.find('=');
  if (equals == std::string::npos) return {variable, ""};
  return {variable.substr(0, equals), variable.substr(equals + 1)};
}

// Whether Kubernetes makes such a variable for a service whose name begins with "tandem".
bool IsServiceLink(std::string_view name) {
  return name.ends_with("_SERVICE_HOST") || name.find("_SERVICE_PORT") != name.npos ||
         name.ends_with("_PORT") || name.find("_TCP") != name.npos ||
         name.find("_UDP") != name.npos;
}

absl::StatusOr<std::string> TextOf(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::vector<std::string> items;
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      if (item.IsScalar()) items.push_back(item.Scalar());
    }
    if (items.size() == node.size()) return absl::StrJoin(items, ",");
  }
  return absl::InvalidArgumentError("want a scalar, or a sequence of scalars");
}

}  // namespace

ProgramConfig::ProgramConfig(FlagSet* flags) : flags_(flags) {
  flags_->Add("config", &file_, "FILE",
              "a YAML file with a line \"flag: value\" for each flag; TANDEM_THIS_FLAG in the "
              "environment goes before --this-flag in the file, and the command line before both");
  flags_->Add("print-config", &print_,
              "print each flag's value and where it comes from, as a file for --config, and exit");
  flags_->Add("version", &version_, "print the version, what it was built with, and exit");
  flags_->AddChoice("log-level", &log_level_, {"debug", "info", "warning", "error"},
                    "lines below it are left out; debug: one for each request and attempt");
  flags_->Add("log-level-file", &log_level_file_, "FILE",
              "a YAML file whose line \"log-level: LEVEL\" holds as soon as it changes, where "
              "neither the command line nor the environment says one; empty: that of --config");
}

absl::StatusOr<std::vector<std::string>> ProgramConfig::Read(
    const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> positional, flags_->Parse(arguments));
  TANDEM_RETURN_IF_ERROR(ReadEnvironment(environment));
  if (!file_.empty()) TANDEM_RETURN_IF_ERROR(ReadFile());
  return positional;
}

absl::Status ProgramConfig::ReadEnvironment(const std::vector<std::string>& environment) {
  std::set<std::string> flags;
  for (const FlagSet::Value& flag : flags_->Values()) {
    if (!AsksOnly(flag.name)) flags.insert(VariableOf(flag.name));
  }
  for (const std::string& variable : environment) {
    const auto [name, value] = SplitVariable(variable);
    if (!name.starts_with(kPrefix) || IsSecret(name)) continue;
    if (!flags.contains(name)) {
      if (!IsServiceLink(name)) unknown_variables_.push_back(name);
      continue;
    }
    std::string flag = absl::AsciiStrToLower(name.substr(kPrefix.size()));
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (const absl::Status status = flags_->Set(flag, value, FlagSource::kEnvironment);
        !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status ProgramConfig::ReadFile() {
  const auto wrong = [this](const YAML::Mark& mark, const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", mark.line + 1, ": ", what...));
  };
  absl::StatusOr<std::string> text = ReadSmallFile(file_, kMaxFileBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--config: ", text.status().message()));
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(*text);
    if (documents.empty() || documents[0].IsNull()) return absl::OkStatus();
    if (documents.size() > 1 || !documents[0].IsMap()) {
      return wrong(documents.back().Mark(), "want one mapping from names of flags to values");
    }
    std::set<std::string> seen;
    for (const auto& entry : documents[0]) {
      const YAML::Node& key = entry.first;
      if (!key.IsScalar()) return wrong(key.Mark(), "want the name of a flag");
      const std::string& name = key.Scalar();
      if (!MayBeInFile(name)) return wrong(key.Mark(), name, ": has no place in a file");
      if (!seen.insert(name).second) return wrong(key.Mark(), name, ": is there twice");
      const absl::StatusOr<std::string> scalar = TextOf(entry.second);
      const absl::Status status =
          scalar.ok() ? flags_->Set(name, *scalar, FlagSource::kFile) : scalar.status();
      if (!status.ok()) return wrong(key.Mark(), name, ": ", status.message());
    }
  } catch (const YAML::Exception& error) {
    return wrong(error.mark, error.msg);
  }
  return absl::OkStatus();
}

bool ProgramConfig::AnswersAtOnce(std::string_view program) const {
  if (flags_->help_requested()) {
    std::fputs(flags_->Help().c_str(), stdout);
  } else if (version_) {
    std::puts(VersionLine(program).c_str());
  }
  return flags_->help_requested() || version_;
}

std::string ProgramConfig::ToYaml() const {
  YAML::Emitter yaml;
  std::string none;
  yaml << YAML::BeginMap;
  for (const FlagSet::Value& flag : flags_->Values()) {
    if (!MayBeInFile(flag.name)) continue;
    const std::string source = flag.source == FlagSource::kCommandLine   ? "command line"
                               : flag.source == FlagSource::kEnvironment ? VariableOf(flag.name)
                               : flag.source == FlagSource::kFile        ? file_
                                                                         : "default";
    if (flag.none) {
      absl::StrAppend(&none, "# ", flag.name, ": none\n");
      continue;
    }
    yaml << YAML::Key << flag.name << YAML::Value << flag.text << YAML::Comment(source);
  }
  for (const std::string& name : unknown_variables_) {
    absl::StrAppend(&none, "# ", name, " names no flag of this program\n");
  }
  yaml << YAML::EndMap;
  return absl::StrCat(yaml.c_str(), "\n", none);
}

void ProgramConfig::BeginLog(std::string_view process_name, std::chrono::milliseconds period) {
  tandem::BeginLog(process_name);
  const LogLevel level = *ParseLogLevel(log_level_);
  SetLogLevel(level);
  for (const std::string& name : unknown_variables_) {
    LogWarning("a variable of the environment names no flag of this program", {{"variable", name}});
  }
  const std::string file = FollowedPath();
  if (file.empty()) return;
  log_level_follower_ = LogLevelFile(file, LogLevel::kInfo);
  log_level_follower_->Look();
  log_level_follower_->Follow(period);
}

std::string ProgramConfig::FollowedPath() const {
  if (flags_->SourceOf("log-level") > FlagSource::kFile) return "";
  return log_level_file_.empty() ? file_ : log_level_file_;
}

std::vector<std::string> ProgramConfig::LogArguments() const {
  const std::string file = FollowedPath();
  if (!file.empty()) return {"--log-level-file=" + file};
  return {"--log-level=" + log_level_};
}

std::vector<std::string> Environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

void ClearConfigVariables() {
  for (const std::string& variable : Environment()) {
    const std::string name = SplitVariable(variable).first;
    if (name.starts_with(kPrefix) && !IsSecret(name)) unsetenv(name.c_str());
  }
}

}  // namespace tandem
