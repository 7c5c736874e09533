#include "services/router/router_core.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/server/attempt_name.h"

namespace tandem {
namespace {

constexpr int64_t kMaxSleepUs = 50'000;
constexpr int64_t kViewPeriodUs = 10'000;
constexpr int kMaxFailureLines = 10;  // A second.

absl::Status ShuttingDown() { return absl::UnavailableError("the router is shutting down"); }

}  // namespace

class RouterCore::EndingSink final : public RequestSink {
 public:
  EndingSink(RouterCore* core, Handle handle, std::string label, std::shared_ptr<RequestSink> sink)
      : core_(core), handle_(handle), label_(std::move(label)), sink_(std::move(sink)) {}

  void OnPrompt(const PromptReport& prompt) override { sink_->OnPrompt(prompt); }
  void OnDelta(const Delta& delta) override { sink_->OnDelta(delta); }
  void OnDone(const RequestReport& report) override {
    core_->LogEnd(handle_, label_, absl::OkStatus(), report);
    sink_->OnDone(report);
    core_->ended_.push_back(handle_);
  }
  void OnError(const absl::Status& status, const RequestReport& report) override {
    core_->LogEnd(handle_, label_, status, report);
    sink_->OnError(status, report);
    core_->ended_.push_back(handle_);
  }

 private:
  RouterCore* const core_;
  const Handle handle_;
  const std::string label_;
  const std::shared_ptr<RequestSink> sink_;
};

absl::StatusOr<std::unique_ptr<RouterCore>> RouterCore::Create(const RouterCoreOptions& options,
                                                               const Clock* clock,
                                                               RouterMetrics* metrics) {
  auto core = std::unique_ptr<RouterCore>(new RouterCore(options, clock, metrics));
  TANDEM_ASSIGN_OR_RETURN(
      core->owner_,
      RequestOwner::Create(options.owner,
                           CreateLeastLoadedPrefixPolicy(options.owner.router_incarnation),
                           core.get()));
  if (!options.expected_workers.empty()) core->owner_->ExpectWorkers(options.expected_workers);
  core->PublishView();
  core->thread_ = std::thread([raw = core.get()] { raw->Run(); });
  return core;
}

RouterCore::RouterCore(const RouterCoreOptions& options, const Clock* clock, RouterMetrics* metrics)
    : model_(options.model),
      model_context_(options.max_model_tokens),
      limits_(options.owner),
      clock_(clock),
      metrics_(metrics),
      commands_(options.max_queued_commands) {}

RouterCore::~RouterCore() { Stop(); }

void RouterCore::Stop() {
  stopping_ = true;
  commands_.Wake();
  if (thread_.joinable()) thread_.join();
}

// ---- Posting ----

void RouterCore::StartRequests(std::string label, std::vector<NewRequest> requests) {
  Command command = StartCommand{std::move(label), std::move(requests), clock_->NowUs()};
  if (commands_.TryPush(std::move(command))) return;
  const absl::Status why =
      stopping_ ? ShuttingDown() : absl::ResourceExhaustedError("the router's queue is full");
  metrics_->RefusedCalls(absl::StatusCodeToString(why.code())).Increment();
  for (const NewRequest& request : std::get<StartCommand>(command).requests) {
    request.sink->OnError(why, RequestReport());
  }
}

void RouterCore::CancelRequests(std::vector<Handle> handles) {
  commands_.PushAlways(CancelCommand{std::move(handles)});
}

void RouterCore::PublishThen(std::function<void()> done) {
  if (!commands_.PushAlways(PublishCommand{done})) done();
}

void RouterCore::OnExpected(std::set<std::string> addresses) {
  commands_.PushAlways(ExpectedCommand{std::move(addresses)});
}

void RouterCore::OnWatchUpdate(const std::string& address, const WorkerId& worker,
                               WatchUpdate update, std::shared_ptr<WatchReader> watch,
                               Holding holding) {
  commands_.PushAlways(
      WatchCommand{address, worker, std::move(update), std::move(watch), std::move(holding)});
}

void RouterCore::OnWatchLost(const std::string& address, const WorkerId& worker) {
  commands_.PushAlways(WatchLostCommand{address, worker});
}

void RouterCore::OnSessionUp(const WorkerId& worker, SessionId session,
                             std::shared_ptr<SessionWriter> writer) {
  commands_.PushAlways(SessionUpCommand{worker, session, std::move(writer)});
}

void RouterCore::OnStepBatch(SessionId session, StepBatch batch, Holding holding) {
  commands_.PushAlways(StepCommand{session, std::move(batch), std::move(holding)});
}

void RouterCore::OnSessionLost(SessionId session) {
  commands_.PushAlways(SessionLostCommand{session});
}

FleetView RouterCore::View() const {
  MutexLock lock(&view_mu_);
  return view_;
}

// ---- The thread ----

void RouterCore::Run() {
  pthread_setname_np(pthread_self(), "router");
  int64_t next_view_us = 0;
  while (!stopping_) {
    for (Command& command : commands_.Drain()) {
      std::visit([this](auto& c) { Do(std::move(c)); }, command);
      DropEnded();
    }
    int64_t now_us = clock_->NowUs();
    const int64_t tick_us = owner_->Tick(now_us);
    DropEnded();
    if (now_us >= next_view_us) {
      PublishView();
      next_view_us = now_us + kViewPeriodUs;
    }
    const int64_t sleep_us = std::min(tick_us - now_us, kMaxSleepUs);
    commands_.WaitFor(std::chrono::microseconds(std::max<int64_t>(sleep_us, 0)));
  }
  owner_->FailAll(ShuttingDown(), clock_->NowUs());
  DropEnded();
  PublishView();
  for (const auto& [session, writer] : sessions_) writer->Close();
  sessions_.clear();
  // Whoever was still in the queue hears of it too, and nobody enters it any more.
  for (Command& command : commands_.Close()) {
    if (auto* start = std::get_if<StartCommand>(&command)) {
      for (const NewRequest& request : start->requests) {
        request.sink->OnError(ShuttingDown(), RequestReport());
      }
    } else if (auto* publish = std::get_if<PublishCommand>(&command)) {
      publish->done();
    }
  }
}

int64_t RouterCore::NumWithoutRoom() const {
  return owner_->counters().outcomes[static_cast<size_t>(RequestOutcome::kResourceExhausted)];
}

void RouterCore::Do(StartCommand command) {
  for (NewRequest& request : command.requests) {
    const int64_t now_us = clock_->NowUs();
    if (int64_t& left_us = request.asked.spec.time_left_us; left_us > 0) {
      left_us = std::max<int64_t>(1, left_us - (now_us - command.posted_us));
    }
    auto sink = std::make_unique<EndingSink>(this, request.handle, command.label, request.sink);
    request.asked.sink = sink.get();
    const size_t prompt_tokens = request.asked.spec.token_ids.size();
    const size_t num_choices = request.asked.spec.choices.size();
    const int64_t num_refused = NumWithoutRoom();
    const absl::StatusOr<RequestId> id = owner_->Start(std::move(request.asked), now_us);
    // It, or one that gave way to it.
    if (NumWithoutRoom() > num_refused) TellOfNoRoom();
    if (id.ok()) {
      if (LogsDebug()) {
        LogDebug("request begins", {{"request_id", command.label},
                                    {"request", NameOf(*id)},
                                    {"prompt_tokens", prompt_tokens},
                                    {"choices", num_choices}});
      }
      running_.emplace(request.handle, Running{*id, std::move(sink)});
    } else {
      request.sink->OnError(id.status(), RequestReport());
    }
  }
}

void RouterCore::Do(const CancelCommand& command) {
  for (const Handle handle : command.handles) {
    const auto it = running_.find(handle);
    if (it != running_.end()) owner_->Cancel(it->second.id, clock_->NowUs());
  }
}

void RouterCore::Do(PublishCommand command) {
  PublishView();
  command.done();
}

void RouterCore::Do(ExpectedCommand command) {
  owner_->SetExpectedWorkers(std::move(command.addresses));
}

void RouterCore::Do(const WatchCommand& command) {
  const int64_t now_us = clock_->NowUs();
  if (const auto* said = std::get_if<WorkerRegistration>(&command.update)) {
    // One worker's word would otherwise be every request's context, and only it would have room.
    WorkerRegistration registration = *said;
    registration.max_model_tokens = std::min(registration.max_model_tokens, model_context_);
    absl::Status status = CheckRoutable(registration.terms);
    if (status.ok()) status = owner_->OnRegistration(command.address, registration, now_us);
    if (!status.ok()) {
      if (refused_.insert(command.address).second) {
        LogError("a worker is refused", {{"why", status.ToString()}});
      }
      return command.watch->Refuse();
    }
    refused_.erase(command.address);
    fleet_changed_ = true;
    LogInfo("worker registered", {{"worker", registration.worker.name},
                                  {"address", command.address},
                                  {"role", WorkerRoleName(registration.role)},
                                  {"numerics_id", registration.terms.numerics_id}});
    if (registration.model != model_) {
      LogWarning("a worker serves another model and gets no request",
                 {{"worker", registration.worker.name},
                  {"its_model", registration.model},
                  {"served_model", model_}});
    }
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&command.update)) {
    owner_->OnHeartbeat(command.worker, heartbeat->load, heartbeat->draining, now_us);
  } else {
    owner_->OnKvEvents(command.worker, std::get<KvEvents>(command.update));
  }
  command.watch->ReadNext(owner_->WantsSession(command.worker, now_us));
}

void RouterCore::Do(WatchLostCommand command) {
  const FleetWorker* const worker = owner_->fleet().Find(command.worker);
  if (worker == nullptr || worker->address != command.address) return;
  owner_->OnWatchLost(command.worker);
  fleet_changed_ = true;
}

void RouterCore::Do(SessionUpCommand command) {
  // First, so that what the owner sends at once finds it.
  sessions_[command.session] = command.writer;
  if (!owner_->OnSessionUp(command.worker, command.session, clock_->NowUs())) {
    sessions_.erase(command.session);
    if (owner_->fleet().Find(command.worker) == nullptr) {
      LogWarning("a session is not wanted: its worker is not known in this incarnation",
                 {{"worker", command.worker.name}});
    }
    command.writer->Close();
    return;
  }
  command.writer->ReadNext();
}

void RouterCore::Do(const StepCommand& command) {
  owner_->OnStepBatch(command.session, command.batch, clock_->NowUs());
  const auto it = sessions_.find(command.session);
  if (it != sessions_.end()) it->second->ReadNext();
}

void RouterCore::Do(SessionLostCommand command) {
  sessions_.erase(command.session);
  owner_->OnSessionLost(command.session, clock_->NowUs());
}

void RouterCore::DropEnded() {
  for (Handle handle : std::exchange(ended_, {})) running_.erase(handle);
}

void RouterCore::LogEnd(Handle handle, const std::string& label, const absl::Status& status,
                        const RequestReport& report) {
  // Neither the client's doing nor an overload.
  const bool failed = absl::IsInternal(status) || absl::IsUnavailable(status);
  const int64_t now_us = clock_->NowUs();
  if (failed && now_us >= failure_lines_until_us_) {
    failure_lines_until_us_ = now_us + 1'000'000;
    failure_lines_ = 0;
  }
  const bool told = failed && ++failure_lines_ <= kMaxFailureLines;
  if (!told && !LogsDebug()) return;
  const auto ms_until = [&report](int64_t end_us) {
    return report.arrived_us > 0 ? (end_us - report.arrived_us) / 1000 : 0;
  };
  (told ? LogWarning : LogDebug)(
      failed ? "request failed" : "request ends",
      {{"request_id", label},
       {"request", NameOf(running_.at(handle).id)},
       {"code", absl::StatusCodeToString(status.code())},
       {"why", std::string(status.message())},
       {"prompt_tokens", report.prompt_tokens},
       {"cached_tokens", report.cached_tokens},
       {"completion_tokens", report.completion_tokens},
       {"attempts", report.attempts},
       {"resumes", report.resumes},
       {"waited_ms", ms_until(report.first_submit_us > 0 ? report.first_submit_us : now_us)},
       {"took_ms", ms_until(now_us)}});
}

void RouterCore::TellOfNoRoom() {
  const int64_t now_us = clock_->NowUs();
  if (now_us < next_no_room_line_us_) return;
  next_no_room_line_us_ = now_us + 1'000'000;
  const bool all_run = owner_->num_requests() >= limits_.max_requests;
  LogWarning(all_run ? "requests are refused with 429: no more may be open at once"
                     : "requests are refused with 429: more than --max-queued-requests would wait",
             {{"max_queued_requests", limits_.max_waiting_requests},
              {"open", owner_->num_requests()},
              {"max_open", limits_.max_requests}});
}

// ---- What the owner causes ----

void RouterCore::SendSubmit(SessionId session, const Submit& submit) {
  if (LogsDebug()) {
    const FleetWorker* const worker = owner_->fleet().FindSession(session);
    LogDebug("attempt sent", {{"attempt", NameOf(submit.attempt)},
                              {"worker", worker != nullptr ? worker->id().name : ""},
                              {"tokens", submit.spec.token_ids.size()},
                              {"choices", submit.spec.choices.size()},
                              {"prefill_worker", submit.prefill.worker.name}});
  }
  const auto it = sessions_.find(session);
  if (it != sessions_.end()) it->second->Send(submit);
}

void RouterCore::SendCancel(SessionId session, const Cancel& cancel) {
  const auto it = sessions_.find(session);
  if (it != sessions_.end()) it->second->Send(cancel);
}

void RouterCore::CloseSession(SessionId session, std::string_view why) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  LogWarning("session closed", {{"session", session}, {"why", why}});
  it->second->Close();
  sessions_.erase(it);
}

void RouterCore::RestartWatch(const WorkerId& worker) {
  if (restart_watch_) restart_watch_(worker);
}

void RouterCore::TellOfChanges(const std::vector<LostWorker>& lost) {
  if (leaving_) return;
  for (const LostWorker& worker : changes_.TakeLost(lost)) {
    LogWarning("a worker is lost", {{"worker", worker.name},
                                    {"address", worker.address},
                                    {"role", WorkerRoleName(worker.role)},
                                    {"why", worker.why}});
  }
  if (!std::exchange(fleet_changed_, false)) return;
  for (const UnpairedWorker& worker : changes_.TakeUnpaired(UnpairedWorkers(owner_->fleet()))) {
    LogWarning("a prefill worker computes for nobody: no decode worker can take its blocks",
               {{"worker", worker.name},
                {"address", worker.address},
                {"decode_workers", worker.num_decode},
                {"nearest", worker.decode},
                {"differs", worker.differs},
                {"why", worker.why}});
  }
}

void RouterCore::PublishView() {
  const int64_t now_us = clock_->NowUs();
  const Fleet& fleet = owner_->fleet();
  FleetView view;
  WorkerCounts counts{};
  for (const auto& [name, worker] : fleet.workers()) {
    const WorkerRegistration& registration = worker.registration;
    const bool healthy = fleet.Healthy(worker, now_us);
    view.workers.push_back({.registration = registration,
                            .address = worker.address,
                            .healthy = healthy,
                            .draining = worker.draining,
                            .connected = worker.session != 0});
    const bool there = worker.watched && fleet.FaultOf(worker, now_us) == WorkerFault::kNone;
    const WorkerState state = worker.draining                         ? WorkerState::kDraining
                              : healthy                               ? WorkerState::kHealthy
                              : there && worker.failing.Holds(now_us) ? WorkerState::kFailing
                                                                      : WorkerState::kLost;
    ++counts.of(registration.role, state);
    if (registration.model != model_) continue;
    if (registration.role == WorkerRole::kPrefill) continue;
    ++view.num_decoding;
    if (view.numerics_id.empty()) view.numerics_id = registration.terms.numerics_id;
    if (healthy && worker.session != 0) view.can_decode = true;
  }
  view.known_completely = fleet.KnownCompletely();
  const FleetWorker* const largest = fleet.Largest(model_, /*any_role=*/true);
  if (view.known_completely && largest != nullptr) {
    view.max_model_tokens = largest->offered_tokens();
  }
  view.awaited.assign(fleet.awaited().begin(), fleet.awaited().end());
  view.requests_in_flight = owner_->num_requests();
  for (const auto& [address, missing] : fleet.missing()) {
    ++counts.of(missing.role, WorkerState::kLost);
  }
  view.lost = LostWorkers(fleet, now_us);
  TellOfChanges(view.lost);
  view.num_lost = view.lost.size();
  if (view.num_lost > kMaxShownLost) view.lost.resize(kMaxShownLost);
  metrics_->Publish(counts);
  metrics_->workers_unseen.Set(static_cast<double>(fleet.NumUnseen()));
  metrics_->Publish(owner_->counters());
  metrics_->requests_in_flight.Set(static_cast<double>(owner_->num_requests()));
  metrics_->requests_waiting.Set(static_cast<double>(owner_->num_waiting()));
  max_model_tokens_ = view.max_model_tokens;
  MutexLock lock(&view_mu_);
  view_ = std::move(view);
}

}  // namespace tandem
