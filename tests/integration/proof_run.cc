#include "tests/integration/proof_run.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int32_t kMaxChoicesAlone = 4;  // In one request.

std::vector<uint32_t> Bits(std::span<const SampledToken> tokens) {
  std::vector<uint32_t> bits;
  for (const SampledToken& token : tokens) {
    bits.push_back(static_cast<uint32_t>(token.token));
    bits.push_back(static_cast<uint32_t>(token.rank));
    bits.push_back(std::bit_cast<uint32_t>(token.logprob));
    for (const TokenLogprob& top : token.top) {
      bits.push_back(static_cast<uint32_t>(top.token));
      bits.push_back(std::bit_cast<uint32_t>(top.logprob));
    }
  }
  return bits;
}

int32_t Size(const std::vector<int32_t>& tokens) { return static_cast<int32_t>(tokens.size()); }

}  // namespace

std::string Difference(const std::string& what, std::span<const SampledToken> want,
                       std::span<const SampledToken> got) {
  if (want.size() != got.size()) {
    return absl::StrFormat("%d %s, not %d", got.size(), what, want.size());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (Bits(want.subspan(i, 1)) == Bits(got.subspan(i, 1))) continue;
    const SampledToken &a = got[i], &b = want[i];
    const bool only_top = a.token == b.token && a.logprob == b.logprob && a.rank == b.rank;
    return absl::StrFormat("%s %d of %d: token %d, logprob %a, rank %d; not %d, %a, %d%s", what, i,
                           want.size(), a.token, a.logprob, a.rank, b.token, b.logprob, b.rank,
                           only_top ? "; the top ones differ" : "");
  }
  return "";
}

ProofRun::Work ProofRun::WorkOf(const ProofRequest& request, const ProofResult* want,
                                std::string name) {
  Work work{
      .request = &request, .want = want, .name = std::move(name), .choices = {}, .resumed = {}};
  for (int32_t i = 0; i < request.num_choices; ++i) work.choices.push_back(i);
  return work;
}

ProofRun::ProofRun(const ProofVariant& variant, const Options& options, const ModelOf& model_of,
                   const PoolOf& pool_of)
    : variant_(variant),
      prefix_caching_(options.prefix_caching),
      window_{.tokens = model_of(kDecode).model().config().largest_window(),
              .block_tokens = variant.block_tokens} {
  const LoadedModel& model = model_of(kDecode);
  const auto layout = KvLayout::Make(model.model().config(), *model.backend(),
                                     model.model().types(), variant.block_tokens);
  TANDEM_CHECK(layout.ok()) << layout.status().ToString();
  const int32_t chunk = variant.chunk == 0 ? options.max_model_tokens : variant.chunk;
  ModelExecutorOptions sizes{.block_tokens = variant.block_tokens,
                             .max_sequences = variant.batch ? kBatch : std::min(chunk - 1, kBatch),
                             .max_batched_tokens = variant.batch ? chunk + kBatch : chunk,
                             .max_model_tokens = options.max_model_tokens};
  for (int worker = 0; worker < options.num_workers; ++worker) {
    sizes.num_blocks = worker == kDecode ? options.decode_blocks : options.other_blocks;
    const size_t pool_bytes = layout->block_bytes * static_cast<size_t>(sizes.num_blocks);
    auto executor =
        std::make_unique<ModelFleetExecutor>(sizes, model_of(worker), pool_of(worker, pool_bytes));
    executors_.push_back(executor.get());
    fleet_.AddWorker(
        {.engine = {.kv = {.block_tokens = sizes.block_tokens, .num_blocks = sizes.num_blocks},
                    .window = window_.tokens,
                    .max_sequences = sizes.max_sequences,
                    .max_batched_tokens = sizes.max_batched_tokens,
                    .max_model_tokens = sizes.max_model_tokens,
                    .max_waiting_attempts = 1024,
                    .prefix_caching = options.prefix_caching},
         .executor = std::move(executor),
         .overlap_steps = variant.overlap_steps});
  }
  fleet_.SetFastNetwork(variant.batch);
}

AttemptId ProofRun::AttemptOf(uint64_t counter) {
  return {.request = {.router_incarnation = 5, .counter = counter}, .attempt = 1};
}

std::string ProofRun::Do(const std::vector<Work>& works,
                         const std::function<int(size_t)>& worker_of) {
  for (size_t i = 0; i < works.size(); ++i) {
    Submit(works[i], worker_of(i), variant_.disaggregated ? kPrefill : -1);
    if (variant_.batch) continue;
    if (std::string error = Settle(); !error.empty()) return error;
  }
  return Settle();
}

void ProofRun::Submit(const Work& work, int worker, int prefill) {
  struct Submit submit;
  submit.attempt = AttemptOf(next_attempt_++);
  submit.spec = {.token_ids = work.request->prompt,
                 .prompt_tokens = Size(work.request->prompt),
                 .choices = work.choices,
                 .sampling = work.request->sampling,
                 .time_left_us = 600'000'000,
                 .hash_root = HashRoot("proof", "", "")};
  std::vector<int32_t>& tokens = submit.spec.token_ids;
  tokens.insert(tokens.end(), work.resumed.begin(), work.resumed.end());
  const int32_t num_tokens = Size(tokens);
  const bool scored = submit.spec.sampling.num_prompt_logprobs >= 0 && work.resumed.empty();
  const int32_t cached = scored ? 0 : CachedBlocks(worker, submit.spec.token_ids);
  if (prefill >= 0) {
    submit.prefill = fleet_.peer(prefill);
    submit.disaggregate_from_tokens = 1;
    frames_wanted_ += FramesOf(submit, cached);
  }
  const int32_t cached_there =
      prefill < 0 || scored ? 0 : CachedBlocks(prefill, submit.spec.token_ids);
  // The last token is always computed.
  const int32_t attached =
      std::min(std::max(cached, cached_there), (num_tokens - 1) / variant_.block_tokens);
  fleet_.Submit(worker, submit);
  pending_.push_back(
      {.work = work,
       .submit = submit,
       .worker = worker,
       .prefill = prefill,
       .cached_tokens = std::min(attached * variant_.block_tokens, submit.spec.prompt_tokens)});
}

std::string ProofRun::Settle() {
  if (!fleet_.RunUntilQuiet(2'000'000)) return "not quiet after 2,000,000 events";
  for (const Pending& pending : pending_) {
    if (std::string error = Compare(pending); !error.empty()) {
      return pending.work.name + ": " + error;
    }
    Remember(pending);
  }
  pending_.clear();
  if (std::string error = fleet_.AuditQuiet(); !error.empty()) return error;
  if (fleet_.frames_delivered() == frames_wanted_) return "";
  return absl::StrFormat("%d KV frames, not %d", fleet_.frames_delivered(), frames_wanted_);
}

size_t ProofRun::NumSampled() {
  size_t sampled = 0;
  for (const Pending& pending : pending_) {
    for (const auto& [choice, tokens] : fleet_.record(pending.submit.attempt).tokens) {
      sampled += tokens.size();
    }
  }
  return sampled;
}

ProofResult ProofRun::Result(uint64_t attempt) {
  const AttemptRecord& record = fleet_.record(AttemptOf(attempt));
  ProofResult result{.prompt_logprobs = record.prompts.front().prompt_logprobs, .choices = {}};
  for (const auto& [choice, tokens] : record.tokens) result.choices.push_back(tokens);
  return result;
}

std::string ProofRun::CheckShape() const {
  const int32_t largest_run =
      std::max(executor(kDecode).largest_run(),
               variant_.disaggregated ? executor(kPrefill).largest_run() : 0);
  const int32_t batch = executor(kDecode).largest_batch();
  // Who runs at once depends on whose turn it is: of long prompts some have ended before all have
  // begun.
  constexpr int32_t kLeast = kBatch - kBatch / 8;
  if (variant_.batch ? batch < kLeast : batch > kMaxChoicesAlone) {
    return absl::StrFormat("%d sequences in the largest batch", batch);
  }
  if (variant_.batch || variant_.chunk == 0 || largest_run <= variant_.chunk) return "";
  return absl::StrFormat("a chunk of %d tokens", largest_run);
}

// protocol.md, "What travels": blocks [first missing on the decode side, n), from the window on.
int64_t ProofRun::FramesOf(const struct Submit& submit, int32_t cached) const {
  const int32_t num_tokens = Size(submit.spec.token_ids);
  if (num_tokens - submit.spec.prompt_tokens + 1 >= submit.spec.sampling.max_tokens) return 0;
  if (num_tokens <= cached * variant_.block_tokens) return 0;  // Lacks nothing: stays here.
  return CeilDiv(num_tokens, variant_.block_tokens) -
         std::max(cached, window_.FirstBlock(num_tokens - 1));
}

int32_t ProofRun::CachedBlocks(int worker, const std::vector<int32_t>& tokens) const {
  const auto found = known_.find(worker);
  if (found == known_.end()) return 0;
  int32_t cached = 0;
  int32_t first = 0;  // The first of those that follow each other.
  for (int32_t end = variant_.block_tokens; end <= Size(tokens); end += variant_.block_tokens) {
    const int32_t blocks = end / variant_.block_tokens;
    if (!found->second.contains({tokens.begin(), tokens.begin() + end})) {
      first = blocks;
    } else if (first <= window_.FirstBlock(end)) {
      cached = blocks;
    }
  }
  return cached;
}

void ProofRun::Remember(const Pending& pending) {
  if (!prefix_caching_) return;
  RememberBlocks(pending.prefill, pending.submit.spec.token_ids);
  for (const auto& [choice, sampled] : fleet_.record(pending.submit.attempt).tokens) {
    std::vector<int32_t> tokens = pending.submit.spec.token_ids;
    for (const SampledToken& token : sampled) tokens.push_back(token.token);
    tokens.pop_back();  // Was never computed.
    RememberBlocks(pending.worker, tokens);
  }
}

void ProofRun::RememberBlocks(int worker, const std::vector<int32_t>& tokens) {
  for (int32_t end = variant_.block_tokens; end <= Size(tokens); end += variant_.block_tokens) {
    known_[worker].insert({tokens.begin(), tokens.begin() + end});
  }
}

std::string ProofRun::Compare(const Pending& pending) {
  const AttemptRecord& record = fleet_.record(pending.submit.attempt);
  for (const auto& status : record.refused) return "refused: " + status.ToString();
  for (const auto& status : record.ended) return "ended: " + status.ToString();
  if (record.position_gap || record.token_after_end || record.prompts.size() != 1) {
    return "events out of order";
  }
  const PromptEvent& prompt = record.prompts.front();
  if (expect_hits_ && prompt.cached_tokens != pending.cached_tokens) {
    return absl::StrFormat("%d cached tokens, not %d", prompt.cached_tokens, pending.cached_tokens);
  }
  const Work& work = pending.work;
  for (const int32_t choice : work.choices) {
    if (!record.finish.contains(choice)) return absl::StrFormat("choice %d goes on", choice);
  }
  if (work.want == nullptr) return "";
  if (work.resumed.empty()) {
    comparisons_ += static_cast<int64_t>(prompt.prompt_logprobs.size());
    std::string error =
        Difference("prompt logprobs", work.want->prompt_logprobs, prompt.prompt_logprobs);
    if (!error.empty()) return error;
  }
  for (const int32_t choice : work.choices) {
    const std::span<const SampledToken> want(work.want->choices[static_cast<size_t>(choice)]);
    const std::vector<SampledToken>& got = record.tokens.at(choice);
    comparisons_ += static_cast<int64_t>(got.size());
    std::string error = Difference(absl::StrFormat("tokens of choice %d,", choice),
                                   want.subspan(work.resumed.size()), got);
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace tandem
