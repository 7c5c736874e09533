#include "runtime/execution/model_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/check_range.h"
#include "runtime/base/math.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// Logits are computed for at most this many rows at once, so that a long prompt with prompt
// logprobs takes no more memory than a batch of decodes.
constexpr int32_t kMaxLogitRows = 64;

static_assert(kMaxVocabSize <= kMaxVocabulary,
              "a model that loads must be one that can be sampled");
static_assert(kMaxHeadDim <= kMaxAttentionHeadDim,
              "a config is refused for its heads before anything is loaded");

absl::Status CheckOptions(const ModelExecutorOptions& options, const ModelConfig& config) {
  constexpr int64_t kMany = 1 << 30;
  TANDEM_RETURN_IF_ERROR(CheckRange("num_blocks", options.num_blocks, 1, kMany));
  TANDEM_RETURN_IF_ERROR(CheckRange("max_sequences", options.max_sequences, 1, 1 << 20));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("max_batched_tokens", options.max_batched_tokens, options.max_sequences, 1 << 20));
  return CheckRange("max_model_tokens", options.max_model_tokens, 1, config.max_positions);
}

SampleQuery QueryOf(const Draw& draw, int32_t position) {
  const SamplingParams& sampling = *draw.sampling;
  SampleQuery query{.temperature = sampling.temperature,
                    .top_k = sampling.top_k,
                    .top_p = sampling.top_p,
                    .seed = sampling.seed,
                    .choice = static_cast<uint32_t>(draw.choice),
                    .position = static_cast<uint64_t>(position),
                    .num_top_logprobs = sampling.num_logprobs,
                    .logit_bias = sampling.logit_bias,
                    .allowed_tokens = draw.mask};
  if (position - draw.prompt_tokens < sampling.min_tokens) {
    query.masked_tokens = sampling.stop_token_ids;
  }
  return query;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelExecutor>> ModelExecutor::Create(
    const ModelExecutorOptions& options, const Model* model, Backend* backend,
    const KvPoolMemory& memory) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options, model->config()));
  TANDEM_ASSIGN_OR_RETURN(KvLayout layout, KvLayout::Make(model->config(), *backend, model->types(),
                                                          options.block_tokens));
  const size_t pool_bytes = layout.block_bytes * static_cast<size_t>(options.num_blocks);
  std::unique_ptr<ModelExecutor> executor(
      new ModelExecutor(options, model, backend, std::move(layout)));
  TANDEM_ASSIGN_OR_RETURN(executor->pool_, backend->AllocatePool(pool_bytes, memory));
  TANDEM_ASSIGN_OR_RETURN(executor->decoder_,
                          Decoder::Create(model, backend, executor->layout_, executor->pool_.data(),
                                          options.max_batched_tokens,
                                          std::min(options.max_batched_tokens, kMaxLogitRows)));
  return executor;
}

ModelExecutor::~ModelExecutor() {
  // What failed was told, or nobody asks any more.
  backend_->Synchronize().IgnoreError();
}

int64_t ModelExecutor::TokenScratchBytes(const ModelConfig& config, DType compute_dtype) {
  return Decoder::ScratchBytes(config, compute_dtype, /*max_tokens=*/1, /*max_logit_rows=*/0);
}

int64_t ModelExecutor::LogitScratchBytes(const ModelConfig& config, DType compute_dtype) {
  return Decoder::ScratchBytes(config, compute_dtype, /*max_tokens=*/0, kMaxLogitRows);
}

void ModelExecutor::Begin(const StepInput& input) {
  TANDEM_CHECK(steps_begun() < (overlaps_steps() ? kMaxStepsBegun : 1))
      << steps_begun() << " steps are begun";
  if (steps_begun() > 0) EnqueueWaiting(&StepAt(num_begun_));
  Step& step = StepAt(++num_begun_);
  step.status = Enqueue(input, &step);
  step.over = backend_->Record();
}

void ModelExecutor::BeginDraws(int32_t run, std::span<const Draw> draws) {
  TANDEM_CHECK(steps_begun() == 1) << steps_begun() << " steps are begun";
  Step& step = StepAt(num_begun_);
  RunEnd& end = step.ends.at(static_cast<size_t>(run));
  TANDEM_CHECK(end.waiting_row != kNowhere && end.num_draws == 0 && draws.size() == 1)
      << draws.size() << " draws of run " << run;
  end.num_draws = 1;
  end.drawn_at = static_cast<int32_t>(step.queries.size() + step.waiting.size());
  step.waiting.AskKeeping(static_cast<size_t>(run), end.waiting_row,
                          QueryOf(draws.front(), end.position + 1));
}

absl::StatusOr<StepOutput*> ModelExecutor::Finish() {
  TANDEM_CHECK(steps_begun() > 0) << "no step is begun";
  Step& step = StepAt(num_finished_ + 1);
  if (steps_begun() == 1) EnqueueWaiting(&step);
  absl::Status status = step.status;
  // For the results, and because others write and read the blocks from now on, whatever has become
  // of the step.
  status.Update(backend_->Wait(step.over));
  if (steps_begun() > 1) {
    // What was drawn is known now. The next step but one may go on from there.
    for (RunEnd& end : StepAt(num_begun_).ends) {
      if (end.token >= 0) continue;
      const auto place = static_cast<size_t>(IdOfDrawn(end.token));
      end.token = status.ok() ? step.TokenAt(place) : 0;
    }
  }
  ++num_finished_;
  TANDEM_RETURN_IF_ERROR(status);
  output_.runs.resize(step.ends.size());
  for (RunOutput& run : output_.runs) {
    run.drawn.clear();
    run.prompt_logprobs.clear();
    run.status = absl::OkStatus();
  }
  step.queries.Publish(&output_);
  step.waiting.Publish(&output_);
  return &output_;
}

absl::Status ModelExecutor::Execute(const StepInput& input, StepOutput* output) {
  Begin(input);
  TANDEM_ASSIGN_OR_RETURN(StepOutput* const finished, Finish());
  std::swap(*output, *finished);
  return absl::OkStatus();
}

absl::Status ModelExecutor::Enqueue(const StepInput& input, Step* step) {
  step->queries.Clear();
  step->waiting.Clear();
  FindEnds(input.runs, step);
  ArrangeRows(input.runs, *step);
  ListQueries(input.runs, step);
  TANDEM_RETURN_IF_ERROR(CopyBlocks(input.copies));
  if (input.runs.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(Forward());
  // What was drawn before has been embedded. Twice as much, so that batches that grow seldom grow
  // it.
  const size_t most =
      step->queries.size() + static_cast<size_t>(step->num_logit_rows - step->first_waiting_row);
  if (drawn_tokens_.size_bytes() < most * sizeof(int32_t)) {
    TANDEM_ASSIGN_OR_RETURN(drawn_tokens_, backend_->Allocate(2 * most * sizeof(int32_t)));
  }
  return step->queries.Enqueue(0, step->first_waiting_row, model_.config().vocab_size,
                               decoder_.get(), backend_, drawn_tokens_.as<int32_t>());
}

void ModelExecutor::EnqueueWaiting(Step* step) {
  if (step->waiting.size() == 0 || step->waiting.enqueued()) return;
  if (!step->status.ok()) return;  // There may be no logits.
  step->status = step->waiting.Enqueue(
      step->first_waiting_row, step->num_logit_rows, model_.config().vocab_size, decoder_.get(),
      backend_, drawn_tokens_.as<int32_t>() + static_cast<std::ptrdiff_t>(step->queries.size()));
  step->over = backend_->Record();
}

absl::Status ModelExecutor::BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) {
  return backend_->ChecksumBlocks({.base = pool_.data(),
                                   .block_stride_bytes = layout_.block_bytes,
                                   .blocks = blocks.data(),
                                   .checksums = crc32c,
                                   .count = static_cast<int64_t>(blocks.size())});
}

void ModelExecutor::Discard(BlockId block) {
  // A backend that does not do it leaves what was there, which nobody reads; a device that has
  // failed says so at the next step.
  backend_
      ->DiscardBlocks({.base = pool_.data(),
                       .block_stride_bytes = layout_.block_bytes,
                       .blocks = &block,
                       .count = 1})
      .IgnoreError();
}

// In order, because a later copy may read what an earlier one wrote: one call for each stretch in
// which no block appears twice.
absl::Status ModelExecutor::CopyBlocks(std::span<const BlockCopy> copies) {
  copy_sources_.clear();  // A step that failed may have left some.
  copy_destinations_.clear();
  const auto flush = [this]() -> absl::Status {
    TANDEM_RETURN_IF_ERROR(
        backend_->CopyBlocks({.base = pool_.data(),
                              .block_stride_bytes = layout_.block_bytes,
                              .sources = copy_sources_.data(),
                              .destinations = copy_destinations_.data(),
                              .count = static_cast<int64_t>(copy_sources_.size())}));
    copy_sources_.clear();
    copy_destinations_.clear();
    return absl::OkStatus();
  };
  const auto contains = [](const std::vector<int32_t>& list, BlockId block) {
    return std::find(list.begin(), list.end(), block) != list.end();
  };
  for (const BlockCopy& copy : copies) {
    if (contains(copy_destinations_, copy.source) ||
        contains(copy_destinations_, copy.destination) ||
        contains(copy_sources_, copy.destination)) {
      TANDEM_RETURN_IF_ERROR(flush());
    }
    copy_sources_.push_back(copy.source);
    copy_destinations_.push_back(copy.destination);
  }
  return copy_sources_.empty() ? absl::OkStatus() : flush();
}

void ModelExecutor::FindEnds(std::span<const SequenceRun> runs, Step* step) {
  step->ends.clear();
  for (const SequenceRun& run : runs) {
    RunEnd& end = step->ends.emplace_back();
    const auto tokens = static_cast<int32_t>(run.token_ids.size());
    end.position = run.first_position + tokens - 1;
    if (run.unseen_run < 0) {
      end.token = run.token_ids.back();
      TANDEM_CHECK(end.token >= 0) << "token " << end.token << " that no run draws";
      continue;
    }
    TANDEM_CHECK(steps_begun() == kMaxStepsBegun && tokens == 1)
        << tokens << " tokens after run " << run.unseen_run << " of a step that is seen";
    const Step& before = StepAt(num_begun_ - 1);
    const RunEnd& from = before.ends.at(static_cast<size_t>(run.unseen_run));
    if (!before.status.ok()) continue;  // Nothing of that is published, whatever it computes.
    TANDEM_CHECK(from.num_draws <= 1) << from.num_draws << " tokens to go on after";
    if (from.num_draws == 1) {
      end.token = IdOfDrawn(from.drawn_at);
    } else {
      end.token = from.token;
      end.position = from.position;
    }
  }
}

void ModelExecutor::AddRows(const SequenceRun& run, const RunEnd& end) {
  const int32_t block_tokens = options_.block_tokens;
  const auto tokens = static_cast<int32_t>(run.token_ids.size());
  for (int32_t i = 0; i < tokens; ++i) {
    const int32_t position = end.position - (tokens - 1) + i;
    const bool last = i + 1 == tokens;
    token_ids_.push_back(last ? end.token : run.token_ids[static_cast<size_t>(i)]);
    TANDEM_CHECK(last || token_ids_.back() >= 0) << "token " << token_ids_.back();
    positions_.push_back(position);
    const int64_t block = run.block_table[static_cast<size_t>(position / block_tokens)];
    slots_.push_back(block * block_tokens + position % block_tokens);
  }
}

void ModelExecutor::ArrangeRows(std::span<const SequenceRun> runs, const Step& step) {
  TANDEM_CHECK(runs.size() <= static_cast<size_t>(options_.max_sequences))
      << runs.size() << " runs, at most " << options_.max_sequences;
  token_ids_.clear();
  positions_.clear();
  slots_.clear();
  decode_num_tokens_.clear();
  prefill_query_start_.assign(1, 0);
  prefill_num_cached_.clear();
  first_row_.resize(runs.size());
  max_blocks_ = 0;
  for (const SequenceRun& run : runs) {
    const int64_t end = run.first_position + static_cast<int64_t>(run.token_ids.size());
    const int64_t blocks = CeilDiv<int64_t>(end, options_.block_tokens);
    TANDEM_CHECK(!run.token_ids.empty() && end <= options_.max_model_tokens &&
                 blocks <= static_cast<int64_t>(run.block_table.size()))
        << "run from " << run.first_position << " to " << end << " with " << run.block_table.size()
        << " blocks";
    max_blocks_ = std::max(max_blocks_, blocks);
  }
  // Wider than needed, so that the tables of steps that follow each other have one width and can be
  // replayed.
  max_blocks_ =
      RoundUp<int64_t>(max_blocks_, CeilDiv(kAttentionSegmentTokens, options_.block_tokens));
  decode_blocks_.clear();
  prefill_blocks_.clear();
  const auto add_table = [this](const SequenceRun& run, std::vector<int32_t>* table) {
    const size_t used = std::min(run.block_table.size(), static_cast<size_t>(max_blocks_));
    table->insert(table->end(), run.block_table.begin(),
                  run.block_table.begin() + static_cast<std::ptrdiff_t>(used));
    table->insert(table->end(), static_cast<size_t>(max_blocks_) - used, -1);
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].token_ids.size() != 1) continue;
    first_row_[i] = static_cast<int32_t>(token_ids_.size());
    AddRows(runs[i], step.ends[i]);
    add_table(runs[i], &decode_blocks_);
    decode_num_tokens_.push_back(step.ends[i].position + 1);
  }
  const int32_t num_decode_rows = static_cast<int32_t>(token_ids_.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].token_ids.size() == 1) continue;
    first_row_[i] = static_cast<int32_t>(token_ids_.size());
    AddRows(runs[i], step.ends[i]);
    add_table(runs[i], &prefill_blocks_);
    prefill_query_start_.push_back(static_cast<int32_t>(token_ids_.size()) - num_decode_rows);
    prefill_num_cached_.push_back(runs[i].first_position);
  }
  TANDEM_CHECK(token_ids_.size() <= static_cast<size_t>(options_.max_batched_tokens))
      << token_ids_.size() << " tokens, at most " << options_.max_batched_tokens;
}

absl::Status ModelExecutor::Forward() {
  return decoder_->Forward({.token_ids = token_ids_,
                            .positions = positions_,
                            .slots = slots_,
                            .logit_rows = logit_rows_,
                            .drawn_tokens = drawn_tokens_.as<const int32_t>(),
                            .num_decodes = static_cast<int64_t>(decode_num_tokens_.size()),
                            .num_prefills = static_cast<int64_t>(prefill_num_cached_.size()),
                            .max_blocks = max_blocks_,
                            .decode_blocks = decode_blocks_.data(),
                            .decode_num_tokens = decode_num_tokens_.data(),
                            .prefill_blocks = prefill_blocks_.data(),
                            .prefill_query_start = prefill_query_start_.data(),
                            .prefill_num_cached = prefill_num_cached_.data()});
}

void ModelExecutor::ListQueries(std::span<const SequenceRun> runs, Step* step) {
  logit_rows_.clear();
  for (size_t r = 0; r < runs.size(); ++r) {
    if (!runs[r].draws_wait) ListQueriesOf(runs[r], r, step);
  }
  step->first_waiting_row = static_cast<int32_t>(logit_rows_.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    if (!runs[r].draws_wait) continue;
    TANDEM_CHECK(runs[r].token_ids.size() == 1 && runs[r].draws.empty());
    step->ends[r].waiting_row = static_cast<int32_t>(logit_rows_.size());
    logit_rows_.push_back(first_row_[r]);
  }
  step->num_logit_rows = static_cast<int32_t>(logit_rows_.size());
}

void ModelExecutor::ListQueriesOf(const SequenceRun& run, size_t index, Step* step) {
  LogitQueries& queries = step->queries;
  RunEnd& end = step->ends[index];
  const size_t last = run.token_ids.size() - 1;
  const bool scored = run.num_prompt_logprobs >= 0;
  for (size_t i = scored ? 0 : last; i <= last; ++i) {
    const bool draws = i == last && !run.draws.empty();
    int32_t successor = -1;
    if (scored) successor = i < last ? run.token_ids[i + 1] : run.next_token_id;
    if (successor < 0 && !draws) continue;
    const auto row = static_cast<int32_t>(logit_rows_.size());
    logit_rows_.push_back(first_row_[index] + static_cast<int32_t>(i));
    if (successor >= 0) {
      queries.Ask(index, row, {.given = successor, .num_top_logprobs = run.num_prompt_logprobs});
    }
    if (!draws) continue;
    end.num_draws = static_cast<int32_t>(run.draws.size());
    end.drawn_at = static_cast<int32_t>(queries.size());
    for (const Draw& draw : run.draws) {
      const SampleQuery query = QueryOf(draw, end.position + 1);
      overlaps_steps() ? queries.AskKeeping(index, row, query) : queries.Ask(index, row, query);
    }
  }
}

}  // namespace tandem
