#include "runtime/execution/logit_queries.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// `result` as the engine speaks of it.
SampledToken ToSampledToken(const SampleResult& result) {
  SampledToken sampled{.token = result.token, .logprob = result.logprob, .rank = result.rank};
  sampled.top.reserve(result.top.size());
  for (const RankedToken& top : result.top) sampled.top.push_back({top.token, top.logprob});
  return sampled;
}

}  // namespace

void LogitQueries::Clear() {
  queries_.clear();
  rows_.clear();
  runs_.clear();
  results_.clear();
  kept_.clear();
}

void LogitQueries::Ask(size_t run, int32_t row, const SampleQuery& query) {
  TANDEM_CHECK(!enqueued()) << "what was asked before is";
  TANDEM_CHECK(rows_.empty() || rows_.back() <= row) << row << " after " << rows_.back();
  queries_.push_back(query);
  rows_.push_back(row);
  runs_.push_back(run);
}

void LogitQueries::AskKeeping(size_t run, int32_t row, SampleQuery query) {
  const auto& words = query.allowed_tokens.words;
  if (!query.logit_bias.empty() || !query.masked_tokens.empty() || !words.empty()) {
    Kept& kept = kept_.emplace_back();
    kept.logit_bias.assign(query.logit_bias.begin(), query.logit_bias.end());
    kept.masked_tokens.assign(query.masked_tokens.begin(), query.masked_tokens.end());
    kept.allowed_words.assign(words.begin(), words.end());
    query.logit_bias = kept.logit_bias;
    query.masked_tokens = kept.masked_tokens;
    query.allowed_tokens = {.words = kept.allowed_words};
  }
  Ask(run, row, query);
}

absl::Status LogitQueries::Enqueue(int32_t begin, int32_t end, int64_t vocabulary, Decoder* decoder,
                                   Backend* backend, DevicePtr<int32_t> drawn_tokens) {
  results_.resize(queries_.size());
  const auto most = static_cast<int32_t>(decoder->max_logit_rows());
  size_t first = 0;
  for (int32_t row = begin; row < end; row += most) {
    const int32_t rows = std::min(most, end - row);
    size_t next = first;
    for (; next < queries_.size() && rows_[next] < row + rows; ++next) {
      queries_[next].row = rows_[next] - row;
    }
    if (next == first) continue;  // They wait for what has not come.
    TANDEM_ASSIGN_OR_RETURN(const DevicePtr<const float> logits, decoder->Logits(row, rows));
    TANDEM_RETURN_IF_ERROR(
        backend->Sample({.logits = logits,
                         .drawn_tokens = drawn_tokens + static_cast<std::ptrdiff_t>(first),
                         .num_rows = rows,
                         .vocabulary = vocabulary,
                         .queries = &queries_[first],
                         .results = &results_[first],
                         .count = static_cast<int64_t>(next - first)}));
    first = next;
  }
  TANDEM_CHECK(first == queries_.size()) << "row " << rows_[first] << " of " << end;
  return absl::OkStatus();
}

void LogitQueries::Publish(StepOutput* output) const {
  for (size_t i = 0; i < queries_.size(); ++i) {
    RunOutput& run = output->runs[runs_[i]];
    run.status.Update(results_[i].status());
    if (!run.status.ok()) continue;
    (queries_[i].given >= 0 ? run.prompt_logprobs : run.drawn)
        .push_back(ToSampledToken(*results_[i]));
  }
}

}  // namespace tandem
