// Submit: what is refused, and where an admitted prompt is computed.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/math.h"
#include "runtime/engine/engine_impl.h"

namespace tandem {
namespace {

constexpr int64_t kMinRetryUs = 10'000;
constexpr int64_t kMaxRetryUs = 1'000'000;

}  // namespace

void Engine::Impl::OnSubmit(SessionId router, const Submit& submit, int64_t now_us,
                            PromptCharge charge) {
  Note(now_us);
  const AttemptKey key{.router = router, .attempt = submit.attempt};
  if (attempts_.contains(key) || Ended(key)) return;
  if (submit.time_left_us <= 0) {
    outbox_->ToRouter(router, EndedEvent{.attempt = submit.attempt,
                                         .status = absl::DeadlineExceededError(absl::StrFormat(
                                             "submitted with %d us left", submit.time_left_us))});
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

absl::Status Engine::Impl::CheckSubmit(SessionId router, const Submit& submit) const {
  if (!tombstones_.Admits({.router = router, .attempt = submit.attempt})) {
    return absl::CancelledError("aborted before its submit arrived");
  }
  if (draining_) return absl::UnavailableError("this worker is draining");
  if (submit.model != options_.model) {
    // The router knows whom it registered here; whoever listens now is another.
    return absl::UnavailableError(
        absl::StrFormat("asked for %s, this worker serves %s", submit.model, options_.model));
  }
  const auto num_tokens = static_cast<int64_t>(submit.token_ids.size());
  TANDEM_RETURN_IF_ERROR(
      CheckGeneration(submit.sampling, submit.choices, submit.prompt_tokens, num_tokens));
  // All that was promised, or nothing: what ends at the end of a context of ours would have gone on
  // at a larger worker.
  const int64_t longest = submit.prompt_tokens + int64_t{submit.sampling.max_tokens};
  if (longest > options_.max_model_tokens ||
      CeilDiv<int64_t>(longest, options_.block_tokens) > options_.num_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d tokens need %d blocks of %d, this worker has a context of %d and %d blocks", longest,
        CeilDiv<int64_t>(longest, options_.block_tokens), options_.block_tokens,
        options_.max_model_tokens, options_.num_blocks));
  }
  // Of two that may be what kills workers, a death would be laid to both.
  if (submit.alone && scheduler_.num_alone() > 0) {
    return absl::AbortedError("another attempt that must run alone has no token yet");
  }
  return CheckQueue();
}

absl::Status Engine::Impl::CheckQueue() const {
  const int64_t waiting = scheduler_.num_waiting() + static_cast<int64_t>(remote_.size());
  if (waiting < options_.max_waiting_attempts) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d attempts wait, at most %d may", waiting, options_.max_waiting_attempts));
}

absl::Status Engine::Impl::CheckGeneration(const SamplingParams& sampling,
                                           std::span<const int32_t> choices, int32_t prompt_tokens,
                                           int64_t num_tokens) const {
  if (prompt_tokens < 1 || prompt_tokens > num_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a prompt of %d tokens in %d", prompt_tokens, num_tokens));
  }
  const int64_t generated = num_tokens - prompt_tokens;
  if (sampling.max_tokens <= generated) {
    return absl::InvalidArgumentError(absl::StrFormat("%d of at most %d tokens generated already",
                                                      generated, sampling.max_tokens));
  }
  if (choices.empty() || choices.size() > kMaxChoices || choices.front() < 0 ||
      (generated > 0 && choices.size() > 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d choices after %d generated tokens", choices.size(), generated));
  }
  for (size_t i = 1; i < choices.size(); ++i) {
    if (choices[i] <= choices[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("choice %d follows choice %d", choices[i], choices[i - 1]));
    }
  }
  return absl::OkStatus();
}

void Engine::Impl::Refuse(SessionId router, const Submit& submit, absl::Status status) {
  // A copy of this submit that arrives later must not be admitted.
  RememberEnded({.router = router, .attempt = submit.attempt}, After(now_us_, submit.time_left_us));
  const int64_t retry_after_us = RetryAfterUs(status);
  outbox_->ToRouter(router, RefusedEvent{.attempt = submit.attempt,
                                         .status = std::move(status),
                                         .retry_after_us = retry_after_us});
}

int64_t Engine::Impl::RetryAfterUs(const absl::Status& refused) const {
  if (!absl::IsResourceExhausted(refused)) return 0;
  // Who has let nobody in for longer than usual has become slower.
  const int64_t since_us = last_admission_us_.has_value() ? now_us_ - *last_admission_us_ : 0;
  return std::clamp(std::max(admission_interval_us_, since_us), kMinRetryUs, kMaxRetryUs);
}

// A place in the queue frees when somebody leaves it: so often, on average, while anybody waits.
void Engine::Impl::CountAdmitted(size_t num_admitted) {
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

Attempt* Engine::Impl::AddAttempt(SessionId router, const Submit& submit) {
  auto owned = std::make_unique<Attempt>();
  Attempt* const attempt = owned.get();
  attempt->key = {.router = router, .attempt = submit.attempt};
  attempt->order = ++num_arrivals_;
  attempt->sampling = submit.sampling;
  attempt->prompt_tokens = submit.prompt_tokens;
  attempt->deadline_us = After(now_us_, submit.time_left_us);
  attempt->num_unfinished = static_cast<int32_t>(submit.choices.size());

  auto sequence = std::make_unique<EngineSequence>();
  sequence->attempt = attempt;
  sequence->arrived_us = now_us_;
  sequence->order = attempt->order;
  sequence->token_ids = submit.token_ids;
  sequence->token_ids.reserve(submit.token_ids.size() +
                              static_cast<size_t>(std::min(submit.sampling.max_tokens, 1024)));
  sequence->alone = submit.alone;
  sequence->turns = &attempt->turns;
  sequence->final_tokens = FinalTokens(attempt->prompt_tokens, attempt->sampling);
  const auto num_tokens = static_cast<int64_t>(submit.token_ids.size());
  if (sequence->final_tokens > num_tokens) {
    // A fork shares the full blocks of the prompt and has its own for what follows.
    const int64_t block_tokens = options_.block_tokens;
    const int64_t own = sequence->final_tokens - num_tokens / block_tokens * block_tokens;
    sequence->final_tokens +=
        (attempt->num_unfinished - 1) * CeilDiv<int64_t>(own, block_tokens) * block_tokens;
  }
  SetUpPrompt(submit.hash_root, submit.choices, attempt->prompt_tokens, &attempt->sampling,
              sequence.get());
  attempt->sequences.push_back(std::move(sequence));
  attempt_deadlines_.Set(attempt->key, attempt->deadline_us);
  attempts_.emplace(attempt->key, std::move(owned));
  return attempt;
}

int64_t Engine::Impl::FinalTokens(int32_t prompt_tokens, const SamplingParams& sampling) {
  return prompt_tokens + int64_t{sampling.max_tokens} - 1;
}

void Engine::Impl::SetUpPrompt(const BlockHash& hash_root, std::span<const int32_t> choices,
                               int32_t prompt_tokens, const SamplingParams* sampling,
                               EngineSequence* sequence) const {
  sequence->hash_root = hash_root;
  sequence->cursor = {.name = hash_root};
  // A resumed stream has had its prompt logprobs: they come no later than the first token.
  if (static_cast<int32_t>(sequence->token_ids.size()) == prompt_tokens) {
    sequence->num_prompt_logprobs = sampling->num_prompt_logprobs;
  }
  for (int32_t choice : choices) {
    sequence->draws.push_back(
        {.choice = choice, .sampling = sampling, .prompt_tokens = prompt_tokens});
  }
}

}  // namespace tandem
