// What runs a step: a model on a backend in production, a function of block contents in simulation.
//
// The engine hands over a batch of runs. A run computes the KV of consecutive tokens of one
// sequence, writes it into the blocks of its table, and may ask for sampled tokens after its last
// one. Prefill chunks and decodes are the same thing: a decode is a run of one token.
//
// A step is begun and finished. Between the two the engine goes on, and may begin the next one,
// whose runs may go on after tokens that the host has not seen.
//
// Where a run draws only under a mask that the host makes from its last token, unseen as yet, its
// forward pass is begun with the step and its draws later (constrained decoding, Willard & Louf,
// 2023). The runs beside it do not wait.
//
// A run may draw several tokens, where an executor guesses what follows and checks it (speculative
// decoding, Leviathan et al., ICML 2023). Draws are keyed by position, so that what is accepted is
// what one token a step would have drawn.

#ifndef TANDEM_RUNTIME_ENGINE_EXECUTOR_H_
#define TANDEM_RUNTIME_ENGINE_EXECUTOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/token_mask.h"
#include "runtime/kv_cache/block_pool.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/sampled_token.h"

namespace tandem {

// One draw after a run's last token. A prompt that ends with n choices has n draws. Where a draw
// depends on what came before it in the sequence, as a penalty does, the host says what it has seen
// and the executor adds what it has drawn since.
struct Draw {
  int32_t choice = 0;
  const SamplingParams* sampling = nullptr;
  int32_t prompt_tokens = 0;  // min_tokens counts from here.
  // With one, the run gives no second token: its mask would depend on the first.
  TokenMask mask;
};

inline constexpr int32_t kUnseenToken = -1;

// All spans, and what they point at, live until Begin returns. Token ids are trusted to be of the
// vocabulary: the engine checks what it is given (Validate), and a sampler draws no others.
struct SequenceRun {
  std::span<const int32_t> token_ids;  // To compute in this step, at least one.
  // >= 0: token_ids is one kUnseenToken, and the run goes on after this run of the step before. It
  // computes the last token that is drawn there or, if none is, that run's last one once more.
  int32_t unseen_run = -1;
  // Where token_ids[0] is; KV of the positions before it is in the table. If it is unseen: where it
  // is if one token is drawn before.
  int32_t first_position = 0;
  std::span<const BlockId> block_table;  // Covers first_position + token_ids.size() tokens.
  std::span<const Draw> draws;           // Empty: no logits of the last token are needed,
  // or, if its last token is unseen, they are for draws that are begun later, or never.
  bool draws_wait = false;
  // A token at a later position is not wanted, or the table does not cover those before it. After
  // the position that follows token_ids only where there is one draw.
  int32_t last_position = 0;

  // Prompt logprobs: for each i in token_ids whose successor is known, the successor's logprob and
  // `num_prompt_logprobs` top ones. -1: none. `next_token_id` succeeds the last of token_ids, or is
  // -1 where the run ends with the prompt.
  int32_t num_prompt_logprobs = -1;
  int32_t next_token_id = -1;
};

struct BlockCopy {
  BlockId source = 0;
  BlockId destination = 0;
};

struct StepInput {
  std::span<const BlockCopy> copies;  // Done first, in order (copy-on-write).
  std::span<const SequenceRun> runs;
};

struct RunOutput {
  // Parallel to draws, at the position after token_ids. But a run whose last_position is a later
  // one, or that begins with an unseen token, gives 0 to max_drawn() tokens, which follow each
  // other. The KV of all but the last is in the table then; what lies behind it is garbage. None
  // where draws waited and were not begun.
  std::vector<SampledToken> drawn;
  std::vector<SampledToken> prompt_logprobs;  // One for each successor, in order.
  absl::Status status;                        // Not OK: this sequence fails alone (NaN logits).
};

struct StepOutput {
  std::vector<RunOutput> runs;  // Parallel to StepInput::runs. Reused between steps.
};

inline constexpr int32_t kMaxStepsBegun = 2;

// Engine thread only.
class Executor {
 public:
  virtual ~Executor() = default;

  // The same always. True: up to kMaxStepsBegun may be begun that are not finished, and a step may
  // name what the one before draws. False: each is finished before the next.
  virtual bool overlaps_steps() const = 0;

  // The same always: the most tokens that a run gives for one draw, at least 1. What a run computes
  // beyond its token_ids counts in nobody's budget: who speculates has scratch for that.
  virtual int32_t max_drawn() const = 0;

  // Steps run in the order in which they are begun.
  virtual void Begin(const StepInput& input) = 0;
  // The draw of a run that waits for it: of the step that was begun last, once the one before is
  // finished and before the next is begun, runs rising. All that it points at lives until this
  // returns.
  virtual void BeginDraws(int32_t run, std::span<const Draw> draws) = 0;
  // Returns when the oldest step that was begun is over. Its output is there, to move from, until
  // the next call. Not OK: the whole step failed; nothing of it may be published. DataLoss: the
  // device is lost to this process, and so is every step that follows.
  virtual absl::StatusOr<StepOutput*> Finish() = 0;

  // crc32c[i]: the CRC-32C of the bytes of blocks[i] as they are now; no step that is begun writes
  // to them. Not OK, as of Finish: the device failed, and nothing is told.
  virtual absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) = 0;

  // Nobody reads what is in the block again, and whoever writes there next may be a transport. What
  // runs real steps need not do anything; for tests its content is spoilt. A device that fails here
  // says so at its next step.
  virtual void Discard(BlockId block) = 0;

  // Any thread. Grows while a step computes, many times in a layer that takes long: who looks now
  // and then tells a slow step from one that hangs.
  virtual uint64_t work_done() const = 0;
};

// One whose step is over when Begin returns.
class SynchronousExecutor : public Executor {
 public:
  // As Begin and Finish; `output` is that of the last one. Every token is seen.
  virtual absl::Status Execute(const StepInput& input, StepOutput* output) = 0;

  bool overlaps_steps() const final { return false; }
  int32_t max_drawn() const override { return 1; }
  void Begin(const StepInput& input) final;
  void BeginDraws(int32_t run, std::span<const Draw> draws) final;  // Nothing waits for them.
  absl::StatusOr<StepOutput*> Finish() final;

 private:
  bool begun_ = false;
  absl::Status status_;  // What the begun step returned, as output_.
  StepOutput output_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_EXECUTOR_H_
