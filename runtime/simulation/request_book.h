// What is asked of a simulated fleet, and what a fault-free run answers: computed from the model
// alone, so that every token anybody emits can be judged where it appears.

#ifndef TANDEM_RUNTIME_SIMULATION_REQUEST_BOOK_H_
#define TANDEM_RUNTIME_SIMULATION_REQUEST_BOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/kv_cache/block_hash.h"
#include "runtime/protocol/generation.h"
#include "runtime/protocol/identity.h"
#include "runtime/request/detokenizer.h"
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

struct AskedRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int32_t num_choices = 1;
  std::vector<std::string> stop_strings;
  int64_t time_left_us = 0;
  bool short_deadline = false;
  // It kills every process that computes the KV of its last prompt token (0), or of that generated
  // token of its first choice (from 1 on). -1: it does not.
  int32_t deadly_token = -1;
  bool misdirected = false;  // Work of it came to an incarnation that it was not meant for.
  int32_t kills = 0;
  int32_t unknown_kills = 0;  // Of them, of incarnations that its router may not have known yet.
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
  void CountKill(uint64_t payload, bool unknown) {
    ++killers_.at(payload)->kills;
    killers_.at(payload)->unknown_kills += unknown;
  }

  void ExpectAll(uint64_t numerics);
  // CRC-32C of the block of this name as a worker of these numerics and this format computes it; 0:
  // no request that was expected so leads to such a block.
  uint32_t ExpectedBlock(uint64_t numerics, uint64_t kv_format, const BlockHash& name) const;

  static BlockHash Root();
  static DetokenizerFactory MakeDetokenizer();

 private:
  const SimulationOptions options_;
  std::map<RequestId, AskedRequest*> named_;
  std::set<uint64_t> deadly_payloads_;
  std::map<uint64_t, AskedRequest*> killers_;                               // By payload.
  std::map<std::pair<uint64_t, BlockHash>, std::vector<uint64_t>> blocks_;  // Payloads.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_REQUEST_BOOK_H_
