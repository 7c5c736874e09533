#include "services/worker/worker_options.h"

#include "absl/strings/str_format.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/protocol/ended_lives.h"
#include "services/server/limits.h"
#include "services/server/listen_address.h"

namespace tandem {

FlagSet WorkerFlags(WorkerOptions* options) {
  FlagSet flags("tandem-worker --model DIR [flags]",
                "One engine: computes prompts, generates tokens, exchanges KV blocks.");
  flags.Add("model", &options->model, "DIR", "model folder in Hugging Face format");
  flags.Add("name", &options->name, "NAME", "stable name of this worker, unique in the fleet");
  flags.Add("incarnation", &options->incarnation, "N",
            "number of this life, from a supervisor that tells the next one how it ended; 0: drawn "
            "here, and nobody tells");
  flags.Add("ended", &options->ended, "N:CAUSE,...",
            absl::StrFormat("how earlier lives of this name ended, newest last: outside, crash or "
                            "memory; at most %d",
                            kMaxEndedLives));
  flags.AddChoice("role", &options->role, {"prefill", "decode", "hybrid"},
                  "what routers send here; every worker can do both");
  flags.Add("listen", &options->listen, "ADDR:PORT",
            "gRPC address for routers and other workers; port 0 takes a free one");
  flags.Add(
      "admin", &options->admin, "ADDR",
      "HTTP address with /health, /ready and this worker's /metrics; port 0: any; empty: none");
  flags.Add("port-file", &options->port_file, "FILE", "the bound port is written here");
  flags.Add("insecure-public-listen", &options->insecure_public_listen,
            "allow --listen beyond loopback without TLS: prompts and KV blocks go in the clear");
  options->fleet.Declare(&flags);
  flags.Add("nccl-interface", &options->nccl_interface, "NAME",
            "interface on which NCCL listens and dials, for peers on other hosts; empty: loopback, "
            "this host only");
  flags.Add("machine-share", &options->machine_share, "N",
            "workers that share this machine: memory is divided by it, and threads of prefill "
            "workers let others go first",
            1, 1024);
  flags.Add("gpu-share", &options->gpu_share, "N",
            "workers that share this one's GPU, whose memory is divided by it; 0: --machine-share",
            0, 1024);
  flags.Add("memory-limit", &options->memory_limit, "BYTES", kMemoryLimitHelp);
  flags.Add(
      "drain-seconds", &options->drain_seconds, "N",
      "from SIGTERM to the worker's end, at most: what runs here moves to others at once, and "
      "this is for what is still being written or fetched",
      kMinDrainSeconds, kMaxDrainSeconds);
  options->Declare(&flags);
  return flags;
}

bool ListensOnLoopback(const WorkerOptions& options) {
  if (options.listen.starts_with(kUnixAddress)) return true;
  const std::optional<HostPort> parts = ParseHostPort(options.listen);
  return parts.has_value() &&
         (parts->host == "localhost" || IsLoopback(WithoutBrackets(parts->host)));
}

absl::Status CheckWorkerOptions(const WorkerOptions& options) {
  if (options.model.empty()) return absl::InvalidArgumentError("--model: name a model folder");
  if (options.name.empty() || options.name.size() > static_cast<size_t>(kMaxNameBytes) ||
      !IsValidUtf8(options.name)) {
    return absl::InvalidArgumentError(absl::StrFormat("--name: %d bytes, want 1 to %d of UTF-8",
                                                      options.name.size(), kMaxNameBytes));
  }
  if (const auto lives = ParseEndedLives(options.ended); !lives.ok()) {
    return absl::InvalidArgumentError("--ended: " + std::string(lives.status().message()));
  }
  TANDEM_RETURN_IF_ERROR(options.Check());
  TANDEM_RETURN_IF_ERROR(CheckMemoryLimit(options.memory_limit));
  TANDEM_RETURN_IF_ERROR(options.fleet.tls.Check());
  TANDEM_RETURN_IF_ERROR(AdminAddress(options).status());
  const bool is_file = options.listen.starts_with(kUnixAddress);
  if (!is_file && !ParseHostPort(options.listen).has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--listen: \"%s\", want ADDR:PORT with a port of 0 to 65535", options.listen));
  }
  if (!ListensOnLoopback(options) && !options.fleet.tls.configured() &&
      !options.insecure_public_listen) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--listen: %s is not loopback: it needs --fleet-tls-cert, --fleet-tls-key "
                        "and --fleet-tls-ca, or --insecure-public-listen",
                        options.listen));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ListenAddress>> AdminAddress(const WorkerOptions& options) {
  return ParseAdminAddress(options.admin);
}

}  // namespace tandem
