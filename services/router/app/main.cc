// tandem-router: the OpenAI HTTP API and the gRPC API in front of tandem-workers.

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/fleet_secret.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "services/router/app/client_flags.h"
#include "services/router/app/router_app.h"
#include "services/server/grpc_log.h"
#include "services/server/limits.h"
#include "services/server/machine_limits.h"
#include "services/server/program_config.h"
#include "services/server/stop_signal.h"

namespace tandem {
namespace {

constexpr int kExitBadUsage = 2;
constexpr int kLargeBytes = 512 << 10;
// Then what still runs is told that it is Unavailable. Below the 30 s that Kubernetes and
// `tandem serve` wait before they kill.
constexpr int64_t kDrainUs = 25'000'000;
constexpr std::chrono::milliseconds kDrainPoll{20};

struct RouterFlags {
  std::string model, served_model_name, workers, workers_dns, port_file, fleet_secret_file;
  std::string name = "router";
  ClientFlags clients;
  FleetTlsFlags fleet_tls;
  double liveness_scale = 1;
  int32_t max_queued_requests = 4096;
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
  flags->Add("fleet-secret-file", &f->fleet_secret_file, "FILE", kFleetSecretFileHelp);
  f->fleet_tls.Declare(flags);
  flags->Add("port-file", &f->port_file, "FILE",
             "the ports that were bound are written there as JSON once they listen");
  flags->Add("liveness-scale", &f->liveness_scale, "X", kLivenessScaleHelp, kMinLivenessScale,
             kMaxLivenessScale);
  flags->Add("max-queued-requests", &f->max_queued_requests, "N",
             "requests that may wait for a worker; more get 429", 1, 1'000'000);
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
  TANDEM_RETURN_IF_ERROR(f.fleet_tls.Check());
  options.fleet_tls = f.fleet_tls;
  for (const auto& [text, list] : {std::pair(&f.clients.allowed_hosts, &options.allowed_hosts),
                                   std::pair(&f.clients.cors_origins, &options.cors_origins)}) {
    *list = absl::StrSplit(*text, ',', absl::SkipEmpty());
  }
  if (f.name.size() > static_cast<size_t>(kMaxNameBytes) || !IsValidUtf8(f.name)) {
    return absl::InvalidArgumentError(absl::StrFormat("--name: %d bytes, want at most %d of UTF-8",
                                                      f.name.size(), kMaxNameBytes));
  }
  TANDEM_ASSIGN_OR_RETURN(options.secret, FleetSecret::Read(f.fleet_secret_file));
  options.name = f.name;
  options.model = f.model;
  options.served_model_name = f.served_model_name;
  options.workers_dns = f.workers_dns;
  options.liveness_scale = f.liveness_scale;
  options.max_queued_requests = f.max_queued_requests;
  options.isolate_cache = f.clients.isolate_cache;
  options.memory_limit_bytes = f.clients.memory_limit.bytes;
  options.disaggregate = f.clients.disaggregate == "always"  ? DisaggregatePolicy::kAlways
                         : f.clients.disaggregate == "never" ? DisaggregatePolicy::kNever
                                                             : DisaggregatePolicy::kAuto;
  return options;
}

int Serve(const RouterOptions& options, const std::string& port_file) {
  StopSignal stop;
  TakeOverGrpcLog();
  // Large bodies and texts go back to the kernel as they are freed.
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);

  if (!options.secret.configured() && !options.fleet_tls.configured()) {
    LogWarning("no fleet secret: whoever takes a worker's address is believed, and sees prompts");
  }
  const auto app = [&]() -> absl::StatusOr<std::unique_ptr<RouterApp>> {
    TANDEM_RETURN_IF_ERROR(RaiseDescriptorLimit());
    return RouterApp::Create(options);
  }();
  stop.Serving();
  if (!app.ok()) {
    LogError("cannot start", {{"why", std::string(app.status().message())}});
    return kExitBadUsage;
  }
  const int http_port = (*app)->http_port(), grpc_port = (*app)->grpc_port();
  const int admin_port = (*app)->admin_port();
  LogInfo("listening", {{"http", http_port}, {"grpc", grpc_port}, {"admin", admin_port}});
  if (!port_file.empty()) {
    const std::string ports = absl::StrFormat("{\"http\":%d,\"grpc\":%d,\"admin\":%d}\n", http_port,
                                              grpc_port, admin_port);
    if (const absl::Status status = WriteSmallFile(port_file, ports); !status.ok()) {
      LogError("cannot start", {{"why", std::string(status.message())}});
      return kExitBadUsage;
    }
  }
  stop.Wait();
  LogInfo("draining");
  (*app)->BeginDrain();
  const int64_t end_us = SteadyClock().NowUs() + kDrainUs;
  // A second signal ends it at once.
  while (!(*app)->Drained() && SteadyClock().NowUs() < end_us && stop.Wait(kDrainPoll) == 0) {
  }
  LogInfo("ended", {{"drained", (*app)->Drained()}});
  return 0;
}

int Main(int argc, char** argv) {
  RouterFlags values;
  FlagSet flags("tandem-router --model DIR --workers HOST:PORT,... [flags]",
                "Serves a model's OpenAI HTTP API and gRPC API with the workers given.");
  Declare(&values, &flags);
  ProgramConfig config(&flags);
  const auto rest = config.Read(std::vector<std::string>(argv + 1, argv + argc), Environment());
  if (config.AnswersAtOnce("tandem-router")) return 0;
  const absl::StatusOr<RouterOptions> options = [&]() -> absl::StatusOr<RouterOptions> {
    TANDEM_RETURN_IF_ERROR(rest.status());
    if (!rest->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown argument \"", rest->front(), "\""));
    }
    return ToOptions(values);
  }();
  if (!options.ok()) {
    std::fprintf(stderr, "tandem-router: %s\nTry --help.\n",
                 std::string(options.status().message()).c_str());
    return kExitBadUsage;
  }
  if (config.print_requested()) {
    std::fputs(config.ToYaml().c_str(), stdout);
    return 0;
  }
  config.BeginLog(values.name);
  return Serve(*options, values.port_file);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Main(argc, argv); }
