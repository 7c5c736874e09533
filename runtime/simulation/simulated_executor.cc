#include "runtime/simulation/simulated_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/math.h"
#include "runtime/base/random.h"

namespace tandem {

SimulatedExecutor::SimulatedExecutor(const SimulatedExecutorOptions& options)
    : options_(options),
      model_(options.vocabulary, options.numerics, options.window),
      slots_(static_cast<size_t>(options.num_blocks) * static_cast<size_t>(options.block_tokens)) {}

absl::Status SimulatedExecutor::Execute(const StepInput& input, StepOutput* output) {
  failed_by_.reset();
  for (const BlockCopy& copy : input.copies) {
    const std::span<uint8_t> from = BlockBytes(copy.source);
    std::copy(from.begin(), from.end(), BlockBytes(copy.destination).begin());
    ++copied_blocks_;
  }
  output->runs.resize(input.runs.size());
  for (size_t i = 0; i < input.runs.size(); ++i) Run(input.runs[i], &output->runs[i]);
  absl::Status failure = next_failure_;
  if (!absl::IsDataLoss(failure)) next_failure_ = absl::OkStatus();
  if (failed_by_.has_value()) failure.Update(absl::InternalError("a payload made it fail"));
  if (!failure.ok()) {
    for (const SequenceRun& run : input.runs) Spoil(run);
    output->runs.clear();
    return failure;
  }
  largest_batch_ = std::max(largest_batch_, static_cast<int32_t>(input.runs.size()));
  num_steps_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

void SimulatedExecutor::Run(const SequenceRun& run, RunOutput* output) {
  output->drawn.clear();
  output->prompt_logprobs.clear();
  output->status = absl::OkStatus();
  const int32_t end = run.first_position + static_cast<int32_t>(run.token_ids.size());
  TANDEM_CHECK(CeilDiv(end, options_.block_tokens) <= static_cast<int32_t>(run.block_table.size()))
      << "a table of " << run.block_table.size() << " blocks for " << end << " tokens";

  Context context{.seen = SimulatedContext(options_.window), .payload = options_.numerics};
  const int32_t first_seen =
      options_.window == 0 ? 0 : std::max(0, run.first_position + 1 - options_.window);
  for (int32_t position = first_seen; position < run.first_position; ++position) {
    context.payload = PayloadAt(run.block_table, position);
    context.seen.Append(context.payload);
  }
  for (size_t i = 0; i < run.token_ids.size(); ++i) {
    Compute(run, run.token_ids[i], run.first_position + static_cast<int32_t>(i), &context);
    if (run.token_ids[i] == options_.failing_token) {
      output->status = absl::InternalError(absl::StrFormat("token %d fails", run.token_ids[i]));
    }
    const int32_t successor =
        i + 1 < run.token_ids.size() ? run.token_ids[i + 1] : run.next_token_id;
    if (run.num_prompt_logprobs >= 0 && successor >= 0) {
      output->prompt_logprobs.push_back(
          model_.Score(context.seen.state(), successor, run.num_prompt_logprobs));
    }
  }
  if (!output->status.ok()) Spoil(run);
  const bool masked = run.draws.empty() || !run.draws.front().mask.empty();
  if (options_.max_drawn > 1 && run.last_position > end && !masked) {
    DrawSeveral(run, end, context, output);
    return;
  }
  for (const Draw& draw : run.draws) {
    output->drawn.push_back(model_.Draw(context.seen.state(), end, draw.choice, draw.prompt_tokens,
                                        *draw.sampling, draw.mask));
  }
}

void SimulatedExecutor::Compute(const SequenceRun& run, int32_t token, int32_t position,
                                Context* context) {
  context->payload = SimulatedModel::Payload(context->payload, token, position);
  slots_[SlotIndex(run.block_table, position)] = context->payload ^ options_.kv_format;
  context->seen.Append(context->payload);
  if (options_.deadly_payloads != nullptr && options_.deadly_payloads->contains(context->payload)) {
    (options_.deadly_payloads_fail ? failed_by_ : killed_by_) = context->payload;
  }
  ++computed_tokens_;
}

// Behind what is guessed right lies garbage, as far as guesses go.
void SimulatedExecutor::DrawSeveral(const SequenceRun& run, int32_t end, Context context,
                                    RunOutput* output) {
  TANDEM_CHECK(run.draws.size() == 1) << run.draws.size() << " draws";
  const Draw& draw = run.draws.front();
  const int32_t last = std::min(run.last_position, end + options_.max_drawn - 1);
  const auto choices = static_cast<uint64_t>(options_.max_drawn) + 1;
  const auto any = static_cast<int32_t>(Mix64(context.seen.state() + num_steps_) % choices);
  const int32_t wanted = std::min(draw_each_.value_or(any), last - end + 1);
  for (int32_t position = end; position < end + wanted; ++position) {
    const SampledToken& drawn = output->drawn.emplace_back(model_.Draw(
        context.seen.state(), position, draw.choice, draw.prompt_tokens, *draw.sampling));
    if (position + 1 == end + wanted || drawn.token == options_.failing_token) break;
    Compute(run, drawn.token, position, &context);
  }
  const auto computed = std::max(static_cast<int32_t>(output->drawn.size()) - 1, 0);
  for (int32_t position = end + computed; position < last; ++position) {
    slots_[SlotIndex(run.block_table, position)] = ~context.seen.state();
  }
}

void SimulatedExecutor::Spoil(const SequenceRun& run) {
  for (size_t i = 0; i < run.token_ids.size(); ++i) {
    const int32_t position = run.first_position + static_cast<int32_t>(i);
    uint64_t& slot = slots_[SlotIndex(run.block_table, position)];
    slot = ~slot;
  }
}

// What is not in the table any more is whatever there may be.
uint64_t SimulatedExecutor::PayloadAt(std::span<const BlockId> table, int32_t position) const {
  if (table[static_cast<size_t>(position / options_.block_tokens)] == kNoBlock) return 0;
  return slots_[SlotIndex(table, position)] ^ options_.kv_format;
}

size_t SimulatedExecutor::SlotIndex(std::span<const BlockId> table, int32_t position) const {
  const auto block =
      static_cast<size_t>(table[static_cast<size_t>(position / options_.block_tokens)]);
  return block * static_cast<size_t>(options_.block_tokens) +
         static_cast<size_t>(position % options_.block_tokens);
}

std::span<uint8_t> SimulatedExecutor::BlockBytes(BlockId block) {
  uint64_t* const first =
      &slots_[static_cast<size_t>(block) * static_cast<size_t>(options_.block_tokens)];
  return {reinterpret_cast<uint8_t*>(first), static_cast<size_t>(block_bytes())};
}

void SimulatedExecutor::Discard(BlockId block) {
  const std::span<uint8_t> bytes = BlockBytes(block);
  std::fill(bytes.begin(), bytes.end(), 0xFF);
}

absl::Status SimulatedExecutor::BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) {
  if (absl::IsDataLoss(next_failure_)) return next_failure_;
  if (failing_checksums_ > 0) {
    --failing_checksums_;
    return absl::InternalError("simulated failure of a checksum");
  }
  for (const BlockId block : blocks) {
    ++checksummed_blocks_;
    const std::span<const uint8_t> bytes = BlockBytes(block);
    *crc32c++ = Crc32c(bytes.data(), bytes.size());
  }
  return absl::OkStatus();
}

}  // namespace tandem
