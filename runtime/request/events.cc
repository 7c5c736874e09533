// What workers say: fences first, then what it means.

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/base/guard.h"
#include "runtime/request/request_owner.h"

namespace tandem {
namespace {

// What nobody asked for would be kept for a client all the same.
bool HasNoMoreThan(const SampledToken& token, int32_t asked) {
  return token.top.size() <= static_cast<size_t>(std::max(asked, 0));
}

}  // namespace

void RequestOwner::OnStepBatch(SessionId session, const StepBatch& batch, int64_t now_us) {
  const FleetWorker* worker = fleet_.FindSession(session);
  if (worker == nullptr) {  // The session is over, and so are its attempts.
    counters_.stale_events += batch.events.size();
    return;
  }
  if (!TANDEM_GUARD("batch_incarnation", batch.worker_incarnation == worker->id().incarnation)) {
    // The process that was registered is gone; another one, which may compute differently, has
    // picked up the connection.
    counters_.stale_events += batch.events.size();
    BreakSession(
        session,
        absl::StrFormat("worker %s answers as incarnation %x, registered was %x", worker->id().name,
                        batch.worker_incarnation, worker->id().incarnation),
        ResumeReason::kRestarted, now_us);
    PlaceWaiting(now_us, /*may_fail=*/true);
    return;
  }
  if (batch.draining) fleet_.OnDraining(worker->id());
  Verdict verdict = Verdict::kGoOn;
  for (const RouterEvent& event : batch.events) {
    verdict = std::visit([&](const auto& e) { return OnEvent(session, e, now_us); }, event);
    if (verdict == Verdict::kProtocolError) break;
  }
  for (const ChunkBegun& chunk : batch.chunks) {
    if (verdict == Verdict::kProtocolError) break;
    verdict = OnChunk(session, chunk);
  }
  if (verdict == Verdict::kProtocolError) {
    ++counters_.protocol_errors;
    BreakSession(session, "protocol error", ResumeReason::kProtocolError, now_us);
  }
  PlaceWaiting(now_us, /*may_fail=*/true);
}

RequestOwner::FoundStream RequestOwner::FindStream(SessionId session, const AttemptId& attempt,
                                                   const std::optional<WorkerId>& prefill) {
  RequestState* const request = Find(attempt.request);
  if (request == nullptr) return {};
  StreamState* found = nullptr;
  for (StreamState& stream : request->streams) {
    const bool there =
        stream.session == session || (prefill.has_value() && stream.prefill == prefill);
    if (!stream.running || !there) continue;
    if (found == nullptr || stream.attempt == attempt.attempt) found = &stream;
  }
  if (found != nullptr && TANDEM_GUARD("event_attempt", found->attempt == attempt.attempt)) {
    return {request, found, static_cast<size_t>(found - request->streams.data())};
  }
  ++counters_.stale_events;
  return {};
}

void RequestOwner::ReportPrompt(RequestState* request, const StreamState& stream,
                                const PromptEvent& event) {
  if (request->prompt_reported) return;  // A later attempt prefills again; that is not news.
  request->prompt_reported = true;
  request->numerics_id = fleet_.Find(stream.worker)->registration.terms.numerics_id;
  request->report.cached_tokens = std::min(event.cached_tokens, request->prompt_tokens());
  request->asked.sink->OnPrompt({.cached_tokens = request->report.cached_tokens,
                                 .prompt_logprobs = event.prompt_logprobs,
                                 .numerics_id = request->numerics_id,
                                 .arrived_us = request->report.arrived_us,
                                 .first_submit_us = request->report.first_submit_us});
}

RequestOwner::Verdict RequestOwner::OnEvent(SessionId session, const PromptEvent& event, int64_t) {
  const auto [request, stream, index] = FindStream(session, event.attempt);
  if (stream == nullptr) return Verdict::kGoOn;
  const int32_t num_top = request->asked.spec.sampling.num_prompt_logprobs;
  const auto most = static_cast<size_t>(num_top < 0 ? 0 : request->prompt_tokens() - 1);
  if (event.prompt_logprobs.size() > most ||
      !std::all_of(
          event.prompt_logprobs.begin(), event.prompt_logprobs.end(),
          [num_top](const SampledToken& token) { return HasNoMoreThan(token, num_top); })) {
    return Verdict::kProtocolError;
  }
  StopPromptCount(stream);
  if (event.by_prefill && stream->prefill.has_value()) {
    fleet_.OnPairWorked(stream->worker, *stream->prefill);
    fleet_.OnStepWorked(*stream->prefill);
  }
  ReportPrompt(request, *stream, event);
  return Verdict::kGoOn;
}

RequestOwner::Verdict RequestOwner::OnEvent(SessionId session, const TokenEvent& event,
                                            int64_t now_us) {
  const auto [request, stream, index] = FindStream(session, event.attempt);
  if (stream == nullptr) return Verdict::kGoOn;
  const auto owed = std::find(stream->at_worker.begin(), stream->at_worker.end(), event.choice);
  if (owed == stream->at_worker.end()) {  // Repeated after its finish, or never asked for.
    ++counters_.stale_events;
    return event.choice >= 0 && event.choice < std::ssize(request->choices)
               ? Verdict::kGoOn
               : Verdict::kProtocolError;
  }
  const ChoiceState& choice = request->choices[static_cast<size_t>(event.choice)];
  if (!choice.finished) {
    const int64_t next = request->prompt_tokens() + static_cast<int64_t>(choice.generated.size());
    // Whoever does not end where it was told to would fill this router.
    if (event.position - request->prompt_tokens() >= request->asked.spec.sampling.max_tokens) {
      return Verdict::kProtocolError;
    }
    if (!HasNoMoreThan(event.token, request->asked.spec.sampling.num_logprobs)) {
      return Verdict::kProtocolError;
    }
    if (!TANDEM_GUARD("event_position", event.position == next)) {
      if (event.position > next || event.position < request->prompt_tokens()) {
        return Verdict::kProtocolError;
      }
      const auto before = static_cast<size_t>(event.position - request->prompt_tokens());
      if (choice.generated[before] == event.token.token) {
        ++counters_.stale_events;
        return Verdict::kGoOn;
      }
      ++counters_.determinism_violations;
      Fail(request,
           absl::InternalError(absl::StrFormat(
               "determinism_violation: choice %d, position %d was computed twice, differently",
               event.choice, event.position)),
           now_us);
      return Verdict::kGoOn;
    }
  }
  // The first token of a prompt that travels was drawn by the prefill worker.
  if (!stream->prefill.has_value() || event.position > stream->num_tokens) {
    fleet_.OnStepWorked(stream->worker);
  }
  if (event.finish != FinishReason::kNone) {
    stream->at_worker.erase(owed);
    fleet_.AddLive(stream->worker, {.sequences = -1});
    --stream->live_sequences;
  }
  // A choice that ended with a stop string goes on at the worker while others of its attempt do.
  if (!choice.finished) AcceptToken(request, stream, event, now_us);
  return Verdict::kGoOn;
}

void RequestOwner::AcceptToken(RequestState* request, StreamState* stream, const TokenEvent& event,
                               int64_t now_us) {
  StopPromptCount(stream);
  ReportPrompt(request, *stream, PromptEvent{});
  stream->deaths.clear();
  ++request->report.completion_tokens;

  ChoiceState& choice = request->choices[static_cast<size_t>(event.choice)];
  choice.generated.push_back(event.token.token);
  FinishReason finish = event.finish;
  std::string text;
  std::string_view stop_string;
  if (request->asked.make_detokenizer != nullptr) {
    if (!choice.text.has_value()) {
      choice.text.emplace(request->asked.make_detokenizer(), request->stops,
                          request->asked.spec.sampling.min_tokens);
    }
    text = choice.text->Append(event.token.token, &finish);
    stop_string = choice.text->stop_string();
  }
  request->asked.sink->OnDelta({.choice = event.choice,
                                .position = event.position,
                                .token = &event.token,
                                .text = text,
                                .finish = finish,
                                .stop_string = stop_string});
  if (finish == FinishReason::kNone) return;

  choice.finished = true;
  std::erase(stream->choices, event.choice);
  if (!stream->choices.empty()) return;
  const size_t index = choice.stream;
  if (stream->at_worker.empty()) {
    DetachAttempt(request, index);
  } else {
    CancelAttempt(request, index, now_us);
  }
  const bool all_finished = std::all_of(request->choices.begin(), request->choices.end(),
                                        [](const ChoiceState& c) { return c.finished; });
  if (all_finished) Finish(request);
}

RequestOwner::Verdict RequestOwner::OnEvent(SessionId session, const RefusedEvent& event,
                                            int64_t now_us) {
  const auto [request, stream, index] = FindStream(session, event.attempt);
  if (stream == nullptr) return Verdict::kGoOn;
  const WorkerId worker = stream->worker;
  const std::optional<WorkerId> prefill = stream->prefill;
  ++counters_.refusals;
  --request->report.attempts;
  DetachAttempt(request, index);
  switch (event.status.code()) {
    case absl::StatusCode::kResourceExhausted:
      if (event.by_prefill && prefill.has_value()) {
        fleet_.OnPromptRefused(*prefill, event.retry_after_us, now_us);
      } else {
        fleet_.OnFull(worker, event.retry_after_us, now_us);
      }
      Requeue(request, index);
      break;
    case absl::StatusCode::kAborted:
      fleet_.OnRunAloneRefused(worker, now_us);
      Requeue(request, index);
      break;
    case absl::StatusCode::kUnavailable:
      if (event.by_prefill && prefill.has_value()) {
        fleet_.OnPeerLost(*prefill);
      } else {
        fleet_.OnDraining(worker);
      }
      Requeue(request, index);
      break;
    default:
      Fail(request, event.status, now_us);
  }
  return Verdict::kGoOn;
}

RequestOwner::Verdict RequestOwner::OnEvent(SessionId session, const EndedEvent& event,
                                            int64_t now_us) {
  const auto [request, stream, index] = FindStream(session, event.attempt);
  if (stream == nullptr) return Verdict::kGoOn;
  switch (event.status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss: {
      if (stream->prefill.has_value() && !fleet_.Find(stream->worker)->draining) {
        fleet_.OnPeerLost(*stream->prefill);
        // Once the prompt is computed, the prefill worker only sends.
        Resume(request, index, ResumeReason::kTransferLost,
               stream->live_prompt_tokens > 0 ? stream->prefill : std::nullopt, now_us);
      } else {
        fleet_.OnDraining(stream->worker);  // Nothing else ends a stream like this.
        Resume(request, index, ResumeReason::kDraining, /*lost=*/std::nullopt, now_us);
      }
      break;
    }
    case absl::StatusCode::kAborted: {
      const bool by_prefill = event.by_prefill && stream->prefill.has_value();
      const WorkerId failed = by_prefill ? *stream->prefill : stream->worker;
      fleet_.OnStepFailed(failed, now_us);
      Resume(request, index, ResumeReason::kStepFailed, failed, now_us);
      break;
    }
    case absl::StatusCode::kFailedPrecondition:
      // The pair may not exchange blocks, whatever their registrations said.
      if (stream->prefill.has_value()) {
        fleet_.OnPairFailed(stream->worker, *stream->prefill, now_us);
        Resume(request, index, ResumeReason::kTransferLost, /*lost=*/std::nullopt, now_us);
        break;
      }
      Fail(request, event.status, now_us);
      break;
    default:
      Fail(request, event.status, now_us);
  }
  return Verdict::kGoOn;
}

RequestOwner::Verdict RequestOwner::OnChunk(SessionId session, const ChunkBegun& chunk) {
  const WorkerId worker = fleet_.FindSession(session)->id();
  StreamState* const stream = FindStream(session, chunk.attempt, worker).stream;
  if (stream == nullptr || stream->live_prompt_tokens == 0) return Verdict::kGoOn;
  if (chunk.end_position > stream->num_tokens) {
    // A prefill worker knows only by its decode workers' word whose prompt it computes.
    return stream->session == session ? Verdict::kProtocolError : Verdict::kGoOn;
  }
  Suspicion::BeginChunk(worker, chunk, stream);
  return Verdict::kGoOn;
}

RequestOwner::Verdict RequestOwner::OnEvent(SessionId, const AbortReply&, int64_t) {
  return Verdict::kGoOn;  // What was aborted is off the books already.
}

}  // namespace tandem
