#include "services/worker/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/server/attempt_name.h"

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
  std::unique_ptr<EngineLoop> loop(new EngineLoop(parts, options.self.incarnation));
  TANDEM_ASSIGN_OR_RETURN(loop->engine_, Engine::Create(options, parts.executor, loop.get(),
                                                        parts.receiver, parts.leases));
  loop->StampProgress();
  loop->Publish();
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
    const Engine::StepResult result = engine_->Step(begin_us);
    const int64_t end_us = clock_.NowUs();
    parts_.metrics->OnStep(static_cast<double>(end_us - begin_us) * 1e-6, result);
    Publish();
    if (result.failed) LogError("a step failed", {{"sequences", result.sequences}});
    if (engine_->quarantine_is_stuck()) {
      Replace("a transport does not give its blocks back; this worker exits to be replaced");
    }
    if (engine_->steps_keep_failing()) {
      Replace("every step fails; this worker exits to be replaced");
    }
    busy_ = false;
    if (result.again) continue;
    const int64_t sleep_us = std::clamp<int64_t>(result.next_wakeup_us - end_us, 0, kMaxSleepUs);
    if (sleep_us > 0) parts_.commands->WaitFor(std::chrono::microseconds(sleep_us));
  }
}

// Blocks that a transport may still touch cannot be freed: only the end of the process does it. At
// once, as nothing that waits for that transport would come to an end.
void EngineLoop::Replace(std::string_view why) {
  const BlockCounts blocks = engine_->Load().blocks;
  LogError(why, {{"quarantined", blocks.quarantined}, {"blocks", blocks.total}});
  std::_Exit(kExitToBeReplaced);
}

void EngineLoop::Apply(const EngineCommand& command) {
  const int64_t now_us = clock_.NowUs();
  Engine& engine = *engine_;
  if (const auto* router = std::get_if<FromRouter>(&command)) {
    if (const auto* submit = std::get_if<Submit>(&router->message)) {
      parts_.metrics->OnSubmit(submit->spec.prompt_tokens);
      if (LogsDebug()) {
        LogDebug("attempt comes", {{"attempt", NameOf(submit->attempt)},
                                   {"tokens", submit->spec.token_ids.size()},
                                   {"prefill_worker", submit->prefill.worker.name}});
      }
      engine.OnSubmit(router->session, *submit, now_us, router->charge);
    } else {
      engine.OnCancel(router->session, std::get<Cancel>(router->message), now_us);
    }
  } else if (const auto* sent = std::get_if<FrameSent>(&command)) {
    engine.OnFrameSent(sent->send_id, sent->ok, now_us);
  } else if (const auto* arrived = std::get_if<FrameArrived>(&command)) {
    engine.OnFrameReceived(arrived->frame, now_us);
  } else if (const auto* decode = std::get_if<FromDecode>(&command)) {
    engine.OnDecodeMessage(decode->session, decode->message, now_us, decode->charge);
  } else if (const auto* prefill = std::get_if<FromPrefill>(&command)) {
    engine.OnPrefillMessage(prefill->worker, prefill->message, now_us);
  } else if (const auto* lost_router = std::get_if<RouterLost>(&command)) {
    engine.OnRouterLost(lost_router->session, now_us);
  } else if (const auto* lost_decode = std::get_if<DecodeLost>(&command)) {
    engine.OnDecodeLost(lost_decode->session, now_us);
  } else if (const auto* lost_prefill = std::get_if<PrefillLost>(&command)) {
    // Until it is forgotten, what is said to it goes nowhere: a cancel would dial it again.
    engine.OnPrefillLost(lost_prefill->worker, lost_prefill->why, now_us);
    parts_.prefills->Forget(lost_prefill->worker);
  } else if (const auto* watch = std::get_if<WatchOpened>(&command)) {
    // What changed since the last step belongs to those who watch already.
    parts_.watches->PublishEvents(engine.TakeKvEvents());
    parts_.watches->PublishSnapshot(watch->watch, engine.SnapshotKvEvents());
  } else {
    LogInfo("draining: new attempts are refused, running ones move to other workers");
    draining_ = true;
    engine.Drain(now_us);
  }
}

void EngineLoop::PublishToRouters() {
  for (auto& [session, batch] : batches_) {
    batch.worker_incarnation = incarnation_;
    batch.draining = draining_;
    parts_.routers->Publish(session, batch);
  }
  batches_.clear();
}

void EngineLoop::Publish() {
  PublishToRouters();
  const KvEvents events = engine_->TakeKvEvents();
  if (!events.stored.empty() || !events.removed.empty()) parts_.watches->PublishEvents(events);
  drained_ = draining_ && engine_->drained();
  const WorkerLoad load = engine_->Load();
  parts_.metrics->OnLoad(load);
  MutexLock lock(&mu_);
  load_ = load;
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

void EngineLoop::ToRouter(SessionId router, RouterEvent event) {
  if (LogsDebug()) LogEvent(event);
  if (std::holds_alternative<TokenEvent>(event)) {
    parts_.metrics->OnToken();
  } else if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
    parts_.metrics->OnPrompt(*prompt);
  }
  batches_[router].events.push_back(std::move(event));
}

void EngineLoop::BeginChunks(std::span<const ChunkNotice> chunks) {
  const std::vector<SessionId> all = parts_.routers->ids();
  for (const ChunkNotice& notice : chunks) {
    if (notice.router.has_value()) {
      batches_[*notice.router].chunks.push_back(notice.chunk);
    } else {
      for (const SessionId router : all) batches_[router].chunks.push_back(notice.chunk);
    }
  }
  std::vector<SessionId> told;
  for (const auto& [session, batch] : batches_) told.push_back(session);
  PublishToRouters();
  parts_.routers->WaitUntilWritten(told, kMaxNoticeWait);
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

void EngineLoop::OnPeerPaused(const WorkerId& prefill, PauseReason reason) {
  LogWarning("a prefill worker is paused",
             {{"worker", prefill.name}, {"why", PauseReasonName(reason)}});
  parts_.metrics->OnPeerPaused(reason);
}

}  // namespace tandem
