#include "tests/integration/bitwise_proof.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int32_t kBatch = 32;
constexpr int32_t kMaxChoicesAlone = 4;  // Of one request.
// Workers of a fleet. The intruder's prompt is computed by a worker of its own, which is paused
// until it is time.
constexpr int kDecode = 0, kPrefill = 1, kOtherDecode = 2, kIntruderPrefill = 3;
constexpr int32_t kBatchIntruderChoices = 48;

// NaNs and zeros of either sign included.
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

// Empty, or the first place that differs.
std::string Difference(const std::string& what, std::span<const SampledToken> want,
                       std::span<const SampledToken> got) {
  if (want.size() != got.size()) {
    return absl::StrFormat("%d %s, not %d", got.size(), what, want.size());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (Bits(want.subspan(i, 1)) == Bits(got.subspan(i, 1))) continue;
    return absl::StrFormat("%s %d of %d: token %d, logprob %a, rank %d; not %d, %a, %d", what, i,
                           want.size(), got[i].token, got[i].logprob, got[i].rank, want[i].token,
                           want[i].logprob, want[i].rank);
  }
  return "";
}

int32_t Size(const std::vector<int32_t>& tokens) { return static_cast<int32_t>(tokens.size()); }

// Blocks while all choices run.
int32_t BlocksOf(const ProofRequest& request, int32_t block_tokens) {
  const int32_t shared = Size(request.prompt) / block_tokens;
  const int32_t all = CeilDiv(Size(request.prompt) + request.sampling.max_tokens, block_tokens);
  return shared + request.num_choices * (all - shared);
}

}  // namespace

std::string ProofVariant::ToString() const {
  static constexpr const char* kStates[] = {"cold", "prefix hit", "preempted", "resumed"};
  return absl::StrFormat(
      "%s, chunk %s, %d threads, blocks of %d, %s, %s", batch ? "batch of 32" : "alone",
      chunk == 0 ? "whole" : absl::StrFormat("%d", chunk), num_threads, block_tokens,
      kStates[static_cast<size_t>(state)], disaggregated ? "disaggregated" : "hybrid");
}

std::vector<ProofVariant> AllProofVariants() {
  std::vector<ProofVariant> variants;
  for (const bool batch : {false, true}) {
    for (const int32_t chunk : {16, 64, 100, 0}) {
      for (const int num_threads : {1, 2, 3}) {
        for (const int32_t block_tokens : {16, 32}) {
          for (const KvState state :
               {KvState::kCold, KvState::kPrefixHit, KvState::kPreempted, KvState::kResumed}) {
            for (const bool disaggregated : {false, true}) {
              variants.push_back({.batch = batch,
                                  .chunk = chunk,
                                  .num_threads = num_threads,
                                  .block_tokens = block_tokens,
                                  .state = state,
                                  .disaggregated = disaggregated});
            }
          }
        }
      }
    }
  }
  return variants;
}

// Requests and a fleet to run them in.
class BitwiseProof::Run {
 public:
  // `num_blocks`: of the decode worker. 0, and everywhere else: enough.
  Run(BitwiseProof* proof, const ProofVariant& variant, int32_t num_blocks, int num_workers,
      bool prefix_caching)
      : proof_(*proof), variant_(variant), prefix_caching_(prefix_caching) {
    const LoadedModel& model = proof->ModelOf(variant.num_threads);
    const auto block_bytes = KvBytesPerBlock(model.model().config(), *model.backend(),
                                             model.model().compute_dtype(), variant.block_tokens);
    TANDEM_CHECK(block_bytes.ok()) << block_bytes.status().ToString();
    const int32_t whole = proof_.set_.max_model_tokens;
    const int32_t chunk = variant.chunk == 0 ? whole : variant.chunk;
    const int32_t max_sequences = variant.batch ? kBatch : std::min(chunk - 1, kBatch);
    const int32_t max_batched_tokens = variant.batch ? chunk + kBatch : chunk;
    for (int worker = 0; worker < num_workers; ++worker) {
      const int32_t blocks = worker == kDecode && num_blocks > 0 ? num_blocks : AmpleBlocks();
      const KvMemory pool = proof->PoolOf(worker, *block_bytes * static_cast<size_t>(blocks));
      auto executor = std::make_unique<ModelFleetExecutor>(
          ModelExecutorOptions{.block_tokens = variant.block_tokens,
                               .num_blocks = blocks,
                               .max_sequences = max_sequences,
                               .max_batched_tokens = max_batched_tokens,
                               .max_model_tokens = whole},
          model, pool);
      executors_.push_back(executor.get());
      fleet_.AddWorker({.engine = {.block_tokens = variant.block_tokens,
                                   .num_blocks = blocks,
                                   .max_sequences = max_sequences,
                                   .max_batched_tokens = max_batched_tokens,
                                   .max_model_tokens = whole,
                                   .max_waiting_attempts = 1024,
                                   .prefix_caching = prefix_caching},
                        .executor = std::move(executor)});
    }
    fleet_.SetFastNetwork(variant.batch);
  }

  // Enough for everything at once and all that it leaves in the caches.
  int32_t AmpleBlocks() const {
    int32_t blocks = 64;
    for (const ProofRequest& request : proof_.all_) {
      blocks += 2 * (BlocksOf(request, variant_.block_tokens) + request.num_choices);
    }
    return blocks;
  }

  // All at once or one after the other. `worker_of` gives a work's decode worker.
  template <typename WorkerOf>
  std::string Do(const std::vector<Work>& works, const WorkerOf& worker_of) {
    for (size_t i = 0; i < works.size(); ++i) {
      Submit(works[i], worker_of(i), variant_.disaggregated ? kPrefill : -1);
      if (variant_.batch) continue;
      if (std::string error = Settle(); !error.empty()) return error;
    }
    return Settle();
  }
  std::string Do(const std::vector<Work>& works) {
    return Do(works, [](size_t) { return kDecode; });
  }

  void Submit(const Work& work, int worker, int prefill) {
    struct Submit submit;
    submit.attempt = {.request = {.router_incarnation = 5, .counter = next_attempt_++},
                      .attempt = 1};
    submit.token_ids = work.request->prompt;
    submit.token_ids.insert(submit.token_ids.end(), work.resumed.begin(), work.resumed.end());
    submit.prompt_tokens = Size(work.request->prompt);
    submit.choices = work.choices;
    submit.sampling = work.request->sampling;
    submit.time_left_us = 600'000'000;
    submit.hash_root = HashRoot("proof", "", "");
    const int32_t num_tokens = Size(submit.token_ids);
    const bool scored = submit.sampling.num_prompt_logprobs >= 0 && work.resumed.empty();
    const int32_t cached = scored ? 0 : CachedBlocks(worker, submit.token_ids);
    if (prefill >= 0) {
      submit.prefill = fleet_.peer(prefill);
      submit.disaggregate_from_tokens = 1;
      frames_wanted_ += FramesOf(submit, cached);
    }
    const int32_t cached_there =
        prefill < 0 || scored ? 0 : CachedBlocks(prefill, submit.token_ids);
    // The last token is always computed.
    const int32_t attached =
        std::min(std::max(cached, cached_there), (num_tokens - 1) / variant_.block_tokens);
    fleet_.Submit(worker, submit);
    pending_.push_back(
        {.work = work,
         .submit = submit,
         .worker = worker,
         .prefill = prefill,
         .cached_tokens = std::min(attached * variant_.block_tokens, submit.prompt_tokens)});
  }

  // Runs until quiet; empty, or what is wrong.
  std::string Settle() {
    if (!fleet_.RunUntilQuiet(2'000'000)) return "not quiet after 2,000,000 events";
    for (const Pending& pending : pending_) {
      if (std::string error = Compare(pending); !error.empty()) {
        return pending.work.name + ": " + error;
      }
      Remember(pending);
    }
    pending_.clear();
    for (int worker = 0; worker < fleet_.num_workers(); ++worker) {
      if (std::string error = fleet_.AuditQuiet(worker); !error.empty()) return error;
    }
    if (fleet_.frames_delivered() == frames_wanted_) return "";
    return absl::StrFormat("%d KV frames, not %d", fleet_.frames_delivered(), frames_wanted_);
  }

  // Of the pending attempts so far.
  size_t NumSampled() {
    size_t sampled = 0;
    for (const Pending& pending : pending_) {
      for (const auto& [choice, tokens] : fleet_.record(pending.submit.attempt).tokens) {
        sampled += tokens.size();
      }
    }
    return sampled;
  }

  EngineFleet& fleet() { return fleet_; }
  const ModelFleetExecutor& executor(int worker) const {
    return *executors_[static_cast<size_t>(worker)];
  }
  ProofResult Result(uint64_t attempt) {
    const AttemptRecord& record =
        fleet_.record({.request = {.router_incarnation = 5, .counter = attempt}, .attempt = 1});
    ProofResult result{.prompt_logprobs = record.prompts.front().prompt_logprobs, .choices = {}};
    for (const auto& [choice, tokens] : record.tokens) result.choices.push_back(tokens);
    return result;
  }
  // That batches and chunks were what the variant says.
  std::string CheckShape() const {
    const int32_t largest_run =
        std::max(executor(kDecode).largest_run(),
                 variant_.disaggregated ? executor(kPrefill).largest_run() : 0);
    const int32_t batch = executor(kDecode).largest_batch();
    if (variant_.batch ? batch < kBatch : batch > kMaxChoicesAlone) {
      return absl::StrFormat("%d sequences in the largest batch", batch);
    }
    if (variant_.batch || variant_.chunk == 0 || largest_run <= variant_.chunk) return "";
    return absl::StrFormat("a chunk of %d tokens", largest_run);
  }
  // Checked in Settle from now on.
  void ExpectHits() { expect_hits_ = true; }

 private:
  struct Pending {
    Work work;
    struct Submit submit;
    int worker = 0;
    int prefill = -1;
    int32_t cached_tokens = 0;  // That the prompt event must name.
  };

  // protocol.md, "What travels": blocks [first missing on the decode side, n).
  int64_t FramesOf(const struct Submit& submit, int32_t cached) const {
    const int32_t num_tokens = Size(submit.token_ids);
    if (num_tokens - submit.prompt_tokens + 1 >= submit.sampling.max_tokens) return 0;
    if (num_tokens <= cached * variant_.block_tokens) return 0;  // Lacks nothing: stays here.
    return CeilDiv(num_tokens, variant_.block_tokens) - cached;
  }

  int32_t CachedBlocks(int worker, const std::vector<int32_t>& tokens) const {
    const auto found = known_.find(worker);
    if (found == known_.end()) return 0;
    int32_t blocks = 0;
    while ((blocks + 1) * variant_.block_tokens <= Size(tokens) &&
           found->second.contains(
               {tokens.begin(), tokens.begin() + (blocks + 1) * variant_.block_tokens})) {
      ++blocks;
    }
    return blocks;
  }

  void Remember(const Pending& pending) {
    if (!prefix_caching_) return;
    RememberBlocks(pending.prefill, pending.submit.token_ids);
    for (const auto& [choice, sampled] : fleet_.record(pending.submit.attempt).tokens) {
      std::vector<int32_t> tokens = pending.submit.token_ids;
      for (const SampledToken& token : sampled) tokens.push_back(token.token);
      tokens.pop_back();  // Was never computed.
      RememberBlocks(pending.worker, tokens);
    }
  }

  void RememberBlocks(int worker, const std::vector<int32_t>& tokens) {
    for (int32_t end = variant_.block_tokens; end <= Size(tokens); end += variant_.block_tokens) {
      known_[worker].insert({tokens.begin(), tokens.begin() + end});
    }
  }

  std::string Compare(const Pending& pending) {
    const AttemptRecord& record = fleet_.record(pending.submit.attempt);
    for (const auto& status : record.refused) return "refused: " + status.ToString();
    for (const auto& status : record.ended) return "ended: " + status.ToString();
    if (record.position_gap || record.token_after_end || record.prompts.size() != 1) {
      return "events out of order";
    }
    const PromptEvent& prompt = record.prompts.front();
    if (expect_hits_ && prompt.cached_tokens != pending.cached_tokens) {
      return absl::StrFormat("%d cached tokens, not %d", prompt.cached_tokens,
                             pending.cached_tokens);
    }
    const Work& work = pending.work;
    for (const int32_t choice : work.choices) {
      if (!record.finish.contains(choice)) return absl::StrFormat("choice %d goes on", choice);
    }
    if (work.want == nullptr) return "";
    if (work.resumed.empty()) {
      proof_.comparisons_ += static_cast<int64_t>(prompt.prompt_logprobs.size());
      std::string error =
          Difference("prompt logprobs", work.want->prompt_logprobs, prompt.prompt_logprobs);
      if (!error.empty()) return error;
    }
    for (const int32_t choice : work.choices) {
      const std::span<const SampledToken> want(work.want->choices[static_cast<size_t>(choice)]);
      const std::vector<SampledToken>& got = record.tokens.at(choice);
      proof_.comparisons_ += static_cast<int64_t>(got.size());
      std::string error = Difference(absl::StrFormat("tokens of choice %d,", choice),
                                     want.subspan(work.resumed.size()), got);
      if (!error.empty()) return error;
    }
    return "";
  }

  BitwiseProof& proof_;
  const ProofVariant variant_;
  const bool prefix_caching_;
  std::vector<ModelFleetExecutor*> executors_;
  EngineFleet fleet_;
  uint64_t next_attempt_ = 0;
  std::vector<Pending> pending_;
  int64_t frames_wanted_ = 0;
  bool expect_hits_ = false;
  // By worker: prefixes of whole blocks that its cache must hold.
  std::map<int, std::set<std::vector<int32_t>>> known_;
};

BitwiseProof::BitwiseProof(std::string folder, std::string dtype, ProofSet set)
    : folder_(std::move(folder)), dtype_(std::move(dtype)), set_(std::move(set)) {
  all_ = set_.requests;
  all_.insert(all_.end(), set_.fillers.begin(), set_.fillers.end());
  std::vector<ProofRequest> requests = all_;
  requests.push_back(set_.intruder);
  for (const ProofRequest& request : requests) {
    // A fleet of its own, so that not even free blocks are shared.
    int32_t blocks = BlocksOf(request, 16) + request.num_choices;
    Run run(this, {}, blocks, 1, /*prefix_caching=*/false);
    const std::string error = run.Do({WorkOf(request, nullptr, "reference")});
    TANDEM_CHECK(error.empty()) << error;
    references_.push_back(run.Result(0));
  }
  intruder_reference_ = std::move(references_.back());
  references_.pop_back();
}

BitwiseProof::~BitwiseProof() = default;

const LoadedModel& BitwiseProof::ModelOf(int num_threads) {
  std::unique_ptr<LoadedModel>& model = models_[num_threads];
  if (model == nullptr) model = std::make_unique<LoadedModel>(folder_, dtype_, num_threads);
  return *model;
}

KvMemory BitwiseProof::PoolOf(int worker, size_t bytes) {
  DeviceBuffer& pool = pools_[worker];
  if (pool.size_bytes() < bytes) {
    auto larger = ModelOf(1).backend()->Allocate(bytes);
    TANDEM_CHECK(larger.ok()) << larger.status().ToString();
    pool = *std::move(larger);
  }
  return {.base = pool.data(), .bytes = pool.size_bytes()};
}

BitwiseProof::Work BitwiseProof::WorkOf(const ProofRequest& request, const ProofResult* want,
                                        std::string name) {
  Work work{
      .request = &request, .want = want, .name = std::move(name), .choices = {}, .resumed = {}};
  for (int32_t i = 0; i < request.num_choices; ++i) work.choices.push_back(i);
  return work;
}

std::vector<BitwiseProof::Work> BitwiseProof::WorksOf(const ProofVariant& variant) const {
  std::vector<Work> works;
  // Fillers first: they run when the others come, and go on until those are done.
  if (variant.batch) {
    for (size_t i = set_.requests.size(); i < all_.size(); ++i) {
      works.push_back(WorkOf(all_[i], &references_[i], absl::StrFormat("filler %d", i)));
    }
  }
  for (size_t i = 0; i < set_.requests.size(); ++i) {
    works.push_back(WorkOf(all_[i], &references_[i], absl::StrFormat("request %d", i)));
  }
  return works;
}

std::string BitwiseProof::Check(const ProofVariant& variant) {
  switch (variant.state) {
    case KvState::kCold:
      return CheckColdAndHits(variant, /*hits=*/false);
    case KvState::kPrefixHit:
      return CheckColdAndHits(variant, /*hits=*/true);
    case KvState::kPreempted:
      return CheckPreempted(variant);
    case KvState::kResumed:
      return CheckResumed(variant);
  }
  return "no such state";
}

std::string BitwiseProof::CheckColdAndHits(const ProofVariant& variant, bool hits) {
  Run run(this, variant, 0, variant.disaggregated ? 3 : 1, /*prefix_caching=*/true);
  const std::vector<Work> works = WorksOf(variant);
  // Half of them elsewhere: their blocks are then cached where prompts are computed but not where
  // they are decoded.
  const bool elsewhere = hits && variant.disaggregated;
  std::string error =
      run.Do(works, [&](size_t i) { return elsewhere && i % 2 == 1 ? kOtherDecode : kDecode; });
  if (error.empty() && hits) {
    run.ExpectHits();
    error = run.Do(works);
  }
  if (error.empty()) error = run.CheckShape();
  frames_ += run.fleet().frames_delivered();
  return error;
}

std::string BitwiseProof::CheckResumed(const ProofVariant& variant) {
  Run run(this, variant, 0, variant.disaggregated ? 2 : 1, /*prefix_caching=*/true);
  std::vector<Work> works;
  for (const Work& whole : WorksOf(variant)) {
    for (const int32_t choice : whole.choices) {
      Work work = whole;
      work.choices = {choice};
      const std::vector<SampledToken>& tokens = work.want->choices[static_cast<size_t>(choice)];
      const size_t known = 1 + static_cast<size_t>(choice) % (tokens.size() - 1);
      for (size_t i = 0; i < known; ++i) work.resumed.push_back(tokens[i].token);
      works.push_back(std::move(work));
    }
  }
  const std::string error = run.Do(works);
  frames_ += run.fleet().frames_delivered();
  return error;
}

// The decode worker's pool is small. Once the requests have begun to generate, an older request's
// prompt arrives from its prefill worker and forks.
std::string BitwiseProof::CheckPreempted(const ProofVariant& variant) {
  const std::vector<Work> works = WorksOf(variant);
  if (variant.batch) {
    int32_t largest = 0;
    for (const Work& work : works) {
      largest = std::max(largest, BlocksOf(*work.request, variant.block_tokens));
    }
    return CheckPreemption(variant, works, std::max(largest + 2, kBatch), kBatchIntruderChoices,
                           set_.intruder_after_tokens);
  }
  for (const Work& work : works) {
    const ProofRequest& request = *work.request;
    const int32_t blocks = BlocksOf(request, variant.block_tokens) + request.num_choices + 2;
    const int32_t held = CeilDiv(Size(request.prompt), variant.block_tokens);
    const size_t before = static_cast<size_t>(2 * request.num_choices + 1);
    std::string error = CheckPreemption(variant, {work}, blocks, blocks - held + 2, before);
    if (!error.empty()) return error;
  }
  return "";
}

std::string BitwiseProof::CheckPreemption(const ProofVariant& variant,
                                          const std::vector<Work>& works, int32_t num_blocks,
                                          int32_t intruder_choices, size_t tokens_before) {
  Run run(this, variant, num_blocks, 4, /*prefix_caching=*/false);
  run.fleet().Pause(kIntruderPrefill, true);
  Work intruder = WorkOf(set_.intruder, &intruder_reference_, "intruder");
  TANDEM_CHECK(intruder_choices <= set_.intruder.num_choices) << intruder_choices;
  intruder.choices.resize(static_cast<size_t>(intruder_choices));
  run.Submit(intruder, kDecode, kIntruderPrefill);
  int64_t wanted = int64_t{intruder_choices} * (set_.intruder.sampling.max_tokens - 1);
  for (const Work& work : works) {
    run.Submit(work, kDecode, variant.disaggregated ? kPrefill : -1);
    wanted += int64_t{work.request->num_choices} * (work.request->sampling.max_tokens - 1);
    if (!variant.disaggregated) wanted += Size(work.request->prompt);
  }
  run.fleet().RunUntil([&] { return run.NumSampled() >= tokens_before; });
  run.fleet().Pause(kIntruderPrefill, false);
  run.fleet().SetFastNetwork(true);  // Before the requests are done.
  std::string error = run.Settle();
  frames_ += run.fleet().frames_delivered();
  const int64_t recomputed = run.executor(kDecode).computed_tokens() - wanted;
  recomputed_ += recomputed;
  if (error.empty() && recomputed <= 0) {
    error = works.front().name + ": nobody was preempted after they had begun";
  }
  return error;
}

std::string BitwiseProof::CheckScores(const ProofVariant& variant) {
  TANDEM_CHECK(variant.state == KvState::kCold);
  std::vector<ProofRequest> texts;
  std::vector<ProofResult> wanted;
  for (size_t i = 0; i < set_.requests.size(); ++i) {
    for (const std::vector<SampledToken>& tokens : references_[i].choices) {
      ProofRequest text{.prompt = set_.requests[i].prompt, .sampling = {}, .num_choices = 1};
      for (const SampledToken& token : tokens) text.prompt.push_back(token.token);
      text.sampling.max_tokens = 1;
      text.sampling.num_prompt_logprobs = set_.requests[i].sampling.num_logprobs;
      texts.push_back(std::move(text));
    }
  }
  Run run(this, variant, 0, variant.disaggregated ? 2 : 1, /*prefix_caching=*/true);
  std::vector<Work> works;
  for (const ProofRequest& text : texts) works.push_back(WorkOf(text, nullptr, "text"));
  if (std::string error = run.Do(works); !error.empty()) return error;
  uint64_t attempt = 0;
  for (size_t i = 0; i < set_.requests.size(); ++i) {
    for (const std::vector<SampledToken>& tokens : references_[i].choices) {
      const std::vector<SampledToken> scores = run.Result(attempt++).prompt_logprobs;
      comparisons_ += static_cast<int64_t>(tokens.size());
      const std::string error = Difference(
          "scores", tokens, std::span(scores).last(std::min(tokens.size(), scores.size())));
      if (!error.empty()) return absl::StrFormat("request %d: %s", i, error);
    }
  }
  return "";
}

}  // namespace tandem
