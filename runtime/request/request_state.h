// What a request owner keeps of one request. Internal to runtime/request.

#ifndef TANDEM_RUNTIME_REQUEST_REQUEST_STATE_H_
#define TANDEM_RUNTIME_REQUEST_REQUEST_STATE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/request/choice_text.h"
#include "runtime/request/request_sink.h"

namespace tandem {

// One of n. Its tokens are never taken back.
struct ChoiceState {
  std::vector<int32_t> generated;
  std::optional<ChoiceText> text;  // From its first token on, if any is wanted.
  bool finished = false;
  size_t stream = 0;  // In RequestState::streams.
};

inline constexpr int32_t kNoEnd = std::numeric_limits<int32_t>::max();

enum class LossKind : uint8_t {
  kEnded,       // As far as is known: if the same incarnation is heard later, nobody died.
  kHung,        // It talked, and made no progress: what ends it later says nothing.
  kStepFailed,  // The process goes on; this stream was in a step that failed as a whole.
};

// A worker that was lost, or a step of it.
// If the stream did it, then with a position of [begin, end), prompt and generated tokens counted.
struct WorkerDeath {
  WorkerId worker;
  int64_t at_us = 0;
  int32_t begin = 0;
  int32_t end = kNoEnd;
  bool ran_alone = false;  // No other prompt of ours was on the worker.
  LossKind kind = LossKind::kEnded;
  std::optional<EndCause> cause;  // Once told.
};

// What a worker said that it begins to compute.
struct WorkerChunk {
  WorkerId worker;
  int32_t begin = 0;
  int32_t end = 0;
};

// Choices that go through the same attempts: all of them as long as none has a token, then one.
struct StreamState {
  std::vector<int32_t> choices;  // Unfinished ones. None left: the stream is over.

  // The attempt, while `running`.
  bool running = false;
  uint32_t attempt = 0;
  SessionId session = 0;
  WorkerId worker;
  std::optional<WorkerId> prefill;
  int32_t num_tokens = 0;            // What it began with: prompt, and what was generated.
  std::vector<int32_t> at_worker;    // Choices whose terminal event the worker still owes.
  int32_t live_sequences = 0;        // As counted in the fleet.
  int64_t live_prompt_tokens = 0;    // Not 0 until the prompt is computed.
  bool runs_alone = false;           // Its worker is reserved for it until the prompt is computed.
  std::optional<WorkerChunk> chunk;  // The last of the prompt that was begun.

  // Over attempts.
  int32_t num_computed = 0;         // Positions before it were computed by somebody.
  std::vector<WorkerDeath> deaths;  // It may have caused them; in a row, no token in between.
};

struct RequestState {
  ClientRequest asked;           // But for its stop strings.
  std::vector<BlockHash> chain;  // The names of the prompt's blocks.
  uint64_t counter = 0;
  uint64_t turn = 0;  // The client's turn with which it last went to a worker; 0: it has not yet.
  int64_t deadline_us = 0;
  uint32_t last_attempt = 0;
  StopStrings stops;  // Moved out of `asked`.
  std::vector<ChoiceState> choices;
  std::vector<StreamState> streams;  // Only grows; at most one a choice.
  std::string numerics_id;           // The first result's; from then on the only one.
  bool prompt_reported = false;
  RequestReport report;

  int32_t prompt_tokens() const { return asked.spec.prompt_tokens; }
  bool started() const { return !numerics_id.empty(); }
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_REQUEST_STATE_H_
