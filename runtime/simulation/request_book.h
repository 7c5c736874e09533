// What is asked of a simulated fleet, and what a fault-free run answers: computed from the model
// alone, so that every token anybody emits can be judged where it appears.

#ifndef TANDEM_RUNTIME_SIMULATION_REQUEST_BOOK_H_
#define TANDEM_RUNTIME_SIMULATION_REQUEST_BOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/random.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/request_spec.h"
#include "runtime/protocol/router_messages.h"
#include "runtime/protocol/sampled_token.h"
#include "runtime/request/detokenizer.h"
#include "runtime/simulation/simulated_model.h"
#include "runtime/simulation/simulation_options.h"

namespace tandem {

// What one choice of a fault-free run delivers.
struct ExpectedChoice {
  std::vector<SampledToken> worker_tokens;  // Without stop strings.
  FinishReason worker_finish = FinishReason::kNone;
  size_t num_tokens = 0;  // Delivered: up to the one that completes a stop string.
  std::string text;
  FinishReason finish = FinishReason::kNone;
};

struct ExpectedRequest {
  std::vector<ExpectedChoice> choices;
  std::vector<SampledToken> prompt_logprobs;
};

// As its router has sent it.
struct SentAttempt {
  std::vector<int32_t> choices;
  int32_t tokens_known = 0;  // Prompt and generated.
  bool runs_alone = false;
  uint64_t worker = 0, prefill = 0;  // Incarnations; 0: no prefill worker.
};

// A worker, or a step, that ended while its router believed that it had this attempt.
struct SeenDeath {
  uint32_t attempt = 0;
  uint64_t incarnation = 0;
  bool said_token = false;  // A token of this attempt had left the worker.
  bool blameless = false;   // Killed from outside, and somebody will say so.
  int32_t passed = 0;       // Later attempts of the same choices have computed what is before.
};

// A prefill worker whose blocks did not come. To its router it is dead until it is heard again.
struct LostTransfer {
  uint32_t attempt = 0;
  uint64_t prefill = 0;
  int64_t at_us = 0;
};

struct AskedRequest {
  std::string client;
  std::vector<int32_t> prompt;
  std::string cache_salt;
  SamplingParams sampling;  // As asked for; once its length is fixed, as promised.
  bool open_ended = false;  // How much is generated is not fixed yet.
  int32_t num_choices = 1;
  std::vector<std::string> stop_strings;
  int64_t time_left_us = 0;
  bool short_deadline = false;
  // It kills every process that computes the KV of this position: of the prompt, or of what its
  // first choice generates. -1: it does not.
  int32_t deadly_position = -1;
  bool misdirected = false;  // Work of it came to an incarnation that it was not meant for.
  int32_t kills = 0;
  std::set<uint32_t> killing_attempts;  // Attempts that its router had not given up.

  std::map<uint32_t, SentAttempt> sent;
  // What its router believes: attempts that run, and the chunk that each last began where.
  std::set<uint32_t> live_attempts;
  std::map<std::pair<uint32_t, uint64_t>, std::pair<int32_t, int32_t>> begun;
  std::set<uint32_t> cut_short;  // Attempts whose end it was told before all that they had said.
  std::vector<SeenDeath> deaths;
  std::vector<LostTransfer> lost_transfers;
  // How many of its attempts that killed its router saw die exactly once, and not from outside. If
  // two workers of one attempt end at once, it may hear of one or of both, and nobody says which
  // one was killed; what a step that failed has said is lost with a session that ends.
  size_t NumSeenKills() const;
  // Four deaths in a row for which nobody else is known to be the reason, at one place of one
  // choice, as far as was told before; the last two of them alone.
  bool MayBeBlamed() const;
  void CountChunk(uint64_t incarnation, const ChunkBegun& chunk);  // The attempt's router was told.
  // And of a step that failed while it computed this attempt.
  void CountFailedStep(uint32_t attempt, bool by_prefill, bool said_token);
  void CountLostTransfer(uint32_t attempt, int64_t now_us);
  // Attempts that are live, at this incarnation as far as its router knows.
  std::vector<uint32_t> LiveAt(uint64_t incarnation) const;
  std::map<uint64_t, ExpectedRequest> expected;  // By numerics; as asked for.
};

class RequestBook {
 public:
  explicit RequestBook(const SimulationOptions& options) : options_(options) {}

  AskedRequest Draw(Random* random) const;

  // Makes it the one that kills workers.
  static void Poison(AskedRequest* asked, Random* random);

  // From here on the request is known under this id.
  void Name(const RequestId& id, AskedRequest* asked);
  AskedRequest* Find(const RequestId& id) const {
    const auto found = named_.find(id);
    return found == named_.end() ? nullptr : found->second;
  }
  const ExpectedRequest& Expect(AskedRequest* asked, uint64_t numerics);

  const std::set<uint64_t>* deadly_payloads() const { return &deadly_payloads_; }
  // `incarnation` has computed it. Of attempts that are `over` there, a step went on that began
  // before: their router may hear of the end first, and try the next one before it hears of the
  // death.
  void CountKill(uint64_t payload, uint64_t incarnation, const std::set<AttemptId>& over);
  // Internal, if a request was let kill more workers than it takes.
  absl::Status AuditKills() const;
  // Sent to workers of which one may have ended before, unnoticed by the router.
  void CountSent(AskedRequest* asked, uint32_t attempt, const SentAttempt& sent) const;
  // A process has ended. `said` is the attempts of which it has said a token.
  void CountDeath(uint64_t incarnation, const std::set<AttemptId>& said, bool blameless,
                  int64_t now_us);

  // How much of its prompt a cache may have that was filled by requests of its salt.
  int64_t MostCachedTokens(AskedRequest* asked, uint64_t numerics);

  void ExpectAll(uint64_t numerics);
  // CRC-32C of the block of this name as a worker of these numerics, this format and this block
  // size computes it; 0: no request that was expected so leads to such a block.
  uint32_t ExpectedBlock(uint64_t numerics, uint64_t kv_format, int32_t block_tokens,
                         const BlockHash& name) const;

  static BlockHash Root(const AskedRequest& asked);
  static DetokenizerFactory MakeDetokenizer();

 private:
  ExpectedChoice ExpectChoice(const AskedRequest& asked, const SimulatedModel& model,
                              int32_t number) const;
  void RememberBlocks(const AskedRequest& asked, const ExpectedChoice& choice, uint64_t numerics);

  const SimulationOptions options_;
  std::map<RequestId, AskedRequest*> named_;
  std::map<uint64_t, bool> ended_;  // Incarnations, and whether blamelessly.
  std::set<uint64_t> deadly_payloads_;
  std::map<uint64_t, AskedRequest*> killers_;  // By payload.
  // Payloads, by numerics, block size and name.
  std::map<std::tuple<uint64_t, int32_t, BlockHash>, std::vector<uint64_t>> blocks_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_REQUEST_BOOK_H_
