#include "runtime/base/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr std::string_view kFile = "FILE";

template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// Sets `*target` from text if it is a number in [low, high].
template <typename T>
absl::Status SetNumber(std::string_view text, T low, T high, T* target) {
  T value;
  if (!ParseNumber(text, &value) || !(value >= low && value <= high)) {
    return absl::InvalidArgumentError(absl::StrCat("want a number from ", low, " to ", high,
                                                   ", got \"", std::string(text), "\""));
  }
  *target = value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ByteSize> ParseByteSize(std::string_view text) {
  struct Unit {
    std::string_view suffix;
    double bytes;
  };
  static constexpr Unit kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                                    {"TiB", 0x1p40}, {"B", 1},        {"", 1}};
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.suffix)) continue;
    double value;
    if (!ParseNumber(text.substr(0, text.size() - unit.suffix.size()), &value)) break;
    const double bytes = value * unit.bytes;
    if (std::signbit(bytes) || !(bytes < 0x1p62)) break;
    return ByteSize{static_cast<int64_t>(bytes)};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("want bytes such as 512MiB, 4GiB or 1000000, less than 4194304TiB, got \"",
                   std::string(text), "\""));
}

std::string FormatByteSize(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::fabs(value) >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

std::string ToString(ByteSize size) {
  std::string text = FormatByteSize(size.bytes);
  std::string flag = text;
  flag.erase(std::remove(flag.begin(), flag.end(), ' '), flag.end());
  const auto parsed = ParseByteSize(flag);
  return parsed.ok() && parsed->bytes == size.bytes ? text : absl::StrCat(size.bytes, " B");
}

void FlagSet::Register(std::string_view name, std::string_view value, std::string_view help,
                       const std::string& default_text,
                       std::function<absl::Status(std::string_view)> set) {
  TANDEM_CHECK(Find(name) == nullptr) << "flag declared twice: " << name;
  flags_.push_back(Flag{.name = std::string(name),
                        .value = std::string(value),
                        .help = std::string(help),
                        .default_text = default_text,
                        .set = std::move(set),
                        .text = default_text});
}

void FlagSet::Add(std::string_view name, std::string* target, std::string_view value,
                  std::string_view help) {
  Register(name, value, help, *target,
           [target, is_file = value == kFile](std::string_view text) -> absl::Status {
             if (is_file && text.empty()) {
               return absl::InvalidArgumentError("want a file, got \"\"; leave it out for none");
             }
             *target = std::string(text);
             return absl::OkStatus();
           });
}

void FlagSet::Add(std::string_view name, bool* target, std::string_view help) {
  Register(name, "", help, *target ? "true" : "false", [target](std::string_view text) {
    if (text != "true" && text != "false") {
      return absl::InvalidArgumentError(
          absl::StrCat("want true or false, got \"", std::string(text), "\""));
    }
    *target = text == "true";
    return absl::OkStatus();
  });
  flags_.back().is_bool = true;
}

void FlagSet::Add(std::string_view name, int32_t* target, std::string_view value,
                  std::string_view help, int32_t low, int32_t high) {
  Register(name, value, help, absl::StrCat(*target),
           [=](std::string_view text) { return SetNumber(text, low, high, target); });
}

void FlagSet::Add(std::string_view name, int64_t* target, std::string_view value,
                  std::string_view help, int64_t low, int64_t high) {
  Register(name, value, help, absl::StrCat(*target),
           [=](std::string_view text) { return SetNumber(text, low, high, target); });
}

void FlagSet::Add(std::string_view name, double* target, std::string_view value,
                  std::string_view help, double low, double high) {
  Register(name, value, help, absl::StrCat(*target),
           [=](std::string_view text) { return SetNumber(text, low, high, target); });
}

void FlagSet::Add(std::string_view name, ByteSize* target, std::string_view value,
                  std::string_view help) {
  Register(name, value, help, absl::StrCat(target->bytes),
           [target](std::string_view text) -> absl::Status {
             TANDEM_ASSIGN_OR_RETURN(*target, ParseByteSize(text));
             return absl::OkStatus();
           });
}

void FlagSet::AddChoice(std::string_view name, std::string* target,
                        std::vector<std::string> choices, std::string_view help) {
  const std::string shown = absl::StrJoin(choices, "|");
  Register(name, shown, help, *target,
           [target, choices = std::move(choices), shown](std::string_view text) {
             for (const std::string& choice : choices) {
               if (choice != text) continue;
               *target = choice;
               return absl::OkStatus();
             }
             return absl::InvalidArgumentError(
                 absl::StrCat("want one of ", shown, ", got \"", std::string(text), "\""));
           });
}

absl::StatusOr<std::vector<std::string>> FlagSet::Parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> positional;
  bool flags_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (flags_ended || !argument.starts_with("--")) {
      positional.emplace_back(argument);
      continue;
    }
    if (argument == "--") {
      flags_ended = true;
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(2, equals == argument.npos ? equals : equals - 2);
    if (name == "help") {
      help_requested_ = true;
      continue;
    }
    const Flag* const flag = Find(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag --", std::string(name), " (--help lists them)"));
    }
    std::string_view value;
    if (equals != argument.npos) {
      value = argument.substr(equals + 1);
    } else if (flag->is_bool) {
      value = "true";
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag->name, " wants a value ", flag->value));
    }
    if (const absl::Status status = Set(name, value, FlagSource::kCommandLine); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag->name, ": ", std::string(status.message())));
    }
  }
  return positional;
}

absl::Status FlagSet::Set(std::string_view name, std::string_view value, FlagSource source) {
  const Flag* const found = Find(name);
  if (found == nullptr) return absl::NotFoundError("there is no such flag");
  Flag& flag = flags_[static_cast<size_t>(found - flags_.data())];
  if (flag.source > source) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(flag.set(value));
  flag.source = source;
  flag.text = std::string(value);
  return absl::OkStatus();
}

FlagSource FlagSet::SourceOf(std::string_view name) const {
  const Flag* const flag = Find(name);
  return flag != nullptr ? flag->source : FlagSource::kDefault;
}

std::vector<FlagSet::Value> FlagSet::Values() const {
  std::vector<Value> values;
  for (const Flag& flag : flags_) {
    values.push_back({flag.name, flag.text, flag.source, flag.value == kFile && flag.text.empty()});
  }
  return values;
}

std::string FlagSet::Help() const {
  std::string help = absl::StrCat("usage: ", usage_, "\n\n", summary_, "\n\n");
  for (const Flag& flag : flags_) {
    absl::StrAppendFormat(&help, "  --%s%s%s\n        %s%s\n", flag.name,
                          flag.value.empty() ? "" : " ", flag.value, flag.help,
                          flag.default_text.empty() || flag.is_bool
                              ? ""
                              : absl::StrCat(" (default ", flag.default_text, ")"));
  }
  return help;
}

const FlagSet::Flag* FlagSet::Find(std::string_view name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

}  // namespace tandem
