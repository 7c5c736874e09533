#include "runtime/base/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <cmath>
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "runtime/base/utf8.h"

namespace tandem {
namespace {

std::string& ProcessName() {
  static std::string* const name = new std::string("tandem");
  return *name;
}

void Write(std::string_view level, std::string_view message,
           std::initializer_list<LogField> fields) {
  timeval now;
  gettimeofday(&now, nullptr);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  std::string line =
      absl::StrFormat(R"({"time":"%04d-%02d-%02dT%02d:%02d:%02d.%06dZ","level":"%s","process":)",
                      utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                      utc.tm_sec, static_cast<int>(now.tv_usec), level);
  AppendJsonString(ProcessName(), &line);
  line += ",\"message\":";
  AppendJsonString(message, &line);
  for (const LogField& field : fields) {
    line += ',';
    AppendJsonString(field.name(), &line);
    line += ':';
    line += field.json();
  }
  line += "}\n";
  // One write, so that lines of several threads and processes do not mix.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

LogField::LogField(std::string_view name, std::string_view value) : name_(name) {
  AppendJsonString(value, &json_);
}

LogField::LogField(std::string_view name, bool value)
    : name_(name), json_(value ? "true" : "false") {}

LogField::LogField(std::string_view name, double value)
    : name_(name), json_(std::isfinite(value) ? absl::StrFormat("%.6g", value) : "null") {}

void SetLogProcessName(std::string_view name) { ProcessName() = std::string(name); }

void LogInfo(std::string_view message, std::initializer_list<LogField> fields) {
  Write("info", message, fields);
}
void LogWarning(std::string_view message, std::initializer_list<LogField> fields) {
  Write("warning", message, fields);
}
void LogError(std::string_view message, std::initializer_list<LogField> fields) {
  Write("error", message, fields);
}

void AppendJsonString(std::string_view text, std::string* out) {
  std::string repaired;
  if (!IsValidUtf8(text)) text = repaired = ToValidUtf8(text);
  *out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (c == '\n') {
      *out += "\\n";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      *out += absl::StrFormat("\\u%04x", static_cast<unsigned char>(c));
    } else {
      *out += c;
    }
  }
  *out += '"';
}

}  // namespace tandem
