// Submits of routers and of decode workers: what is refused, and what the rest starts with.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/engine.h"

namespace tandem {
namespace {

constexpr int64_t kMinRetryUs = 10'000;
constexpr int64_t kMaxRetryUs = 1'000'000;

}  // namespace

void Engine::OnSubmit(SessionId router, const Submit& submit, int64_t now_us,
                      CommandCharge charge) {
  AdvanceTo(now_us);
  const AttemptKey key{.router = router, .attempt = submit.attempt};
  if (attempts_.contains(key) || ended_attempts_.Ended(key)) return;
  if (submit.spec.time_left_us <= 0) {
    outbox_->ToRouter(router,
                      EndedEvent{.attempt = submit.attempt,
                                 .status = absl::DeadlineExceededError(absl::StrFormat(
                                     "submitted with %d us left", submit.spec.time_left_us))});
    return;
  }
  if (absl::Status status = CheckSubmit(router, submit); !status.ok()) {
    Refuse(router, submit, std::move(status));
    return;
  }
  Attempt* const attempt = AddAttempt(router, submit);
  attempt->charge = std::move(charge);
  if (!TrySubmitToPrefill(attempt, submit)) scheduler_.Enqueue(attempt->sequences.front().get());
}

absl::Status Engine::CheckSubmit(SessionId router, const Submit& submit) const {
  if (!ended_attempts_.Admits({.router = router, .attempt = submit.attempt})) {
    return absl::CancelledError("aborted before its submit arrived");
  }
  if (draining_) return absl::UnavailableError("this worker is draining");
  if (submit.model != options_.model) {
    // The router knows whom it registered here; whoever listens now is another.
    return absl::UnavailableError(
        absl::StrFormat("asked for %s, this worker serves %s", submit.model, options_.model));
  }
  TANDEM_RETURN_IF_ERROR(Validate(submit.spec, {.vocab_size = options_.vocab_size}));
  // All that was promised, or nothing: what ends at the end of a context of ours would have gone on
  // at a larger worker.
  const int64_t longest = submit.spec.prompt_tokens + int64_t{submit.spec.sampling.max_tokens};
  const int64_t most_blocks = options_.MostBlocks(longest);
  if (longest > options_.max_model_tokens || most_blocks > options_.kv.num_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d tokens need %d blocks of %d, this worker has a context of %d and %d blocks", longest,
        most_blocks, options_.kv.block_tokens, options_.max_model_tokens, options_.kv.num_blocks));
  }
  // If two attempts that may be what kills workers ran here, a death would be laid to both.
  if (submit.spec.runs_alone && scheduler_.num_alone() > 0) {
    return absl::AbortedError("another attempt that must run alone has no token yet");
  }
  return CheckQueue();
}

absl::Status Engine::CheckQueue() const {
  const int64_t waiting = int64_t{scheduler_.num_waiting()} + decode_.num_prompts();
  if (waiting < options_.max_waiting_attempts) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d attempts wait, at most %d may", waiting, options_.max_waiting_attempts));
}

void Engine::Refuse(SessionId router, const Submit& submit, absl::Status status) {
  // A copy of this submit that arrives later must not be admitted.
  ended_attempts_.AddEnded({.router = router, .attempt = submit.attempt},
                           After(now_us_, submit.spec.time_left_us), now_us_);
  const int64_t retry_after_us = RetryAfterUs(status);
  outbox_->ToRouter(router, RefusedEvent{.attempt = submit.attempt,
                                         .status = std::move(status),
                                         .retry_after_us = retry_after_us});
}

int64_t Engine::RetryAfterUs(const absl::Status& refused) const {
  if (!absl::IsResourceExhausted(refused)) return 0;
  // Who has let nobody in for longer than usual has become slower.
  const int64_t since_us = last_admission_us_.has_value() ? now_us_ - *last_admission_us_ : 0;
  return std::clamp(std::max(admission_interval_us_, since_us), kMinRetryUs, kMaxRetryUs);
}

// A place in the queue frees when somebody leaves it: so often, on average, while anybody waits.
void Engine::CountAdmitted(size_t num_admitted) {
  if (num_admitted > 0) {
    if (last_admission_us_.has_value()) {
      const int64_t since_us = now_us_ - *last_admission_us_;
      admission_interval_us_ +=
          (since_us / static_cast<int64_t>(num_admitted) - admission_interval_us_) / 4;
    }
    last_admission_us_ = now_us_;
  }
  if (scheduler_.num_waiting() == 0) {
    last_admission_us_.reset();
  } else if (!last_admission_us_.has_value()) {
    last_admission_us_ = now_us_;
  }
}

Attempt* Engine::AddAttempt(SessionId router, const Submit& submit) {
  auto owned = std::make_unique<Attempt>();
  Attempt* const attempt = owned.get();
  attempt->key = {.router = router, .attempt = submit.attempt};
  attempt->order = ++num_arrivals_;
  attempt->spec = submit.spec;
  attempt->deadline_us = After(now_us_, submit.spec.time_left_us);
  attempt->num_unfinished = static_cast<int32_t>(submit.spec.choices.size());

  auto sequence = std::make_unique<EngineSequence>();
  sequence->attempt = attempt;
  sequence->arrived_us = now_us_;
  sequence->order = attempt->order;
  SetUpPrompt(&attempt->spec, sequence.get());
  const auto num_tokens = static_cast<int64_t>(sequence->token_ids.size());
  sequence->token_ids.reserve(sequence->token_ids.size() +
                              static_cast<size_t>(std::min(submit.spec.sampling.max_tokens, 1024)));
  sequence->rounds = &attempt->rounds;
  if (sequence->final_tokens > num_tokens) {
    // A fork shares the full blocks of the prompt and has its own for what follows.
    const int64_t block_tokens = options_.kv.block_tokens;
    const int64_t own = sequence->final_tokens - num_tokens / block_tokens * block_tokens;
    sequence->final_tokens +=
        (attempt->num_unfinished - 1) * CeilDiv<int64_t>(own, block_tokens) * block_tokens;
  }
  attempt->sequences.push_back(std::move(sequence));
  attempt_deadlines_.Set(attempt->key, attempt->deadline_us);
  attempts_.emplace(attempt->key, std::move(owned));
  return attempt;
}

int64_t Engine::FinalTokens(const RequestSpec& spec) {
  return spec.prompt_tokens + int64_t{spec.sampling.max_tokens} - 1;
}

void Engine::SetUpPrompt(RequestSpec* spec, EngineSequence* sequence) {
  sequence->spec = spec;
  sequence->masks = MasksOf(*spec);
  sequence->token_ids = std::move(spec->token_ids);
  sequence->runs_alone = spec->runs_alone;
  sequence->final_tokens = FinalTokens(*spec);
  sequence->cursor = {.name = spec->hash_root};
  // A resumed stream has had its prompt logprobs: they come no later than the first token.
  if (static_cast<int32_t>(sequence->token_ids.size()) == spec->prompt_tokens) {
    sequence->num_prompt_logprobs = spec->sampling.num_prompt_logprobs;
  }
  for (int32_t choice : spec->choices) {
    sequence->draws.push_back(
        {.choice = choice, .sampling = &spec->sampling, .prompt_tokens = spec->prompt_tokens});
  }
}

std::unique_ptr<SequenceMasks> Engine::MasksOf(const RequestSpec& spec) {
  return masker_ == nullptr ? nullptr : masker_->MasksOf(spec);
}

void Engine::OnPrefillSubmit(SessionId decode, const PrefillSubmit& submit, CommandCharge charge) {
  const JobKey key{.decode = decode, .job = submit.job};
  const uint64_t order = num_arrivals_ + 1;
  absl::Status fits = CheckPrefillSubmit(submit);
  const int64_t retry_after_us = RetryAfterUs(fits);
  const bool taken = prefill_.OnSubmit({.key = key,
                                        .serial = order,
                                        .first_block = submit.first_block,
                                        .num_blocks = submit.num_blocks,
                                        .time_left_us = submit.spec.time_left_us},
                                       std::move(fits), retry_after_us);
  if (!taken) return;
  num_arrivals_ = order;
  AddJob(key, submit, std::move(charge));
}

absl::Status Engine::CheckPrefillSubmit(const PrefillSubmit& submit) const {
  if (submit.spec.time_left_us <= 0) {
    return absl::DeadlineExceededError(
        absl::StrFormat("submitted with %d us left", submit.spec.time_left_us));
  }
  if (draining_) return absl::UnavailableError("this prefill worker is draining");
  TANDEM_RETURN_IF_ERROR(Validate(submit.spec, {.vocab_size = options_.vocab_size}));
  const auto num_tokens = static_cast<int64_t>(submit.spec.token_ids.size());
  const int64_t num_blocks = CeilDiv<int64_t>(num_tokens, options_.kv.block_tokens);
  TANDEM_RETURN_IF_ERROR(ValidateBlocks(submit));
  if (submit.num_blocks != num_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "blocks [%d, %d) promised for %d tokens in blocks of %d", submit.first_block,
        submit.num_blocks, num_tokens, options_.kv.block_tokens));
  }
  if (num_tokens >= options_.max_model_tokens || num_blocks > options_.kv.num_blocks) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "a prompt of %d tokens in %d blocks, this prefill worker has a context of %d and %d blocks",
        num_tokens, num_blocks, options_.max_model_tokens, options_.kv.num_blocks));
  }
  return CheckQueue();
}

void Engine::AddJob(const JobKey& key, const PrefillSubmit& submit, CommandCharge charge) {
  auto job = std::make_unique<PrefillJob>(PrefillJob{.key = key,
                                                     .attempt = submit.attempt,
                                                     .spec = submit.spec,
                                                     .sequence = std::make_unique<EngineSequence>(),
                                                     .charge = std::move(charge)});
  EngineSequence* const sequence = job->sequence.get();
  sequence->job = job.get();
  sequence->arrived_us = now_us_;
  sequence->order = num_arrivals_;
  SetUpPrompt(&job->spec, sequence);
  sequence->keeps_blocks = true;
  sequence->keep_from = submit.first_block;
  sequence->rounds = &job->rounds;
  jobs_.emplace(key, std::move(job));
  scheduler_.Enqueue(sequence);
}

}  // namespace tandem
