#include "services/router/app/client_flags.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/status_macros.h"
#include "runtime/request/request_owner.h"
#include "services/server/machine_limits.h"

namespace tandem {
namespace {

constexpr char kPublicApi[] =
    "it needs --tls-cert and --tls-key, and --api-key-file or --tls-client-ca";

}  // namespace

void ClientFlags::Declare(FlagSet* flags) {
  flags->Add("http", &http, "ADDR", "OpenAI API, /health, /ready, /metrics; port 0: any");
  flags->Add("grpc", &grpc, "ADDR", "gRPC API; port 0: any");
  flags->Add(
      "admin", &admin, "ADDR",
      "/health, /ready and /metrics, which is then no longer at --http, and /metrics/fleet with "
      "the workers' metrics too; empty: none");
  flags->AddChoice("disaggregate", &disaggregate, {"auto", "always", "never"},
                   "which prompts go to a prefill worker: auto from 256 missing tokens on, always "
                   "from one missing block on");
  flags->Add("allowed-host", &allowed_hosts, "NAME,...",
             "names that a Host header may have beside localhost and the address of --http; beyond "
             "loopback every IP address may be there, too, and every name if none is given here");
  flags->Add("cors-origin", &cors_origins, "URL,...",
             "origins of pages that may use the HTTP API from a browser: https://chat.example");
  flags->Add(
      "api-key-file", &api_key_file, "FILE",
      "clients must have a key of this file, which may change while the router runs; `tandem "
      "key NAME` makes one");
  flags->Add("tls-cert", &tls_cert, "FILE",
             "PEM certificate, and chain: --http, --grpc and --admin speak TLS then; it may change "
             "while the router runs, like its key and --tls-client-ca");
  flags->Add("tls-key", &tls_key, "FILE", "its PEM key");
  flags->Add("tls-client-ca", &tls_client_ca, "FILE",
             "clients of --http and --grpc must show a certificate that one of these signed");
  flags->Add("isolate-cache", &isolate_cache,
             "every request must have a cache_salt: cached prefixes are shared within one only");
  flags->Add("insecure-public-listen", &insecure_public_listen,
             "allow --http and --grpc beyond loopback without TLS, and without keys");
  flags->Add("max-queued-requests", &max_queued_requests, "N",
             "requests that may wait for a worker; more get 429", 1, kMaxOpenRequests);
  flags->Add("memory-limit", &memory_limit, "BYTES", kMemoryLimitHelp);
  flags->Add(
      "drain-seconds", &drain_seconds, "N",
      "from SIGTERM to the router's end, at most: a second before, requests that still run are "
      "told that it leaves; a second SIGTERM ends it at once",
      kMinDrainSeconds, kMaxDrainSeconds);
}

absl::StatusOr<ClientFlags::Addresses> ClientFlags::Check() const {
  if (tls_cert.empty() != tls_key.empty() || (tls_cert.empty() && !tls_client_ca.empty())) {
    return absl::InvalidArgumentError(
        "--tls-cert and --tls-key: name both or none, and --tls-client-ca only with them");
  }
  const bool known_clients = !api_key_file.empty() || !tls_client_ca.empty();
  const bool public_api = insecure_public_listen || (!tls_cert.empty() && known_clients);
  Addresses addresses;
  for (const auto& [flag, text, address] : {std::tuple("--http", &http, &addresses.http),
                                            std::tuple("--grpc", &grpc, &addresses.grpc)}) {
    const auto parsed = ParseListenAddress(*text, public_api ? "" : kPublicApi);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", parsed.status().message()));
    }
    *address = *parsed;
  }
  TANDEM_ASSIGN_OR_RETURN(addresses.admin, ParseAdminAddress(admin));
  TANDEM_RETURN_IF_ERROR(CheckMemoryLimit(memory_limit));
  return addresses;
}

std::vector<std::string> ClientFlags::Arguments() const {
  std::vector<std::string> arguments = {"--http=" + http, "--grpc=" + grpc,
                                        "--disaggregate=" + disaggregate,
                                        absl::StrCat("--max-queued-requests=", max_queued_requests),
                                        absl::StrCat("--drain-seconds=", drain_seconds)};
  if (!admin.empty()) arguments.push_back("--admin=" + admin);
  if (!allowed_hosts.empty()) arguments.push_back("--allowed-host=" + allowed_hosts);
  if (!cors_origins.empty()) arguments.push_back("--cors-origin=" + cors_origins);
  if (!api_key_file.empty()) arguments.push_back("--api-key-file=" + api_key_file);
  if (!tls_cert.empty()) arguments.push_back("--tls-cert=" + tls_cert);
  if (!tls_key.empty()) arguments.push_back("--tls-key=" + tls_key);
  if (!tls_client_ca.empty()) arguments.push_back("--tls-client-ca=" + tls_client_ca);
  if (isolate_cache) arguments.emplace_back("--isolate-cache");
  if (insecure_public_listen) arguments.emplace_back("--insecure-public-listen");
  if (memory_limit.bytes > 0) {
    arguments.push_back(absl::StrCat("--memory-limit=", memory_limit.bytes));
  }
  return arguments;
}

}  // namespace tandem
