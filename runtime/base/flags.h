// Command-line flags of one program or subcommand: declared once, with their help, and bound to the
// fields of an options struct whose values are the defaults.
//
//   FlagSet flags("tandem serve DIR [flags]", "Serves a model on this machine.");
//   flags.Add("prefill", &options.prefill, "N", "prefill workers");
//   TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> rest, flags.Parse(arguments));
//
// Accepts --name=value and --name value; a bool takes --name and --name=false. "--" ends the flags.
// Values may come from elsewhere, too: Set.

#ifndef TANDEM_RUNTIME_BASE_FLAGS_H_
#define TANDEM_RUNTIME_BASE_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// A number of bytes: "4GiB", "512MiB", "1.5GiB", "1000000"; less than 4194304TiB.
struct ByteSize {
  int64_t bytes = 0;
};
absl::StatusOr<ByteSize> ParseByteSize(std::string_view text);
std::string FormatByteSize(int64_t bytes);  // "1.50 GiB", rounded.
std::string ToString(ByteSize size);        // The same, or "33554431 B" where that would round.

// Where a value comes from; of several the later one here counts.
enum class FlagSource { kDefault, kFile, kEnvironment, kCommandLine };

class FlagSet {
 public:
  FlagSet(std::string_view usage, std::string_view summary) : usage_(usage), summary_(summary) {}

  // `target` outlives the set; what it holds now is the default shown in the help. `value` names
  // the argument there. Numbers outside [low, high] are refused, and so is an empty FILE: a
  // variable that was not filled in must not mean that there is none.
  void Add(std::string_view name, std::string* target, std::string_view value,
           std::string_view help);
  void Add(std::string_view name, bool* target, std::string_view help);
  void Add(std::string_view name, int32_t* target, std::string_view value, std::string_view help,
           int32_t low = 0, int32_t high = INT32_MAX);
  void Add(std::string_view name, int64_t* target, std::string_view value, std::string_view help,
           int64_t low = 0, int64_t high = INT64_MAX);
  void Add(std::string_view name, double* target, std::string_view value, std::string_view help,
           double low = 0, double high = 1e300);
  void Add(std::string_view name, ByteSize* target, std::string_view value, std::string_view help);
  // One of `choices`; the help lists them.
  void AddChoice(std::string_view name, std::string* target, std::vector<std::string> choices,
                 std::string_view help);

  // The positional arguments, in order. InvalidArgument names the flag, the value and what is
  // allowed.
  absl::StatusOr<std::vector<std::string>> Parse(const std::vector<std::string>& arguments);

  // As from the command line, but for the order: nothing happens if a later source has set the
  // flag; kDefault completes what nobody has set. InvalidArgument without the flag's name; NotFound
  // if there is none of that name.
  absl::Status Set(std::string_view name, std::string_view value, FlagSource source);

  // True once Parse has met --help; the caller prints Help() and stops.
  bool help_requested() const { return help_requested_; }
  bool WasSet(std::string_view name) const { return SourceOf(name) != FlagSource::kDefault; }
  FlagSource SourceOf(std::string_view name) const;
  std::string Help() const;

  // In the order of their declaration; `text` as Set takes it, unless there is none.
  struct Value {
    std::string name, text;
    FlagSource source;
    bool none;  // A FILE that nobody names.
  };
  std::vector<Value> Values() const;

 private:
  struct Flag {
    std::string name, value, help, default_text;
    bool is_bool = false;
    std::function<absl::Status(std::string_view)> set;
    FlagSource source = FlagSource::kDefault;
    std::string text;
  };
  void Register(std::string_view name, std::string_view value, std::string_view help,
                const std::string& default_text, std::function<absl::Status(std::string_view)> set);
  const Flag* Find(std::string_view name) const;

  const std::string usage_, summary_;
  std::vector<Flag> flags_;
  bool help_requested_ = false;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_FLAGS_H_
