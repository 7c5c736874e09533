#include "services/server/grpc_log.h"

#include <grpc/support/log.h>

#include "runtime/base/log.h"

namespace tandem {

void TakeOverGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* line) {
    const LogField where("where", line->file);
    if (line->severity == GPR_LOG_SEVERITY_ERROR) {
      LogWarning(line->message, {where, {"line", line->line}});
    } else {
      LogInfo(line->message, {where, {"line", line->line}});
    }
  });
}

}  // namespace tandem
