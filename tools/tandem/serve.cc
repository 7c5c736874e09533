#include "tools/tandem/serve.h"

#include <signal.h>
#include <sys/poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/create_backend.h"
#include "runtime/base/clock.h"
#include "runtime/base/entropy.h"
#include "runtime/base/flags.h"
#include "runtime/base/fleet_secret.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/config/model_config.h"
#include "services/router/app/client_flags.h"
#include "services/server/listen_socket.h"
#include "services/server/machine_limits.h"
#include "services/server/program_config.h"
#include "services/worker/engine_flags.h"
#include "services/worker/worker_plan.h"
#include "tools/tandem/child_process.h"
#include "tools/tandem/worker_gpus.h"
#include "tools/tandem/worker_lives.h"

namespace tandem {
namespace {

// `timeout` and some shells signal this process and its group: one wish, heard twice.
constexpr int64_t kOneSignalUs = 200'000;
// For what a child still says once it is asked again.
constexpr int64_t kHurriedUs = 1'000'000;

struct ServeOptions {
  std::string model;
  int32_t prefill = 1, decode = 1, hybrid = 0;
  ClientFlags clients;
  EngineFlags engine = {.transport = "auto"};
  std::vector<std::string> log_arguments;  // What every child is given.

  int32_t num_workers() const { return prefill + decode + hybrid; }
  BackendOptions backend() const { return {.device = engine.device, .isa = engine.isa}; }
};

WorkerGpus GpusOf(const ServeOptions& options) {
  return {.device = options.engine.device,
          .num_workers = options.num_workers(),
          .gpus = ListGpus(options.backend())};
}

void Declare(ServeOptions* o, FlagSet* flags) {
  flags->Add("prefill", &o->prefill, "N", "prefill workers", 0, 64);
  flags->Add("decode", &o->decode, "N", "decode workers", 0, 64);
  flags->Add("hybrid", &o->hybrid, "N",
             "workers that do both; naming any role sets the unnamed ones to 0", 0, 64);
  o->clients.Declare(flags);
  o->engine.Declare(flags);
}

// All processes of one `tandem serve`: the workers first, the router last.
class Supervisor {
 public:
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(const ServeOptions& options);
  // Runs until SIGTERM or SIGINT, then drains. Returns the exit status.
  int Run();

 private:
  explicit Supervisor(int signals) : signals_(signals) {}

  void HoldForRouter(const std::string& address);
  std::vector<std::string> RouterCommand(const ServeOptions& options,
                                         const std::vector<std::string>& workers) const;
  std::vector<std::string> WorkerCommand(const ServeOptions& options, const WorkerGpus& gpus,
                                         const std::string& role, const std::string& name,
                                         int port) const;
  void StartDue(int64_t now_us);
  void Reap(int64_t now_us);
  // Waits for a signal until `until_us`; the signal's number, or 0.
  int WaitForSignal(int64_t until_us);
  // SIGTERM, then SIGKILL for what still runs when the time or the user's patience ends.
  void End(std::span<ChildProcess> children, std::chrono::seconds grace);
  bool AnyRunning(std::span<const ChildProcess> children) const;

  const int signals_;
  std::chrono::seconds router_drain_{0}, worker_drain_{0};
  std::string program_folder_;
  std::vector<ListenSocket> ports_;  // One for each of children_: held while it does not run.
  std::vector<ChildProcess> children_;
  std::vector<WorkerLives> lives_;  // One for each of children_ but the router.
  MemoryKills memory_kills_;
  bool ending_ = false;
  // A child that never came up has a bad flag, file or port: restarting it would hide that.
  bool give_up_ = false;
  int end_signal_ = 0;  // What ended Run. The same again: nobody waits for running streams.
};

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Create(const ServeOptions& options) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&mask, signal);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  const int signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) return absl::InternalError("signalfd failed");
  auto supervisor = std::unique_ptr<Supervisor>(new Supervisor(signals));
  std::error_code error;
  supervisor->program_folder_ =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  if (error) return absl::InternalError("cannot read /proc/self/exe: " + error.message());

  supervisor->router_drain_ = std::chrono::seconds(options.clients.drain_seconds);
  supervisor->worker_drain_ =
      std::chrono::seconds(std::min(options.clients.drain_seconds, kWorkerDrainSeconds));
  std::vector<std::string> addresses;
  const WorkerGpus gpus = GpusOf(options);
  if (const std::string summary = gpus.Summary(); !summary.empty()) LogInfo(summary);
  const std::pair<const char*, int32_t> roles[] = {
      {"prefill", options.prefill}, {"decode", options.decode}, {"hybrid", options.hybrid}};
  for (const auto& [role, count] : roles) {
    for (int i = 0; i < count; ++i) {
      TANDEM_ASSIGN_OR_RETURN(ListenSocket held, ListenSocket::Hold("127.0.0.1:0"));
      addresses.push_back(absl::StrCat("127.0.0.1:", held.port()));
      const std::string name = absl::StrCat(role, "-", i);
      supervisor->children_.emplace_back(
          name, supervisor->WorkerCommand(options, gpus, role, name, held.port()));
      supervisor->ports_.push_back(std::move(held));
    }
  }
  for (const std::string* address : {&options.clients.http, &options.clients.grpc}) {
    supervisor->HoldForRouter(*address);
  }
  supervisor->lives_.resize(supervisor->children_.size());
  supervisor->children_.emplace_back("router", supervisor->RouterCommand(options, addresses));
  return supervisor;
}

void Supervisor::HoldForRouter(const std::string& address) {
  if (address.ends_with(":0")) return;
  absl::StatusOr<ListenSocket> held = ListenSocket::Hold(address);
  if (held.ok()) {
    ports_.push_back(*std::move(held));
  } else {  // What is left of old connections may be in the way.
    LogWarning("while the router restarts, other users of this machine could take its port",
               {{"why", held.status().ToString()}});
  }
}

// The worker is the next child.
std::vector<std::string> Supervisor::WorkerCommand(const ServeOptions& options,
                                                   const WorkerGpus& gpus, const std::string& role,
                                                   const std::string& name, int port) const {
  const auto worker = static_cast<int32_t>(children_.size());
  EngineFlags flags = options.engine;
  flags.device = gpus.device_of(worker);
  std::vector<std::string> command = {
      program_folder_ + "/tandem-worker",
      "--model=" + options.model,
      "--name=" + name,
      "--role=" + role,
      absl::StrCat("--listen=127.0.0.1:", port),
      absl::StrCat("--machine-share=", options.num_workers()),
      absl::StrCat("--gpu-share=", gpus.share_of(worker)),
      absl::StrCat("--drain-seconds=", worker_drain_.count()),
  };
  const std::vector<std::string> engine = flags.Arguments();
  command.insert(command.end(), engine.begin(), engine.end());
  command.insert(command.end(), options.log_arguments.begin(), options.log_arguments.end());
  if (options.clients.memory_limit.bytes > 0) {
    command.push_back(absl::StrCat("--memory-limit=", options.clients.memory_limit.bytes));
  }
  return command;
}

std::vector<std::string> Supervisor::RouterCommand(const ServeOptions& options,
                                                   const std::vector<std::string>& workers) const {
  std::vector<std::string> command = {
      program_folder_ + "/tandem-router",
      "--model=" + options.model,
      "--workers=" + absl::StrJoin(workers, ","),
      "--served-model-name=" + options.engine.served_model_name,
      absl::StrCat("--liveness-scale=", options.engine.liveness_scale),
  };
  const std::vector<std::string> clients = options.clients.Arguments();
  command.insert(command.end(), clients.begin(), clients.end());
  command.insert(command.end(), options.log_arguments.begin(), options.log_arguments.end());
  return command;
}

void Supervisor::StartDue(int64_t now_us) {
  for (size_t i = 0; i < children_.size(); ++i) {
    ChildProcess& child = children_[i];
    if (child.running() || child.restart_at_us() > now_us) continue;
    std::vector<std::string> flags;
    if (i < lives_.size()) flags = lives_[i].Begin(RandomIdentity());
    const int64_t memory_kills = NumMemoryKills();
    if (const absl::Status status = child.Start(flags); !status.ok()) {
      LogError("cannot start", {{"child", child.name()}, {"why", status.ToString()}});
      child.OnExited(now_us);
      continue;
    }
    memory_kills_.Began(child.pid(), memory_kills);
    LogInfo("started", {{"child", child.name()}, {"pid", child.pid()}});
  }
}

void Supervisor::Reap(int64_t now_us) {
  int wait_status = 0;
  while (const pid_t pid = waitpid(-1, &wait_status, WNOHANG)) {
    if (pid < 0) return;
    for (size_t i = 0; i < children_.size(); ++i) {
      ChildProcess& child = children_[i];
      if (child.pid() != pid) continue;
      child.OnExited(now_us);
      std::string description = DescribeExit(wait_status);
      const EndCause cause = memory_kills_.CauseOfExit(pid, wait_status, NumMemoryKills());
      if (cause == EndCause::kMemory) description += ", memory had run out";
      if (i < lives_.size()) lives_[i].End(cause);
      const LogField how("how", description);
      if (ending_) {
        LogInfo("ended", {{"child", child.name()}, how});
        continue;
      }
      // Exit status 2 is every program's word for flags or files that will not get better; had its
      // first life ended otherwise, they would have been good.
      if (child.num_lives() == 1 && WIFEXITED(wait_status) &&
          (WEXITSTATUS(wait_status) == 2 || WEXITSTATUS(wait_status) == 127)) {
        LogError("a child cannot start", {{"child", child.name()}, how});
        give_up_ = true;
      } else {
        LogWarning("a child ended and will be restarted", {{"child", child.name()}, how});
      }
    }
  }
}

int Supervisor::WaitForSignal(int64_t until_us) {
  const int64_t left_us = std::max<int64_t>(0, until_us - SteadyClock().NowUs());
  pollfd wait = {.fd = signals_, .events = POLLIN, .revents = 0};
  poll(&wait, 1, static_cast<int>(std::min<int64_t>(left_us / 1000 + 1, 3'600'000)));
  signalfd_siginfo info;
  return read(signals_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

bool Supervisor::AnyRunning(std::span<const ChildProcess> children) const {
  return std::any_of(children.begin(), children.end(),
                     [](const ChildProcess& child) { return child.running(); });
}

void Supervisor::End(std::span<ChildProcess> children, std::chrono::seconds grace) {
  for (const ChildProcess& child : children) child.Signal(SIGTERM);
  int64_t end_us =
      SteadyClock().NowUs() + std::chrono::duration_cast<std::chrono::microseconds>(grace).count();
  bool impatient = false;
  const int64_t again_us = SteadyClock().NowUs() + kOneSignalUs;
  while (AnyRunning(children)) {
    const int signal = WaitForSignal(end_us);
    const int64_t now_us = SteadyClock().NowUs();
    if (signal != 0 && signal == end_signal_ && now_us > again_us &&
        !std::exchange(impatient, true)) {
      // A process that is asked twice has last words, too.
      for (const ChildProcess& child : children) child.Signal(SIGTERM);
      end_us = std::min(end_us, now_us + kHurriedUs);
    }
    Reap(SteadyClock().NowUs());
    if (SteadyClock().NowUs() >= end_us) {
      for (const ChildProcess& child : children) child.Signal(SIGKILL);
    }
  }
}

int Supervisor::Run() {
  while (!give_up_) {
    const int64_t now_us = SteadyClock().NowUs();
    StartDue(now_us);
    int64_t wakeup_us = now_us + 3'600'000'000;
    for (const ChildProcess& child : children_) {
      if (!child.running()) wakeup_us = std::min(wakeup_us, child.restart_at_us());
    }
    const int signal = WaitForSignal(wakeup_us);
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      end_signal_ = signal;
      break;
    }
    Reap(SteadyClock().NowUs());
  }
  ending_ = true;
  constexpr std::chrono::seconds kMargin(kDrainMarginSeconds);
  LogInfo("draining", {{"seconds", router_drain_.count()}});
  // The router first: it refuses new requests and lets the running ones end on live workers.
  End(std::span(children_).last(1), give_up_ ? std::chrono::seconds(0) : router_drain_ + kMargin);
  End(std::span(children_).first(children_.size() - 1), worker_drain_ + kMargin);
  return give_up_ ? 1 : 0;
}

// All workers as they will be, and the router. InvalidArgument, with the numbers, if this machine
// has not enough for them.
absl::Status CheckMachine(const ServeOptions& options) {
  const MachineLimits machine = ReadMachineLimits();
  const ByteSize& limit = options.clients.memory_limit;
  TANDEM_RETURN_IF_ERROR(CheckMemoryLimitOn(machine, limit));
  SizeOptions sizes;
  static_cast<EngineFlags&>(sizes) = options.engine;
  sizes.model = options.model;
  sizes.machine_share = options.num_workers();
  sizes.memory_limit = limit;
  sizes.router_bytes =
      (limit.bytes > 0 ? limit.bytes : DefaultMemoryLimit(machine)) + kProcessReserve;
  sizes.gpu_share = GpusOf(options).share_of(0);  // The first has as many beside it as any.
  TANDEM_ASSIGN_OR_RETURN(const auto backend, CreateBackend(options.backend()));
  // One that computes for others keeps all blocks of a prompt, whatever a window leaves behind.
  for (const auto& [role, count] : {std::pair{"prefill", options.prefill},
                                    {"decode", options.decode},
                                    {"hybrid", options.hybrid}}) {
    if (count == 0) continue;
    sizes.role = role;
    TANDEM_RETURN_IF_ERROR(PlanWorker(sizes, machine, *backend).status());
  }
  return absl::OkStatus();
}

// CheckMachine in a process of its own, as a GPU that one looks at keeps memory for it to its end.
// Says why not.
bool FitsMachine(const ServeOptions& options) {
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status fits = CheckMachine(options);
    if (!fits.ok()) LogError("cannot start", {{"why", std::string(fits.message())}});
    _exit(fits.ok() ? 0 : 2);
  }
  int wait_status = 0;
  while (child > 0 && waitpid(child, &wait_status, 0) < 0 && errno == EINTR) {
  }
  if (child > 0 && WIFEXITED(wait_status)) return WEXITSTATUS(wait_status) == 0;
  LogError("cannot start",
           {{"why", "looking at this machine: " +
                        (child < 0 ? "no process can be started" : DescribeExit(wait_status))}});
  return false;
}

// Fills in what the flags left open. InvalidArgument if there is nothing to serve with.
absl::Status Complete(FlagSet* flags, ServeOptions* options) {
  constexpr const char* kRoles[] = {"prefill", "decode", "hybrid"};
  if (std::any_of(std::begin(kRoles), std::end(kRoles),
                  [flags](const char* role) { return flags->WasSet(role); })) {
    for (const char* const role : kRoles) {
      if (flags->WasSet(role)) continue;
      TANDEM_RETURN_IF_ERROR(flags->Set(role, "0", FlagSource::kDefault));
    }
  }
  if (options->decode + options->hybrid == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nothing to decode with: --prefill ", options->prefill, " --decode ", options->decode,
        " --hybrid ", options->hybrid, "; add --decode 1 or --hybrid 1"));
  }
  TANDEM_RETURN_IF_ERROR(options->engine.Check());
  std::error_code error;
  if (!std::filesystem::is_directory(options->model, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DIR: \"", options->model, "\" is not a folder"));
  }
  TANDEM_RETURN_IF_ERROR(ServedName(options->model, options->engine.served_model_name).status());
  return options->clients.Check().status();
}

}  // namespace

int ServeMain(const std::vector<std::string>& arguments) {
  ServeOptions options;
  FlagSet flags(
      "tandem serve DIR [flags]",
      "Serves the model in DIR with a router and workers as separate processes on this\n"
      "machine. Killed processes are restarted; SIGTERM or Ctrl-C drains and ends them all,\n"
      "the same again ends them at once.");
  Declare(&options, &flags);
  ProgramConfig config(&flags);
  const auto rest = config.Read(arguments, Environment());
  if (config.AnswersAtOnce("tandem")) return 0;
  const absl::Status usage = [&]() -> absl::Status {
    TANDEM_RETURN_IF_ERROR(rest.status());
    if (rest->size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("want one model folder, got ", rest->size(), " arguments"));
    }
    options.model = rest->front();
    return Complete(&flags, &options);
  }();
  if (!usage.ok()) {
    std::cerr << "tandem serve: " << usage.message() << "\n";
    return 2;
  }
  if (config.print_requested()) {
    std::fputs(config.ToYaml().c_str(), stdout);
    return 0;
  }
  config.BeginLog("serve");
  options.log_arguments = config.LogArguments();
  ClearConfigVariables();
  if (!FitsMachine(options)) return 2;
  // The children's environment, which only this user can read. One that is there is kept: somebody
  // may want to call these workers.
  setenv(kFleetSecretVariable, FleetSecret::Make().c_str(), /*overwrite=*/0);
  const auto supervisor = Supervisor::Create(options);
  if (!supervisor.ok()) {
    LogError("cannot start", {{"why", std::string(supervisor.status().message())}});
    return 1;
  }
  const int status = (*supervisor)->Run();
  RemoveAbandonedPools();
  return status;
}

}  // namespace tandem
