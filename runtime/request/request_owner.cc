#include "runtime/request/request_owner.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<RequestId> RequestOwner::Start(ClientRequest asked, int64_t now_us) {
  TANDEM_CHECK(asked.sink != nullptr);
  const auto refused = [this](absl::Status why) {
    ++counters_.outcomes[static_cast<size_t>(OutcomeOf(why))];
    return why;
  };
  if (asked.spec.time_left_us == 0) asked.spec.time_left_us = kDefaultDeadlineUs;
  if (absl::Status status = Validate(asked.spec, {}); !status.ok()) return refused(status);
  if (const auto num_tokens = std::ssize(asked.spec.token_ids);
      num_tokens > asked.spec.prompt_tokens) {
    return refused(absl::InvalidArgumentError(
        absl::StrFormat("a prompt of %d tokens in %d", asked.spec.prompt_tokens, num_tokens)));
  }
  const bool empty_stop = std::any_of(asked.stop_strings.begin(), asked.stop_strings.end(),
                                      [](const std::string& stop) { return stop.empty(); });
  if (empty_stop || (!asked.stop_strings.empty() && asked.make_detokenizer == nullptr)) {
    return refused(
        absl::InvalidArgumentError("a stop string is empty, or there is no text to match"));
  }
  if (static_cast<int64_t>(requests_.size()) >= options_.max_requests &&
      !GiveWay(asked.client, now_us)) {
    return refused(absl::ResourceExhaustedError(absl::StrFormat(
        "%d requests are open, at most %d may be", requests_.size(), options_.max_requests)));
  }
  if (unplaced_.size() >= options_.max_waiting_requests && !GiveWay(asked.client, now_us)) {
    return refused(absl::ResourceExhaustedError(
        absl::StrFormat("%d requests wait for a worker, at most %d may", unplaced_.size(),
                        options_.max_waiting_requests)));
  }

  const uint64_t counter = ++last_counter_;
  RequestState& request = requests_[counter];
  request.counter = counter;
  request.asked = std::move(asked);
  request.chain = HashChain(request.asked.spec.hash_root, request.asked.spec.token_ids);
  request.deadline_us = CheckedAdd(now_us, request.asked.spec.time_left_us).value_or(INT64_MAX);
  request.report.arrived_us = now_us;
  request.report.prompt_tokens = request.asked.spec.prompt_tokens;
  request.stops =
      std::make_shared<const std::vector<std::string>>(std::move(request.asked.stop_strings));
  request.choices.resize(request.asked.spec.choices.size());
  StreamState stream;
  stream.choices = request.asked.spec.choices;
  request.streams.push_back(std::move(stream));
  deadlines_.Set(counter, request.deadline_us);
  Wait({counter, 0});
  unplaced_.Add(request.asked.client, counter);
  PlaceWaiting(now_us, /*may_fail=*/false);
  return RequestId{.router_incarnation = options_.router_incarnation, .counter = counter};
}

RequestState* RequestOwner::Find(const RequestId& id) {
  if (id.router_incarnation != options_.router_incarnation) return nullptr;
  const auto found = requests_.find(id.counter);
  return found == requests_.end() ? nullptr : &found->second;
}

bool RequestOwner::Cancel(const RequestId& id, int64_t now_us) {
  RequestState* request = Find(id);
  if (request == nullptr) return false;
  Fail(request, absl::CancelledError("cancelled by its client"), now_us);
  PlaceWaiting(now_us, /*may_fail=*/true);
  return true;
}

void RequestOwner::FailAll(const absl::Status& why, int64_t now_us) {
  while (!requests_.empty()) {
    Fail(&requests_.begin()->second, why, now_us);
  }
}

void RequestOwner::Finish(RequestState* request) {
  ++counters_.outcomes[static_cast<size_t>(RequestOutcome::kDone)];
  RequestSink* const sink = request->asked.sink;
  const RequestReport report = request->report;
  Erase(request);
  sink->OnDone(report);
}

void RequestOwner::Fail(RequestState* request, const absl::Status& status, int64_t now_us) {
  Fail(request, status, OutcomeOf(status), now_us);
}

void RequestOwner::Fail(RequestState* request, const absl::Status& status, RequestOutcome outcome,
                        int64_t now_us) {
  ++counters_.outcomes[static_cast<size_t>(outcome)];
  for (size_t i = 0; i < request->streams.size(); ++i) {
    // An attempt that has ended gets a Cancel too many, which workers ignore.
    if (request->streams[i].running) CancelAttempt(request, i, now_us);
  }
  RequestSink* const sink = request->asked.sink;
  const RequestReport report = request->report;
  Erase(request);
  sink->OnError(status, report);
}

void RequestOwner::Erase(RequestState* request) {
  const uint64_t counter = request->counter;
  const std::string& client = request->asked.client;
  for (size_t i = 0; i < request->streams.size(); ++i) waiting_.Remove({counter, i}, client);
  deadlines_.Remove(counter);
  unplaced_.Remove(client, counter);
  requests_.erase(counter);
}

bool RequestOwner::GiveWay(const std::string& client, int64_t now_us) {
  const std::optional<UnplacedRequests::Youngest> youngest = unplaced_.WhoGivesWayTo(client);
  if (!youngest.has_value()) return false;
  Fail(&requests_.at(youngest->request),
       absl::ResourceExhaustedError(absl::StrFormat(
           "%d requests wait for a worker, at most %d may; of the %d of this client the youngest "
           "gives way to others'",
           unplaced_.size(), options_.max_waiting_requests, youngest->of_its_client)),
       now_us);
  return true;
}

absl::Status RequestOwner::OnRegistration(const std::string& address,
                                          const WorkerRegistration& registration, int64_t now_us) {
  for (auto& [counter, request] : requests_) {
    for (StreamState& stream : request.streams) suspicion_.ForgetOutlived(&stream);
  }
  TANDEM_ASSIGN_OR_RETURN(const auto replaced,
                          fleet_.OnRegistration(address, registration, now_us));
  for (auto& [counter, request] : requests_) {
    for (StreamState& stream : request.streams) {
      suspicion_.LearnEnds(registration.worker.name, &stream);
    }
  }
  RegroupWaiting();
  index_.AddWorker(registration.worker, registration.kv.block_tokens);
  for (const Fleet::Replaced& ended : replaced) {
    index_.RemoveWorker(ended.worker);  // Unless it is the same name, which it has anew.
    if (ended.session == 0) continue;
    outbox_->CloseSession(ended.session, "the worker has restarted");
    ResumeAll(ended.worker, ended.session, ResumeReason::kRestarted, now_us);
  }
  may_place_ = true;
  PlaceWaiting(now_us, /*may_fail=*/true);
  return absl::OkStatus();
}

void RequestOwner::OnHeartbeat(const WorkerId& worker, const WorkerLoad& load, bool draining,
                               int64_t now_us) {
  if (!fleet_.OnHeartbeat(worker, load, draining, now_us)) {
    outbox_->RestartWatch(worker);  // Its registration was refused.
    return;
  }
  may_place_ = true;
  PlaceWaiting(now_us, /*may_fail=*/true);
}

void RequestOwner::OnKvEvents(const WorkerId& worker, const KvEvents& events) {
  if (!index_.Apply(worker, events)) outbox_->RestartWatch(worker);
  if (events.snapshot) fleet_.OnSnapshot(worker);
}

void RequestOwner::OnWatchLost(const WorkerId& worker) { fleet_.OnWatchLost(worker); }

bool RequestOwner::WantsSession(const WorkerId& worker, int64_t now_us) const {
  const FleetWorker* const known = fleet_.Find(worker);
  return known != nullptr && fleet_.FaultOf(*known, now_us) == WorkerFault::kNone;
}

bool RequestOwner::OnSessionUp(const WorkerId& worker, SessionId session, int64_t now_us) {
  if (!WantsSession(worker, now_us)) return false;
  if (!fleet_.OnSessionUp(worker, session)) return false;
  may_place_ = true;
  PlaceWaiting(now_us, /*may_fail=*/true);
  return true;
}

void RequestOwner::OnSessionLost(SessionId session, int64_t now_us) {
  const std::optional<WorkerId> worker = fleet_.OnSessionLost(session);
  if (!worker.has_value()) return;
  ResumeAll(*worker, session, ResumeReason::kSessionLost, now_us);
  PlaceWaiting(now_us, /*may_fail=*/true);
}

int64_t RequestOwner::Tick(int64_t now_us) {
  const int64_t heartbeat_us = options_.times.heartbeat_us;
  if (last_tick_us_ >= 0 && now_us - last_tick_us_ > options_.times.no_new_work_after_us) {
    fleet_.OnOwnPause(now_us - last_tick_us_ - heartbeat_us, now_us);
  }
  last_tick_us_ = now_us;

  for (const auto& [name, worker] : fleet_.workers()) {
    const WorkerFault fault = fleet_.FaultOf(worker, now_us);
    if (fault == WorkerFault::kNone) continue;
    const bool silent = fault == WorkerFault::kSilent;
    const ResumeReason reason = silent ? ResumeReason::kSilent : ResumeReason::kStalled;
    ResumePrefills(worker, reason, now_us);
    if (worker.session == 0) continue;
    BreakSession(worker.session, silent ? "the worker is silent" : "the worker makes no progress",
                 reason, now_us);
  }
  for (const WorkerId& gone : fleet_.ForgetGone(now_us)) index_.RemoveWorker(gone);
  RegroupWaiting();

  while (const std::optional<uint64_t> due = deadlines_.PopDue(now_us)) {
    RequestState& request = requests_.at(*due);
    const bool waits = waiting_.WaitsFor(request.counter);
    Fail(&request,
         absl::DeadlineExceededError(
             absl::StrFormat("%d tokens generated in %d ms%s", request.report.completion_tokens,
                             (now_us - request.report.arrived_us) / 1000,
                             waits ? "; it was waiting for a worker that could take it" : "")),
         now_us);
  }
  if (!waiting_.empty()) may_place_ = true;  // Who was healthy may no longer be.
  PlaceWaiting(now_us, /*may_fail=*/true);
  return std::min(now_us + heartbeat_us, deadlines_.next_us());
}

absl::StatusOr<std::unique_ptr<RequestOwner>> RequestOwner::Create(
    const RequestOwnerOptions& options, std::unique_ptr<RoutingPolicy> policy,
    RouterOutbox* outbox) {
  TANDEM_CHECK(policy != nullptr && outbox != nullptr);
  if (options.router_incarnation == 0 || options.max_requests < 1 ||
      options.max_waiting_requests < 1 || options.max_index_entries < 1 ||
      options.nobody_alive_grace_us < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "router incarnation %x, max_requests %d, max_waiting_requests %d, max_index_entries %d, "
        "nobody_alive_grace_us %d",
        options.router_incarnation, options.max_requests, options.max_waiting_requests,
        options.max_index_entries, options.nobody_alive_grace_us));
  }
  return std::unique_ptr<RequestOwner>(new RequestOwner(options, std::move(policy), outbox));
}

}  // namespace tandem
