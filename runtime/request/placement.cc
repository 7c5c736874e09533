// Streams to workers, and back when an attempt ends without a finish.

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/request/request_owner_impl.h"

namespace tandem {

void RequestOwner::Impl::Wait(const StreamKey& key) {
  const RequestState& request = requests_.at(key.request);
  const Group none = {.streams = WaitingStreams(&last_turn_)};
  const auto group = groups_.try_emplace(NeedOf(key), none).first;
  if (request.started()) {
    group->second.streams.AddStarted(key);
  } else {
    group->second.streams.Add(key, request.facts.client, request.turn);
  }
  waiting_.emplace(key, group);
  may_place_ = true;
}

void RequestOwner::Impl::StopWaiting(const StreamKey& key) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  found->second->second.streams.Remove(key, requests_.at(key.request).facts.client);
  waiting_.erase(found);
}

RequestOwner::Impl::Need RequestOwner::Impl::NeedOf(const StreamKey& key) const {
  const RequestState& request = requests_.at(key.request);
  const StreamState& stream = request.streams[key.stream];
  const auto offer = offers_.lower_bound({request.facts.model, TotalTokens(request)});
  const bool fits = offer != offers_.end() && offer->first == request.facts.model;
  const bool may_be_suspect = stream.deaths.size() >= kDeathsBeforeAlone;
  const bool avoids =
      std::any_of(stream.deaths.begin(), stream.deaths.end(),
                  [](const WorkerDeath& death) { return death.kind == LossKind::kStepFailed; });
  const int32_t from = DisaggregateFromTokens(options_.disaggregate);
  const int64_t num_tokens = NumTokens(request, stream);
  const auto prompt_offer = prompt_offers_.lower_bound(num_tokens);
  const bool travels = from > 0 && num_tokens >= from && prompt_offer != prompt_offers_.end();
  return {.model = request.facts.model,
          .numerics_id = request.numerics_id,
          .offer = fits ? offer->second : std::numeric_limits<int64_t>::max(),
          .prompt_offer = travels ? *prompt_offer : 0,
          .apart = may_be_suspect || avoids ? std::optional(key) : std::nullopt};
}

void RequestOwner::Impl::RegroupWaiting() {
  std::set<std::pair<std::string, int64_t>> offers;
  std::set<int64_t> prompt_offers;
  for (const auto& [name, worker] : fleet_.workers()) {
    offers.emplace(worker.registration.model, worker.offered_tokens());
    if (worker.registration.role == WorkerRole::kPrefill) {
      prompt_offers.insert(worker.offered_prompt_tokens());
    }
  }
  if (offers == offers_ && prompt_offers == prompt_offers_) return;
  offers_ = std::move(offers);
  prompt_offers_ = std::move(prompt_offers);
  const Groups groups = std::exchange(groups_, {});
  waiting_.clear();
  std::map<WaitingStreams::Place, const Group*> line;  // Clients stay in it as they are.
  for (const auto& [need, group] : groups) {
    for (const WaitingStreams::Place& place : group.streams.all()) line.emplace(place, &group);
  }
  for (const auto& [place, group] : line) {
    requests_.at(place.key.request).turn = place.turn;
    Wait(place.key);
    // The latest of those that it is made of: nobody's patience ends before its time.
    int64_t& since_us = waiting_.at(place.key)->second.nobody_since_us;
    since_us = std::max(since_us, group->nobody_since_us);
  }
}

void RequestOwner::Impl::PlaceWaiting(int64_t now_us, bool may_fail) {
  if (!std::exchange(may_place_, false)) return;
  std::erase_if(groups_, [](const auto& entry) { return entry.second.streams.empty(); });
  std::map<WaitingStreams::Place, Group*> firsts;  // Of each group.
  for (auto& [need, group] : groups_) firsts.emplace(group.streams.first(), &group);
  std::set<std::string> spoken_for;
  while (!firsts.empty()) {
    Group* const group = firsts.extract(firsts.begin()).mapped();
    // What a request that has failed left behind is not there any more.
    if (group->streams.empty() || !PlaceFirst(group, now_us, may_fail, &spoken_for)) continue;
    if (!group->streams.empty()) firsts.emplace(group->streams.first(), group);
  }
}

bool RequestOwner::Impl::PlaceFirst(Group* group, int64_t now_us, bool may_fail,
                                    std::set<std::string>* spoken_for) {
  const auto [turn, key] = group->streams.first();
  RequestState& request = requests_.at(key.request);
  std::vector<WorkerDeath> evidence;
  const Guilt guilt = Judge(request.streams[key.stream], now_us, &evidence);
  if (guilt == Guilt::kUndecided || (guilt == Guilt::kProven && !may_fail)) {
    may_place_ = true;  // Tick comes back to it.
    return false;
  }
  if (guilt == Guilt::kProven) {
    Fail(&request, PoisonError(evidence), RequestOutcome::kPoison, now_us);
    return true;
  }
  if (SiblingOnTrial(request, key.stream)) return false;
  const RoutingDecision decision = Route(request, request.streams[key.stream], *spoken_for, now_us);
  if (decision.route.has_value()) {
    group->nobody_since_us = -1;
    request.turn = turn;
    group->streams.TakeFirst();
    waiting_.erase(key);
    SendAttempt(&request, key.stream, *decision.route, now_us);
    return true;
  }
  // Else those that need less would take every place that frees.
  if (!decision.awaited.empty()) spoken_for->insert(decision.awaited);
  const absl::Status why = GiveUpReason(request, group, decision.why_not, now_us);
  if (why.ok()) return false;
  if (!may_fail) {
    may_place_ = true;  // Tick comes back to it.
    return false;
  }
  Fail(&request, why, now_us);
  return true;
}

int32_t RequestOwner::Impl::NumTokens(const RequestState& request, const StreamState& stream) {
  const ChoiceState& choice = request.choices[static_cast<size_t>(stream.choices.front())];
  return request.prompt_tokens() + static_cast<int32_t>(choice.generated.size());
}

int64_t RequestOwner::Impl::TotalTokens(const RequestState& request) const {
  const int64_t prompt_tokens = request.prompt_tokens();
  const int64_t wanted = prompt_tokens + request.facts.spec.sampling.max_tokens;
  if (!request.facts.open_ended) return wanted;
  const FleetWorker* largest = fleet_.Largest(request.facts.model, /*any_role=*/false);
  if (largest == nullptr || largest->offered_tokens() <= prompt_tokens) {
    largest = fleet_.Largest(request.facts.model, /*any_role=*/true);
  }
  if (largest == nullptr) return wanted;
  return std::clamp(largest->offered_tokens(), prompt_tokens + 1, wanted);
}

RoutingDecision RequestOwner::Impl::Route(const RequestState& request, const StreamState& stream,
                                          const std::set<std::string>& spoken_for, int64_t now_us) {
  RoutingRequest wanted{
      .chain = request.chain,
      .num_tokens = NumTokens(request, stream),
      .max_total_tokens = TotalTokens(request),
      .alone = IsSuspect(stream),
      .model = request.facts.model,
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

absl::Status RequestOwner::Impl::GiveUpReason(const RequestState& request, Group* group,
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
    return absl::UnavailableError(absl::StrFormat(
        "no worker for this model that could take it for %d s", (now_us - since_us) / 1'000'000));
  }
  // While workers are missing, one of them may be the larger one.
  if (in_time && !fleet_.KnownCompletely()) return absl::OkStatus();
  const FleetWorker& largest = *fleet_.Largest(request.facts.model, /*any_role=*/true);
  return absl::InvalidArgumentError(absl::StrFormat(
      "a prompt of %d tokens and up to %d generated ones need a worker that holds %d; the largest, "
      "%s, has a context of %d and %d blocks of %d",
      request.prompt_tokens(), TotalTokens(request) - request.prompt_tokens(), TotalTokens(request),
      largest.id().name, largest.registration.max_model_tokens, largest.registration.num_blocks,
      largest.registration.block_tokens));
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
  stream.num_tokens = NumTokens(*request, stream);
  stream.at_worker = stream.choices;
  stream.alone = IsSuspect(stream);
  stream.chunk.reset();
  if (stream.alone) fleet_.Reserve(stream.worker, true);
  SamplingParams& sampling = request->facts.spec.sampling;
  sampling.max_tokens = static_cast<int32_t>(TotalTokens(*request) - request->prompt_tokens());
  sampling.min_tokens = std::min(sampling.min_tokens, sampling.max_tokens);
  request->facts.open_ended = false;

  Submit submit{
      .attempt = {.request = {.router_incarnation = options_.router_incarnation,
                              .counter = request->counter},
                  .attempt = stream.attempt},
      .spec = request->facts.spec,
      .model = request->facts.model,
      .prefill = {},
      .disaggregate_from_tokens = 0,
  };
  RequestSpec& spec = submit.spec;
  spec.token_ids.insert(spec.token_ids.end(), choice.generated.begin(), choice.generated.end());
  spec.choices = stream.choices;
  spec.time_left_us = std::max<int64_t>(0, request->deadline_us - now_us);
  spec.alone = stream.alone;
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

LiveWork RequestOwner::Impl::LivePrompt(const StreamState& stream) {
  return {.prompts = stream.prefill.has_value() ? 1 : 0,
          .prompt_tokens = stream.live_prompt_tokens};
}

void RequestOwner::Impl::StopPromptCount(StreamState* stream) {
  if (stream->live_prompt_tokens == 0) return;
  fleet_.AddLive(stream->prefill.value_or(stream->worker), -LivePrompt(*stream));
  stream->live_prompt_tokens = 0;
  if (std::exchange(stream->alone, false)) fleet_.Reserve(stream->worker, false);
  may_place_ = true;  // For a prompt, or for what must run alone.
}

void RequestOwner::Impl::DetachAttempt(RequestState* request, size_t index) {
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

void RequestOwner::Impl::BreakSession(SessionId session, std::string_view why, ResumeReason reason,
                                      int64_t now_us) {
  const std::optional<WorkerId> worker = fleet_.OnSessionLost(session);
  outbox_->CloseSession(session, why);
  if (worker.has_value()) ResumeAll(*worker, session, reason, now_us);
}

}  // namespace tandem
