#include <utility>

#include "absl/strings/str_format.h"
#include "services/server/convert.h"
#include "services/server/field_checks.h"
#include "services/server/status_proto.h"

namespace tandem {

namespace {

absl::Status ReadJob(uint64_t in, JobId* out) {
  *out = in;
  return CheckPresent("job", in != 0);
}

void Fill(const Reservation& in, proto::Reservation* out) {
  out->set_index(in.index);
  out->set_generation(in.generation);
}

absl::StatusOr<Reservation> Read(const proto::Reservation& in) {
  TANDEM_RETURN_IF_ERROR(CheckPresent("reservation.generation", in.generation() != 0));
  return Reservation{.index = in.index(), .generation = in.generation()};
}

void Fill(const Renew& in, proto::Renew* out) {
  out->mutable_jobs()->Add(in.jobs.begin(), in.jobs.end());
}

absl::StatusOr<Renew> Read(const proto::Renew& in) {
  TANDEM_RETURN_IF_ERROR(CheckSize("jobs", in.jobs_size(), kMaxRenewedJobs, "jobs"));
  return Renew{.jobs = {in.jobs().begin(), in.jobs().end()}};
}

struct FillToPrefill {
  proto::ToPrefill* out;

  void operator()(const PrefillSubmit& in) const {
    proto::PrefillSubmit* submit = out->mutable_submit();
    submit->set_job(in.job);
    ToProto(in.attempt, submit->mutable_attempt());
    ToProto(in.spec, submit->mutable_spec());
    submit->set_first_block(in.first_block);
    submit->set_num_blocks(in.num_blocks);
  }
  void operator()(const Grant& in) const {
    out->mutable_grant()->set_job(in.job);
    Fill(in.reservation, out->mutable_grant()->mutable_reservation());
  }
  void operator()(const Resend& in) const {
    out->mutable_resend()->set_job(in.job);
    out->mutable_resend()->set_ordinal(in.ordinal);
  }
  void operator()(const Committed& in) const { out->mutable_committed()->set_job(in.job); }
  void operator()(const PrefillCancel& in) const {
    out->mutable_cancel()->set_job(in.job);
    out->mutable_cancel()->set_time_left_us(in.time_left_us);
  }
  void operator()(const Renew& in) const { Fill(in, out->mutable_renew()); }
};

absl::StatusOr<DecodeToPrefill> Read(const proto::PrefillSubmit& in) {
  PrefillSubmit out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_ASSIGN_OR_RETURN(out.attempt, FromProto(in.attempt()));
  TANDEM_ASSIGN_OR_RETURN(out.spec, FromProto(in.spec()));
  out.first_block = in.first_block();
  out.num_blocks = in.num_blocks();
  TANDEM_RETURN_IF_ERROR(ValidateBlocks(out));
  return DecodeToPrefill(std::move(out));
}

absl::StatusOr<DecodeToPrefill> Read(const proto::Grant& in) {
  Grant out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_ASSIGN_OR_RETURN(out.reservation, Read(in.reservation()));
  return DecodeToPrefill(out);
}

absl::StatusOr<DecodeToPrefill> Read(const proto::Resend& in) {
  Resend out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_RETURN_IF_ERROR(CheckRange("ordinal", in.ordinal(), 0, kMaxRequestTokens));
  out.ordinal = in.ordinal();
  return DecodeToPrefill(out);
}

absl::StatusOr<DecodeToPrefill> Read(const proto::Committed& in) {
  Committed out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  return DecodeToPrefill(out);
}

absl::StatusOr<DecodeToPrefill> Read(const proto::PrefillCancel& in) {
  PrefillCancel out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_RETURN_IF_ERROR(ReadDuration("time_left_us", in.time_left_us(), &out.time_left_us));
  return DecodeToPrefill(out);
}

struct FillToDecode {
  proto::ToDecode* out;

  void operator()(const Start& in) const {
    out->mutable_start()->set_job(in.job);
    out->mutable_start()->set_cached_tokens(in.cached_tokens);
  }
  void operator()(const PrefillRefused& in) const {
    out->mutable_refused()->set_job(in.job);
    StatusToProto(in.status, out->mutable_refused()->mutable_status());
    out->mutable_refused()->set_retry_after_us(in.retry_after_us);
  }
  void operator()(const Progress& in) const { out->mutable_progress()->set_job(in.job); }
  void operator()(const FirstToken& in) const {
    proto::FirstToken* first = out->mutable_first_token();
    first->set_job(in.job);
    for (const SampledToken& token : in.tokens) ToProto(token, first->add_tokens());
    for (const SampledToken& token : in.prompt_logprobs) {
      ToProto(token, first->add_prompt_logprobs());
    }
  }
  void operator()(const Done& in) const {
    out->mutable_done()->set_job(in.job);
    out->mutable_done()->set_num_frames(in.num_frames);
  }
  void operator()(const Renew& in) const { Fill(in, out->mutable_renew()); }
};

absl::StatusOr<PrefillToDecode> Read(const proto::Start& in) {
  Start out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_RETURN_IF_ERROR(CheckRange("cached_tokens", in.cached_tokens(), 0, kMaxRequestTokens));
  out.cached_tokens = in.cached_tokens();
  return PrefillToDecode(out);
}

absl::StatusOr<PrefillToDecode> Read(const proto::PrefillRefused& in) {
  PrefillRefused out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_RETURN_IF_ERROR(ReadEnd(in.status(), &out.status));
  TANDEM_RETURN_IF_ERROR(ReadDuration("retry_after_us", in.retry_after_us(), &out.retry_after_us));
  return PrefillToDecode(std::move(out));
}

absl::StatusOr<PrefillToDecode> Read(const proto::Progress& in) {
  Progress out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  return PrefillToDecode(out);
}

absl::StatusOr<PrefillToDecode> Read(const proto::FirstToken& in) {
  FirstToken out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_RETURN_IF_ERROR(CheckRange("tokens: number", in.tokens_size(), 1, kMaxChoices));
  TANDEM_RETURN_IF_ERROR(ReadSampledTokens("tokens", in.tokens(), kMaxChoices, &out.tokens));
  TANDEM_RETURN_IF_ERROR(ReadSampledTokens("prompt_logprobs", in.prompt_logprobs(),
                                           kMaxRequestTokens, &out.prompt_logprobs));
  return PrefillToDecode(std::move(out));
}

absl::StatusOr<PrefillToDecode> Read(const proto::Done& in) {
  Done out;
  TANDEM_RETURN_IF_ERROR(ReadJob(in.job(), &out.job));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_frames", in.num_frames(), 0, kMaxRequestTokens));
  out.num_frames = in.num_frames();
  return PrefillToDecode(out);
}

}  // namespace

void ToProto(const PrefillHello& in, proto::PrefillHello* out) {
  FillTerms(in.terms, out);
  ToProto(in.worker, out->mutable_worker());
  if (!in.expected.name.empty()) ToProto(in.expected, out->mutable_expected());
  out->set_transport(in.terms.transport);
  out->set_transport_address(in.transport_address);
}

absl::StatusOr<PrefillHello> FromProto(const proto::PrefillHello& in) {
  PrefillHello out;
  TANDEM_ASSIGN_OR_RETURN(out.terms, ReadTerms(in, in.transport()));
  TANDEM_RETURN_IF_ERROR(CheckSize("transport_address",
                                   static_cast<int64_t>(in.transport_address().size()),
                                   kMaxTransportAddressBytes, "bytes"));
  TANDEM_ASSIGN_OR_RETURN(out.worker, FromProto(in.worker()));
  if (in.has_expected()) {
    TANDEM_ASSIGN_OR_RETURN(out.expected, FromProto(in.expected()));
  }
  out.transport_address = in.transport_address();
  return out;
}

void ToProto(const DecodeToPrefill& in, proto::ToPrefill* out) {
  std::visit(FillToPrefill{out}, in);
}

absl::StatusOr<DecodeToPrefill> FromProto(const proto::ToPrefill& in) {
  switch (in.message_case()) {
    case proto::ToPrefill::kSubmit:
      return Read(in.submit());
    case proto::ToPrefill::kGrant:
      return Read(in.grant());
    case proto::ToPrefill::kResend:
      return Read(in.resend());
    case proto::ToPrefill::kCommitted:
      return Read(in.committed());
    case proto::ToPrefill::kCancel:
      return Read(in.cancel());
    case proto::ToPrefill::kRenew:
      return Read(in.renew());
    case proto::ToPrefill::kHello:
      return absl::InvalidArgumentError("hello: only as the first message of a session");
    case proto::ToPrefill::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message to a prefill worker: none that this build knows");
}

void ToProto(const PrefillToDecode& in, proto::ToDecode* out) { std::visit(FillToDecode{out}, in); }

absl::StatusOr<PrefillToDecode> FromProto(const proto::ToDecode& in) {
  switch (in.message_case()) {
    case proto::ToDecode::kStart:
      return Read(in.start());
    case proto::ToDecode::kRefused:
      return Read(in.refused());
    case proto::ToDecode::kProgress:
      return Read(in.progress());
    case proto::ToDecode::kFirstToken:
      return Read(in.first_token());
    case proto::ToDecode::kDone:
      return Read(in.done());
    case proto::ToDecode::kRenew:
      return Read(in.renew());
    case proto::ToDecode::kHello:
      return absl::InvalidArgumentError("hello: only as the first message of a session");
    case proto::ToDecode::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message to a decode worker: none that this build knows");
}

}  // namespace tandem
