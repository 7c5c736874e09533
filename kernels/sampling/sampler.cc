#include "kernels/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/sampling/draw.h"
#include "kernels/sampling/philox.h"
#include "kernels/support/float_environment.h"
#include "kernels/support/vector_math.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

struct Scratch {
  RowMaxima maxima;
  std::vector<float> row;  // With bias and masks.
  DrawScratch draw;
};

Scratch* ThreadScratch() {
  thread_local Scratch scratch;
  return &scratch;
}

// Names the first logit that is infinite or NaN.
absl::Status FirstNotFinite(std::span<const float> logits) {
  size_t id = 0;
  while (std::isfinite(logits[id])) ++id;
  return NotFinite(static_cast<int64_t>(id), logits[id]);
}

absl::Status CheckDraw(const SampleQuery& query) {
  if (!(query.temperature >= 0) || !std::isfinite(query.temperature)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("temperature is %f, must be 0 or more", query.temperature));
  }
  if (!(query.top_p > 0) || query.top_p > 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("top_p is %f, must be above 0 and at most 1", query.top_p));
  }
  if (query.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("top_k is %d, must be 0 or more", query.top_k));
  }
  if (query.num_top_logprobs < -1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("num_top_logprobs is %d, must be -1 or more", query.num_top_logprobs));
  }
  return absl::OkStatus();
}

absl::Status CheckScore(int32_t token, int32_t num_top_logprobs, int64_t vocabulary) {
  if (token < 0 || token >= vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token %d, must be 0 to %d", token, vocabulary - 1));
  }
  if (num_top_logprobs < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("num_top_logprobs is %d, must be 0 or more", num_top_logprobs));
  }
  return absl::OkStatus();
}

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void MaskAllBut(const TokenMask& allowed, std::vector<float>* row) {
  if (allowed.empty()) return;
  for (size_t first = 0; first < row->size(); first += 32) {
    const uint32_t word = first / 32 < allowed.words.size() ? allowed.words[first / 32] : 0;
    if (word == ~uint32_t{0}) continue;
    const size_t count = std::min<size_t>(32, row->size() - first);
    for (size_t bit = 0; bit < count; ++bit) {
      if ((word >> bit & 1) == 0) (*row)[first + bit] = kMasked;
    }
  }
}

// Logprob, rank and top list of `token`.
SampleResult ScoreToken(const ScoredRow& row, int32_t token, int32_t num_top_logprobs) {
  SampleResult result = {.token = token,
                         .logprob = row.LogProbabilityOf(token),
                         .rank = CountBetter(row.logits(), token) + 1};
  for (const int32_t id : HighestIds(row.logits(), row.maxima(), num_top_logprobs)) {
    result.top.push_back(RankedToken{.token = id, .logprob = row.LogProbabilityOf(id)});
  }
  return result;
}

int32_t DrawToken(std::span<const float> row, const RowMaxima& maxima, const SampleQuery& query,
                  DrawScratch* scratch) {
  if (query.temperature == 0) return HighestId(row, maxima);
  return Draw(
      {.row = row,
       .maxima = &maxima,
       .temperature = query.temperature,
       .top_k = query.top_k,
       .top_p = query.top_p,
       .random = RandomBits(query.seed, query.choice, query.position, RandomPurpose::kToken)},
      scratch);
}

}  // namespace

absl::Status CheckQuery(const SampleQuery& query, int64_t vocabulary) {
  return query.given >= 0 ? CheckScore(query.given, query.num_top_logprobs, vocabulary)
                          : CheckDraw(query);
}

absl::Status NotFinite(int64_t id, float logit) {
  return absl::InternalError(absl::StrFormat("logit of id %d is %f", id, logit));
}

absl::Status AllMasked(int64_t vocabulary) {
  return absl::InvalidArgumentError(
      absl::StrFormat("all %d tokens of the vocabulary are masked", vocabulary));
}

absl::StatusOr<ScoredRow> ScoredRow::Make(std::span<const float> logits) {
  if (logits.empty() || static_cast<int64_t>(logits.size()) > kMaxVocabulary) {
    return absl::InvalidArgumentError(
        absl::StrFormat("vocabulary of %d, must be 1 to %d", logits.size(), kMaxVocabulary));
  }
  ScoredRow row(logits);
  if (!FindMaxima(logits, &row.maxima_)) return FirstNotFinite(logits);
  return row;
}

float ScoredRow::LogProbabilityOf(int32_t id) const {
  if (!log_sum_) log_sum_ = LogSumExp(logits_, maxima_.max);
  return LogProbability(logits_[id], maxima_.max, *log_sum_);
}

absl::StatusOr<SampleResult> Sample(const ScoredRow& row, const SampleQuery& query) {
  TANDEM_RETURN_IF_ERROR(CheckDraw(query));
  const std::span<const float> logits = row.logits();
  Scratch* scratch = ThreadScratch();
  int32_t token = 0;
  if (query.logit_bias.empty() && query.masked_tokens.empty() && query.allowed_tokens.empty()) {
    token = DrawToken(logits, row.maxima(), query, &scratch->draw);
  } else {
    scratch->row.assign(logits.begin(), logits.end());
    // A negative id is a large one.
    for (const auto& [id, bias] : query.logit_bias) {
      if (static_cast<size_t>(id) < logits.size()) scratch->row[id] += bias;
    }
    for (const int32_t id : query.masked_tokens) {
      if (static_cast<size_t>(id) < logits.size()) scratch->row[id] = kMasked;
    }
    MaskAllBut(query.allowed_tokens, &scratch->row);
    FindMaxima(scratch->row, &scratch->maxima);
    if (scratch->maxima.max == kMasked) {
      return AllMasked(std::ssize(logits));
    }
    token = DrawToken(scratch->row, scratch->maxima, query, &scratch->draw);
  }
  if (query.num_top_logprobs < 0) return SampleResult{.token = token};
  return ScoreToken(row, token, query.num_top_logprobs);
}

absl::StatusOr<SampleResult> Score(const ScoredRow& row, int32_t token, int32_t num_top_logprobs) {
  TANDEM_RETURN_IF_ERROR(CheckScore(token, num_top_logprobs, std::ssize(row.logits())));
  return ScoreToken(row, token, num_top_logprobs);
}

namespace {

absl::StatusOr<SampleResult> Answer(const ScoredRow& row, const SampleQuery& query) {
  if (query.given >= 0) return Score(row, query.given, query.num_top_logprobs);
  return Sample(row, query);
}

}  // namespace

void SampleRows(const HostSampleArgs& args, int64_t begin, int64_t end) {
  const IeeeFloatScope scope;
  const SampleQuery* const queries = args.queries;
  const auto begins_a_row = [&](int64_t i) {
    return i == 0 || queries[i].row != queries[i - 1].row;
  };
  while (begin < end && !begins_a_row(begin)) ++begin;
  for (int64_t i = begin; i < end;) {
    const absl::StatusOr<ScoredRow> row = ScoredRow::Make(std::span(
        args.logits + queries[i].row * args.vocabulary, static_cast<size_t>(args.vocabulary)));
    do {
      args.results[i] = row.ok() ? Answer(*row, queries[i]) : row.status();
      if (args.drawn_tokens != nullptr) {
        args.drawn_tokens[i] = args.results[i].ok() ? args.results[i]->token : 0;
      }
    } while (++i < args.count && !begins_a_row(i));
  }
}

}  // namespace tandem
