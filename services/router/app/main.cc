// tandem-router: the OpenAI HTTP API and the gRPC API in front of tandem-workers.

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "services/router/app/client_flags.h"
#include "services/router/app/router_app.h"
#include "services/server/fleet_flags.h"
#include "services/server/http2_gate.h"
#include "services/server/limits.h"
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

struct RouterFlags {
  std::string model, served_model_name, workers, workers_dns, port_file;
  std::string name = "router";
  ClientFlags clients;
  FleetFlags fleet;
  double liveness_scale = 1;
};

void Declare(RouterFlags* f, FlagSet* flags) {
  flags->Add("model", &f->model, "DIR",
             "checkpoint folder: tokenizer, chat template and configuration are read");
  flags->Add("served-model-name", &f->served_model_name, "NAME",
             "name in the API; the folder's name if empty");
  flags->Add("workers", &f->workers, "HOST:PORT,...", "the workers, as a static list");
  flags->Add("workers-dns", &f->workers_dns, "NAME:PORT",
             "or a DNS name that has all their addresses, asked every second");
  f->clients.Declare(flags);
  f->fleet.Declare(flags);
  flags->Add("port-file", &f->port_file, "FILE",
             "the ports that were bound are written there as JSON once they listen");
  flags->Add("liveness-scale", &f->liveness_scale, "X", kLivenessScaleHelp, kMinLivenessScale,
             kMaxLivenessScale);
  flags->Add("name", &f->name, "NAME", "this router's name in workers' logs and server info");
}

absl::Status CheckReachable(const char* flag, const std::string& address) {
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (parts.has_value() && parts->port > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": \"", address, "\" is not host:port with a port of 1 to 65535"));
}

absl::StatusOr<RouterOptions> ToOptions(const RouterFlags& f) {
  RouterOptions options;
  if (f.model.empty()) return absl::InvalidArgumentError("--model DIR is missing");
  if (f.workers.empty() == f.workers_dns.empty()) {
    return absl::InvalidArgumentError("want exactly one of --workers and --workers-dns");
  }
  for (const auto& address : absl::StrSplit(f.workers, ',', absl::SkipEmpty())) {
    const std::string text(address.data(), address.size());
    TANDEM_RETURN_IF_ERROR(CheckReachable("--workers", text));
    if (std::find(options.workers.begin(), options.workers.end(), text) != options.workers.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--workers: \"", text, "\" is there twice"));
    }
    options.workers.push_back(text);
  }
  if (!f.workers.empty() && options.workers.empty()) {
    return absl::InvalidArgumentError("--workers names no address");
  }
  if (!f.workers_dns.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckReachable("--workers-dns", f.workers_dns));
  }
  TANDEM_ASSIGN_OR_RETURN(const ClientFlags::Addresses addresses, f.clients.Check());
  options.http = addresses.http;
  options.grpc = addresses.grpc;
  options.admin = addresses.admin;
  options.api_key_file = f.clients.api_key_file;
  options.tls = {.certificate = f.clients.tls_cert,
                 .key = f.clients.tls_key,
                 .client_authorities = f.clients.tls_client_ca};
  options.fleet_tls = f.fleet.tls;
  for (const auto& [text, list] : {std::pair(&f.clients.allowed_hosts, &options.allowed_hosts),
                                   std::pair(&f.clients.cors_origins, &options.cors_origins)}) {
    *list = absl::StrSplit(*text, ',', absl::SkipEmpty());
  }
  if (f.name.size() > static_cast<size_t>(kMaxNameBytes) || !IsValidUtf8(f.name)) {
    return absl::InvalidArgumentError(absl::StrFormat("--name: %d bytes, want at most %d of UTF-8",
                                                      f.name.size(), kMaxNameBytes));
  }
  TANDEM_ASSIGN_OR_RETURN(options.secret, f.fleet.Open());
  options.name = f.name;
  options.model = f.model;
  options.served_model_name = f.served_model_name;
  options.workers_dns = f.workers_dns;
  options.liveness_scale = f.liveness_scale;
  options.max_queued_requests = f.clients.max_queued_requests;
  options.isolate_cache = f.clients.isolate_cache;
  options.memory_limit_bytes = f.clients.memory_limit.bytes;
  options.disaggregate = f.clients.disaggregate == "always"  ? DisaggregatePolicy::kAlways
                         : f.clients.disaggregate == "never" ? DisaggregatePolicy::kNever
                                                             : DisaggregatePolicy::kAuto;
  return options;
}

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
  Declare(&values, &flags);
  RouterOptions options;
  return RunProgram(arguments,
                    {.name = "tandem-router",
                     .flags = &flags,
                     .check = [&]() -> absl::Status {
                       TANDEM_ASSIGN_OR_RETURN(options, ToOptions(values));
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
