// Streams to workers, and back when an attempt ends without a finish.

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/request/request_owner.h"

namespace tandem {

void RequestOwner::Wait(const StreamKey& key) {
  waiting_.Add(key, WaiterOf(key));
  may_place_ = true;
}

WaitingGroups::Waiter RequestOwner::WaiterOf(const StreamKey& key) const {
  const RequestState& request = requests_.at(key.request);
  const StreamState& stream = request.streams[key.stream];
  const bool may_be_suspect = stream.deaths.size() >= kDeathsBeforeRunningAlone;
  const bool avoids =
      std::any_of(stream.deaths.begin(), stream.deaths.end(),
                  [](const WorkerDeath& death) { return death.kind == LossKind::kStepFailed; });
  const int32_t from = DisaggregateFromTokens(options_.disaggregate);
  const int64_t num_tokens = NumTokens(request, stream);
  const bool travels = from > 0 && num_tokens >= from;
  return {.need = {.model = request.asked.model,
                   .numerics_id = request.numerics_id,
                   .offer = offers_.Least(request.asked.model, TotalTokens(request))
                                .value_or(std::numeric_limits<int64_t>::max()),
                   .prompt_offer = travels ? offers_.LeastForPrompt(num_tokens).value_or(0) : 0,
                   .apart = may_be_suspect || avoids ? std::optional(key) : std::nullopt},
          .started = request.started(),
          .client = request.asked.client,
          .turn = request.turn};
}

void RequestOwner::RegroupWaiting() {
  if (!offers_.Update(fleet_)) return;
  may_place_ = true;
  waiting_.Regroup([this](const WaitingStreams::Place& place) {
    requests_.at(place.key.request).turn = place.turn;
    return WaiterOf(place.key);
  });
}

void RequestOwner::PlaceWaiting(int64_t now_us, bool may_fail) {
  if (!std::exchange(may_place_, false)) return;
  std::set<std::string> spoken_for;
  waiting_.Walk([&](WaitingGroups::Group* group) {
    return PlaceFirst(group, now_us, may_fail, &spoken_for);
  });
}

bool RequestOwner::PlaceFirst(WaitingGroups::Group* group, int64_t now_us, bool may_fail,
                              std::set<std::string>* spoken_for) {
  const auto [turn, key] = group->streams.first();
  RequestState& request = requests_.at(key.request);
  const StreamState& stream = request.streams[key.stream];
  std::vector<WorkerDeath> evidence;
  const Suspicion::Guilt guilt = suspicion_.Judge(stream, now_us, &evidence);
  if (guilt == Suspicion::Guilt::kUndecided) return false;  // Tick comes back to it.
  if (guilt == Suspicion::Guilt::kProven) {
    if (!may_fail) return false;  // Tick does.
    Fail(&request, Suspicion::PoisonError(evidence), RequestOutcome::kPoison, now_us);
    return true;
  }
  if (suspicion_.SiblingOnTrial(request, stream)) return false;
  const RoutingDecision decision = ChooseRoute(request, stream, *spoken_for, now_us);
  if (decision.route.has_value()) {
    group->nobody_since_us = -1;
    request.turn = turn;
    waiting_.TakeFirst(group);
    SendAttempt(&request, key.stream, *decision.route, now_us);
    return true;
  }
  // Else those that need less would take every place that frees.
  if (!decision.awaited.empty()) spoken_for->insert(decision.awaited);
  const absl::Status why = GiveUpReason(request, group, decision.why_not, now_us);
  if (why.ok() || !may_fail) return false;  // Tick comes back to it.
  Fail(&request, why, now_us);
  return true;
}

int32_t RequestOwner::NumTokens(const RequestState& request, const StreamState& stream) {
  const ChoiceState& choice = request.choices[static_cast<size_t>(stream.choices.front())];
  return request.prompt_tokens() + static_cast<int32_t>(choice.generated.size());
}

int64_t RequestOwner::TotalTokens(const RequestState& request) const {
  const int64_t prompt_tokens = request.prompt_tokens();
  const int64_t wanted = prompt_tokens + request.asked.spec.sampling.max_tokens;
  if (!request.asked.open_ended) return wanted;
  const FleetWorker* largest = fleet_.Largest(request.asked.model, /*any_role=*/false);
  if (largest == nullptr || largest->offered_tokens() <= prompt_tokens) {
    largest = fleet_.Largest(request.asked.model, /*any_role=*/true);
  }
  if (largest == nullptr) return wanted;
  return std::clamp(largest->offered_tokens(), prompt_tokens + 1, wanted);
}

RoutingDecision RequestOwner::ChooseRoute(const RequestState& request, const StreamState& stream,
                                          const std::set<std::string>& spoken_for, int64_t now_us) {
  RoutingRequest wanted{
      .chain = request.chain,
      .num_tokens = NumTokens(request, stream),
      .max_total_tokens = TotalTokens(request),
      .runs_alone = suspicion_.IsSuspect(stream),
      .model = request.asked.model,
      .numerics_id = request.numerics_id,
      .disaggregate = options_.disaggregate,
      .spoken_for = &spoken_for,
      .avoid = {},
  };
  for (const WorkerDeath& death : stream.deaths) {
    if (death.kind == LossKind::kStepFailed) wanted.avoid.push_back(death.worker);
  }
  return policy_->Choose(wanted, fleet_, index_, now_us);
}

absl::Status RequestOwner::GiveUpReason(const RequestState& request, WaitingGroups::Group* group,
                                        NoRoute why_not, int64_t now_us) {
  if (why_not == NoRoute::kAllFull) {
    group->nobody_since_us = -1;
    return absl::OkStatus();
  }
  if (group->nobody_since_us < 0) group->nobody_since_us = now_us;
  if (request.started()) return absl::OkStatus();  // Its deadline ends it.
  const int64_t since_us = std::max(group->nobody_since_us, request.report.arrived_us);
  const bool in_time = now_us - since_us < options_.nobody_alive_grace_us;
  if (why_not == NoRoute::kNobodyAlive) {
    if (in_time) return absl::OkStatus();
    int32_t num_serving = 0, num_healthy = 0;
    for (const auto& [name, worker] : fleet_.workers()) {
      if (worker.registration.model != request.asked.model) continue;
      ++num_serving;
      num_healthy += fleet_.Healthy(worker, now_us) ? 1 : 0;
    }
    return absl::UnavailableError(absl::StrFormat(
        "no worker for this model that could take it for %d s: of %d workers that are known %d "
        "serve it, and %d of these are healthy; %d more are expected",
        (now_us - since_us) / 1'000'000, fleet_.workers().size(), num_serving, num_healthy,
        fleet_.awaited().size()));
  }
  // While workers are missing, one of them may be the larger one.
  if (in_time && !fleet_.KnownCompletely()) return absl::OkStatus();
  const FleetWorker& largest = *fleet_.Largest(request.asked.model, /*any_role=*/true);
  return absl::InvalidArgumentError(absl::StrFormat(
      "a prompt of %d tokens and up to %d generated ones need a worker that holds %d; the largest, "
      "%s, has a context of %d and %d blocks of %d",
      request.prompt_tokens(), TotalTokens(request) - request.prompt_tokens(), TotalTokens(request),
      largest.id().name, largest.registration.max_model_tokens, largest.registration.kv.num_blocks,
      largest.registration.kv.block_tokens));
}

void RequestOwner::SendAttempt(RequestState* request, size_t index, const Route& route,
                               int64_t now_us) {
  StreamState& stream = request->streams[index];
  const FleetWorker* worker = fleet_.Find(route.decode);
  TANDEM_CHECK(worker != nullptr && worker->session != 0) << route.decode.name;
  const ChoiceState& choice = request->choices[static_cast<size_t>(stream.choices.front())];

  unplaced_.Remove(request->asked.client, request->counter);
  stream.running = true;
  stream.attempt = ++request->last_attempt;
  stream.session = worker->session;
  stream.worker = route.decode;
  stream.prefill = route.prefill;
  stream.num_tokens = NumTokens(*request, stream);
  stream.at_worker = stream.choices;
  stream.runs_alone = suspicion_.IsSuspect(stream);
  stream.chunk.reset();
  if (stream.runs_alone) fleet_.Reserve(stream.worker, true);
  SamplingParams& sampling = request->asked.spec.sampling;
  sampling.max_tokens = static_cast<int32_t>(TotalTokens(*request) - request->prompt_tokens());
  sampling.min_tokens = std::min(sampling.min_tokens, sampling.max_tokens);
  request->asked.open_ended = false;

  Submit submit{
      .attempt = {.request = {.router_incarnation = options_.router_incarnation,
                              .counter = request->counter},
                  .attempt = stream.attempt},
      .spec = request->asked.spec,
      .model = request->asked.model,
      .prefill = {},
      .disaggregate_from_tokens = 0,
  };
  RequestSpec& spec = submit.spec;
  spec.token_ids.insert(spec.token_ids.end(), choice.generated.begin(), choice.generated.end());
  spec.choices = stream.choices;
  spec.time_left_us = std::max<int64_t>(0, request->deadline_us - now_us);
  spec.runs_alone = stream.runs_alone;
  if (request->prompt_reported) spec.sampling.num_prompt_logprobs = -1;
  stream.live_sequences = static_cast<int32_t>(stream.choices.size());
  stream.live_prompt_tokens = std::max(stream.num_tokens - route.known_prefix_tokens, 1);
  fleet_.AddLive(stream.worker, {.attempts = 1, .sequences = stream.live_sequences});
  fleet_.AddLive(stream.prefill.value_or(stream.worker), LivePrompt(stream));
  if (route.prefill.has_value()) {
    const FleetWorker* prefill = fleet_.Find(*route.prefill);
    TANDEM_CHECK(prefill != nullptr) << route.prefill->name;
    submit.prefill = {.worker = *route.prefill, .address = prefill->address};
    submit.disaggregate_from_tokens = DisaggregateFromTokens(options_.disaggregate);
  }

  running_[stream.session].insert({request->counter, index});
  ++counters_.routes[static_cast<size_t>(route.reason)][route.prefill.has_value() ? 1 : 0];
  ++request->report.attempts;
  if (request->report.first_submit_us == 0) request->report.first_submit_us = now_us;
  outbox_->SendSubmit(stream.session, submit);
}

LiveWork RequestOwner::LivePrompt(const StreamState& stream) {
  return {.prompts = stream.prefill.has_value() ? 1 : 0,
          .prompt_tokens = stream.live_prompt_tokens};
}

void RequestOwner::StopPromptCount(StreamState* stream) {
  if (stream->live_prompt_tokens == 0) return;
  fleet_.AddLive(stream->prefill.value_or(stream->worker), -LivePrompt(*stream));
  stream->live_prompt_tokens = 0;
  if (std::exchange(stream->runs_alone, false)) fleet_.Reserve(stream->worker, false);
  may_place_ = true;  // For a prompt, or for what must run alone.
}

void RequestOwner::DetachAttempt(RequestState* request, size_t index) {
  StreamState& stream = request->streams[index];
  TANDEM_CHECK(stream.running) << "attempt " << stream.attempt;
  StopPromptCount(&stream);
  fleet_.AddLive(stream.worker, -LiveWork{.attempts = 1, .sequences = stream.live_sequences});
  stream.live_sequences = 0;
  stream.running = false;
  stream.at_worker.clear();
  const auto running = running_.find(stream.session);
  running->second.erase({request->counter, index});
  if (running->second.empty()) running_.erase(running);
  if (request->report.completion_tokens == 0) {
    unplaced_.Add(request->asked.client, request->counter);
  }
  may_place_ = true;  // There is room now.
}

void RequestOwner::SendCancelOf(const RequestState& request, size_t index, int64_t now_us) {
  const StreamState& stream = request.streams[index];
  outbox_->SendCancel(
      stream.session,
      tandem::Cancel{.attempt = {.request = {.router_incarnation = options_.router_incarnation,
                                             .counter = request.counter},
                                 .attempt = stream.attempt},
                     .time_left_us = std::max<int64_t>(0, request.deadline_us - now_us)});
}

void RequestOwner::CancelAttempt(RequestState* request, size_t index, int64_t now_us) {
  SendCancelOf(*request, index, now_us);
  DetachAttempt(request, index);
}

void RequestOwner::Resume(RequestState* request, size_t index, ResumeReason reason,
                          const std::optional<WorkerId>& lost, int64_t now_us) {
  if (lost.has_value()) {
    suspicion_.AddDeath(*request, *lost, reason, now_us, &request->streams[index]);
  }
  DetachAttempt(request, index);
  ++counters_.resumes[static_cast<size_t>(reason)];
  ++request->report.resumes;
  Requeue(request, index);
}

void RequestOwner::Requeue(RequestState* request, size_t index) {
  const std::vector<int32_t> choices = request->streams[index].choices;
  const bool diverged = std::any_of(choices.begin(), choices.end(), [&](int32_t choice) {
    return !request->choices[static_cast<size_t>(choice)].generated.empty();
  });
  if (diverged) request->streams[index].choices = {choices.front()};
  Wait({request->counter, index});
  if (!diverged) return;
  for (size_t i = 1; i < choices.size(); ++i) {
    StreamState stream;
    stream.choices = {choices[i]};
    stream.num_computed = request->streams[index].num_computed;
    stream.deaths = request->streams[index].deaths;
    request->choices[static_cast<size_t>(choices[i])].stream = request->streams.size();
    request->streams.push_back(std::move(stream));
    Wait({request->counter, request->streams.size() - 1});
  }
}

void RequestOwner::ResumeAll(const WorkerId& worker, SessionId session, ResumeReason reason,
                             int64_t now_us) {
  const auto running = running_.find(session);
  const std::set<StreamKey> keys =
      running == running_.end() ? std::set<StreamKey>() : running->second;
  const FleetWorker* const known = fleet_.Find(worker);
  const bool leaves = known != nullptr && known->draining;  // As it was asked to.
  const std::optional<WorkerId> lost = leaves ? std::nullopt : std::optional(worker);
  for (const StreamKey& key : keys) {
    Resume(&requests_.at(key.request), key.stream, reason, lost, now_us);
  }
}

void RequestOwner::ResumePrefills(const FleetWorker& prefill, ResumeReason reason, int64_t now_us) {
  if (prefill.live.prompt_tokens == 0) return;
  std::vector<StreamKey> stuck;
  for (const auto& [session, keys] : running_) {
    for (const StreamKey& key : keys) {
      const StreamState& stream = requests_.at(key.request).streams[key.stream];
      if (stream.prefill == prefill.id() && stream.live_prompt_tokens > 0) stuck.push_back(key);
    }
  }
  for (const StreamKey& key : stuck) {
    RequestState& request = requests_.at(key.request);
    SendCancelOf(request, key.stream, now_us);
    Resume(&request, key.stream, reason, prefill.id(), now_us);
  }
}

void RequestOwner::BreakSession(SessionId session, std::string_view why, ResumeReason reason,
                                int64_t now_us) {
  const std::optional<WorkerId> worker = fleet_.OnSessionLost(session);
  outbox_->CloseSession(session, why);
  if (worker.has_value()) ResumeAll(*worker, session, reason, now_us);
}

}  // namespace tandem
