#include "services/worker/worker_options.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/math.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/protocol/ended_lives.h"
#include "services/server/limits.h"
#include "services/server/listen_address.h"

namespace tandem {

namespace {

constexpr int32_t kDefaultMaxSequences = 64;
constexpr int32_t kDefaultBatchedTokens = 512;
// Of what the weights and the process's own memory leave: the rest is for the system and others.
constexpr double kKvShareOfFreeMemory = 0.5;
// A default pool holds this many sequences at their longest, and no more: every page of it is
// touched at start.
constexpr int64_t kDefaultFullSequences = 16;
// What UCX and its peers need of /dev/shm beside pools.
constexpr int64_t kSharedMemoryReserve = int64_t{64} << 20;

// The program itself, threads' stacks, what libraries keep: an idle worker of the demo model has
// 26 MiB of it.
constexpr int64_t kProcessReserve = int64_t{64} << 20;

}  // namespace

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
  flags.Add("ucx-devices", &options->ucx_devices, "LIST",
            "interfaces on which UCX may listen, for peers on other hosts; empty: shared memory of "
            "this host only");
  flags.Add("machine-share", &options->machine_share, "N",
            "workers that share this machine: default threads and memory are divided by it", 1,
            1024);
  flags.Add("memory-limit", &options->memory_limit, "BYTES", kMemoryLimitHelp);
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

int64_t MemoryLimit(const WorkerOptions& options, const MachineLimits& machine) {
  return options.memory_limit.bytes > 0 ? options.memory_limit.bytes : DefaultMemoryLimit(machine);
}

int32_t NumThreads(const WorkerOptions& options, const MachineLimits& machine) {
  return options.threads > 0 ? options.threads : std::max(1, machine.cpus / options.machine_share);
}

absl::StatusOr<WorkerSizes> SizeWorker(const WorkerOptions& options, const ModelFacts& model,
                                       const MachineLimits& machine,
                                       const std::optional<SharedMemory>& shared_memory) {
  WorkerSizes sizes;
  if (options.max_model_len > model.max_positions) {
    return absl::InvalidArgumentError(absl::StrFormat("--max-model-len: %d, the model has %d",
                                                      options.max_model_len, model.max_positions));
  }
  sizes.max_model_tokens =
      options.max_model_len > 0 ? options.max_model_len : static_cast<int32_t>(model.max_positions);
  if (sizes.max_model_tokens < 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--max-model-len: %d, want at least 2: a prompt and what follows it",
                        sizes.max_model_tokens));
  }
  sizes.max_sequences = options.max_num_seqs > 0 ? options.max_num_seqs : kDefaultMaxSequences;
  sizes.max_batched_tokens = options.max_batched_tokens > 0
                                 ? options.max_batched_tokens
                                 : std::max(kDefaultBatchedTokens, 2 * sizes.max_sequences);
  if (sizes.max_batched_tokens <= sizes.max_sequences) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--max-batched-tokens: %d, want more than the %d of --max-num-seqs",
                        sizes.max_batched_tokens, sizes.max_sequences));
  }

  const int64_t limit_bytes = MemoryLimit(options, machine);
  const int64_t scratch_bytes =
      model.logit_scratch_bytes + sizes.max_batched_tokens * model.token_scratch_bytes;
  const int64_t own_bytes = limit_bytes + scratch_bytes + kProcessReserve;
  const int64_t free_bytes = machine.memory_bytes - model.weights_bytes - own_bytes;
  const std::string parts = absl::StrFormat(
      "weights of %s, --memory-limit of %s, %s to compute %d tokens in a step and a reserve of %s",
      FormatByteSize(model.weights_bytes), FormatByteSize(limit_bytes),
      FormatByteSize(scratch_bytes), sizes.max_batched_tokens, FormatByteSize(kProcessReserve));
  if (free_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--model: %s take %s, the machine or its cgroup allows %s", parts,
        FormatByteSize(model.weights_bytes + own_bytes), FormatByteSize(machine.memory_bytes)));
  }
  int64_t pool_bytes = options.kv_memory.bytes;
  const int64_t sequence_blocks = CeilDiv<int64_t>(sizes.max_model_tokens, options.block_size);
  const int64_t sequence_bytes = sequence_blocks * model.block_bytes;
  if (shared_memory.has_value() &&
      sequence_bytes + kSharedMemoryReserve > shared_memory->free_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the ucx transport keeps its KV pool in /dev/shm, which has %s of %s free; one sequence of "
        "%d tokens needs %s, and %s stay reserved; make /dev/shm larger (of a container: "
        "--shm-size), lower --max-model-len, or choose --transport grpc",
        FormatByteSize(shared_memory->free_bytes), FormatByteSize(shared_memory->total_bytes),
        sizes.max_model_tokens, FormatByteSize(sequence_bytes),
        FormatByteSize(kSharedMemoryReserve)));
  }
  if (pool_bytes == 0) {
    const double share = kKvShareOfFreeMemory / options.machine_share;
    pool_bytes =
        std::min(static_cast<int64_t>(share * static_cast<double>(free_bytes)),
                 std::min<int64_t>(kDefaultFullSequences, sizes.max_sequences) * sequence_bytes);
    // A share of the whole, so that a worker that starts again gets as much as before.
    if (shared_memory.has_value()) {
      pool_bytes = std::min(pool_bytes, (shared_memory->total_bytes - kSharedMemoryReserve) /
                                            (options.machine_share + 1));
    }
  } else if (pool_bytes > free_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--kv-memory: %s, but %s leave %s of the %s that the machine or its cgroup allows",
        FormatByteSize(pool_bytes), parts, FormatByteSize(free_bytes),
        FormatByteSize(machine.memory_bytes)));
  }
  if (shared_memory.has_value() && pool_bytes + kSharedMemoryReserve > shared_memory->free_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--kv-memory: %s, but the ucx transport keeps its pool in /dev/shm, which has %s of %s "
        "free (%s stay reserved); lower it, make /dev/shm larger, or choose --transport grpc",
        FormatByteSize(std::max<int64_t>(pool_bytes, 0)), FormatByteSize(shared_memory->free_bytes),
        FormatByteSize(shared_memory->total_bytes), FormatByteSize(kSharedMemoryReserve)));
  }
  const int64_t num_blocks = std::min<int64_t>(pool_bytes / model.block_bytes, INT32_MAX);
  if (num_blocks < sequence_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--kv-memory: %s gives %d blocks of %d tokens (%s each); one sequence of %d tokens needs "
        "%d blocks, %s; raise --kv-memory or lower --max-model-len",
        FormatByteSize(std::max<int64_t>(pool_bytes, 0)), std::max<int64_t>(num_blocks, 0),
        options.block_size, FormatByteSize(model.block_bytes), sizes.max_model_tokens,
        sequence_blocks, FormatByteSize(sequence_bytes)));
  }
  sizes.num_blocks = static_cast<int32_t>(num_blocks);
  return sizes;
}

}  // namespace tandem
