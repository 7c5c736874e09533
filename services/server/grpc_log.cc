#include "services/server/grpc_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "services/server/told_times.h"

namespace tandem {
namespace {

std::optional<uint64_t> TimesToTell(const char* file, int line) {
  static auto* const times = new ToldTimes;
  return times->Happened(absl::StrCat(file, ":", line));
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
    const std::string_view said = line->message;
    // What follows OpenSSL's own line, whatever that is about.
    if (said == "Corruption detected." || said.ends_with("TSI_DATA_CORRUPTED")) {
      return LogDebug(said);
    }
    const auto times = TimesToTell(line->file, line->line);
    if (!times.has_value()) return;
    if (said.find("SSL routines::") != said.npos && said.find(" alert ") != said.npos) {
      return LogWarning("who was dialled refuses the certificate of this process, or its TLS",
                        {{"why", said}, {"times", *times}});
    }
    const auto log = line->severity == GPR_LOG_SEVERITY_ERROR ? LogWarning : LogInfo;
    log(said, {{"where", line->file}, {"line", line->line}, {"times", *times}});
  });
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

}  // namespace tandem
