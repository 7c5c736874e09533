#include <cstring>

#include "absl/strings/str_format.h"
#include "services/server/convert.h"
#include "services/server/field_checks.h"
#include "services/server/status_proto.h"

namespace tandem {

absl::Status CheckSize(const char* field, int64_t size, int64_t limit, const char* unit) {
  if (size <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d %s, at most %d", field, size, unit, limit));
}

absl::Status CheckText(const char* field, const std::string& text) {
  return CheckSize(field, static_cast<int64_t>(text.size()), kMaxTextBytes, "bytes");
}

absl::Status CheckPresent(const char* field, bool present) {
  if (present) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: missing", field));
}

absl::Status ReadHash(const char* field, const std::string& bytes, BlockHash* out) {
  if (bytes.size() != out->bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, want %d", field, bytes.size(), out->bytes.size()));
  }
  std::memcpy(out->bytes.data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status ReadDuration(const char* field, int64_t in, int64_t* out) {
  *out = in;
  return CheckRange(field, in, 0, kMaxDurationUs);
}

absl::Status ReadEnd(const v1::Status& in, absl::Status* out) {
  TANDEM_RETURN_IF_ERROR(StatusFromProto(in, out));
  if (!out->ok()) return absl::OkStatus();
  return absl::InvalidArgumentError("status.code: OK where an error ends");
}

absl::Status ReadSampledTokens(const char* field,
                               const google::protobuf::RepeatedPtrField<v1::SampledToken>& in,
                               int64_t limit, std::vector<SampledToken>* out) {
  TANDEM_RETURN_IF_ERROR(CheckSize(field, in.size(), limit, "tokens"));
  out->reserve(in.size());
  for (const v1::SampledToken& token : in) {
    TANDEM_ASSIGN_OR_RETURN(SampledToken read, FromProto(token));
    out->push_back(std::move(read));
  }
  return absl::OkStatus();
}

void ToProto(const AttemptId& in, proto::AttemptId* out) {
  out->mutable_request()->set_router_incarnation(in.request.router_incarnation);
  out->mutable_request()->set_counter(in.request.counter);
  out->set_attempt(in.attempt);
}

absl::StatusOr<AttemptId> FromProto(const proto::AttemptId& in) {
  TANDEM_RETURN_IF_ERROR(CheckPresent("attempt.request", in.has_request()));
  return AttemptId{.request = {.router_incarnation = in.request().router_incarnation(),
                               .counter = in.request().counter()},
                   .attempt = in.attempt()};
}

void ToProto(const WorkerId& in, proto::WorkerId* out) {
  out->set_name(in.name);
  out->set_incarnation(in.incarnation);
}

absl::StatusOr<WorkerId> FromProto(const proto::WorkerId& in) {
  TANDEM_RETURN_IF_ERROR(
      CheckSize("worker.name", static_cast<int64_t>(in.name().size()), kMaxNameBytes, "bytes"));
  TANDEM_RETURN_IF_ERROR(CheckPresent("worker.name", !in.name().empty()));
  return WorkerId{.name = in.name(), .incarnation = in.incarnation()};
}

namespace {

// Bounds what is copied; Validate has the rest.
absl::Status ReadIds(const char* field, const google::protobuf::RepeatedField<int32_t>& in,
                     int64_t limit, std::vector<int32_t>* out) {
  TANDEM_RETURN_IF_ERROR(CheckSize(field, in.size(), limit, "values"));
  out->assign(in.begin(), in.end());
  return absl::OkStatus();
}

void Fill(const SamplingParams& in, proto::SamplingParams* out) {
  out->set_temperature(in.temperature);
  out->set_top_p(in.top_p);
  out->set_top_k(in.top_k);
  out->set_seed(in.seed);
  out->set_min_tokens(in.min_tokens);
  out->set_max_tokens(in.max_tokens);
  out->set_num_logprobs(in.num_logprobs);
  out->set_num_prompt_logprobs(in.num_prompt_logprobs);
  out->mutable_stop_token_ids()->Add(in.stop_token_ids.begin(), in.stop_token_ids.end());
  for (const auto& [token, bias] : in.logit_bias) {
    proto::TokenBias* const entry = out->add_logit_bias();
    entry->set_token(token);
    entry->set_bias(bias);
  }
}

absl::Status Read(const proto::SamplingParams& in, SamplingParams* out) {
  out->temperature = in.temperature();
  out->top_p = in.top_p();
  out->top_k = in.top_k();
  out->seed = in.seed();
  out->min_tokens = in.min_tokens();
  out->max_tokens = in.max_tokens();
  out->num_logprobs = in.num_logprobs();
  out->num_prompt_logprobs = in.num_prompt_logprobs();
  TANDEM_RETURN_IF_ERROR(
      CheckSize("sampling.logit_bias", in.logit_bias_size(), kMaxLogitBias, "tokens"));
  for (const proto::TokenBias& entry : in.logit_bias()) {
    out->logit_bias.emplace_back(entry.token(), entry.bias());
  }
  return ReadIds("sampling.stop_token_ids", in.stop_token_ids(), kMaxStopTokenIds,
                 &out->stop_token_ids);
}

}  // namespace

void ToProto(const RequestSpec& in, proto::RequestSpec* out) {
  out->mutable_token_ids()->Add(in.token_ids.begin(), in.token_ids.end());
  out->set_prompt_tokens(in.prompt_tokens);
  out->mutable_choices()->Add(in.choices.begin(), in.choices.end());
  Fill(in.sampling, out->mutable_sampling());
  out->set_time_left_us(in.time_left_us);
  out->set_hash_root(in.hash_root.bytes.data(), in.hash_root.bytes.size());
  out->set_runs_alone(in.runs_alone);
}

absl::StatusOr<RequestSpec> FromProto(const proto::RequestSpec& in) {
  RequestSpec out;
  TANDEM_RETURN_IF_ERROR(ReadIds("token_ids", in.token_ids(), kMaxRequestTokens, &out.token_ids));
  out.prompt_tokens = in.prompt_tokens();
  TANDEM_RETURN_IF_ERROR(ReadIds("choices", in.choices(), kMaxChoices, &out.choices));
  TANDEM_RETURN_IF_ERROR(Read(in.sampling(), &out.sampling));
  TANDEM_RETURN_IF_ERROR(ReadDuration("time_left_us", in.time_left_us(), &out.time_left_us));
  TANDEM_RETURN_IF_ERROR(ReadHash("hash_root", in.hash_root(), &out.hash_root));
  out.runs_alone = in.runs_alone();
  TANDEM_RETURN_IF_ERROR(Validate(out, {}));  // The engine knows the vocabulary.
  return out;
}

void ToProto(const SampledToken& in, proto::SampledToken* out) {
  out->set_token(in.token);
  out->set_logprob(in.logprob);
  out->set_rank(in.rank);
  for (const TokenLogprob& top : in.top) {
    out->add_top_tokens(top.token);
    out->add_top_logprobs(top.logprob);
  }
}

namespace {

// -inf is what a token of probability 0 has. NaN is nothing, and more than 0 nobody's probability:
// +inf would make an answer in JSON that is none.
absl::Status CheckLogprob(const char* field, float logprob) {
  if (logprob <= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: %g, want 0 or less", field, logprob));
}

}  // namespace

absl::StatusOr<SampledToken> FromProto(const proto::SampledToken& in) {
  TANDEM_RETURN_IF_ERROR(CheckRange("token", in.token(), 0, INT32_MAX));
  TANDEM_RETURN_IF_ERROR(CheckRange("token.rank", in.rank(), 0, INT32_MAX));
  TANDEM_RETURN_IF_ERROR(
      CheckSize("token.top_tokens", in.top_tokens_size(), kMaxTopLogprobs, "tokens"));
  TANDEM_RETURN_IF_ERROR(CheckRange("token.top_logprobs: number", in.top_logprobs_size(),
                                    in.top_tokens_size(), in.top_tokens_size()));
  TANDEM_RETURN_IF_ERROR(CheckLogprob("token.logprob", in.logprob()));
  SampledToken out{.token = in.token(), .logprob = in.logprob(), .rank = in.rank()};
  out.top.reserve(in.top_tokens_size());
  for (int i = 0; i < in.top_tokens_size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckRange("token.top_tokens", in.top_tokens(i), 0, INT32_MAX));
    TANDEM_RETURN_IF_ERROR(CheckLogprob("token.top_logprobs", in.top_logprobs(i)));
    out.top.push_back({.token = in.top_tokens(i), .logprob = in.top_logprobs(i)});
  }
  return out;
}

}  // namespace tandem
