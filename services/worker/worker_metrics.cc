#include "services/worker/worker_metrics.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace tandem {

namespace {

constexpr char kBlocks[] = "tandem_kv_blocks";
constexpr char kBlocksHelp[] = "KV blocks of the pool by state; the states sum to the pool.";
constexpr char kHits[] = "tandem_prefix_hit_tokens_total";
constexpr char kHitsHelp[] =
    "Prompt tokens served from a prefix cache: the worker's own, or that of the prefill worker "
    "which "
    "computed the rest.";
constexpr char kLinks[] = "tandem_kv_link_bytes_per_second";
constexpr char kLinksHelp[] =
    "Speed of the link to a peer when it opened, for as long as it is open.";
constexpr char kMemory[] = "tandem_device_memory_bytes";
constexpr char kMemoryHelp[] =
    "Memory of the worker's GPU, free or taken by whoever; the states sum to what it has. Measured "
    "between steps, every ten seconds; not there on a CPU.";
constexpr char kFailures[] = "tandem_device_failures_total";
constexpr char kFailuresHelp[] =
    "Copies of KV blocks, and looks at its memory, that the worker's GPU failed; steps are counted "
    "for themselves.";
constexpr char kFrames[] = "tandem_kv_frames_total";
constexpr char kFramesHelp[] = "KV frames that arrived and got a place, by what became of them.";

const std::vector<double>& SequenceBuckets() {
  static const auto* buckets = new std::vector<double>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  return *buckets;
}

}  // namespace

WorkerMetrics::WorkerMetrics(const WorkerRegistration& self, const Backend* backend,
                             MetricsRegistry* registry)
    : transport_(self.terms.transport),
      registry_(registry),
      prompt_wait_seconds_(registry->Histogram(
          "tandem_prompt_wait_seconds",
          "From a prompt's arrival at the worker that computes it until its first step begins.",
          SecondsBuckets())),
      prompt_compute_seconds_(registry->Histogram(
          "tandem_prompt_compute_seconds",
          "From there until its first token, of prompts and of streams that go on elsewhere.",
          SecondsBuckets())),
      step_seconds_(registry->Histogram("tandem_step_seconds",
                                        "Duration of an engine step that ran a batch.",
                                        ShortSecondsBuckets())),
      batch_sequences_(registry->Histogram("tandem_batch_sequences",
                                           "Sequences in the batch of a step.", SequenceBuckets())),
      running_(registry->Gauge("tandem_running_sequences", "Sequences that have blocks.")),
      waiting_(registry->Gauge("tandem_waiting_sequences",
                               "Sequences that wait: for blocks here, or for "
                               "their prompt at a prefill worker.")),
      waiting_prompt_tokens_(registry->Gauge(
          "tandem_waiting_prompt_tokens",
          "Tokens that are still to be computed before all sequences here generate.")),
      preemptions_(registry->Counter(
          "tandem_preemptions_total",
          "Sequences that gave their blocks back for an older one, to be recomputed.")),
      failed_steps_(
          registry->Counter("tandem_failed_steps_total",
                            "Steps that failed as a whole; their streams went on elsewhere.")),
      failed_copies_(registry->Counter(kFailures, kFailuresHelp, {{"what", "copy"}})),
      failed_looks_(registry->Counter(kFailures, kFailuresHelp, {{"what", "memory"}})),
      prompt_tokens_(registry->Counter("tandem_worker_prompt_tokens_total",
                                       "Prompt tokens of attempts that routers submitted here.")),
      generated_tokens_(
          registry->Counter("tandem_worker_generated_tokens_total", "Tokens sent to routers.")),
      own_hit_tokens_(registry->Counter(kHits, kHitsHelp, {{"source", "own"}})),
      peer_hit_tokens_(registry->Counter(kHits, kHitsHelp, {{"source", "prefill_worker"}})),
      transfer_bytes_(registry->Counter("tandem_kv_transfer_bytes_total",
                                        "Bytes of verified KV frames, counted by the receiver.",
                                        {{"transport", transport_}})),
      transfer_seconds_(registry->Histogram("tandem_kv_transfer_seconds",
                                            "From the grant of an attempt's blocks until all are "
                                            "verified and its first token is known.",
                                            SecondsBuckets())),
      free_blocks_(registry->Gauge(kBlocks, kBlocksHelp, {{"state", "free"}})),
      held_blocks_(registry->Gauge(kBlocks, kBlocksHelp, {{"state", "held"}})),
      cached_blocks_(registry->Gauge(kBlocks, kBlocksHelp, {{"state", "cached"}})),
      in_flight_blocks_(registry->Gauge(kBlocks, kBlocksHelp, {{"state", "in_flight"}})),
      quarantined_blocks_(registry->Gauge(kBlocks, kBlocksHelp, {{"state", "quarantined"}})),
      verified_frames_(registry->Counter(kFrames, kFramesHelp, {{"outcome", "verified"}})),
      corrupt_frames_(registry->Counter(kFrames, kFramesHelp, {{"outcome", "corrupt"}})),
      failed_frames_(registry->Counter(kFrames, kFramesHelp, {{"outcome", "failed"}})),
      orphaned_frames_(registry->Counter(kFrames, kFramesHelp, {{"outcome", "orphaned"}})),
      requests_running_(registry->Gauge("vllm:num_requests_running",
                                        "tandem_running_sequences, for endpoint pickers.")),
      requests_waiting_(registry->Gauge("vllm:num_requests_waiting",
                                        "tandem_waiting_sequences, for endpoint pickers.")),
      kv_usage_(registry->Gauge(
          "vllm:kv_cache_usage_perc",
          "Part of the KV blocks that are neither free nor only cached, for endpoint pickers.")) {
  const std::optional<GpuIdentity> gpu = backend == nullptr ? std::nullopt : backend->gpu();
  registry
      ->Gauge("tandem_worker_info",
              "1; what this worker is, and on which device; gpu_uuid is empty on a CPU.",
              {{"role", std::string(WorkerRoleName(self.role))},
               {"model", self.model},
               {"numerics_id", self.terms.numerics_id},
               {"kv_class", self.terms.kv_class},
               {"transport", self.terms.transport},
               {"device", backend == nullptr ? "" : backend->name()},
               {"isa", backend == nullptr ? "" : backend->isa()},
               {"gpu_uuid", gpu.has_value() ? gpu->uuid : ""}})
      .Set(1);
  registry
      ->Gauge("vllm:cache_config_info", "1; the KV pool's sizes, for endpoint pickers.",
              {{"block_size", absl::StrCat(self.kv.block_tokens)},
               {"num_gpu_blocks", absl::StrCat(self.kv.num_blocks)}})
      .Set(1);
  registry->Gauge("tandem_kv_block_bytes", "Size of a KV block.")
      .Set(static_cast<double>(self.kv.block_bytes));
  registry->Gauge("tandem_max_sequences", "Sequences in one batch at most; more may take turns.")
      .Set(self.max_sequences);
  for (size_t i = 0; i < kNumPauseReasons; ++i) {
    const std::string reason(PauseReasonName(static_cast<PauseReason>(i)));
    peer_pauses_.emplace_back(registry->Counter(
        "tandem_prefill_pauses_total",
        "Times that this decode worker began to do without a prefill worker for a while.",
        {{"reason", reason}}));
  }
}

void WorkerMetrics::OnStep(double seconds, const Engine::StepResult& step) {
  if (step.finished_sequences > 0) {
    step_seconds_.Observe(seconds);
    batch_sequences_.Observe(step.finished_sequences);
  }
  preemptions_.Increment(step.preempted);
  if (step.failed()) failed_steps_.Increment();
}

void WorkerMetrics::OnPromptComputed(double waited_seconds, double computed_seconds) {
  prompt_wait_seconds_.Observe(waited_seconds);
  prompt_compute_seconds_.Observe(computed_seconds);
}

void WorkerMetrics::OnLoad(const WorkerLoad& load) {
  running_.Set(load.running_sequences);
  waiting_.Set(load.waiting_sequences);
  waiting_prompt_tokens_.Set(static_cast<double>(load.waiting_prompt_tokens));
  requests_running_.Set(load.running_sequences);
  requests_waiting_.Set(load.waiting_sequences);
  const auto busy = load.blocks.total - load.blocks.free - load.blocks.cached;
  kv_usage_.Set(static_cast<double>(busy) /
                static_cast<double>(std::max<int64_t>(1, load.blocks.total)));
  free_blocks_.Set(static_cast<double>(load.blocks.free));
  held_blocks_.Set(static_cast<double>(load.blocks.held));
  cached_blocks_.Set(static_cast<double>(load.blocks.cached));
  in_flight_blocks_.Set(static_cast<double>(load.blocks.in_flight));
  quarantined_blocks_.Set(static_cast<double>(load.blocks.quarantined));
}

void WorkerMetrics::OnDeviceMemory(const DeviceMemory& memory) {
  const auto set = [this](const char* state, int64_t bytes) {
    registry_->Gauge(kMemory, kMemoryHelp, {{"state", state}}).Set(static_cast<double>(bytes));
  };
  set("free", memory.free_bytes);
  set("taken", memory.total_bytes - memory.free_bytes);
}

void WorkerMetrics::OnFrame(FrameOutcome outcome, int64_t payload_bytes) {
  switch (outcome) {
    case FrameOutcome::kVerified:
      verified_frames_.Increment();
      transfer_bytes_.Increment(static_cast<double>(payload_bytes));
      break;
    case FrameOutcome::kCorrupt:
      corrupt_frames_.Increment();
      break;
    case FrameOutcome::kFailed:
      failed_frames_.Increment();
      break;
    case FrameOutcome::kOrphaned:
      orphaned_frames_.Increment();
      break;
  }
}

void WorkerMetrics::OnPeerPaused(PauseReason reason) {
  peer_pauses_[static_cast<size_t>(reason)].get().Increment();
}

void WorkerMetrics::OnLinkProbed(const LinkReport& report) {
  const MutexLock lock(&mu_);
  LinkGauge& link = links_[{report.peer, report.path}];
  ++link.num_links;
  link.gauge =
      &registry_->Gauge(kLinks, kLinksHelp,
                        {{"peer", report.peer}, {"transport", transport_}, {"path", report.path}});
  link.gauge->Set(report.bytes_per_second);
}

void WorkerMetrics::OnLinkClosed(const std::string& peer, const std::string& path) {
  const MutexLock lock(&mu_);
  const auto link = links_.find({peer, path});
  if (link == links_.end() || --link->second.num_links > 0) return;
  registry_->Remove(kLinks, kLinksHelp, link->second.gauge);
  links_.erase(link);
}

}  // namespace tandem
