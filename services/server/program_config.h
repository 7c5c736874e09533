// The configuration of a server program: each of its flags may also be set by the environment and
// by a file. Of several values of a flag that of the command line counts, then that of the
// environment (TANDEM_KV_MEMORY is --kv-memory), then that of the file, then the default.
//
// The file, which --config or TANDEM_CONFIG names, is YAML: one mapping from names of flags to
// scalars, or to sequences of them where a flag takes a list.
//
//   kv-memory: 4GiB
//   allowed-host: [chat.example, api.example]

#ifndef TANDEM_SERVICES_SERVER_PROGRAM_CONFIG_H_
#define TANDEM_SERVICES_SERVER_PROGRAM_CONFIG_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/flags.h"
#include "services/server/followed_files.h"

namespace tandem {

class ProgramConfig {
 public:
  // Adds --config, --print-config, --version and those of the log to the flags, which outlive this.
  explicit ProgramConfig(FlagSet* flags);

  // Instead of FlagSet::Parse. `environment`: "NAME=value" each, as in environ. InvalidArgument
  // names the flag, the variable, or the file and its line.
  absl::StatusOr<std::vector<std::string>> Read(const std::vector<std::string>& arguments,
                                                const std::vector<std::string>& environment);

  // Prints what --help or --version asks for, whatever else Read has found wrong; false: neither
  // was given. The caller then stops.
  bool AnswersAtOnce(std::string_view program) const;
  // The caller prints ToYaml() and stops.
  bool print_requested() const { return print_; }
  // A file for --config, with the source of each value beside it.
  std::string ToYaml() const;

  // Variables that are TANDEM_ something, and no flag of this program: perhaps another's, perhaps a
  // misspelt one. Those that Kubernetes makes for a service (TANDEM_SERVICE_HOST) are left out.
  const std::vector<std::string>& unknown_variables() const { return unknown_variables_; }

  // Begins the log of this process, at its level, which a file may change while this lives: it is
  // looked at every `period`. Unknown variables are told in the log. Once.
  void BeginLog(std::string_view process_name, std::chrono::milliseconds period = kFollowPeriod);
  // What gives the log of a program that this one starts the same level.
  std::vector<std::string> LogArguments() const;

 private:
  absl::Status ReadEnvironment(const std::vector<std::string>& environment);
  absl::Status ReadFile();
  // Empty: the level is the flag's for good.
  std::string FollowedPath() const;

  FlagSet* const flags_;
  std::string file_, log_level_ = "info", log_level_file_;
  bool print_ = false, version_ = false;
  std::unique_ptr<FollowedFiles> log_level_follower_;
  std::vector<std::string> unknown_variables_;
};

// The process's own.
std::vector<std::string> Environment();

// Removes all of ProgramConfig's variables from the process's environment: what it starts is
// configured by its command line alone.
void ClearConfigVariables();

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_PROGRAM_CONFIG_H_
