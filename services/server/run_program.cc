#include "services/server/run_program.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/ended_lives.h"
#include "services/server/grpc_log.h"
#include "services/server/program_config.h"

namespace tandem {
namespace {

constexpr int kExitWrongUse = 2;

int ExitStatus(const absl::Status& why) {
  switch (why.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:  // A port that is another's.
      return kExitWrongUse;
    case absl::StatusCode::kDataLoss:  // What it computes on was lost to it.
      return kExitToBeReplaced;
    default:
      return 1;
  }
}

// Threads begin in many places. Where the system has none left, that ends the process, and its
// reason is a line of the log as any other.
[[noreturn]] void EndWithAReason() {
  std::string why = "std::terminate";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    why = absl::StrCat(
        error.what(),
        ": a thread cannot begin; see pids.max of the cgroup, ulimit -u and ulimit -v");
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "an exception of no known type";
  }
  LogError("cannot go on", {{"why", why}});
  std::_Exit(1);
}

}  // namespace

int RunProgram(const std::vector<std::string>& arguments, const Program& program) {
  std::set_terminate(EndWithAReason);
  StopSignal stop;  // Before there is another thread.
  TakeOverGrpcLog();
  ProgramConfig config(program.flags);
  const auto rest = config.Read(arguments, Environment());
  if (config.AnswersAtOnce(program.name)) return 0;
  const absl::Status usage = [&]() -> absl::Status {
    TANDEM_RETURN_IF_ERROR(rest.status());
    if (!rest->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown argument \"", rest->front(), "\""));
    }
    return program.check();
  }();
  if (!usage.ok()) {
    const std::string line = absl::StrCat(std::string(program.name), ": ",
                                          std::string(usage.message()), "\nTry --help.\n");
    std::fputs(line.c_str(), stderr);
    return kExitWrongUse;
  }
  if (config.print_requested()) {
    std::fputs(config.ToYaml().c_str(), stdout);
    return 0;
  }
  config.BeginLog(program.log_name());
  const absl::Status status = program.run(&stop);
  if (status.ok()) return 0;
  LogError("cannot start", {{"why", std::string(status.message())}});  // Waits for no reader.
  return ExitStatus(status);
}

}  // namespace tandem
