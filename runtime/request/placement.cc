// Streams to workers, and back when an attempt ends without a finish.

#include <algorithm>
#include <tuple>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/request/request_owner_impl.h"

namespace tandem {

void RequestOwner::Impl::PlaceWaiting(int64_t now_us, bool may_fail) {
  if (!std::exchange(may_place_, false)) return;
  // First come, first served: who needs the same as somebody who found nobody waits behind him.
  std::map<std::tuple<std::string, std::string>, NoRoute> hopeless;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const StreamKey key = *next;
    RequestState& request = requests_.at(key.request);
    std::vector<WorkerDeath> evidence;
    const Guilt guilt = Judge(request.streams[key.stream], now_us, &evidence);
    if (guilt == Guilt::kUndecided || (guilt == Guilt::kProven && !may_fail)) {
      may_place_ = true;  // Tick comes back to it.
      ++next;
      continue;
    }
    if (guilt == Guilt::kProven) {
      next = waiting_.lower_bound({key.request + 1, 0});
      Fail(&request, PoisonError(evidence), RequestOutcome::kPoison, now_us);
      continue;
    }
    if (SiblingOnTrial(request, key.stream, now_us)) {
      ++next;
      continue;
    }
    const auto need = std::tuple(request.facts.model, request.numerics_id);
    const auto known = hopeless.find(need);
    RoutingDecision decision{.route = std::nullopt, .why_not = NoRoute::kAllFull};
    if (known != hopeless.end()) {
      decision.why_not = known->second;
    } else {
      decision = Route(request, request.streams[key.stream], now_us);
    }
    if (decision.route.has_value()) {
      request.nobody_alive_since_us = -1;
      next = waiting_.erase(next);
      SendAttempt(&request, key.stream, *decision.route, now_us);
      continue;
    }
    if (decision.why_not != NoRoute::kTooLong) hopeless.emplace(need, decision.why_not);
    if (decision.why_not == NoRoute::kAllFull && request.started()) {
      // Newcomers may go anywhere: without this they would take every place that it waits for.
      hopeless.emplace(std::tuple(request.facts.model, std::string()), NoRoute::kAllFull);
    }
    ++next;
    const absl::Status why = GiveUpReason(&request, decision.why_not, now_us);
    if (why.ok()) continue;
    if (!may_fail) {
      may_place_ = true;  // Tick comes back to it.
      continue;
    }
    while (next != waiting_.end() && next->request == key.request) ++next;
    Fail(&request, why,
         absl::IsUnavailable(why) ? RequestOutcome::kUnavailable : RequestOutcome::kInvalidArgument,
         now_us);
  }
}

RoutingDecision RequestOwner::Impl::Route(const RequestState& request, const StreamState& stream,
                                          int64_t now_us) {
  const ChoiceState& choice = request.choices[static_cast<size_t>(stream.choices.front())];
  const RoutingRequest wanted{
      .chain = request.chain,
      .num_tokens = request.prompt_tokens() + static_cast<int32_t>(choice.generated.size()),
      .max_total_tokens = request.prompt_tokens() + request.facts.sampling.max_tokens,
      .num_sequences = static_cast<int32_t>(stream.choices.size()),
      .alone = IsSuspect(stream, now_us),
      .model = request.facts.model,
      .numerics_id = request.numerics_id,
      .disaggregate = options_.disaggregate,
  };
  return policy_->Choose(wanted, fleet_, index_, now_us);
}

absl::Status RequestOwner::Impl::GiveUpReason(RequestState* request, NoRoute why_not,
                                              int64_t now_us) {
  if (why_not != NoRoute::kNobodyAlive) request->nobody_alive_since_us = -1;
  switch (why_not) {
    case NoRoute::kAllFull:
      return absl::OkStatus();
    case NoRoute::kTooLong:
      // While workers are missing, one of them may be the larger one.
      if (request->started() || !fleet_.KnownCompletely()) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrFormat("a prompt of %d tokens and up to %d generated ones fit no worker",
                          request->prompt_tokens(), request->facts.sampling.max_tokens));
    case NoRoute::kNobodyAlive:
      if (request->nobody_alive_since_us < 0) request->nobody_alive_since_us = now_us;
      if (request->started() ||
          now_us - request->nobody_alive_since_us < options_.nobody_alive_grace_us) {
        may_place_ = true;
        return absl::OkStatus();
      }
      return absl::UnavailableError(
          absl::StrFormat("no worker for this model for %d s",
                          (now_us - request->nobody_alive_since_us) / 1'000'000));
  }
  return absl::OkStatus();
}

void RequestOwner::Impl::SendAttempt(RequestState* request, size_t index,
                                     const tandem::Route& route, int64_t now_us) {
  StreamState& stream = request->streams[index];
  const FleetWorker* worker = fleet_.Find(route.decode);
  TANDEM_CHECK(worker != nullptr && worker->session != 0) << route.decode.name;
  const ChoiceState& choice = request->choices[static_cast<size_t>(stream.choices.front())];

  SetUnplaced(request, false);
  stream.running = true;
  stream.attempt = ++request->last_attempt;
  stream.session = worker->session;
  stream.worker = route.decode;
  stream.prefill = route.prefill;
  stream.at_worker = stream.choices;
  stream.alone = IsSuspect(stream, now_us);
  stream.chunk.reset();
  if (stream.alone) fleet_.Reserve(stream.worker, true);

  Submit submit{
      .attempt = {.request = {.router_incarnation = options_.router_incarnation,
                              .counter = request->counter},
                  .attempt = stream.attempt},
      .token_ids = request->facts.token_ids,
      .prompt_tokens = request->prompt_tokens(),
      .choices = stream.choices,
      .sampling = request->facts.sampling,
      .time_left_us = std::max<int64_t>(0, request->deadline_us - now_us),
      .hash_root = request->facts.hash_root,
      .model = request->facts.model,
      .trace_context = request->facts.trace_context,
      .alone = stream.alone,
      .prefill = {},
      .disaggregate_from_tokens = 0,
  };
  submit.token_ids.insert(submit.token_ids.end(), choice.generated.begin(), choice.generated.end());
  if (request->prompt_reported) submit.sampling.num_prompt_logprobs = -1;
  const auto num_tokens = static_cast<int64_t>(submit.token_ids.size());
  stream.live_sequences = static_cast<int32_t>(stream.choices.size());
  stream.live_prompt_tokens = std::max<int64_t>(num_tokens - route.known_prefix_tokens, 1);
  fleet_.AddLive(stream.worker, stream.live_sequences, 0);
  fleet_.AddLive(stream.prefill.value_or(stream.worker), 0, stream.live_prompt_tokens);
  if (route.prefill.has_value()) {
    const FleetWorker* prefill = fleet_.Find(*route.prefill);
    TANDEM_CHECK(prefill != nullptr) << route.prefill->name;
    submit.prefill = {.worker = *route.prefill, .address = prefill->address};
    submit.disaggregate_from_tokens = DisaggregateFromTokens(options_.disaggregate);
  }

  running_[stream.session].insert({request->counter, index});
  ++counters_.attempts;
  ++request->report.attempts;
  if (request->report.first_submit_us == 0) request->report.first_submit_us = now_us;
  outbox_->SendSubmit(stream.session, submit);
}

void RequestOwner::Impl::StopPromptCount(StreamState* stream) {
  fleet_.AddLive(stream->prefill.value_or(stream->worker), 0, -stream->live_prompt_tokens);
  stream->live_prompt_tokens = 0;
  if (std::exchange(stream->alone, false)) {
    fleet_.Reserve(stream->worker, false);
    may_place_ = true;
  }
}

void RequestOwner::Impl::DetachAttempt(RequestState* request, size_t index) {
  StreamState& stream = request->streams[index];
  TANDEM_CHECK(stream.running) << "attempt " << stream.attempt;
  StopPromptCount(&stream);
  fleet_.AddLive(stream.worker, -stream.live_sequences, 0);
  stream.live_sequences = 0;
  stream.running = false;
  stream.at_worker.clear();
  const auto running = running_.find(stream.session);
  running->second.erase({request->counter, index});
  if (running->second.empty()) running_.erase(running);
  if (request->report.completion_tokens == 0) SetUnplaced(request, true);
  may_place_ = true;  // There is room now.
}

void RequestOwner::Impl::SendCancelOf(const RequestState& request, size_t index, int64_t now_us) {
  const StreamState& stream = request.streams[index];
  outbox_->SendCancel(
      stream.session,
      tandem::Cancel{.attempt = {.request = {.router_incarnation = options_.router_incarnation,
                                             .counter = request.counter},
                                 .attempt = stream.attempt},
                     .time_left_us = std::max<int64_t>(0, request.deadline_us - now_us)});
}

void RequestOwner::Impl::CancelAttempt(RequestState* request, size_t index, int64_t now_us) {
  SendCancelOf(*request, index, now_us);
  DetachAttempt(request, index);
}

void RequestOwner::Impl::Resume(RequestState* request, size_t index, ResumeReason reason,
                                const std::optional<WorkerId>& lost, int64_t now_us) {
  if (lost.has_value()) AddDeath(request, index, *lost, reason, now_us);
  DetachAttempt(request, index);
  ++counters_.resumes[static_cast<size_t>(reason)];
  ++request->report.resumes;
  Requeue(request, index);
}

void RequestOwner::Impl::Requeue(RequestState* request, size_t index) {
  const std::vector<int32_t> choices = request->streams[index].choices;
  const bool diverged = std::any_of(choices.begin(), choices.end(), [&](int32_t choice) {
    return !request->choices[static_cast<size_t>(choice)].generated.empty();
  });
  waiting_.insert({request->counter, index});
  may_place_ = true;
  if (!diverged) return;
  request->streams[index].choices = {choices.front()};
  for (size_t i = 1; i < choices.size(); ++i) {
    StreamState stream;
    stream.choices = {choices[i]};
    stream.num_computed = request->streams[index].num_computed;
    stream.deaths = request->streams[index].deaths;
    request->choices[static_cast<size_t>(choices[i])].stream = request->streams.size();
    waiting_.insert({request->counter, request->streams.size()});
    request->streams.push_back(std::move(stream));
  }
}

void RequestOwner::Impl::ResumeAll(const WorkerId& worker, SessionId session, ResumeReason reason,
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

void RequestOwner::Impl::ResumePrefills(const FleetWorker& prefill, ResumeReason reason,
                                        int64_t now_us) {
  if (prefill.live_prompt_tokens == 0) return;
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

void RequestOwner::Impl::BreakSession(SessionId session, std::string_view why, ResumeReason reason,
                                      int64_t now_us) {
  const std::optional<WorkerId> worker = fleet_.OnSessionLost(session);
  outbox_->CloseSession(session, why);
  if (worker.has_value()) ResumeAll(*worker, session, reason, now_us);
}

}  // namespace tandem
