#include "runtime/base/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <cmath>
#include <ctime>

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

std::string& ProcessName() {
  static std::string* const name = new std::string("tandem");
  return *name;
}

// Length of the valid UTF-8 sequence that starts at text[i], 0 if there is none.
int Utf8Length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = byte(i);
  int length = 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (length == 0 || i + length > text.size()) return 0;
  for (int k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  if (lead == 0xE0 && second < 0xA0) return 0;
  if (lead == 0xED && second > 0x9F) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return length;
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
  *out += '"';
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += static_cast<char>(c);
      ++i;
    } else if (c == '\n') {
      *out += "\\n";
      ++i;
    } else if (c < 0x20 || c == 0x7F) {
      *out += absl::StrFormat("\\u%04x", c);
      ++i;
    } else if (const int length = Utf8Length(text, i); length > 0) {
      out->append(text.substr(i, length));
      i += length;
    } else {
      *out += "\xEF\xBF\xBD";
      ++i;
    }
  }
  *out += '"';
}

}  // namespace tandem
