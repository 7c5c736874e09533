// What a step has computed becomes tokens, cached blocks and frames.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/engine/engine.h"

namespace tandem {

absl::Status Engine::Publish(const BegunStep& step, StepOutput* outputs) {
  TANDEM_CHECK(outputs->runs.size() == step.size())
      << outputs->runs.size() << " outputs of " << step.size() << " runs";
  absl::Status published;
  for (size_t i = 0; i < step.size(); ++i) {
    EngineSequence* const sequence = step[i].sequence;
    if (sequence->ended) continue;  // Its attempt ended since the step was begun, or by it.
    sequence->held = false;
    RunOutput& output = outputs->runs[i];
    if (!output.status.ok()) {
      FailRun(sequence,
              absl::InternalError(absl::StrCat("the run failed: ", output.status.message())));
      continue;
    }
    if (sequence->forked && step[i].complete) {
      PublishChoice(sequence, &output.drawn);
      continue;
    }
    BegunRun run = step[i];
    if (run.complete && sequence->masks != nullptr && output.drawn.empty()) {
      // Its mask was late: the prompt goes on with its last token, which is computed once more.
      run.complete = false;
      --run.end_position;
      --sequence->num_computed;
    }
    blocks_.CacheComputed(sequence, run.end_position);
    CollectPromptLogprobs(sequence, run.first_position, &output);
    if (sequence->job == nullptr && !run.complete) continue;
    TANDEM_CHECK(!run.complete || output.drawn.size() == sequence->draws.size())
        << output.drawn.size() << " tokens of " << sequence->draws.size() << " draws";
    if (sequence->job != nullptr) {
      published.Update(PublishToDecode(run, &output));
    } else {
      PublishPrompt(sequence, &output);
    }
  }
  return published;
}

void Engine::FailRun(EngineSequence* sequence, const absl::Status& status) {
  if (sequence->job != nullptr) {
    prefill_.Refuse(sequence->job->key, status);
  } else {
    EndAttempt(sequence->attempt, status);
  }
}

void Engine::CollectPromptLogprobs(EngineSequence* sequence, int32_t first, RunOutput* output) {
  if (sequence->num_prompt_logprobs < 0) return;
  std::vector<SampledToken>& collected = sequence->job != nullptr
                                             ? sequence->job->prompt_logprobs
                                             : sequence->attempt->prompt_logprobs;
  // After a preemption the first ones come again.
  const size_t known =
      std::min(collected.size() - static_cast<size_t>(first), output->prompt_logprobs.size());
  std::move(output->prompt_logprobs.begin() + static_cast<ptrdiff_t>(known),
            output->prompt_logprobs.end(), std::back_inserter(collected));
}

// What a choice of its own has drawn takes the place of the token that was counted on, if one was,
// up to the first that ends it. All but the last of it is computed; if nothing was drawn, its last
// token is computed once more.
void Engine::PublishChoice(EngineSequence* sequence, std::vector<SampledToken>* drawn) {
  TANDEM_CHECK(drawn->size() == 1 || sequence->lookahead_tokens > 0 ||
               (sequence->masks != nullptr && drawn->empty()))
      << drawn->size() << " tokens of a draw";
  Attempt* const attempt = sequence->attempt;
  std::vector<int32_t>& token_ids = sequence->token_ids;
  const int32_t first = sequence->num_seen();
  if (first < std::ssize(token_ids)) token_ids.erase(token_ids.begin() + first);
  int32_t position = first;
  bool ends = false;
  for (auto token = drawn->begin(); token != drawn->end() && !ends; ++token) {
    token_ids.insert(token_ids.begin() + position, token->token);
    ends = DeliverToken(attempt, sequence->draws.front().choice, position++, &*token);
  }
  sequence->num_computed += position - first - 1;
  blocks_.CacheComputed(sequence, position - 1);
  if (ends) return EndSequence(sequence);
  // The run that is begun draws its last one: nothing comes after that.
  if (std::ssize(token_ids) > sequence->final_tokens) token_ids.pop_back();
}

void Engine::PublishPrompt(EngineSequence* sequence, RunOutput* output) {
  Attempt* const attempt = sequence->attempt;
  outbox_->OnPromptComputed(sequence->arrived_us, sequence->begun_us);
  attempt->cached_tokens = std::max(sequence->attached_tokens, 0);
  DeliverFirstTokens(attempt, &output->drawn);
  if (attempt->started_choices.empty()) {
    FinishAttempt(attempt);
  } else {
    ForkChoices(attempt);
  }
}

absl::Status Engine::PublishToDecode(const BegunRun& run, RunOutput* output) {
  EngineSequence* const sequence = run.sequence;
  PrefillJob* const job = sequence->job;
  const std::span<const BlockId> final_blocks = FinalBlocks(*sequence, run.end_position);
  if (!run.complete) return prefill_.OnChunk(job->key, final_blocks);
  outbox_->OnPromptComputed(sequence->arrived_us, sequence->begun_us);
  const auto position = static_cast<int32_t>(sequence->token_ids.size());
  const bool goes_on =
      std::any_of(output->drawn.begin(), output->drawn.end(), [&](const SampledToken& token) {
        return RequestedFinish(job->spec, position, token.token) == FinishReason::kNone;
      });
  scheduler_.Remove(sequence);  // The job keeps its blocks.
  return prefill_.OnFirstToken(job->key,
                               {.job = job->key.job,
                                .tokens = std::move(output->drawn),
                                .prompt_logprobs = std::move(job->prompt_logprobs)},
                               goes_on, final_blocks);
}

std::span<const BlockId> Engine::FinalBlocks(const EngineSequence& sequence,
                                             int32_t num_tokens) const {
  const bool all = num_tokens == static_cast<int32_t>(sequence.token_ids.size());
  const int32_t num_final =
      all ? CeilDiv(num_tokens, options_.kv.block_tokens) : num_tokens / options_.kv.block_tokens;
  return std::span(sequence.block_table).first(static_cast<size_t>(num_final));
}

// True: that was the choice's last token.
bool Engine::DeliverToken(Attempt* attempt, int32_t choice, int32_t position, SampledToken* token) {
  const FinishReason finish = RequestedFinish(attempt->spec, position, token->token);
  outbox_->ToRouter(attempt->key.router, TokenEvent{.attempt = attempt->key.attempt,
                                                    .choice = choice,
                                                    .position = position,
                                                    .token = std::move(*token),
                                                    .finish = finish});
  if (finish == FinishReason::kNone) return false;
  --attempt->num_unfinished;
  return true;
}

// The first token of every choice, from a run here or from a prefill worker. Those that go on are
// in started_choices afterwards.
void Engine::DeliverFirstTokens(Attempt* attempt, std::vector<SampledToken>* tokens) {
  EngineSequence* const prompt = attempt->sequences.front().get();
  outbox_->ToRouter(
      attempt->key.router,
      PromptEvent{.attempt = attempt->key.attempt,
                  .cached_tokens = std::min(attempt->cached_tokens, attempt->spec.prompt_tokens),
                  .by_prefill = decode_.Has(attempt->order),
                  .prompt_logprobs = std::move(attempt->prompt_logprobs)});
  for (size_t i = 0; i < tokens->size(); ++i) {
    const int32_t choice = prompt->draws[i].choice;
    const int32_t token_id = (*tokens)[i].token;
    const auto position = static_cast<int32_t>(prompt->token_ids.size());
    if (!DeliverToken(attempt, choice, position, &(*tokens)[i])) {
      attempt->started_choices.push_back({.choice = choice, .token_id = token_id});
    }
  }
}

FinishReason Engine::RequestedFinish(const RequestSpec& spec, int32_t position, int32_t token) {
  const std::vector<int32_t>& stops = spec.sampling.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return FinishReason::kStop;
  const int32_t generated = position + 1 - spec.prompt_tokens;
  return generated >= spec.sampling.max_tokens ? FinishReason::kLength : FinishReason::kNone;
}

// One sequence per choice that goes on. They share the prompt's blocks; the tail is copied when
// the second of them writes to it. Without blocks (the transfer was given up) they recompute.
void Engine::ForkChoices(Attempt* attempt) {
  EngineSequence* const prompt = attempt->sequences.front().get();
  scheduler_.Remove(prompt);
  prompt->num_prompt_logprobs = -1;  // They are told.
  prompt->runs_alone = false;        // Whom it was kept apart from need not wait for it any longer.
  const std::vector<StartedChoice> choices = std::move(attempt->started_choices);
  attempt->started_choices.clear();
  for (size_t i = 1; i < choices.size(); ++i) {
    auto copy = std::make_unique<EngineSequence>(*prompt);
    copy->masks = MasksOf(attempt->spec);
    blocks_.Share(copy->block_table);
    attempt->sequences.push_back(std::move(copy));
  }
  for (size_t i = 0; i < choices.size(); ++i) {
    EngineSequence* const sequence = attempt->sequences[i].get();
    sequence->forked = true;
    sequence->order = OrderOf(attempt->order, i);
    sequence->final_tokens = FinalTokens(attempt->spec);
    if (sequence->masks == nullptr) sequence->lookahead_tokens = lookahead_tokens_;
    sequence->draws = {{.choice = choices[i].choice,
                        .sampling = &attempt->spec.sampling,
                        .prompt_tokens = attempt->spec.prompt_tokens}};
    sequence->token_ids.push_back(choices[i].token_id);
    if (sequence->block_table.empty()) {
      scheduler_.Enqueue(sequence);
    } else {
      scheduler_.Join(sequence);
    }
  }
}

}  // namespace tandem
