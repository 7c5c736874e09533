#include "services/worker/worker_sizes.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "runtime/kv_cache/kv_window.h"
#include "runtime/protocol/request_spec.h"

namespace tandem {
namespace {

constexpr int32_t kDefaultMaxSequences = 64;
constexpr int32_t kDefaultBatchedTokens = 512;
// KV has this part of what is left of a worker's share: the rest is for the system and others.
constexpr double kKvShareOfFreeMemory = 0.5;
// A default pool holds this many sequences at their longest, and no more: every page of it is
// touched at start.
constexpr int64_t kDefaultFullSequences = 16;
// What CUDA itself, kernels' workspaces and the graphs of steps take of a GPU.
constexpr int64_t kDeviceReserve = int64_t{1} << 30;
// The part of it that this process may have taken when memory is measured: CUDA's context. The rest
// comes with what it does.
constexpr int64_t kDeviceContext = kDeviceReserve / 2;
// What UCX and its peers need of /dev/shm beside pools.
constexpr int64_t kSharedMemoryReserve = int64_t{64} << 20;

// Rounded down, so that a flag may be set to it.
std::string FormatLeft(int64_t bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return bytes < kMiB ? absl::StrCat(std::max<int64_t>(bytes, 0), " B")
                      : absl::StrCat(bytes / kMiB, " MiB");
}

// What each part of a worker takes of the memory that it computes in.
struct MemoryBill {
  // What may be taken of it, as a message has it, and how to come by more.
  std::string owner;
  std::string more;
  int64_t machine_bytes;
  int32_t num_workers;
  int64_t weights_bytes;
  bool weights_are_shared;
  std::string why_not_shared;
  int64_t router_bytes;
  // In each worker.
  int64_t limit_bytes, scratch_bytes, reserve_bytes;
  std::string reserve_owner;
  int32_t step_tokens;
  int64_t transport_bytes = 0;
  std::string transport_owner;
  int64_t pinned_bytes = 0;  // The host's, beside a device's.

  int64_t share_bytes() const {
    const int64_t once_bytes = router_bytes + (weights_are_shared ? weights_bytes : 0);
    return (machine_bytes - once_bytes) / num_workers - (weights_are_shared ? 0 : weights_bytes);
  }
  // For KV, of each worker.
  int64_t free_bytes() const {
    return share_bytes() - limit_bytes - scratch_bytes - transport_bytes - reserve_bytes;
  }
  // The flag that takes most.
  const char* dearest_flag() const {
    if (weights_bytes >= std::max(limit_bytes, scratch_bytes)) return "--model";
    return limit_bytes >= scratch_bytes ? "--memory-limit" : "--max-batched-tokens";
  }
  std::string ToString() const {
    const bool shared = num_workers > 1;
    std::string text =
        absl::StrFormat("of the %s that %s, weights take %s", FormatByteSize(machine_bytes), owner,
                        FormatByteSize(weights_bytes));
    if (shared) {
      text += weights_are_shared
                  ? " once"
                  : absl::StrFormat(" in each of %d workers%s", num_workers, why_not_shared);
    }
    if (router_bytes > 0) {
      absl::StrAppendFormat(&text, ", the router %s", FormatByteSize(router_bytes));
    }
    if (shared) {
      absl::StrAppendFormat(&text, "; each of %d workers may have %s more, of which", num_workers,
                            FormatLeft(share_bytes()));
    } else {
      text += ",";
    }
    if (limit_bytes > 0) {
      absl::StrAppendFormat(&text, " --memory-limit takes %s,", FormatByteSize(limit_bytes));
    }
    absl::StrAppendFormat(&text, " computing %d tokens in a step %s", step_tokens,
                          FormatByteSize(scratch_bytes));
    if (transport_bytes > 0) {
      absl::StrAppendFormat(&text, ", %s %s", transport_owner, FormatByteSize(transport_bytes));
    }
    absl::StrAppendFormat(&text, " and %s %s", reserve_owner, FormatByteSize(reserve_bytes));
    if (pinned_bytes > 0) {
      absl::StrAppendFormat(&text, " (and of the host's, pinned for blocks on their way, %s)",
                            FormatByteSize(pinned_bytes));
    }
    return text;
  }
  // What an operator may do about it.
  std::string less() const {
    return std::string_view(dearest_flag()) == "--model"
               ? "or take smaller weights (--weights int8, int4)"
               : "or this less";
  }
  std::string advice() const { return num_workers > 1 ? ", or run fewer workers here" : ""; }
};

MemoryBill HostBill(const SizeOptions& options, const ModelSizes& model,
                    const MachineLimits& machine, int64_t scratch_bytes, int32_t step_tokens) {
  return {.owner = "the machine or its cgroup allows",
          .more = "give the machine or its cgroup more",
          .machine_bytes = machine.memory_bytes,
          .num_workers = options.machine_share,
          .weights_bytes = model.weights_bytes,
          .weights_are_shared = model.weights_are_shared,
          .why_not_shared = " (--cache-dir has no room for them, or is not this user's alone)",
          .router_bytes = options.router_bytes,
          .limit_bytes = MemoryLimit(options, machine),
          .scratch_bytes = scratch_bytes,
          .reserve_bytes = kProcessReserve,
          .reserve_owner = "the process itself",
          .step_tokens = step_tokens};
}

// On a GPU every worker has weights of its own. InvalidArgument if others hold what it
// may take.
absl::StatusOr<MemoryBill> DeviceBill(const SizeOptions& options, const ModelSizes& model,
                                      const WorkerMemory& memory, int64_t scratch_bytes,
                                      int32_t step_tokens) {
  const DeviceMemory& device = *memory.device;
  MemoryBill bill = {
      .owner = absl::StrFormat("--gpu-memory-utilization %g allows of the GPU's %s",
                               options.gpu_memory_utilization, FormatByteSize(device.total_bytes)),
      .more = "raise --gpu-memory-utilization",
      .machine_bytes = static_cast<int64_t>(options.gpu_memory_utilization *
                                            static_cast<double>(device.total_bytes)),
      .num_workers = options.gpu_share > 0 ? options.gpu_share : options.machine_share,
      .weights_bytes = model.weights_bytes,
      .weights_are_shared = false,
      .why_not_shared = "",
      .router_bytes = 0,
      .limit_bytes = 0,
      .scratch_bytes = scratch_bytes,
      .reserve_bytes = kDeviceReserve,
      .reserve_owner = "CUDA and its workspaces",
      .step_tokens = step_tokens,
      .transport_bytes = memory.transport_bytes,
      .transport_owner = memory.transport_owner,
      .pinned_bytes = memory.pinned_bytes};
  const int64_t part_bytes = bill.machine_bytes / bill.num_workers;
  if (device.free_bytes + kDeviceContext >= part_bytes) return bill;
  return absl::InvalidArgumentError(absl::StrFormat(
      "--gpu-memory-utilization: %g of the GPU's %s are %s%s, but only %s are free: end what holds "
      "the rest, or lower it to %.2f",
      options.gpu_memory_utilization, FormatByteSize(device.total_bytes),
      FormatByteSize(part_bytes),
      bill.num_workers > 1 ? absl::StrFormat(" for each of %d workers", bill.num_workers) : "",
      FormatLeft(device.free_bytes),
      std::floor(100.0 * static_cast<double>(device.free_bytes) * bill.num_workers /
                 static_cast<double>(device.total_bytes)) /
          100.0));
}

// The pool in /dev/shm, beside those of the other workers. `size` is what to call it.
absl::Status CheckSharedMemory(const std::string& size, int64_t pool_bytes, int32_t num_workers,
                               const SharedMemory& memory) {
  const int64_t all_bytes = pool_bytes * num_workers;
  if (pool_bytes + kSharedMemoryReserve <= memory.free_bytes &&
      all_bytes + kSharedMemoryReserve <= memory.total_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--kv-memory: %s%s, but the ucx transport keeps its pools in /dev/shm, which has %s of %s "
      "free (%s stay reserved); lower it, make /dev/shm larger, or choose --transport grpc",
      size, num_workers > 1 ? absl::StrFormat(" in each of %d workers", num_workers) : "",
      FormatByteSize(memory.free_bytes), FormatByteSize(memory.total_bytes),
      FormatByteSize(kSharedMemoryReserve)));
}

// What the flags say of a step and of its sequences.
absl::StatusOr<WorkerSizes> SizeSteps(const SizeOptions& options, const ModelSizes& model) {
  WorkerSizes sizes;
  if (options.max_model_len > model.max_positions) {
    return absl::InvalidArgumentError(absl::StrFormat("--max-model-len: %d, the model has %d",
                                                      options.max_model_len, model.max_positions));
  }
  if (options.max_model_len > kMaxRequestTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--max-model-len: %d, requests have at most %d tokens",
                        options.max_model_len, kMaxRequestTokens));
  }
  sizes.max_model_tokens =
      options.max_model_len > 0
          ? options.max_model_len
          : static_cast<int32_t>(std::min<int64_t>(model.max_positions, kMaxRequestTokens));
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
  return sizes;
}

// How much memory KV may have, which is more than none.
absl::StatusOr<int64_t> FreeBytes(const MemoryBill& bill) {
  const int64_t free_bytes = bill.free_bytes();
  if (free_bytes > 0) return free_bytes;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: no memory is left for KV, and of the flags this one takes most: %s; %s "
                      "are missing: %s, %s%s",
                      bill.dearest_flag(), bill.ToString(), FormatByteSize(-free_bytes), bill.more,
                      bill.less(), bill.advice()));
}

// What packing takes besides the weights. They can be written back to the cache's file; without one
// every worker packs its own.
absl::Status CheckPacking(const ModelSizes& model, const MemoryBill& bill) {
  const int64_t packers = model.weights_are_shared ? 1 : bill.num_workers;
  const int64_t kept_bytes = model.weights_are_shared ? 0 : packers * model.weights_bytes;
  const int64_t left_bytes =
      (bill.machine_bytes - bill.router_bytes - kept_bytes) / packers - kProcessReserve;
  if (model.packing_bytes <= left_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "--model: its largest matrix takes %s while it is packed, as numbers that kernels can read, "
      "and of the %s that %s %s are left%s: %s",
      FormatByteSize(model.packing_bytes), FormatByteSize(bill.machine_bytes), bill.owner,
      FormatLeft(left_bytes), packers > 1 ? absl::StrFormat(" in each of %d workers", packers) : "",
      bill.more));
}

// The longest sequence, beside nothing else.
absl::Status CheckSequenceInSharedMemory(int32_t sequence_tokens, int64_t sequence_bytes,
                                         const SharedMemory& memory) {
  if (sequence_bytes + kSharedMemoryReserve <= memory.free_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the ucx transport keeps its KV pool in /dev/shm, which has %s of %s free; one sequence of "
      "%d tokens needs %s, and %s stay reserved; make /dev/shm larger (of a container: "
      "--shm-size), lower --max-model-len, or choose --transport grpc",
      FormatByteSize(memory.free_bytes), FormatByteSize(memory.total_bytes), sequence_tokens,
      FormatByteSize(sequence_bytes), FormatByteSize(kSharedMemoryReserve)));
}

// The most that /dev/shm has for one of `num_pools` pools, however much of it is in use now.
int64_t SharedMemoryPart(const SharedMemory& memory, int32_t num_pools) {
  return (memory.total_bytes - kSharedMemoryReserve) / num_pools;
}

std::string SharedMemoryBill(const SharedMemory& memory, int32_t num_pools) {
  return absl::StrFormat(
      "the ucx transport keeps its pools in /dev/shm, which has %s, of which %s stay reserved%s",
      FormatByteSize(memory.total_bytes), FormatByteSize(kSharedMemoryReserve),
      num_pools > 1 ? absl::StrFormat(", for %d workers", num_pools) : "");
}

// What an operator may do about a pool of so few blocks. The length is named because a window makes
// longer ones all need the same.
std::string WaysToFit(int64_t num_blocks, int32_t block_tokens, bool may_raise) {
  if (num_blocks < 1) return "raise --kv-memory";
  return absl::StrCat(may_raise ? "raise --kv-memory or " : "", "lower --max-model-len to ",
                      num_blocks * block_tokens);
}

// A pool that no flag gives its size: some sequences of the full length, all of whose tokens take
// `tokens_bytes`, whatever a window leaves behind; it serves the prefix cache then.
int64_t DefaultPoolBytes(const SizeOptions& options, const WorkerSizes& sizes, int64_t free_bytes,
                         int64_t tokens_bytes, const std::optional<SharedMemory>& shared_memory) {
  const int64_t pool_bytes =
      std::min(static_cast<int64_t>(kKvShareOfFreeMemory * static_cast<double>(free_bytes)),
               std::min<int64_t>(kDefaultFullSequences, sizes.max_sequences) * tokens_bytes);
  if (!shared_memory.has_value()) return pool_bytes;
  // A share of the total, so that a worker that starts again gets as much as before.
  return std::min(pool_bytes, SharedMemoryPart(*shared_memory, options.machine_share + 1));
}

}  // namespace

int64_t MemoryLimit(const SizeOptions& options, const MachineLimits& machine) {
  if (options.memory_limit.bytes > 0) return options.memory_limit.bytes;
  return DefaultMemoryLimit({.memory_bytes = machine.memory_bytes / options.machine_share});
}

int32_t NumThreads(const SizeOptions& options, const MachineLimits& machine) {
  return options.threads > 0 ? options.threads : machine.cores;
}

int Niceness(const SizeOptions& options) {
  return options.role == "prefill" && options.machine_share > 1 ? 8 : 0;
}

absl::StatusOr<WorkerSizes> SizeWorker(const SizeOptions& options, const ModelSizes& model,
                                       const MachineLimits& machine, const WorkerMemory& memory) {
  const std::optional<SharedMemory>& shared_memory = memory.shared;
  TANDEM_ASSIGN_OR_RETURN(WorkerSizes sizes, SizeSteps(options, model));
  const int64_t scratch_bytes =
      model.logit_scratch_bytes + sizes.max_batched_tokens * model.token_scratch_bytes;
  MemoryBill bill = HostBill(options, model, machine, scratch_bytes, sizes.max_batched_tokens);
  if (memory.device.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(
        bill, DeviceBill(options, model, memory, scratch_bytes, sizes.max_batched_tokens));
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t free_bytes, FreeBytes(bill));
  if (!memory.device.has_value()) TANDEM_RETURN_IF_ERROR(CheckPacking(model, bill));
  // One whose window leaves blocks behind needs fewer than its tokens have; but a prompt that is
  // computed for another worker keeps all of them.
  const KvWindow window{.tokens = options.role == "prefill" ? 0 : model.window,
                        .block_tokens = options.block_size};
  const int64_t sequence_blocks =
      window.MostBlocks(sizes.max_model_tokens, sizes.max_batched_tokens);
  const int64_t sequence_bytes = sequence_blocks * model.block_bytes;
  if (shared_memory.has_value()) {
    TANDEM_RETURN_IF_ERROR(
        CheckSequenceInSharedMemory(sizes.max_model_tokens, sequence_bytes, *shared_memory));
  }
  int64_t pool_bytes = options.kv_memory.bytes;
  const bool asked = pool_bytes > 0;
  if (asked && pool_bytes > free_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--kv-memory: %s, but %s are left: %s; lower --kv-memory to what is left%s",
        ToString(options.kv_memory), FormatLeft(free_bytes), bill.ToString(), bill.advice()));
  }
  if (!asked) {
    const int64_t tokens_bytes =
        CeilDiv<int64_t>(sizes.max_model_tokens, options.block_size) * model.block_bytes;
    pool_bytes = memory.device.has_value()
                     ? free_bytes
                     : DefaultPoolBytes(options, sizes, free_bytes, tokens_bytes, shared_memory);
  }
  const std::string size =
      asked ? ToString(options.kv_memory) : absl::StrCat("its default of ", FormatLeft(pool_bytes));
  if (shared_memory.has_value()) {
    TANDEM_RETURN_IF_ERROR(
        CheckSharedMemory(size, pool_bytes, options.machine_share, *shared_memory));
  }
  int64_t left = free_bytes;
  std::string ways = bill.advice();
  std::string why = bill.ToString();
  if (shared_memory.has_value()) {
    left = std::min(left, SharedMemoryPart(*shared_memory, options.machine_share));
    if (left < std::min(free_bytes, sequence_bytes)) {
      ways = absl::StrCat(
          ", make /dev/shm larger (of a container: --shm-size), choose --transport grpc", ways);
      why = SharedMemoryBill(*shared_memory, options.machine_share);
    }
  }
  const int64_t num_blocks = std::min<int64_t>(pool_bytes / model.block_bytes, INT32_MAX);
  if (num_blocks < sequence_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--kv-memory: %s gives %d blocks of %d tokens (%s each); one sequence of %d tokens needs "
        "%d blocks, %s; %s%s (%s are left for KV: %s)",
        size, std::max<int64_t>(num_blocks, 0), options.block_size,
        ToString(ByteSize{model.block_bytes}), sizes.max_model_tokens, sequence_blocks,
        ToString(ByteSize{sequence_bytes}),
        WaysToFit(num_blocks, options.block_size, sequence_bytes <= left), ways, FormatLeft(left),
        why));
  }
  sizes.kv = {.block_tokens = options.block_size,
              .num_blocks = static_cast<int32_t>(num_blocks),
              .block_bytes = model.block_bytes};
  sizes.memory =
      absl::StrFormat("%s; KV has %s", bill.ToString(), FormatByteSize(sizes.kv.pool_bytes()));
  return sizes;
}

}  // namespace tandem
