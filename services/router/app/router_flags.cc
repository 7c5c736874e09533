#include "services/router/app/router_flags.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/protocol/times.h"
#include "services/server/limits.h"

namespace tandem {
namespace {

absl::Status CheckReachable(const char* flag, const std::string& address) {
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (parts.has_value() && parts->port > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": \"", address, "\" is not host:port with a port of 1 to 65535"));
}

}  // namespace

void RouterFlags::Declare(FlagSet* flags) {
  flags->Add("model", &model, "DIR",
             "checkpoint folder: tokenizer, chat template and configuration are read");
  flags->Add("served-model-name", &served_model_name, "NAME",
             "name in the API; the folder's name if empty");
  flags->Add("workers", &workers, "HOST:PORT,...", "the workers, as a static list");
  flags->Add("workers-dns", &workers_dns, "NAME:PORT",
             "or a DNS name that has all their addresses, asked every second");
  clients.Declare(flags);
  fleet.Declare(flags);
  flags->Add("port-file", &port_file, "FILE",
             "the ports that were bound are written there as JSON once they listen");
  flags->Add("liveness-scale", &liveness_scale, "X", kLivenessScaleHelp, kMinLivenessScale,
             kMaxLivenessScale);
  flags->Add("name", &name, "NAME", "this router's name in workers' logs and server info");
}

absl::StatusOr<RouterOptions> RouterFlags::Options() const {
  RouterOptions options;
  if (model.empty()) return absl::InvalidArgumentError("--model DIR is missing");
  if (workers.empty() == workers_dns.empty()) {
    return absl::InvalidArgumentError("want exactly one of --workers and --workers-dns");
  }
  for (const auto& address : absl::StrSplit(workers, ',', absl::SkipEmpty())) {
    const std::string text(address.data(), address.size());
    TANDEM_RETURN_IF_ERROR(CheckReachable("--workers", text));
    if (std::find(options.workers.begin(), options.workers.end(), text) != options.workers.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--workers: \"", text, "\" is there twice"));
    }
    options.workers.push_back(text);
  }
  if (!workers.empty() && options.workers.empty()) {
    return absl::InvalidArgumentError("--workers names no address");
  }
  if (!workers_dns.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckReachable("--workers-dns", workers_dns));
  }
  TANDEM_ASSIGN_OR_RETURN(const ClientFlags::Addresses addresses, clients.Check());
  options.http = addresses.http;
  options.grpc = addresses.grpc;
  options.admin = addresses.admin;
  options.api_key_file = clients.api_key_file;
  options.tls = {.certificate = clients.tls_cert,
                 .key = clients.tls_key,
                 .client_authorities = clients.tls_client_ca};
  options.fleet_tls = fleet.tls;
  for (const auto& [text, list] : {std::pair(&clients.allowed_hosts, &options.allowed_hosts),
                                   std::pair(&clients.cors_origins, &options.cors_origins)}) {
    *list = absl::StrSplit(*text, ',', absl::SkipEmpty());
  }
  if (name.size() > static_cast<size_t>(kMaxNameBytes) || !IsValidUtf8(name)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--name: %d bytes, want at most %d of UTF-8", name.size(), kMaxNameBytes));
  }
  TANDEM_ASSIGN_OR_RETURN(options.secret, fleet.Open());
  options.name = name;
  options.model = model;
  options.served_model_name = served_model_name;
  options.workers_dns = workers_dns;
  options.liveness_scale = liveness_scale;
  options.max_queued_requests = clients.max_queued_requests;
  options.isolate_cache = clients.isolate_cache;
  options.memory_limit_bytes = clients.memory_limit.bytes;
  options.disaggregate = clients.disaggregate == "always"  ? DisaggregatePolicy::kAlways
                         : clients.disaggregate == "never" ? DisaggregatePolicy::kNever
                                                           : DisaggregatePolicy::kAuto;
  return options;
}

}  // namespace tandem
