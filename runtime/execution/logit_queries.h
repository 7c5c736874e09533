// What a step asks of its logits, with what comes of it. Operations read and write here until they
// are over, which may be a step later: what was asked before stays where it is.

#ifndef TANDEM_RUNTIME_EXECUTION_LOGIT_QUERIES_H_
#define TANDEM_RUNTIME_EXECUTION_LOGIT_QUERIES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "runtime/engine/executor.h"
#include "runtime/model/decoder.h"

namespace tandem {

// Engine thread only. Filled, enqueued once, published; then cleared.
class LogitQueries {
 public:
  void Clear();

  // A query of row `row` of those whose logits may be asked for (ForwardInput::logit_rows), for run
  // `run`; rows do not fall.
  void Ask(size_t run, int32_t row, const SampleQuery& query);
  // The same, with a copy of all that the query points at.
  void AskKeeping(size_t run, int32_t row, SampleQuery query);

  size_t size() const { return queries_.size(); }
  bool enqueued() const { return !results_.empty(); }

  // Their logits, of rows [begin, end), and their tokens, each to its place in `drawn_tokens` as
  // well.
  absl::Status Enqueue(int32_t begin, int32_t end, int64_t vocabulary, Decoder* decoder,
                       Backend* backend, DevicePtr<int32_t> drawn_tokens);

  // Once that is over: results to their runs. One that failed fails its run.
  void Publish(StepOutput* output) const;
  // What is in a place of `drawn_tokens` then.
  int32_t TokenAt(size_t place) const { return results_[place].ok() ? results_[place]->token : 0; }

 private:
  struct Kept {
    std::vector<std::pair<int32_t, float>> logit_bias;
    std::vector<int32_t> masked_tokens;
    std::vector<uint32_t> allowed_words;
  };

  // Parallel.
  std::vector<SampleQuery> queries_;
  std::vector<int32_t> rows_;
  std::vector<size_t> runs_;
  std::vector<absl::StatusOr<SampleResult>> results_;

  std::deque<Kept> kept_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_EXECUTION_LOGIT_QUERIES_H_
