#include "services/server/grpc_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <string>

#include "runtime/base/log.h"

namespace tandem {
namespace {

void LogOfProtobuf(google::protobuf::LogLevel, const char* file, int line,
                   const std::string& message) {
  static std::atomic<uint64_t> number{0};
  if (const uint64_t now = ++number; std::has_single_bit(now)) {
    LogWarning(message, {{"where", file}, {"line", line}, {"times", now}});
  }
}

}  // namespace

void TakeOverGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* line) {
    const LogField where("where", line->file);
    if (line->severity == GPR_LOG_SEVERITY_ERROR) {
      LogWarning(line->message, {where, {"line", line->line}});
    } else {
      LogInfo(line->message, {where, {"line", line->line}});
    }
  });
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

}  // namespace tandem
