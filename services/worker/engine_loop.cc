#include "services/worker/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/server/attempt_name.h"
#include "services/worker/watched_copier.h"

namespace tandem {

namespace {

// The longest sleep: an idle engine still stamps progress.
constexpr int64_t kMaxSleepUs = 100'000;

// How long a step waits until routers have been told what it computes. Writing takes a fraction of
// it; a router that does not read must not hold up the others.
constexpr auto kMaxNoticeWait = std::chrono::milliseconds(100);

void LogEvent(const RouterEvent& event) {
  const LogField attempt("attempt",
                         std::visit([](const auto& said) { return NameOf(said.attempt); }, event));
  if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
    LogDebug("prompt computed", {attempt,
                                 {"cached_tokens", prompt->cached_tokens},
                                 {"by_prefill_worker", prompt->by_prefill}});
  } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
    if (token->finish == FinishReason::kNone) return;
    LogDebug("choice ends", {attempt, {"choice", token->choice}, {"tokens", token->position + 1}});
  } else if (const auto* refused = std::get_if<RefusedEvent>(&event)) {
    LogDebug("attempt refused", {attempt,
                                 {"why", refused->status.ToString()},
                                 {"by_prefill_worker", refused->by_prefill},
                                 {"retry_after_ms", refused->retry_after_us / 1000}});
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    LogDebug(
        "attempt ended",
        {attempt, {"why", ended->status.ToString()}, {"by_prefill_worker", ended->by_prefill}});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineLoop>> EngineLoop::Create(const EngineOptions& options,
                                                               const EngineLoopParts& parts) {
  std::unique_ptr<EngineLoop> loop(new EngineLoop(parts));
  TANDEM_ASSIGN_OR_RETURN(loop->core_,
                          WorkerCore::Create(options, parts.executor, loop.get(), loop.get(),
                                             parts.receiver, parts.leases));
  loop->StampProgress();
  loop->Publish();
  loop->MeasureMemory();
  return loop;
}

EngineLoop::~EngineLoop() { Stop(); }

void EngineLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EngineLoop::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  parts_.commands->Wake();
  thread_.join();
}

void EngineLoop::Run() {
  pthread_setname_np(pthread_self(), "engine");
  while (!stopping_) {
    StampProgress();
    busy_ = true;
    for (const EngineCommand& command : parts_.commands->Drain()) Apply(command);
    const int64_t begin_us = clock_.NowUs();
    const Engine::StepResult result = core_->Step(begin_us);
    const int64_t end_us = clock_.NowUs();
    const int64_t took_us = TakeDuration(begin_us, end_us, result);
    parts_.metrics->OnStep(static_cast<double>(took_us) * 1e-6, result);
    Publish();
    MeasureMemory();
    if (result.failed()) {
      LogError("a step failed",
               {{"sequences", result.finished_sequences}, {"why", result.failure.ToString()}});
    }
    if (core_->engine().quarantine_is_stuck()) {
      EndForStuckBlocks();
    }
    if (core_->engine().is_broken()) Break(result.failure);
    // Else it would blame its peers for blocks that it cannot take.
    if (parts_.copier != nullptr) Break(parts_.copier->lost());
    busy_ = false;
    if (result.again) continue;
    const int64_t sleep_us = std::clamp<int64_t>(result.next_wakeup_us - end_us, 0, kMaxSleepUs);
    if (sleep_us > 0) parts_.commands->WaitFor(std::chrono::microseconds(sleep_us));
  }
}

// Microseconds of the step that was finished: since it was begun, or since the one before was over.
int64_t EngineLoop::TakeDuration(int64_t begin_us, int64_t end_us,
                                 const Engine::StepResult& result) {
  if (result.sequences > 0) begun_us_.push_back(begin_us);
  if (result.finished_sequences == 0) return 0;
  const int64_t since_us = std::max(begun_us_.front(), finished_us_);
  begun_us_.pop_front();
  finished_us_ = end_us;
  return end_us - since_us;
}

// Blocks that a transport may still touch cannot be freed: only the end of the process does it. At
// once, as nothing that waits for that transport would come to an end.
void EngineLoop::EndForStuckBlocks() {
  const BlockCounts blocks = core_->engine().Load().blocks;
  LogError("a transport does not give its blocks back; this worker exits to be replaced",
           {{"quarantined", blocks.quarantined}, {"blocks", blocks.total}});
  std::_Exit(kExitToBeReplaced);
}

void EngineLoop::Apply(const EngineCommand& command) {
  if (const auto* watch = std::get_if<WatchOpened>(&command)) {
    // What changed since the last step belongs to those who watch already.
    parts_.watches->PublishEvents(core_->engine().TakeKvEvents());
    parts_.watches->PublishSnapshot(watch->watch, core_->engine().SnapshotKvEvents());
    return;
  }
  if (const auto* router = std::get_if<FromRouter>(&command)) {
    if (const auto* submit = std::get_if<Submit>(&router->message)) {
      parts_.metrics->OnSubmit(submit->spec.prompt_tokens);
      if (LogsDebug()) {
        LogDebug("attempt comes", {{"attempt", NameOf(submit->attempt)},
                                   {"tokens", submit->spec.token_ids.size()},
                                   {"prefill_worker", submit->prefill.worker.name}});
      }
    }
  } else if (std::holds_alternative<DrainEngine>(command)) {
    LogInfo("draining: new attempts are refused, running ones move to other workers");
  }
  core_->Apply(command, clock_.NowUs());
  draining_ = core_->engine().draining();
  if (const auto* lost = std::get_if<PrefillLost>(&command)) {
    // Until now what was said to it went nowhere: a cancel would have dialled it again.
    parts_.prefills->Forget(lost->worker);
  }
}

void EngineLoop::Publish() {
  core_->Publish();
  Engine& engine = core_->engine();
  parts_.watches->PublishEvents(engine.TakeKvEvents());
  drained_ = engine.drained();
  const WorkerLoad load = engine.Load();
  parts_.metrics->OnLoad(load);
  MutexLock lock(&mu_);
  load_ = load;
}

void EngineLoop::MeasureMemory() {
  const int64_t now_us = clock_.NowUs();
  if (parts_.backend == nullptr || now_us < measure_at_us_) return;
  measure_at_us_ = now_us + parts_.measure_memory_us;
  const auto memory = parts_.backend->MeasureMemory();
  if (memory.ok()) {
    failed_looks_ = 0;
    if (memory->has_value()) parts_.metrics->OnDeviceMemory(**memory);
    return;
  }
  parts_.metrics->OnFailedLook();
  ++failed_looks_;
  if (absl::IsDataLoss(memory.status()) || failed_looks_ >= kMaxFailedSteps) {
    Break(memory.status());
  }
}

void EngineLoop::Break(const absl::Status& why) {
  if (why.ok() || broken_.exchange(true)) return;
  const std::optional<GpuIdentity> gpu =
      parts_.backend == nullptr ? std::nullopt : parts_.backend->gpu();
  LogError("no step succeeds here any more; this worker drains and exits to be replaced",
           {{"why", why.ToString()},
            {"gpu_uuid", gpu.has_value() ? gpu->uuid : ""},
            {"pci_address", gpu.has_value() ? gpu->pci_address : ""}});
  parts_.on_broken();
}

WorkerLoad EngineLoop::Load() const {
  const bool busy = busy_;
  const uint64_t work = parts_.executor->work_done();
  if (work_seen_.exchange(work) != work) StampProgress();
  const int64_t stamp_us = progress_us_;
  WorkerLoad load;
  {
    MutexLock lock(&mu_);
    load = load_;
  }
  load.has_work |= busy;
  load.since_progress_us = load.has_work ? std::max<int64_t>(0, clock_.NowUs() - stamp_us) : 0;
  return load;
}

void EngineLoop::SendBatch(SessionId router, const StepBatch& batch) {
  parts_.routers->Publish(router, batch);
}

void EngineLoop::WaitUntilSent(std::span<const SessionId> routers) {
  parts_.routers->WaitUntilWritten(routers, kMaxNoticeWait);
}

void EngineLoop::OnEvent(SessionId, const RouterEvent& event) {
  if (LogsDebug()) LogEvent(event);
  if (std::holds_alternative<TokenEvent>(event)) {
    parts_.metrics->OnToken();
  } else if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
    parts_.metrics->OnPrompt(*prompt);
  }
}

void EngineLoop::ToPrefill(const PrefillPeer& prefill, DecodeToPrefill message) {
  parts_.prefills->Send(prefill, message);
}

void EngineLoop::ToDecode(SessionId decode, PrefillToDecode message) {
  parts_.decodes->Send(decode, message);
}

void EngineLoop::SendFrame(SessionId decode, const FrameHeader& header, BlockId block,
                           uint64_t send_id) {
  parts_.decodes->SendFrame(decode, header, block, send_id);
}

void EngineLoop::WithdrawFrame(SessionId decode, uint64_t send_id) {
  parts_.decodes->WithdrawFrame(decode, send_id);
}

void EngineLoop::OnPromptComputed(int64_t arrived_us, int64_t begun_us) {
  const auto seconds = [](int64_t us) { return static_cast<double>(us) * 1e-6; };
  parts_.metrics->OnPromptComputed(seconds(begun_us - arrived_us),
                                   seconds(clock_.NowUs() - begun_us));
}

void EngineLoop::OnTransferred(int64_t took_us) {
  parts_.metrics->OnTransferSeconds(static_cast<double>(took_us) * 1e-6);
}

void EngineLoop::OnPeerPaused(const WorkerId& prefill, PauseReason reason,
                              const std::string& detail) {
  LogWarning("a prefill worker is paused",
             {{"worker", prefill.name}, {"why", PauseReasonName(reason)}, {"detail", detail}});
  parts_.metrics->OnPeerPaused(reason);
}

}  // namespace tandem
