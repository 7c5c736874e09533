// The proof of docs/numerics.md, one variant at a time: requests run through real engines, models
// and transfers in the variant's way must give the tokens, log-probabilities and prompt
// log-probabilities of the reference run, bit for bit. The reference: every request alone, its
// prompt in one chunk, one thread, blocks of 16, no cache, one worker, the first of some
// instruction sets (paths); the workers of a variant have different ones.

#ifndef TANDEM_TESTS_INTEGRATION_BITWISE_PROOF_H_
#define TANDEM_TESTS_INTEGRATION_BITWISE_PROOF_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/proof_run.h"

namespace tandem {

class BitwiseProof {
 public:
  // Runs the reference. `paths` are of one class.
  BitwiseProof(std::string folder, std::string format, ProofSet set,
               std::vector<std::string> paths = PathsOfOneClass());
  ~BitwiseProof();

  // Empty, or how the variant differs. Also checks that it was what it says: batches were full,
  // cached tokens and KV frames as many as they must be, sequences preempted.
  std::string Check(const ProofVariant& variant);
  // Whatever its state, the requests with a pool of so many blocks where they are decoded.
  std::string CheckInPool(const ProofVariant& variant, int32_t decode_blocks);
  // Empty, or where the generated tokens' log-probabilities are not the prompt log-probabilities
  // of the same text.
  std::string CheckScores(const ProofVariant& variant);

  const ProofResult& reference(size_t request) const { return references_[request]; }
  int64_t frames() const { return frames_; }            // Over all checks.
  int64_t recomputed() const { return recomputed_; }    // Tokens, over all checks.
  int64_t comparisons() const { return comparisons_; }  // Sampled tokens compared.

 private:
  using Work = ProofRun::Work;

  int32_t AmpleBlocks(int32_t block_tokens) const;
  std::unique_ptr<ProofRun> NewRun(const ProofVariant& variant, int num_workers,
                                   int32_t decode_blocks = 0, bool prefix_caching = true);
  void Count(ProofRun* run);
  std::vector<Work> WorksOf(const ProofVariant& variant) const;
  std::string CheckColdAndHits(const ProofVariant& variant, bool hits);
  std::string CheckResumed(const ProofVariant& variant);
  std::string CheckPreempted(const ProofVariant& variant);
  std::string CheckPreemption(const ProofVariant& variant, const std::vector<Work>& works,
                              int32_t num_blocks, int32_t intruder_choices, size_t tokens_before);
  const LoadedModel& ModelOf(const std::string& path, int num_threads);
  KvPoolMemory PoolOf(int worker, size_t bytes);

  const std::string folder_;
  const std::string format_;
  const ProofSet set_;
  std::vector<ProofRequest> all_;  // requests, then fillers.
  const std::vector<std::string> paths_;
  std::map<std::pair<std::string, int>, std::unique_ptr<LoadedModel>> models_;  // Threads.
  // Pools keep what earlier runs left in them, so that reading a slot that nobody wrote shows.
  std::map<int, PinnedBuffer> pools_;
  std::vector<ProofResult> references_;  // What each of all_ is to give.
  ProofResult intruder_reference_;
  int64_t frames_ = 0;
  int64_t recomputed_ = 0;
  int64_t comparisons_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_BITWISE_PROOF_H_
