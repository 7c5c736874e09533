#include "services/worker/engine_flags.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/api/dtype.h"
#include "kernels/api/linear.h"
#include "kernels/create_backend.h"
#include "runtime/protocol/times.h"

namespace tandem {
namespace {

std::vector<std::string> KvChoices() {
  std::vector<std::string> choices = {"auto"};
  for (const KvType type : kAllKvTypes) choices.emplace_back(NameOf(type));
  return choices;
}

}  // namespace

void EngineFlags::Declare(FlagSet* flags) {
  flags->Add("served-model-name", &served_model_name, "NAME",
             "name of the model in requests; empty: the folder's");
  flags->AddChoice(
      "transport", &transport, {"auto", "ucx", "grpc", "nccl"},
      "moves KV blocks between workers, of which all have the same; auto: ucx, whose "
      "pool lies in shared memory, but grpc where the pool is a GPU's; nccl: from GPU to "
      "GPU, if the build has it");
  flags->Add(
      "ucx-devices", &ucx_devices, "LIST",
      "interfaces on which UCX may listen, for peers on other hosts, and for all peers where "
      "the pool is a GPU's (lo: this host only); empty: shared memory of this host only");
  flags->Add("kv-memory", &kv_memory, "BYTES",
             "size of a worker's KV pool; 0: room for 16 sequences at their longest, at most half "
             "of what weights, --memory-limit, activations and a reserve leave of the machine's or "
             "the cgroup's memory, divided by the workers there; on a GPU all that they leave of "
             "--gpu-memory-utilization");
  flags->Add("max-model-len", &max_model_len, "TOKENS",
             "longest prompt and output together; 0: the model's own", 0, 1 << 24);
  flags->Add("max-num-seqs", &max_num_seqs, "N", "sequences in one batch; 0: 64", 0, 4096);
  flags->Add("max-batched-tokens", &max_batched_tokens, "N",
             "tokens computed in one step; 0: 512, or twice --max-num-seqs if that is more", 0,
             1 << 20);
  flags->Add("block-size", &block_size, "16|32", "tokens in a KV block", 16, 32);
  flags->Add(
      "device", &device, "DEVICE",
      "what computes, auto, cpu, cuda, cuda:N or cuda:GPU-UUID; cuda: the first GPU, or the N-th, "
      "from 0, of those that the process sees, or that one of the machine's; auto: a GPU where "
      "this was built with CUDA and there is one, which must be usable then, else the cpu");
  flags->Add("gpu-memory-utilization", &gpu_memory_utilization, "X",
             "part of a GPU's memory that all its workers take together, on a GPU: weights, KV and "
             "what they compute with",
             0.01, 1);
  flags->Add(
      "threads", &threads, "N",
      "threads of a worker that compute; 0: one for each core of the affinity mask, at most "
      "the cgroup's quota, rounded up but for a tenth; workers that share cores each have as many",
      0, 1024);
  flags->AddChoice(
      "dtype", &dtype, {"auto", "f32", "bf16"},
      "what is computed in, and what weights and KV are kept in unless another flag says "
      "so; auto: the checkpoint's own, F16 as f32");
  flags->AddChoice(
      "weights", &weights, {"auto", "int8", "int4"},
      "what matrices are kept in; auto: --dtype; int8, int4: quantised when they are loaded, "
      "multiplied with inputs of 8 bits");
  flags->AddChoice(
      "output-weights", &output_weights, {"auto", "dtype"},
      "what the output projection is kept in; auto: --weights; dtype: --dtype, with --weights int8 "
      "or int4: it alone is not quantised");
  flags->Add("int8-outliers", &int8_outliers, "THRESHOLD",
             "with --weights int8: inputs of at least this magnitude are multiplied as they are, "
             "row by row, and not made 8 bits; 6 is usual; 0: all are",
             0, kMaxOutlierThreshold);
  flags->AddChoice("kv-dtype", &kv_dtype, KvChoices(),
                   "what KV is kept and moved in; auto: --dtype; f32: with f32 there alone; int8: "
                   "a scale a token of a KV head; "
                   "int8g8: a scale each 8 numbers; fp8: 8-bit floats (E4M3), no scales");
  flags->AddChoice(
      "isa", &isa, IsaChoices(),
      "instruction set; lower it to match other machines bit for bit; amx: bf16 by the "
      "tiles of AMX, whose bits no other has, so auto does not take it; of a GPU: tensor, by its "
      "tensor cores, which auto is, mma, the same bits without wgmma, or fma, with those of the "
      "cpu's");
  flags->AddChoice("load-format", &load_format, {"auto", "dummy"},
                   "dummy: deterministic random weights from config.json alone");
  flags->Add("cache-dir", &cache_dir, "DIR",
             "where packed weights are kept; empty: $XDG_CACHE_HOME/tandem or ~/.cache/tandem");
  flags->Add("liveness-scale", &liveness_scale, "X", kLivenessScaleHelp, kMinLivenessScale,
             kMaxLivenessScale);
}

absl::Status EngineFlags::Check() const {
  if (const absl::Status known = CheckDevice(device); !known.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--device: ", std::string(known.message())));
  }
  if (block_size == 16 || block_size == 32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("--block-size: %d, want 16 or 32", block_size));
}

std::vector<std::string> EngineFlags::Arguments() const {
  return {
      "--served-model-name=" + served_model_name,
      "--transport=" + transport,
      "--ucx-devices=" + ucx_devices,
      absl::StrCat("--kv-memory=", kv_memory.bytes),
      absl::StrCat("--max-model-len=", max_model_len),
      absl::StrCat("--max-num-seqs=", max_num_seqs),
      absl::StrCat("--max-batched-tokens=", max_batched_tokens),
      absl::StrCat("--block-size=", block_size),
      "--device=" + device,
      absl::StrFormat("--gpu-memory-utilization=%.9g", gpu_memory_utilization),
      absl::StrCat("--threads=", threads),
      "--dtype=" + dtype,
      "--weights=" + weights,
      "--output-weights=" + output_weights,
      absl::StrFormat("--int8-outliers=%.9g", int8_outliers),
      "--kv-dtype=" + kv_dtype,
      "--isa=" + isa,
      "--load-format=" + load_format,
      "--cache-dir=" + cache_dir,
      absl::StrCat("--liveness-scale=", liveness_scale),
  };
}

}  // namespace tandem
