// What the messages of router → worker and decode → prefill worker have in common but for what they
// are about, an attempt or a job; private to the conversions of this folder.

#ifndef TANDEM_SERVICES_SERVER_SUBMIT_FIELDS_H_
#define TANDEM_SERVICES_SERVER_SUBMIT_FIELDS_H_

#include "runtime/base/status_macros.h"
#include "services/server/convert.h"
#include "services/server/field_checks.h"
#include "services/server/status_proto.h"

namespace tandem {

// ---- What a message is about ----

template <typename Struct, typename Message>
void FillSubject(const Struct& in, Message* out) {
  if constexpr (requires { in.job; }) {
    out->set_job(in.job);
  } else {
    ToProto(in.attempt, out->mutable_attempt());
  }
}

template <typename Struct, typename Message>
absl::Status ReadSubject(const Message& in, Struct* out) {
  if constexpr (requires { out->job; }) {
    TANDEM_RETURN_IF_ERROR(CheckPresent("job", in.job() != 0));
    out->job = in.job();
  } else {
    TANDEM_ASSIGN_OR_RETURN(out->attempt, FromProto(in.attempt()));
  }
  return absl::OkStatus();
}

// ---- Submit, PrefillSubmit ----

template <typename Struct, typename Message>
void FillSubmit(const Struct& in, Message* out) {
  ToProto(in.attempt, out->mutable_attempt());
  out->mutable_token_ids()->Add(in.token_ids.begin(), in.token_ids.end());
  out->set_prompt_tokens(in.prompt_tokens);
  out->mutable_choices()->Add(in.choices.begin(), in.choices.end());
  ToProto(in.sampling, out->mutable_sampling());
  out->set_time_left_us(in.time_left_us);
  out->set_hash_root(in.hash_root.bytes.data(), in.hash_root.bytes.size());
  out->set_alone(in.alone);
}

template <typename Struct, typename Message>
absl::Status ReadSubmit(const Message& in, Struct* out) {
  TANDEM_ASSIGN_OR_RETURN(out->attempt, FromProto(in.attempt()));
  TANDEM_RETURN_IF_ERROR(
      ReadTokenIds("token_ids", in.token_ids(), kMaxRequestTokens, &out->token_ids));
  TANDEM_ASSIGN_OR_RETURN(out->sampling, FromProto(in.sampling()));
  TANDEM_RETURN_IF_ERROR(CheckPromptTokens(
      in.prompt_tokens(), static_cast<int64_t>(out->token_ids.size()), out->sampling));
  out->prompt_tokens = in.prompt_tokens();
  TANDEM_RETURN_IF_ERROR(ReadChoices(in.choices(), &out->choices));
  TANDEM_RETURN_IF_ERROR(CheckRange("time_left_us", in.time_left_us(), 0, kMaxDurationUs));
  out->time_left_us = in.time_left_us();
  TANDEM_RETURN_IF_ERROR(ReadHash("hash_root", in.hash_root(), &out->hash_root));
  out->alone = in.alone();
  return absl::OkStatus();
}

// ---- Cancel, PrefillCancel ----

template <typename Struct, typename Message>
void FillCancel(const Struct& in, Message* out) {
  FillSubject(in, out);
  out->set_time_left_us(in.time_left_us);
}

template <typename Struct, typename Message>
absl::StatusOr<Struct> ReadCancel(const Message& in) {
  Struct out;
  TANDEM_RETURN_IF_ERROR(ReadSubject(in, &out));
  TANDEM_RETURN_IF_ERROR(CheckRange("time_left_us", in.time_left_us(), 0, kMaxDurationUs));
  out.time_left_us = in.time_left_us();
  return out;
}

// ---- RefusedEvent, EndedEvent, PrefillRefused ----

template <typename Struct, typename Message>
void FillEnd(const Struct& in, Message* out) {
  FillSubject(in, out);
  StatusToProto(in.status, out->mutable_status());
}

template <typename Struct, typename Message>
absl::StatusOr<Struct> ReadEnd(const Message& in) {
  Struct out;
  TANDEM_RETURN_IF_ERROR(ReadSubject(in, &out));
  TANDEM_RETURN_IF_ERROR(StatusFromProto(in.status(), &out.status));
  if (out.status.ok()) return absl::InvalidArgumentError("status.code: OK where an error ends");
  return out;
}

// ---- RefusedEvent, PrefillRefused ----

template <typename Struct, typename Message>
void FillRefusal(const Struct& in, Message* out) {
  FillEnd(in, out);
  out->set_retry_after_us(in.retry_after_us);
}

template <typename Struct, typename Message>
absl::StatusOr<Struct> ReadRefusal(const Message& in) {
  TANDEM_ASSIGN_OR_RETURN(Struct out, ReadEnd<Struct>(in));
  TANDEM_RETURN_IF_ERROR(CheckRange("retry_after_us", in.retry_after_us(), 0, kMaxDurationUs));
  out.retry_after_us = in.retry_after_us();
  return out;
}

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_SUBMIT_FIELDS_H_
