// One JSON object a line on standard error: {"time","level","process","message"}.
//
//   LogInfo("ready", {{"port", port}, {"blocks", num_blocks}});
//
// Prompt and output text never go into a log. Any thread, and none ever waits for a reader: a line
// for which a pipe, socket or terminal has no room at once is dropped and counted, and the next one
// that finds room is preceded by one that says how many are missing.

#ifndef TANDEM_RUNTIME_BASE_LOG_H_
#define TANDEM_RUNTIME_BASE_LOG_H_

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// A named value of a log line, already rendered as JSON.
class LogField {
 public:
  LogField(std::string_view name, std::string_view value);
  LogField(std::string_view name, const char* value) : LogField(name, std::string_view(value)) {}
  LogField(std::string_view name, const std::string& value)
      : LogField(name, std::string_view(value)) {}
  LogField(std::string_view name, bool value);
  LogField(std::string_view name, double value);
  template <std::integral T>
  requires(!std::same_as<T, bool>) LogField(std::string_view name, T value)
      : name_(name), json_(std::to_string(value)) {}

  std::string_view name() const { return name_; }
  const std::string& json() const { return json_; }

 private:
  std::string name_;
  std::string json_;
};

// Once at start. The name appears in every line ("router", "decode-0"). A log that nobody reads any
// more, or any other pipe, does not end the process, nor does a file that may not grow
// (RLIMIT_FSIZE): SIGPIPE and SIGXFSZ are ignored, and the write fails.
void BeginLog(std::string_view process_name);

enum class LogLevel { kDebug, kInfo, kWarning, kError };
std::string_view LogLevelName(LogLevel level);  // "debug"
std::optional<LogLevel> ParseLogLevel(std::string_view name);

// Lines below it are left out from now on. At first kInfo.
void SetLogLevel(LogLevel level);
LogLevel CurrentLogLevel();
inline bool LogsDebug() { return CurrentLogLevel() == LogLevel::kDebug; }

void LogDebug(std::string_view message, std::initializer_list<LogField> fields = {});
void LogInfo(std::string_view message, std::initializer_list<LogField> fields = {});
void LogWarning(std::string_view message, std::initializer_list<LogField> fields = {});
void LogError(std::string_view message, std::initializer_list<LogField> fields = {});

// Since the process began.
int64_t NumDroppedLogLines();

// Appends `text` as a JSON string literal, quotes included; invalid UTF-8 bytes become U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_LOG_H_
