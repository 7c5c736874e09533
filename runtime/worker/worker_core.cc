#include "runtime/worker/worker_core.h"

#include <variant>

#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<WorkerCore>> WorkerCore::Create(
    const EngineOptions& options, Executor* executor, RouterLinks* routers, PeerOutbox* peers,
    KvReceiver* receiver, LeaseKeeper* leases, TokenMasker* masker) {
  std::unique_ptr<WorkerCore> core(new WorkerCore(options, routers, leases));
  TANDEM_ASSIGN_OR_RETURN(core->engine_, Engine::Create(options, executor, core.get(), peers,
                                                        receiver, leases, masker));
  return core;
}

WorkerCore::WorkerCore(const EngineOptions& options, RouterLinks* routers, LeaseKeeper* leases)
    : incarnation_(options.self.incarnation),
      engine_stalled_us_(options.times.engine_stalled_us),
      routers_(routers),
      leases_(leases) {}

void WorkerCore::Apply(const EngineCommand& command, int64_t now_us) {
  Engine& engine = *engine_;
  if (const auto* router = std::get_if<FromRouter>(&command)) {
    if (const auto* submit = std::get_if<Submit>(&router->message)) {
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
    engine.OnPrefillLost(lost_prefill->worker, lost_prefill->why, now_us);
  } else if (std::holds_alternative<DrainEngine>(command)) {
    engine.Drain(now_us);
  }
}

void WorkerCore::Publish() {
  for (auto& [router, batch] : batches_) {
    batch.worker_incarnation = incarnation_;
    batch.draining = engine_->draining();
    routers_->SendBatch(router, batch);
  }
  batches_.clear();
}

Renewals WorkerCore::RenewalsDue(int64_t since_progress_us) const {
  Renewals due{.leases = leases_->LeaseRenewals(), .reservations = {}};
  if (since_progress_us < engine_stalled_us_) due.reservations = leases_->ReservationRenewals();
  return due;
}

void WorkerCore::ToRouter(SessionId router, RouterEvent event) {
  routers_->OnEvent(router, event);
  batches_[router].events.push_back(std::move(event));
}

void WorkerCore::BeginChunks(std::span<const ChunkNotice> chunks) {
  routers_->OnChunks(chunks);
  const std::vector<SessionId> all = routers_->Routers();
  for (const ChunkNotice& notice : chunks) {
    if (notice.router.has_value()) {
      batches_[*notice.router].chunks.push_back(notice.chunk);
    } else {
      for (const SessionId router : all) batches_[router].chunks.push_back(notice.chunk);
    }
  }
  std::vector<SessionId> told;
  for (const auto& [router, batch] : batches_) told.push_back(router);
  Publish();
  routers_->WaitUntilSent(told);
}

void WorkerCore::OnPromptComputed(int64_t arrived_us, int64_t begun_us) {
  routers_->OnPromptComputed(arrived_us, begun_us);
}

}  // namespace tandem
