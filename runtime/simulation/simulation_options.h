// One simulated run: a fleet, what is asked of it, and what goes wrong. Drawn from a seed, so that
// a seed names a run.

#ifndef TANDEM_RUNTIME_SIMULATION_SIMULATION_OPTIONS_H_
#define TANDEM_RUNTIME_SIMULATION_SIMULATION_OPTIONS_H_

#include <algorithm>
#include <cstdint>

#include "runtime/base/random.h"
#include "runtime/kv_cache/kv_window.h"
#include "runtime/routing/routing_policy.h"

namespace tandem {

// Probabilities are a message's, a frame's or a request's; mean times are of a Poisson process
// over the whole fleet, 0: never.
struct SimulatedFaults {
  double slow_message = 0;       // Takes up to 60 ms instead of 0.4.
  double repeated_message = 0;   // On a Session, where every message is idempotent.
  double overtaking_cancel = 0;  // A Cancel that does not wait its turn.
  double lost_frame = 0;         // Although its sender is told that it went.
  double failed_frame = 0;       // And its sender is told.
  double torn_frame = 0;         // The transport gives up half-way through the bytes.
  double repeated_frame = 0;
  double slow_frame = 0;  // Up to 4 s: after its reservation and its lease.
  double corrupt_payload = 0;
  double corrupt_header = 0;
  int64_t broken_link_us = 0;
  int64_t unnoticed_break_us = 0;  // A peer session breaks; its prefill side is never told.
  int64_t one_way_cut_us = 0;      // A link goes on one way; keepalives find it out in up to 2 s.
  int64_t crash_us = 0;            // A worker ends; it restarts with a new incarnation.
  int64_t kill_us = 0;             // From outside, of a worker that computes, after so long a time.
  int64_t router_crash_us = 0;
  int64_t pause_us = 0;        // A process stands still, up to 4 s.
  int64_t stall_us = 0;        // An engine does, while its process goes on talking.
  int64_t clock_jump_us = 0;   // Forward, of one process, up to 5 s.
  int64_t drain_us = 0;        // A worker drains, and then restarts.
  double upgrade = 0;          // A restart changes what the worker computes.
  int64_t hang_us = 0;         // An engine hangs until somebody kills its process.
  double long_step = 0;        // Longer than a lease.
  double failed_step = 0;      // It leaves garbage.
  double full_queue = 0;       // A Submit finds no place left for commands.
  int64_t sick_us = 0;         // All steps of a worker fail for a while, up to 3 s.
  double stuck_frame = 0;      // Its transport never says that it is done with the block.
  int32_t failing_token = -1;  // Whoever computes it fails alone.
  double late_mask = 0;        // It is not ready when a step asks for it.

  bool operator==(const SimulatedFaults&) const = default;

  // Processes do not end, seem to end or get confused any more, but for kills.
  void StopProcessFaults();
  bool TouchProcesses() const {
    SimulatedFaults without = *this;
    without.StopProcessFaults();
    return without != *this;
  }

  // A router may find a worker gone for a while: routers that crash and peer sessions that break
  // unnoticed take none away, kills do.
  bool TakeWorkersAway() const {
    return broken_link_us + one_way_cut_us + crash_us + kill_us + pause_us + stall_us +
                   clock_jump_us + drain_us + hang_us >
               0 ||
           stuck_frame > 0;
  }
};

// What one worker has room for, and how fast it is.
struct WorkerShape {
  int32_t block_tokens = 16;
  int32_t num_blocks = 64;
  int32_t max_sequences = 8;
  int32_t max_batched_tokens = 64;
  int32_t max_waiting_attempts = 16;
  int32_t max_frames_ahead = 1024;
  int32_t max_model_tokens = 192;
  int32_t window = 0;     // Positions that a token sees, itself too, at least 2; 0: all.
  int32_t step_us = 200;  // A step takes this,
  int32_t token_us = 20;  // and this for each token,
  int32_t host_us = 0;    // and before it the engine's thread this.
  bool overlap_steps = false;
  int32_t max_drawn = 1;  // Tokens of one run.

  // The most that a sequence holds: a window and a step, with the blocks at their edges.
  int64_t sequence_blocks() const {
    const KvWindow kv{.tokens = window, .block_tokens = block_tokens};
    return kv.MostBlocks(max_model_tokens, max_batched_tokens);
  }
  int32_t offered_tokens() const {
    if (sequence_blocks() <= num_blocks) return max_model_tokens;
    return std::min(max_model_tokens, num_blocks * block_tokens);
  }
};

inline constexpr int32_t kMaxNumerics = 2;  // So many ways to compute there are among workers.

struct SimulationOptions {
  uint64_t seed = 0;

  int32_t num_prefill = 1;
  int32_t num_decode = 2;
  int32_t num_hybrid = 0;
  int32_t num_routers = 1;
  int32_t num_numerics = 1;    // Workers differ in what they compute,
  int32_t num_kv_formats = 1;  // and in how they keep it.
  bool namesakes = false;      // The last worker has the first one's name, at another address.
  double clock_drift = 0;      // Clocks are faster or slower than others, by at most this share.
  double supervised = 1;       // The share of workers whose next life tells how the last one ended.
  DisaggregatePolicy disaggregate = DisaggregatePolicy::kAlways;
  bool any_peer = false;  // Any worker is asked to prefill, not only those whose role it is.

  WorkerShape shape;     // Every worker has this one,
  bool unequal = false;  // or each has one of its own, about as large.
  bool prefix_caching = true;

  int64_t frame_us = 0;  // How long a block is on the link between two workers; the next waits.

  int32_t num_requests = 12;
  int64_t load_us = 2'000'000;    // Requests arrive within this time.
  int64_t faults_us = 2'000'000;  // Things go wrong within this one, or until all are answered.
  double client_cancel = 0;
  double short_deadline = 0;
  bool poison = false;        // One request kills the workers that compute it,
  bool poison_fails = false;  // or makes their steps fail.
  bool masks = false;         // A grammar says what may follow, in half of the requests.

  SimulatedFaults faults;

  // Then nothing is computed twice either, however long blocks are on their way.
  bool NothingGoesWrong() const {
    return faults == SimulatedFaults() && client_cancel == 0 && short_deadline == 0 && !poison;
  }

  static SimulationOptions FromSeed(uint64_t seed);
  WorkerShape DrawShape(Random* random) const;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_SIMULATION_SIMULATION_OPTIONS_H_
