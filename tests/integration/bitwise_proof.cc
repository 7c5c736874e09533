#include "tests/integration/bitwise_proof.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int32_t kBatchIntruderChoices = 48;

}  // namespace

BitwiseProof::BitwiseProof(std::string folder, std::string format, ProofSet set,
                           std::vector<std::string> paths)
    : folder_(std::move(folder)),
      format_(std::move(format)),
      set_(std::move(set)),
      paths_(std::move(paths)) {
  all_ = set_.requests;
  all_.insert(all_.end(), set_.fillers.begin(), set_.fillers.end());
  std::vector<ProofRequest> requests = all_;
  requests.push_back(set_.intruder);
  for (const ProofRequest& request : requests) {
    // A fleet of its own, so that not even free blocks are shared.
    const std::unique_ptr<ProofRun> run =
        NewRun({}, 1, request.BlocksOf(16) + request.num_choices, /*prefix_caching=*/false);
    const std::string error = run->Do({ProofRun::WorkOf(request, nullptr, "reference")});
    TANDEM_CHECK(error.empty()) << error;
    references_.push_back(run->Result(0));
  }
  intruder_reference_ = std::move(references_.back());
  references_.pop_back();
}

BitwiseProof::~BitwiseProof() = default;

const LoadedModel& BitwiseProof::ModelOf(const std::string& path, int num_threads) {
  std::unique_ptr<LoadedModel>& model = models_[{path, num_threads}];
  if (model == nullptr) model = std::make_unique<LoadedModel>(folder_, format_, path, num_threads);
  return *model;
}

KvPoolMemory BitwiseProof::PoolOf(int worker, size_t bytes) {
  PinnedBuffer& pool = pools_[worker];
  if (pool.size_bytes() < bytes) {
    auto larger = ModelOf(paths_.front(), 1).backend()->AllocatePinned(bytes);
    TANDEM_CHECK(larger.ok()) << larger.status().ToString();
    pool = *std::move(larger);
  }
  return {.base = pool.data(), .bytes = pool.size_bytes()};
}

// Enough for everything at once and all that it leaves in the caches.
int32_t BitwiseProof::AmpleBlocks(int32_t block_tokens) const {
  int32_t blocks = 64;
  for (const ProofRequest& request : all_) {
    blocks += 2 * (request.BlocksOf(block_tokens) + request.num_choices);
  }
  return blocks;
}

std::unique_ptr<ProofRun> BitwiseProof::NewRun(const ProofVariant& variant, int num_workers,
                                               int32_t decode_blocks, bool prefix_caching) {
  const int32_t ample = AmpleBlocks(variant.block_tokens);
  return std::make_unique<ProofRun>(
      variant,
      ProofRun::Options{.num_workers = num_workers,
                        .decode_blocks = decode_blocks > 0 ? decode_blocks : ample,
                        .other_blocks = ample,
                        .max_model_tokens = set_.max_model_tokens,
                        .prefix_caching = prefix_caching},
      [&](int worker) -> const LoadedModel& {
        const size_t path = (variant.first_path + static_cast<size_t>(worker)) % paths_.size();
        return ModelOf(paths_[path], variant.num_threads);
      },
      [this](int worker, size_t bytes) { return PoolOf(worker, bytes); });
}

void BitwiseProof::Count(ProofRun* run) {
  frames_ += run->fleet().frames_delivered();
  comparisons_ += run->comparisons();
}

std::vector<BitwiseProof::Work> BitwiseProof::WorksOf(const ProofVariant& variant) const {
  std::vector<Work> works;
  // Fillers first: they run when the others come, and go on until those are done.
  if (variant.batch) {
    for (size_t i = set_.requests.size(); i < all_.size(); ++i) {
      works.push_back(ProofRun::WorkOf(all_[i], &references_[i], absl::StrFormat("filler %d", i)));
    }
  }
  for (size_t i = 0; i < set_.requests.size(); ++i) {
    works.push_back(ProofRun::WorkOf(all_[i], &references_[i], absl::StrFormat("request %d", i)));
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

std::string BitwiseProof::CheckInPool(const ProofVariant& variant, int32_t decode_blocks) {
  const std::unique_ptr<ProofRun> run =
      NewRun(variant, variant.disaggregated ? 2 : 1, decode_blocks);
  const std::string error = run->Do(WorksOf(variant));
  Count(run.get());
  return error;
}

std::string BitwiseProof::CheckColdAndHits(const ProofVariant& variant, bool hits) {
  const std::unique_ptr<ProofRun> run = NewRun(variant, variant.disaggregated ? 3 : 1);
  const std::vector<Work> works = WorksOf(variant);
  // Half of them elsewhere: their blocks are then cached where prompts are computed but not where
  // they are decoded.
  const bool elsewhere = hits && variant.disaggregated;
  std::string error = run->Do(works, [&](size_t i) {
    return elsewhere && i % 2 == 1 ? ProofRun::kOtherDecode : ProofRun::kDecode;
  });
  if (error.empty() && hits) {
    run->ExpectHits();
    error = run->Do(works);
  }
  if (error.empty()) error = run->CheckShape();
  Count(run.get());
  return error;
}

std::string BitwiseProof::CheckResumed(const ProofVariant& variant) {
  const std::unique_ptr<ProofRun> run = NewRun(variant, variant.disaggregated ? 2 : 1);
  std::vector<Work> works;
  for (const Work& whole : WorksOf(variant)) {
    for (const int32_t choice : whole.choices) {
      Work work = whole;
      work.choices.assign(1, choice);
      const std::vector<SampledToken>& tokens = work.want->choices[static_cast<size_t>(choice)];
      const size_t known = 1 + works.size() % (tokens.size() - 1);
      for (size_t i = 0; i < known; ++i) work.resumed.push_back(tokens[i].token);
      works.push_back(std::move(work));
    }
  }
  const std::string error = run->Do(works);
  Count(run.get());
  return error;
}

// The decode worker's pool is small. Once the requests have begun to generate, an older request's
// prompt arrives from its prefill worker and forks.
std::string BitwiseProof::CheckPreempted(const ProofVariant& variant) {
  const std::vector<Work> works = WorksOf(variant);
  if (variant.batch) {
    int32_t largest = 0;
    for (const Work& work : works) {
      largest = std::max(largest, work.request->BlocksOf(variant.block_tokens));
    }
    return CheckPreemption(variant, works, std::max(largest + 2, ProofRun::kBatch),
                           kBatchIntruderChoices, set_.intruder_after_tokens);
  }
  const KvWindow window{.tokens = ModelOf(paths_.front(), 1).model().config().largest_window(),
                        .block_tokens = variant.block_tokens};
  for (const Work& work : works) {
    const ProofRequest& request = *work.request;
    const int32_t blocks = request.BlocksOf(variant.block_tokens) + request.num_choices + 2;
    // When the intruder comes.
    const int32_t held = CeilDiv(request.prompt_tokens(), variant.block_tokens) -
                         window.FirstBlock(request.prompt_tokens());
    const size_t before = static_cast<size_t>(2 * request.num_choices + 1);
    std::string error = CheckPreemption(variant, {work}, blocks, blocks - held + 2, before);
    if (!error.empty()) return error;
  }
  return "";
}

std::string BitwiseProof::CheckPreemption(const ProofVariant& variant,
                                          const std::vector<Work>& works, int32_t num_blocks,
                                          int32_t intruder_choices, size_t tokens_before) {
  const std::unique_ptr<ProofRun> run = NewRun(variant, 4, num_blocks, /*prefix_caching=*/false);
  run->fleet().Pause(ProofRun::kIntruderPrefill, true);
  Work intruder = ProofRun::WorkOf(set_.intruder, &intruder_reference_, "intruder");
  TANDEM_CHECK(intruder_choices <= set_.intruder.num_choices) << intruder_choices;
  intruder.choices.resize(static_cast<size_t>(intruder_choices));
  run->Submit(intruder, ProofRun::kDecode, ProofRun::kIntruderPrefill);
  int64_t wanted = int64_t{intruder_choices} * (set_.intruder.sampling.max_tokens - 1);
  for (const Work& work : works) {
    run->Submit(work, ProofRun::kDecode, variant.disaggregated ? ProofRun::kPrefill : -1);
    wanted += int64_t{work.request->num_choices} * (work.request->sampling.max_tokens - 1);
    if (!variant.disaggregated) wanted += work.request->prompt_tokens();
  }
  run->fleet().RunUntil([&] { return run->NumSampled() >= tokens_before; });
  run->fleet().Pause(ProofRun::kIntruderPrefill, false);
  run->fleet().SetFastNetwork(true);  // Before the requests are done.
  std::string error = run->Settle();
  Count(run.get());
  const int64_t recomputed = run->executor(ProofRun::kDecode).computed_tokens() - wanted;
  recomputed_ += recomputed;
  if (error.empty() && recomputed <= 0) {
    error = works.front().name + ": nobody was preempted after they had begun";
  }
  return error;
}

std::string BitwiseProof::CheckScores(const ProofVariant& variant) {
  TANDEM_CHECK(variant.state == KvState::kCold);
  std::vector<ProofRequest> texts;
  for (size_t i = 0; i < set_.requests.size(); ++i) {
    for (const std::vector<SampledToken>& tokens : references_[i].choices) {
      ProofRequest text{.prompt = set_.requests[i].prompt, .sampling = {}, .num_choices = 1};
      for (const SampledToken& token : tokens) text.prompt.push_back(token.token);
      text.sampling.max_tokens = 1;
      text.sampling.num_prompt_logprobs = set_.requests[i].sampling.num_logprobs;
      texts.push_back(std::move(text));
    }
  }
  const std::unique_ptr<ProofRun> run = NewRun(variant, variant.disaggregated ? 2 : 1);
  std::vector<Work> works;
  for (const ProofRequest& text : texts) works.push_back(ProofRun::WorkOf(text, nullptr, "text"));
  if (std::string error = run->Do(works); !error.empty()) return error;
  uint64_t attempt = 0;
  for (size_t i = 0; i < set_.requests.size(); ++i) {
    for (const std::vector<SampledToken>& tokens : references_[i].choices) {
      const std::vector<SampledToken> scores = run->Result(attempt++).prompt_logprobs;
      comparisons_ += static_cast<int64_t>(tokens.size());
      const std::string error = Difference(
          "scores", tokens, std::span(scores).last(std::min(tokens.size(), scores.size())));
      if (!error.empty()) return absl::StrFormat("request %d: %s", i, error);
    }
  }
  return "";
}

}  // namespace tandem
