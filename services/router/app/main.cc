// tandem-router: the OpenAI HTTP API and the gRPC API in front of tandem-workers.

#include <malloc.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "services/router/app/router_app.h"
#include "services/router/app/router_flags.h"
#include "services/server/http2_gate.h"
#include "services/server/machine_limits.h"
#include "services/server/run_program.h"

namespace tandem {
namespace {

constexpr int kLargeBytes = 512 << 10;
constexpr std::chrono::milliseconds kDrainPoll{20};
// The part of the time to drain in which those who still wait are told that it is over.
constexpr std::chrono::milliseconds kTellTime = kFlushTimeout + kGateFlushTimeout;
// kFlushTimeout, for whoever has asked twice.
constexpr std::chrono::milliseconds kHurriedFlushTimeout{200};

absl::Status Serve(const RouterOptions& options, const RouterFlags& flags, StopSignal* stop) {
  // Large bodies and texts go back to the kernel as they are freed.
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);

  flags.fleet.WarnOfStrangers(options.secret,
                              "whoever takes a worker's address is believed, and sees prompts");
  const auto app = [&]() -> absl::StatusOr<std::unique_ptr<RouterApp>> {
    TANDEM_RETURN_IF_ERROR(RaiseDescriptorLimit());
    return RouterApp::Create(options);
  }();
  stop->Serving();
  TANDEM_RETURN_IF_ERROR(app.status());
  const int http_port = (*app)->http_port(), grpc_port = (*app)->grpc_port();
  const int admin_port = (*app)->admin_port();
  LogInfo("listening", {{"http", http_port}, {"grpc", grpc_port}, {"admin", admin_port}});
  if (!flags.port_file.empty()) {
    const std::string ports = absl::StrFormat("{\"http\":%d,\"grpc\":%d,\"admin\":%d}\n", http_port,
                                              grpc_port, admin_port);
    TANDEM_RETURN_IF_ERROR(WriteSmallFile(flags.port_file, ports));
  }
  stop->Wait();
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(flags.clients.drain_seconds) - kTellTime;
  LogInfo("draining",
          {{"seconds", flags.clients.drain_seconds}, {"requests", (*app)->num_requests()}});
  (*app)->BeginDrain();
  bool hurried = false;
  while (!hurried && !(*app)->Drained() && std::chrono::steady_clock::now() < end) {
    hurried = stop->Wait(kDrainPoll) != 0;
  }
  const bool drained = (*app)->Drained();
  if (!drained) {
    LogWarning("the end of the drain cuts off what still runs",
               {{"requests", (*app)->num_requests()}, {"asked_twice", hurried}});
  }
  (*app)->Stop(hurried ? kHurriedFlushTimeout : kFlushTimeout);
  LogInfo("ended", {{"drained", drained}});
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  RouterFlags values;
  FlagSet flags("tandem-router --model DIR --workers HOST:PORT,... [flags]",
                "Serves a model's OpenAI HTTP API and gRPC API with the workers given.");
  values.Declare(&flags);
  RouterOptions options;
  return RunProgram(arguments,
                    {.name = "tandem-router",
                     .flags = &flags,
                     .check = [&]() -> absl::Status {
                       TANDEM_ASSIGN_OR_RETURN(options, values.Options());
                       return absl::OkStatus();
                     },
                     .log_name = [&] { return values.name; },
                     .run = [&](StopSignal* stop) { return Serve(options, values, stop); }});
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(std::vector<std::string>(argv + 1, argv + argc));
}
