#include "runtime/base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "runtime/base/mutex.h"
#include "runtime/base/utf8.h"

namespace tandem {
namespace {

std::string& ProcessName() {
  static std::string* const name = new std::string("tandem");
  return *name;
}

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

std::atomic<LogLevel>& Lowest() {
  static std::atomic<LogLevel> level = LogLevel::kInfo;
  return level;
}

// Standard error, which other processes may share: what we need must not be set for them. So a pipe
// or a terminal is opened once more, for a description of our own that does not block.
class Sink {
 public:
  // One write, so that lines of several threads and processes do not mix.
  void Write(const std::string& line) EXCLUDES(mu_);
  int64_t num_dropped() const { return num_dropped_; }

 private:
  void Open() REQUIRES(mu_);
  bool TryWrite(const std::string& line) REQUIRES(mu_);

  Mutex mu_;
  struct stat opened_ GUARDED_BY(mu_) = {};  // What `own_` is.
  int own_ GUARDED_BY(mu_) = -1;
  bool torn_ GUARDED_BY(mu_) = false;    // The last line was written in part.
  int64_t missing_ GUARDED_BY(mu_) = 0;  // Dropped and not yet told.
  std::atomic<int64_t> num_dropped_ = 0;
};

std::string LineOf(LogLevel level, std::string_view message,
                   std::initializer_list<LogField> fields) {
  timeval now;
  gettimeofday(&now, nullptr);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  std::string line =
      absl::StrFormat(R"({"time":"%04d-%02d-%02dT%02d:%02d:%02d.%06dZ","level":"%s","process":)",
                      utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                      utc.tm_sec, static_cast<int>(now.tv_usec), LogLevelName(level));
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
  return line;
}

void Sink::Write(const std::string& line) {
  const MutexLock lock(&mu_);
  Open();
  // Together: what says how many are missing must not take the room of the next one.
  const std::string notice =
      missing_ == 0 ? ""
                    : LineOf(LogLevel::kWarning, "log lines were dropped: nobody read them",
                             {{"lines", missing_}});
  if (TryWrite(notice + line)) {
    missing_ = 0;
  } else {
    ++missing_;
    ++num_dropped_;
  }
}

// Tests and supervisors may put another file in its place.
void Sink::Open() {
  struct stat now = {};
  if (fstat(STDERR_FILENO, &now) != 0) return;
  if (now.st_dev == opened_.st_dev && now.st_ino == opened_.st_ino) return;
  if (own_ >= 0) close(own_);
  own_ = -1;
  opened_ = now;
  if (S_ISFIFO(now.st_mode) || S_ISCHR(now.st_mode)) {
    own_ = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  }
}

bool Sink::TryWrite(const std::string& line) {
  const std::string out = torn_ ? "\n" + line : line;
  ssize_t written = 0;
  if (own_ >= 0) {
    written = write(own_, out.data(), out.size());
  } else if (S_ISSOCK(opened_.st_mode)) {
    written = send(STDERR_FILENO, out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else {
    // A file; or a pipe of another user, which cannot be opened, but asked: it says whether there
    // is room for PIPE_BUF bytes.
    pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    while (static_cast<size_t>(written) < out.size() && poll(&room, 1, 0) > 0) {
      const size_t size = std::min<size_t>(out.size() - static_cast<size_t>(written), PIPE_BUF);
      const ssize_t more = write(STDERR_FILENO, out.data() + written, size);
      if (more <= 0) break;
      written += more;
    }
  }
  if (written <= 0) return false;
  torn_ = static_cast<size_t>(written) < out.size();
  return !torn_;
}

Sink& StandardError() {
  static Sink* const sink = new Sink();
  return *sink;
}

void Write(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level >= CurrentLogLevel()) StandardError().Write(LineOf(level, message, fields));
}

}  // namespace

LogField::LogField(std::string_view name, std::string_view value) : name_(name) {
  AppendJsonString(value, &json_);
}

LogField::LogField(std::string_view name, bool value)
    : name_(name), json_(value ? "true" : "false") {}

LogField::LogField(std::string_view name, double value)
    : name_(name), json_(std::isfinite(value) ? absl::StrFormat("%.6g", value) : "null") {}

void BeginLog(std::string_view process_name) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  ProcessName() = std::string(process_name);
}

std::string_view LogLevelName(LogLevel level) { return kLevelNames[static_cast<int>(level)]; }

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  const auto* const found = std::find(std::begin(kLevelNames), std::end(kLevelNames), name);
  if (found == std::end(kLevelNames)) return std::nullopt;
  return static_cast<LogLevel>(found - std::begin(kLevelNames));
}

void SetLogLevel(LogLevel level) { Lowest() = level; }
LogLevel CurrentLogLevel() { return Lowest(); }

void LogDebug(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kDebug, message, fields);
}
void LogInfo(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kInfo, message, fields);
}
void LogWarning(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kWarning, message, fields);
}
void LogError(std::string_view message, std::initializer_list<LogField> fields) {
  Write(LogLevel::kError, message, fields);
}

int64_t NumDroppedLogLines() { return StandardError().num_dropped(); }

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
