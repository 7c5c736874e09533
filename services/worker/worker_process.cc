#include "services/worker/worker_process.h"

#include <grpc/grpc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"
#include "runtime/base/entropy.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/config/model_config.h"
#include "runtime/execution/fingerprints.h"
#include "runtime/execution/model_executor.h"
#include "runtime/model/model.h"
#include "services/server/http2_gate.h"
#include "services/server/run_program.h"
#include "services/worker/worker.h"
#include "services/worker/worker_options.h"
#include "services/worker/worker_plan.h"

namespace tandem {
namespace {

constexpr int32_t kMaxWaitingAttempts = 1024;
constexpr auto kDrainPoll = std::chrono::milliseconds(10);
// The part of the time to drain that the end itself takes.
constexpr auto kStopTime = Worker::kShutdownGrace + kGateFlushTimeout;
// How much longer transports and the device's memory are waited for once all is drained.
constexpr auto kReleaseTime = std::chrono::seconds(3);

// With what status EndNoLaterThan ends the process: the first one to come may know less of it than
// the last.
std::atomic<int> late_status{kExitToBeReplaced};

// Everything of one worker process, in the order of construction.
struct Process {
  std::unique_ptr<NcclApi> nccl;  // Null unless --transport says so.
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  DeviceBuffer pool;                     // Empty where the transport has it.
  std::unique_ptr<DeviceCopier> copier;  // Null where that is so.
  std::unique_ptr<Worker> worker;
};

WorkerRole RoleOf(const std::string& role) {
  if (role == "prefill") return WorkerRole::kPrefill;
  return role == "decode" ? WorkerRole::kDecode : WorkerRole::kHybrid;
}

// The weights that are mapped from the cache are not what was written there.
void StopOnCorruption(const absl::Status& why) {
  LogError("the packed weights are corrupt; the next start packs them again",
           {{"why", why.ToString()}});
  std::_Exit(kExitToBeReplaced);
}

void WarnOfTheNetwork(const WorkerOptions& options, const std::string& transport,
                      const FleetSecret& secret) {
  options.fleet.WarnOfStrangers(secret, "whoever reaches --listen may use and drain this worker");
  const bool tls = options.fleet.tls.configured();
  if (tls && transport == "ucx" && !options.ucx_devices.empty()) {
    LogWarning("UCX does not encrypt KV blocks", {{"ucx_devices", options.ucx_devices}});
  }
  if (tls && transport == "nccl" && !options.nccl_interface.empty()) {
    LogWarning("NCCL does not encrypt KV blocks", {{"nccl_interface", options.nccl_interface}});
  }
  if (!tls && secret.configured() && !ListensOnLoopback(options)) {
    LogWarning("connections are authenticated but not encrypted", {{"listen", options.listen}});
  }
}

// Which card it is, for who looks for it in the kernel's log or another tool.
void LogGpu(const Backend& backend) {
  const std::optional<GpuIdentity> gpu = backend.gpu();
  if (!gpu.has_value()) return;
  LogInfo("GPU", {{"model", gpu->model},
                  {"uuid", gpu->uuid},
                  {"pci_address", gpu->pci_address},
                  {"compute_capability", gpu->compute_capability},
                  {"memory_bytes", gpu->memory_bytes},
                  {"newest_cuda", gpu->newest_cuda}});
}

// Loads the weights into `process`; what they compute is their numerics_id.
absl::StatusOr<std::string> LoadModel(const WorkerOptions& options, WorkerPlan plan,
                                      int32_t threads, Process* process) {
  plan.model_options.on_corrupt = StopOnCorruption;
  const SteadyClock clock;
  const int64_t begin_us = clock.NowUs();
  LogInfo("loading the model; the first time its weights are packed into the cache",
          {{"folder", options.model}, {"cache", plan.model_options.cache_dir}});
  TANDEM_ASSIGN_OR_RETURN(process->model, Model::Load(plan.model_options, process->backend.get()));
  TANDEM_ASSIGN_OR_RETURN(std::string numerics_id,
                          NumericsId(*process->model, process->backend.get()));
  LogInfo("model loaded", {{"folder", options.model},
                           {"types", NamesOf(process->model->types())},
                           {"weights_bytes", plan.model.weights.packed_bytes},
                           {"seconds", static_cast<double>(clock.NowUs() - begin_us) * 1e-6},
                           {"device", process->backend->name()},
                           {"isa", process->backend->isa()},
                           {"threads", threads},
                           {"numerics_id", numerics_id}});
  return numerics_id;
}

EngineOptions EngineOptionsOf(const WorkerOptions& options, const WorkerPlan& plan,
                              const std::string& served_name) {
  const auto given = static_cast<uint64_t>(options.incarnation);
  const uint64_t incarnation = given != 0 ? given : RandomIdentity();
  return {.self = {.name = options.name, .incarnation = incarnation},
          .model = served_name,
          .kv = plan.sizes.kv,
          .window = plan.model.config.largest_window(),
          .max_sequences = plan.sizes.max_sequences,
          .max_batched_tokens = plan.sizes.max_batched_tokens,
          .max_model_tokens = plan.sizes.max_model_tokens,
          .max_waiting_attempts = kMaxWaitingAttempts,
          .vocab_size = plan.model.config.vocab_size};
}

// What the flags say of a worker; its engine and the fingerprints of its model are known.
absl::StatusOr<WorkerConfig> ConfigOf(const WorkerOptions& options, const FleetSecret& secret,
                                      const MachineLimits& machine, const WorkerPlan& plan,
                                      EngineOptions engine, PeerTerms fingerprints,
                                      StopSignal* stop) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<EndedLife> ended_lives, ParseEndedLives(options.ended));
  WorkerConfig worker;
  worker.engine = std::move(engine);
  worker.registration.role = RoleOf(options.role);
  worker.registration.terms = std::move(fingerprints);
  worker.registration.supervised = options.incarnation != 0;
  worker.registration.ended_lives = ended_lives;
  worker.listen = options.listen;
  TANDEM_ASSIGN_OR_RETURN(worker.admin, AdminAddress(options));
  worker.transport = plan.transport;
  worker.ucx_devices = options.ucx_devices;
  worker.liveness_scale = options.liveness_scale;
  // A worker that has drained serves nobody: it ends, and a supervisor starts the next one.
  worker.on_drain = [stop] { stop->Ask(); };
  worker.on_hung = [] { std::_Exit(kExitToBeReplaced); };
  worker.secret = secret;
  worker.tls = options.fleet.tls;
  worker.memory_limit_bytes = MemoryLimit(options, machine);
  return worker;
}

// A pool in a device's memory is the backend's, and goes into the config; else the transport has
// it.
absl::Status AllocateDevicePool(const EngineOptions& engine, Process* process,
                                WorkerConfig* worker) {
  if (process->backend->pool_kind() != MemoryKind::kDevice) return absl::OkStatus();
  const auto pool_bytes = static_cast<size_t>(engine.kv.pool_bytes());
  TANDEM_ASSIGN_OR_RETURN(process->pool, process->backend->AllocatePool(pool_bytes, {}));
  TANDEM_ASSIGN_OR_RETURN(process->copier, process->backend->CreateCopier());
  worker->device_pool = process->pool.data();
  worker->device_copier = process->copier.get();
  return absl::OkStatus();
}

// The executor over the pool that the transport has, or was given.
ExecutorFactory ExecutorOf(const EngineOptions& engine, const Process& process) {
  const ModelExecutorOptions options{.block_tokens = engine.kv.block_tokens,
                                     .num_blocks = engine.kv.num_blocks,
                                     .max_sequences = engine.max_sequences,
                                     .max_batched_tokens = engine.max_batched_tokens,
                                     .max_model_tokens = engine.max_model_tokens};
  return [options, model = process.model.get(), backend = process.backend.get()](
             const KvPool& pool) -> absl::StatusOr<std::unique_ptr<Executor>> {
    const KvPoolMemory memory{
        .base = pool.base, .bytes = static_cast<size_t>(pool.kv.pool_bytes()), .kind = pool.memory};
    return ModelExecutor::Create(options, model, backend, memory);
  };
}

// What came of the plan. CUDA's own part was taken before, and is not counted; what other processes
// took of the device meanwhile is.
absl::Status LogDeviceMemory(const WorkerPlan& plan, const Backend& backend) {
  if (!plan.memory.device.has_value()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::optional<DeviceMemory> now, backend.MeasureMemory());
  const int64_t taken_bytes = plan.memory.device->free_bytes - now->free_bytes;
  const int64_t kv_bytes = plan.sizes.kv.pool_bytes();
  const auto weights_bytes = static_cast<int64_t>(plan.model.weights.packed_bytes);
  LogInfo("device memory", {{"taken_since_plan_bytes", taken_bytes},
                            {"of_which_kv_bytes", kv_bytes},
                            {"of_which_weights_bytes", weights_bytes},
                            {"of_which_other_bytes", taken_bytes - kv_bytes - weights_bytes},
                            {"free_bytes", now->free_bytes},
                            {"total_bytes", now->total_bytes}});
  return absl::OkStatus();
}

absl::StatusOr<Process> StartWorker(const WorkerOptions& options,
                                    const BackendFactory& create_backend,
                                    const NcclFactory& open_nccl, const UcxMemory& ucx_memory,
                                    const FleetSecret& secret, StopSignal* stop) {
  TANDEM_RETURN_IF_ERROR(RaiseDescriptorLimit());
  const MachineLimits machine = ReadMachineLimits();
  Process process;
  if (options.transport == "nccl") {
    TANDEM_ASSIGN_OR_RETURN(process.nccl, open_nccl(options.nccl_interface));
  }
  const int32_t threads = NumThreads(options, machine);
  TANDEM_ASSIGN_OR_RETURN(process.backend, create_backend({.device = options.device,
                                                           .isa = options.isa,
                                                           .num_threads = threads,
                                                           .niceness = Niceness(options)}));
  LogGpu(*process.backend);
  const bool on_device = process.backend->pool_kind() == MemoryKind::kDevice;
  if (options.transport == "ucx" && on_device) {
    TANDEM_RETURN_IF_ERROR(CheckUcxMemory(ucx_memory, options.ucx_devices));
  }
  TANDEM_ASSIGN_OR_RETURN(const WorkerPlan plan, PlanWorker(options, machine, *process.backend));
  WarnOfTheNetwork(options, plan.transport, secret);
  TANDEM_ASSIGN_OR_RETURN(const std::string served_name,
                          ServedName(options.model, options.served_model_name));
  TANDEM_ASSIGN_OR_RETURN(const std::string numerics_id,
                          LoadModel(options, plan, threads, &process));

  const EngineOptions engine = EngineOptionsOf(options, plan, served_name);
  PeerTerms fingerprints;
  fingerprints.kv_class = KvClass(*process.model, plan.layout);
  fingerprints.numerics_id = numerics_id;
  TANDEM_ASSIGN_OR_RETURN(WorkerConfig config,
                          ConfigOf(options, secret, machine, plan, engine, fingerprints, stop));
  TANDEM_RETURN_IF_ERROR(AllocateDevicePool(engine, &process, &config));
  config.backend = process.backend.get();
  config.nccl = process.nccl.get();
  config.ucx_memory = ucx_memory;
  TANDEM_ASSIGN_OR_RETURN(process.worker, Worker::Create(config, ExecutorOf(engine, process)));
  LogInfo("memory", {{"plan", plan.sizes.memory}});
  TANDEM_RETURN_IF_ERROR(LogDeviceMemory(plan, *process.backend));
  LogInfo("serving", {{"port", process.worker->port()},
                      {"admin", process.worker->admin_port()},
                      {"role", options.role},
                      {"model", served_name},
                      {"transport", plan.transport},
                      {"kv_memory", on_device ? "device" : "host"},
                      {"kv_blocks", engine.kv.num_blocks},
                      {"block_bytes", engine.kv.block_bytes},
                      {"max_model_tokens", plan.sizes.max_model_tokens},
                      {"max_sequences", plan.sizes.max_sequences},
                      {"incarnation", engine.self.incarnation}});
  return process;
}

absl::Status WritePortFile(const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  return WriteSmallFile(path, absl::StrFormat("%d\n", port));
}

// Ends the process at `end` if it still runs then: a device, or what moves blocks, does not answer.
void EndNoLaterThan(std::chrono::steady_clock::time_point end) {
  std::thread([end] {
    std::this_thread::sleep_until(end);
    LogWarning("something that it waits for has no end: the process ends all the same");
    std::_Exit(late_status);
  }).detach();
}

void WaitForSignalAndDrain(const WorkerOptions& options, StopSignal* stop, Worker* worker) {
  const int signal = stop->Wait();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.drain_seconds);
  EndNoLaterThan(end);
  LogInfo("asked to stop", {{"signal", signal}, {"seconds", options.drain_seconds}});
  worker->Drain();
  while (!worker->Drained()) {
    if (std::chrono::steady_clock::now() >= end - kStopTime) {
      LogWarning("not all was written or said in time: it ends all the same",
                 {{"seconds", options.drain_seconds}});
      return;
    }
    std::this_thread::sleep_for(kDrainPoll);
  }
  LogInfo("drained");
  // What is left promises nothing to anybody.
  late_status = worker->is_broken() ? kExitToBeReplaced : 0;
  EndNoLaterThan(std::chrono::steady_clock::now() + kStopTime + kReleaseTime);
}

absl::Status Serve(const WorkerOptions& options, const BackendFactory& create_backend,
                   const NcclFactory& open_nccl, const UcxMemory& ucx_memory,
                   const FleetSecret& secret, StopSignal* stop) {
  grpc_init();  // Held to the end: gRPC's own global shutdown waits up to 10 s for nothing.
  absl::StatusOr<Process> process =
      StartWorker(options, create_backend, open_nccl, ucx_memory, secret, stop);
  stop->Serving();
  TANDEM_RETURN_IF_ERROR(process.status());
  TANDEM_RETURN_IF_ERROR(WritePortFile(options.port_file, process->worker->port()));
  WaitForSignalAndDrain(options, stop, process->worker.get());
  if (process->worker->is_broken()) {
    process->worker.reset();  // Its last words are said.
    std::_Exit(kExitToBeReplaced);
  }
  return absl::OkStatus();
}

}  // namespace

int RunWorkerProcess(const std::vector<std::string>& arguments,
                     const BackendFactory& create_backend, const NcclFactory& open_nccl,
                     const UcxMemory& ucx_memory) {
  WorkerOptions options;
  FlagSet flags = WorkerFlags(&options);
  FleetSecret secret;
  return RunProgram(arguments, {.name = "tandem-worker",
                                .flags = &flags,
                                .check = [&]() -> absl::Status {
                                  TANDEM_RETURN_IF_ERROR(CheckWorkerOptions(options));
                                  TANDEM_ASSIGN_OR_RETURN(secret, options.fleet.Open());
                                  return absl::OkStatus();
                                },
                                .log_name = [&] { return options.name; },
                                .run =
                                    [&](StopSignal* stop) {
                                      return Serve(options, create_backend, open_nccl, ucx_memory,
                                                   secret, stop);
                                    }});
}

}  // namespace tandem
