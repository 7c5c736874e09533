#include "services/server/log_level_file.h"

#include <pthread.h>
#include <signal.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/small_file.h"
#include "services/server/program_config.h"

namespace tandem {
namespace {

// NotFound if the file has no such line.
absl::StatusOr<LogLevel> LevelIn(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxConfigFileBytes);
  if (!text.ok()) return absl::UnavailableError(text.status().message());
  try {
    const YAML::Node file = YAML::Load(*text);
    if (!file.IsMap() && !file.IsNull()) return absl::InvalidArgumentError("want one mapping");
    const YAML::Node line = file["log-level"];
    if (!line.IsDefined()) return absl::NotFoundError("no log-level");
    if (line.IsScalar()) {
      const std::optional<LogLevel> level = ParseLogLevel(line.Scalar());
      if (level.has_value()) return *level;
    }
    return absl::InvalidArgumentError("log-level: want one of debug, info, warning, error");
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace

void LogLevelFile::Follow(std::chrono::milliseconds period) {
  // Signals are for those who wait for them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, period] { Run(period); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogLevelFile::~LogLevelFile() {
  {
    const MutexLock lock(&mu_);
    stopping_ = true;
    stop_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LogLevelFile::Run(std::chrono::milliseconds period) {
  pthread_setname_np(pthread_self(), "log-level");
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (stop_.WaitFor(&mu_, period) || stopping_) continue;  // Stopped, or spurious.
    mu_.Unlock();
    Look();
    mu_.Lock();
  }
}

void LogLevelFile::Look() {
  absl::StatusOr<LogLevel> level = LevelIn(path_);
  if (absl::IsNotFound(level.status())) level = otherwise_;
  const std::string complaint = level.ok() ? "" : std::string(level.status().message());
  if (complaint != std::exchange(complaint_, complaint) && !complaint.empty()) {
    LogWarning("the log's level stays as it is", {{"file", path_}, {"why", complaint}});
  }
  if (!level.ok() || *level == CurrentLogLevel()) return;
  SetLogLevel(std::min(*level, CurrentLogLevel()));  // So that the line is seen where either is.
  LogInfo("the log's level changes", {{"now", LogLevelName(*level)}, {"file", path_}});
  SetLogLevel(*level);
}

}  // namespace tandem
