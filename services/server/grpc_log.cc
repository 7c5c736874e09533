#include "services/server/grpc_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"

namespace tandem {
namespace {

std::optional<uint64_t> TimesToTell(const char* file, int line) {
  static Mutex mu;
  static auto* const times = new std::map<std::pair<std::string, int>, uint64_t>;
  const MutexLock lock(&mu);
  const uint64_t now = ++(*times)[{file, line}];
  return std::has_single_bit(now) ? std::optional(now) : std::nullopt;
}

void LogOfProtobuf(google::protobuf::LogLevel, const char* file, int line,
                   const std::string& message) {
  if (const auto times = TimesToTell(file, line); times.has_value()) {
    LogWarning(message, {{"where", file}, {"line", line}, {"times", *times}});
  }
}

}  // namespace

void TakeOverGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* line) {
    const auto times = TimesToTell(line->file, line->line);
    if (!times.has_value()) return;
    const auto log = line->severity == GPR_LOG_SEVERITY_ERROR ? LogWarning : LogInfo;
    log(line->message, {{"where", line->file}, {"line", line->line}, {"times", *times}});
  });
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

}  // namespace tandem
