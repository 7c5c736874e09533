// A server program from its command line to its end, the same for all of them.

#ifndef TANDEM_SERVICES_SERVER_RUN_PROGRAM_H_
#define TANDEM_SERVICES_SERVER_RUN_PROGRAM_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/flags.h"
#include "services/server/stop_signal.h"

namespace tandem {

struct Program {
  std::string_view name;  // "tandem-router"
  FlagSet* flags;
  // What is wrong with the flags, before anything else happens.
  std::function<absl::Status()> check;
  std::function<std::string()> log_name;
  // Until a signal ends it; not OK: it could not start. Calls Serving.
  std::function<absl::Status(StopSignal* stop)> run;
};

// The exit status. Flags that are wrong are two lines on stderr and 2; what cannot start is a line
// of the log and 2 where the same flags on this machine will fail again, kExitToBeReplaced after
// DataLoss, else 1. With --help, --version or --print-config it only prints.
int RunProgram(const std::vector<std::string>& arguments, const Program& program);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_RUN_PROGRAM_H_
