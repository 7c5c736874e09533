#include "runtime/simulation/newcomer_judge.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/math.h"

namespace tandem {
namespace {

constexpr int32_t kSteps = 3;
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

}  // namespace

void NewcomerJudge::OnArrival(SessionId from, const AttemptId& attempt, const RequestSpec& spec) {
  const int64_t num_tokens = std::ssize(spec.token_ids);
  lengths_[attempt] = num_tokens;
  const bool last_token = spec.sampling.max_tokens <= num_tokens + 1 - spec.prompt_tokens;
  // Beside as many decodes as a batch holds.
  const bool one_step = num_tokens <= shape_.max_batched_tokens - shape_.max_sequences;
  if (!last_token || !one_step || spec.runs_alone) return;
  waiting_.try_emplace(attempt, Newcomer{.from = from, .num_tokens = num_tokens});
}

void NewcomerJudge::OnSessionLost(SessionId from) {
  std::erase_if(waiting_, [from](const auto& entry) { return entry.second.from == from; });
}

int64_t NewcomerJudge::OnChunks(std::span<const ChunkNotice> chunks) {
  int64_t begun = 0;
  shortest_chunk_ = kNone;
  for (const ChunkNotice& notice : chunks) {
    const auto length = lengths_.find(notice.chunk.attempt);
    const int64_t left =
        length == lengths_.end() ? 0 : length->second - notice.chunk.first_position;
    shortest_chunk_ = std::min(shortest_chunk_, left);
    begun += static_cast<int64_t>(waiting_.erase(notice.chunk.attempt));
  }
  return begun;
}

std::string NewcomerJudge::OnStep(const Engine::StepResult& result, const WorkerLoad& before,
                                  const WorkerLoad& after) {
  const int64_t shortest = std::exchange(shortest_chunk_, kNone);
  // A preempted sequence waits, too, as a prompt whose length nobody outside knows.
  preempted_waits_ = result.preempted > 0 || (preempted_waits_ && after.waiting_sequences > 0);
  if (!result.again) return "";
  const int64_t blocks =
      std::min(before.blocks.free + before.blocks.cached, after.blocks.free + after.blocks.cached);
  for (auto& [attempt, newcomer] : waiting_) {
    const int64_t needed =
        CeilDiv<int64_t>(newcomer.num_tokens, shape_.block_tokens) + shape_.max_sequences;
    if (blocks < needed || shortest <= newcomer.num_tokens || preempted_waits_) {
      ++newcomer.excused;
    } else if (++newcomer.waited > kSteps * (1 + newcomer.excused)) {
      return absl::StrFormat("request %d attempt %d, of %d tokens, has waited for %d steps",
                             attempt.request.counter, attempt.attempt, newcomer.num_tokens,
                             newcomer.waited);
    }
  }
  return "";
}

}  // namespace tandem
