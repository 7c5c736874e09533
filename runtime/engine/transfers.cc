// What the engine does for both sides of the KV transfer: prompts go to prefill workers and come
// back, and blocks go with them.

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/math.h"
#include "runtime/engine/engine.h"

namespace tandem {

// True: a prefill worker has the prompt now. What is cached here is held from now on and will not
// travel.
bool Engine::TrySubmitToPrefill(Attempt* attempt, const Submit& submit) {
  if (submit.prefill.address.empty() || submit.prefill.worker == options_.self) return false;
  if (decode_.Paused(submit.prefill.worker)) return false;
  EngineSequence* const prompt = attempt->sequences.front().get();
  const auto num_tokens = static_cast<int32_t>(prompt->token_ids.size());
  const int32_t missing = num_tokens - blocks_.CountCachedBlocks(prompt) * options_.kv.block_tokens;
  if (missing < std::max(submit.disaggregate_from_tokens, 1)) return false;

  const int32_t num_blocks = CeilDiv(num_tokens, options_.kv.block_tokens);
  // No choice goes on after its first token: nothing needs to travel, nothing is promised.
  const bool only_first_token =
      RequestedFinish(attempt->spec, num_tokens, kNoToken) != FinishReason::kNone;
  if (!only_first_token) {
    blocks_.AttachPrefix(prompt);
    blocks_.BeginAt(prompt, num_tokens - 1);  // What no token here will see does not travel.
  }
  const int32_t first_block =
      only_first_token ? num_blocks : static_cast<int32_t>(prompt->block_table.size());
  const JobId job = attempt->order;
  decode_.Submit(
      {.attempt = attempt->key,
       .peer = submit.prefill,
       .deadline_us = attempt->deadline_us,
       .cached_tokens = prompt->num_computed,
       .num_prompt_logprobs = prompt->num_prompt_logprobs < 0 ? 0 : attempt->spec.prompt_tokens - 1,
       .at_any_price = submit.disaggregate_from_tokens <= 1},
      {.job = job,
       .attempt = submit.attempt,
       .spec = submit.spec,
       .first_block = first_block,
       .num_blocks = num_blocks});
  return true;
}

// A block for everyone who runs stays, as for admissions.
int32_t Engine::GrantableBlocks() const {
  return std::max(0, blocks_.num_available() - scheduler_.num_running());
}

void Engine::MakeRoom(uint64_t order, int32_t num_blocks) {
  preempted_ += scheduler_.MakeRoom(order, num_blocks);
}

std::vector<BlockId> Engine::AppendBlocks(const AttemptKey& attempt, int32_t num_blocks) {
  EngineSequence* const prompt = attempts_.at(attempt)->sequences.front().get();
  TANDEM_CHECK(blocks_.AppendBlocks(prompt, num_blocks))
      << blocks_.num_available() << " blocks available after all";
  return {prompt->block_table.end() - num_blocks, prompt->block_table.end()};
}

void Engine::OnFirstToken(const AttemptKey& key, const FirstToken& first, int32_t cached_tokens) {
  Attempt* const attempt = attempts_.at(key).get();
  const EngineSequence& prompt = *attempt->sequences.front();
  std::vector<SampledToken> tokens = first.tokens;
  attempt->prompt_logprobs = first.prompt_logprobs;
  attempt->cached_tokens = std::max(cached_tokens, prompt.num_computed);
  DeliverFirstTokens(attempt, &tokens);
  if (attempt->started_choices.empty()) FinishAttempt(attempt);
}

// The sequence joins the batch, its prefix the cache.
void Engine::OnTransferred(const AttemptKey& key) {
  Attempt* const attempt = attempts_.at(key).get();
  attempt->charge.reset();
  EngineSequence* const prompt = attempt->sequences.front().get();
  prompt->num_computed = static_cast<int32_t>(prompt->token_ids.size());
  blocks_.CacheComputed(prompt, prompt->num_computed);
  ForkChoices(attempt);
}

void Engine::ComputeHere(const AttemptKey& key) {
  Attempt* const attempt = attempts_.at(key).get();
  EngineSequence* const prompt = attempt->sequences.front().get();
  blocks_.Release(prompt);
  if (attempt->started_choices.empty()) {
    scheduler_.Enqueue(prompt);
  } else {
    ForkChoices(attempt);
  }
}

void Engine::EndAttempt(const AttemptKey& key, RouterEvent last) {
  outbox_->ToRouter(key.router, std::move(last));
  ForgetAttempt(attempts_.at(key).get());
}

void Engine::EndPrompt(const JobKey& key) {
  const auto job = jobs_.find(key);
  ReleaseSequence(job->second->sequence.get());
  Bury(std::move(job->second->sequence));
  jobs_.erase(job);
}

}  // namespace tandem
