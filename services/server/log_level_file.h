// The log's level, followed in a file while the process runs: an operator turns debug lines on
// without a restart.

#ifndef TANDEM_SERVICES_SERVER_LOG_LEVEL_FILE_H_
#define TANDEM_SERVICES_SERVER_LOG_LEVEL_FILE_H_

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"

namespace tandem {

inline constexpr std::chrono::milliseconds kLogLevelPeriod{2'000};

class LogLevelFile {
 public:
  LogLevelFile(std::string path, LogLevel otherwise)
      : path_(std::move(path)), otherwise_(otherwise) {}
  ~LogLevelFile();

  // The level is that of the line "log-level: LEVEL" of the YAML file, whatever else is in there,
  // and `otherwise` where there is no such line. A file that cannot be understood changes nothing,
  // which the log says once.
  void Look();
  // Looks in every `period` from now on, on a thread of its own. Once.
  void Follow(std::chrono::milliseconds period = kLogLevelPeriod);

 private:
  void Run(std::chrono::milliseconds period) EXCLUDES(mu_);

  const std::string path_;
  const LogLevel otherwise_;
  std::string complaint_;  // Of the last look.
  Mutex mu_;
  CondVar stop_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_LOG_LEVEL_FILE_H_
