#include <utility>

#include "absl/strings/str_format.h"
#include "services/server/convert.h"
#include "services/server/field_checks.h"
#include "services/server/status_proto.h"

namespace tandem {

namespace {

// ---- Down ----

void Fill(const Submit& in, proto::Submit* out) {
  ToProto(in.attempt, out->mutable_attempt());
  ToProto(in.spec, out->mutable_spec());
  out->set_model(in.model);
  if (!in.prefill.address.empty()) {
    ToProto(in.prefill.worker, out->mutable_prefill()->mutable_worker());
    out->mutable_prefill()->set_address(in.prefill.address);
  }
  out->set_disaggregate_from_tokens(in.disaggregate_from_tokens);
}

absl::StatusOr<PrefillPeer> Read(const proto::PrefillPeer& in) {
  PrefillPeer out;
  TANDEM_RETURN_IF_ERROR(CheckSize("prefill.address", static_cast<int64_t>(in.address().size()),
                                   kMaxNameBytes, "bytes"));
  TANDEM_RETURN_IF_ERROR(CheckPresent("prefill.address", !in.address().empty()));
  TANDEM_ASSIGN_OR_RETURN(out.worker, FromProto(in.worker()));
  out.address = in.address();
  return out;
}

absl::StatusOr<Submit> Read(const proto::Submit& in) {
  Submit out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_ASSIGN_OR_RETURN(out.spec, FromProto(in.spec()));
  TANDEM_RETURN_IF_ERROR(
      CheckSize("model", static_cast<int64_t>(in.model().size()), kMaxTextBytes, "bytes"));
  out.model = in.model();
  if (in.has_prefill()) {
    TANDEM_ASSIGN_OR_RETURN(out.prefill, Read(in.prefill()));
  }
  TANDEM_RETURN_IF_ERROR(
      CheckRange("disaggregate_from_tokens", in.disaggregate_from_tokens(), 0, INT32_MAX));
  out.disaggregate_from_tokens = in.disaggregate_from_tokens();
  return out;
}

absl::StatusOr<Cancel> Read(const proto::Cancel& in) {
  Cancel out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_RETURN_IF_ERROR(ReadDuration("time_left_us", in.time_left_us(), &out.time_left_us));
  return out;
}

// ---- Up ----

absl::StatusOr<RouterEvent> Read(const proto::PromptEvent& in) {
  PromptEvent out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_RETURN_IF_ERROR(CheckRange("cached_tokens", in.cached_tokens(), 0, kMaxRequestTokens));
  out.cached_tokens = in.cached_tokens();
  out.by_prefill = in.by_prefill();
  TANDEM_RETURN_IF_ERROR(ReadSampledTokens("prompt_logprobs", in.prompt_logprobs(),
                                           kMaxRequestTokens, &out.prompt_logprobs));
  return RouterEvent(std::move(out));
}

absl::StatusOr<RouterEvent> Read(const proto::TokenEvent& in) {
  TokenEvent out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_RETURN_IF_ERROR(CheckRange("choice", in.choice(), 0, kMaxChoices - 1));
  TANDEM_RETURN_IF_ERROR(CheckRange("position", in.position(), 0, kMaxRequestTokens));
  out.choice = in.choice();
  out.position = in.position();
  TANDEM_ASSIGN_OR_RETURN(out.token, FromProto(in.token()));
  switch (in.finish()) {
    case proto::FINISH_REASON_NONE:
      out.finish = FinishReason::kNone;
      break;
    case proto::FINISH_REASON_STOP:
      out.finish = FinishReason::kStop;
      break;
    case proto::FINISH_REASON_LENGTH:
      out.finish = FinishReason::kLength;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("finish: %d is no finish reason", static_cast<int>(in.finish())));
  }
  return RouterEvent(std::move(out));
}

absl::StatusOr<RouterEvent> Read(const proto::RefusedEvent& in) {
  RefusedEvent out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_RETURN_IF_ERROR(ReadEnd(in.status(), &out.status));
  out.by_prefill = in.by_prefill();
  TANDEM_RETURN_IF_ERROR(ReadDuration("retry_after_us", in.retry_after_us(), &out.retry_after_us));
  return RouterEvent(std::move(out));
}

absl::StatusOr<RouterEvent> Read(const proto::EndedEvent& in) {
  EndedEvent out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_RETURN_IF_ERROR(ReadEnd(in.status(), &out.status));
  out.by_prefill = in.by_prefill();
  return RouterEvent(std::move(out));
}

absl::StatusOr<RouterEvent> Read(const proto::AbortReply& in) {
  AbortReply out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  switch (in.outcome()) {
    case proto::ABORT_OUTCOME_ACCEPTED:
      out.outcome = AbortOutcome::kAccepted;
      break;
    case proto::ABORT_OUTCOME_NOT_FOUND:
      out.outcome = AbortOutcome::kNotFound;
      break;
    case proto::ABORT_OUTCOME_TOMBSTONED:
      out.outcome = AbortOutcome::kTombstoned;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("outcome: %d is no abort outcome", static_cast<int>(in.outcome())));
  }
  return RouterEvent(std::move(out));
}

absl::StatusOr<ChunkBegun> Read(const proto::ChunkBegun& in) {
  ChunkBegun out;
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_RETURN_IF_ERROR(CheckRange("first_position", in.first_position(), 0, kMaxRequestTokens));
  TANDEM_RETURN_IF_ERROR(CheckRange("end_position", in.end_position(),
                                    int64_t{in.first_position()} + 1, kMaxRequestTokens));
  out.first_position = in.first_position();
  out.end_position = in.end_position();
  return out;
}

struct FillEvent {
  proto::RouterEvent* out;

  void operator()(const PromptEvent& in) const {
    proto::PromptEvent* event = out->mutable_prompt();
    ToProto(in.attempt, event->mutable_attempt());
    event->set_cached_tokens(in.cached_tokens);
    event->set_by_prefill(in.by_prefill);
    for (const SampledToken& token : in.prompt_logprobs) {
      ToProto(token, event->add_prompt_logprobs());
    }
  }
  void operator()(const TokenEvent& in) const {
    proto::TokenEvent* event = out->mutable_token();
    ToProto(in.attempt, event->mutable_attempt());
    event->set_choice(in.choice);
    event->set_position(in.position);
    ToProto(in.token, event->mutable_token());
    event->set_finish(in.finish == FinishReason::kNone   ? proto::FINISH_REASON_NONE
                      : in.finish == FinishReason::kStop ? proto::FINISH_REASON_STOP
                                                         : proto::FINISH_REASON_LENGTH);
  }
  void operator()(const RefusedEvent& in) const {
    proto::RefusedEvent* event = out->mutable_refused();
    ToProto(in.attempt, event->mutable_attempt());
    StatusToProto(in.status, event->mutable_status());
    event->set_by_prefill(in.by_prefill);
    event->set_retry_after_us(in.retry_after_us);
  }
  void operator()(const EndedEvent& in) const {
    proto::EndedEvent* event = out->mutable_ended();
    ToProto(in.attempt, event->mutable_attempt());
    StatusToProto(in.status, event->mutable_status());
    event->set_by_prefill(in.by_prefill);
  }
  void operator()(const AbortReply& in) const {
    ToProto(in.attempt, out->mutable_abort_reply()->mutable_attempt());
    out->mutable_abort_reply()->set_outcome(
        in.outcome == AbortOutcome::kAccepted   ? proto::ABORT_OUTCOME_ACCEPTED
        : in.outcome == AbortOutcome::kNotFound ? proto::ABORT_OUTCOME_NOT_FOUND
                                                : proto::ABORT_OUTCOME_TOMBSTONED);
  }
};

}  // namespace

void ToProto(const RouterCommand& in, proto::ToWorker* out) {
  if (const auto* submit = std::get_if<Submit>(&in)) {
    Fill(*submit, out->mutable_submit());
    return;
  }
  const Cancel& cancel = std::get<Cancel>(in);
  ToProto(cancel.attempt, out->mutable_cancel()->mutable_attempt());
  out->mutable_cancel()->set_time_left_us(cancel.time_left_us);
}

absl::StatusOr<RouterCommand> FromProto(const proto::ToWorker& in) {
  switch (in.message_case()) {
    case proto::ToWorker::kSubmit:
      return Read(in.submit());
    case proto::ToWorker::kCancel:
      return Read(in.cancel());
    case proto::ToWorker::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message to a worker: neither submit nor cancel");
}

void ToProto(const RouterEvent& in, proto::RouterEvent* out) { std::visit(FillEvent{out}, in); }

absl::StatusOr<RouterEvent> FromProto(const proto::RouterEvent& in) {
  switch (in.event_case()) {
    case proto::RouterEvent::kPrompt:
      return Read(in.prompt());
    case proto::RouterEvent::kToken:
      return Read(in.token());
    case proto::RouterEvent::kRefused:
      return Read(in.refused());
    case proto::RouterEvent::kEnded:
      return Read(in.ended());
    case proto::RouterEvent::kAbortReply:
      return Read(in.abort_reply());
    case proto::RouterEvent::EVENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("event: none that this build knows");
}

void ToProto(const StepBatch& in, proto::StepBatch* out) {
  out->set_worker_incarnation(in.worker_incarnation);
  out->set_draining(in.draining);
  out->mutable_events()->Reserve(static_cast<int>(in.events.size()));
  for (const RouterEvent& event : in.events) ToProto(event, out->add_events());
  for (const ChunkBegun& in_chunk : in.chunks) {
    proto::ChunkBegun* const chunk = out->add_chunks();
    ToProto(in_chunk.attempt, chunk->mutable_attempt());
    chunk->set_first_position(in_chunk.first_position);
    chunk->set_end_position(in_chunk.end_position);
  }
}

absl::StatusOr<StepBatch> FromProto(const proto::StepBatch& in) {
  TANDEM_RETURN_IF_ERROR(CheckSize("events", in.events_size(), kMaxEventsPerBatch, "events"));
  StepBatch out{.worker_incarnation = in.worker_incarnation(), .draining = in.draining()};
  out.events.reserve(in.events_size());
  for (const proto::RouterEvent& event : in.events()) {
    TANDEM_ASSIGN_OR_RETURN(RouterEvent read, FromProto(event));
    out.events.push_back(std::move(read));
  }
  TANDEM_RETURN_IF_ERROR(CheckSize("chunks", in.chunks_size(), kMaxEventsPerBatch, "chunks"));
  out.chunks.reserve(in.chunks_size());
  for (const proto::ChunkBegun& chunk : in.chunks()) {
    TANDEM_ASSIGN_OR_RETURN(out.chunks.emplace_back(), Read(chunk));
  }
  return out;
}

}  // namespace tandem
