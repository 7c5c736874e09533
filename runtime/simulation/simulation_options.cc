#include "runtime/simulation/simulation_options.h"

#include <algorithm>

#include "runtime/base/random.h"
#include "runtime/simulation/simulated_model.h"

namespace tandem {
namespace {

// Some runs have a fault, others have not: what only ever happens together hides what it does.
double Sometimes(Random* random, double chance, double most) {
  return random->Chance(chance) ? most * (0.1 + 0.9 * random->Unit()) : 0;
}

int64_t Every(Random* random, double chance, int64_t least_us, int64_t most_us) {
  return random->Chance(chance) ? random->Between(least_us, most_us) : 0;
}

void DrawFleet(Random* random, SimulationOptions* o) {
  o->num_prefill = static_cast<int32_t>(random->Between(0, 2));
  o->num_decode = static_cast<int32_t>(random->Between(1, 3));
  o->num_hybrid = static_cast<int32_t>(random->Below(4) == 0 ? 1 : 0);
  if (o->num_prefill == 0 && random->Chance(0.7)) o->num_prefill = 1;
  o->num_routers = random->Chance(0.3) ? 2 : 1;
  o->num_numerics = random->Chance(0.15) ? kMaxNumerics : 1;
  o->num_kv_formats = random->Chance(0.1) ? 2 : 1;
  o->disaggregate = random->Chance(0.85) ? DisaggregatePolicy::kAlways : DisaggregatePolicy::kAuto;
}

// The blocks of the longest request.
int32_t LongestBlocks(const WorkerShape& shape) {
  return shape.max_model_tokens / shape.block_tokens;
}

void DrawSizes(Random* random, SimulationOptions* o) {
  WorkerShape& shape = o->shape;
  shape.block_tokens = random->Chance(0.8) ? 16 : 32;
  // Where only long prompts travel, some are long.
  shape.max_model_tokens = o->disaggregate == DisaggregatePolicy::kAuto ? 448 : 192;
  // From a pool that one long request fills to one that is never full.
  const int32_t longest = LongestBlocks(shape);
  shape.num_blocks = longest + static_cast<int32_t>(random->Between(1, longest * 4));
  shape.max_sequences = static_cast<int32_t>(random->Between(1, 12));
  shape.max_batched_tokens = static_cast<int32_t>(random->Between(16, 96));
  shape.max_waiting_attempts = static_cast<int32_t>(random->Between(2, 24));
  o->prefix_caching = random->Chance(0.85);
}

void DrawLoad(Random* random, SimulationOptions* o) {
  o->num_requests = static_cast<int32_t>(random->Between(4, 24));
  o->load_us = random->Between(200'000, 6'000'000);
  if (!random->Chance(0.15)) return;
  // A crowd: queues, preemption, grants that are held.
  o->num_requests = static_cast<int32_t>(random->Between(40, 100));
  o->load_us = random->Between(100'000, 2'000'000);
  if (!random->Chance(0.5)) return;
  const int32_t longest = LongestBlocks(o->shape);
  o->shape.num_blocks = longest + static_cast<int32_t>(random->Between(1, longest));
  o->shape.max_sequences = 12;
}

// What came later has a generator of its own, here and below, which leaves what else is drawn as it
// was.
void DrawLinks(uint64_t seed, SimulationOptions* o) {
  Random random(Mix64(seed + 2));
  if (!random.Chance(0.3)) return;
  // Up to a second; but all prompts together come within half of what the judge waits for them.
  const int64_t most_us = 75'000'000 / (int64_t{o->num_requests} * LongestBlocks(o->shape));
  o->frame_us = std::min(int64_t{500} << random.Between(0, 11), most_us);
}

void DrawOddities(uint64_t seed, SimulationOptions* o) {
  Random random(Mix64(seed + 3));
  if (random.Chance(0.25)) o->clock_drift = 0.02;
  o->namesakes = random.Chance(0.06);
  const int64_t faults_go_on_us = random.Chance(0.25) ? random.Between(1'000'000, 20'000'000) : 0;
  o->faults_us = o->load_us + faults_go_on_us;
  if (random.Chance(0.5)) o->shape.max_frames_ahead = static_cast<int32_t>(random.Between(1, 8));
}

void DrawSteps(uint64_t seed, WorkerShape* shape) {
  shape->overlap_steps = Random(Mix64(seed + 4)).Chance(0.4);
  Random random(Mix64(seed + 5));
  if (random.Chance(0.3)) shape->max_drawn = static_cast<int32_t>(random.Between(2, 20));
}

// A quarter of the models have a window. Some of their pools hold it and a step, but no long text.
void DrawWindow(uint64_t seed, WorkerShape* shape) {
  Random random(Mix64(seed + 6));
  if (!random.Chance(0.25)) return;
  shape->window = static_cast<int32_t>(random.Between(2, 100));
  const auto least = static_cast<int32_t>(shape->sequence_blocks());
  const int32_t longest = LongestBlocks(*shape);
  if (least < longest && random.Chance(0.5)) {
    shape->num_blocks = static_cast<int32_t>(random.Between(least, longest));
  }
}

// In half of the fleets with masks, and with faults, some are late.
void DrawMasks(uint64_t seed, SimulationOptions* options) {
  Random random(Mix64(seed + 7));
  options->masks = random.Chance(0.3);
  if (options->masks && seed % 10 != 0) {
    options->faults.late_mask = Sometimes(&random, 0.5, 0.5);
  }
}

void DrawFaults(Random* random, SimulatedFaults* f) {
  f->slow_message = Sometimes(random, 0.5, 0.2);
  f->repeated_message = Sometimes(random, 0.5, 0.1);
  f->overtaking_cancel = Sometimes(random, 0.5, 0.8);
  f->lost_frame = Sometimes(random, 0.3, 0.05);
  f->failed_frame = Sometimes(random, 0.3, 0.05);
  f->torn_frame = Sometimes(random, 0.3, 0.1);
  f->repeated_frame = Sometimes(random, 0.5, 0.3);
  f->slow_frame = Sometimes(random, 0.5, 0.2);
  f->corrupt_payload = Sometimes(random, 0.4, 0.1);
  f->corrupt_header = Sometimes(random, 0.4, 0.1);
  f->broken_link_us = Every(random, 0.4, 100'000, 2'000'000);
  f->unnoticed_break_us = Every(random, 0.3, 300'000, 3'000'000);
  f->one_way_cut_us = Every(random, 0.3, 300'000, 3'000'000);
  f->crash_us = Every(random, 0.4, 300'000, 4'000'000);
  f->router_crash_us = Every(random, 0.15, 1'000'000, 6'000'000);
  f->pause_us = Every(random, 0.3, 500'000, 5'000'000);
  f->stall_us = Every(random, 0.2, 500'000, 5'000'000);
  f->clock_jump_us = Every(random, 0.2, 500'000, 5'000'000);
  f->drain_us = Every(random, 0.2, 500'000, 5'000'000);
  f->upgrade = Sometimes(random, 0.3, 0.5);
  f->hang_us = Every(random, 0.15, 1'000'000, 8'000'000);
  f->long_step = Sometimes(random, 0.15, 0.01);
  f->failed_step = Sometimes(random, 0.15, 0.02);
  f->full_queue = Sometimes(random, 0.2, 0.3);
  f->sick_us = Every(random, 0.1, 1'000'000, 8'000'000);
  f->stuck_frame = Sometimes(random, 0.1, 0.9);
}

// Few blocks, and a load that goes on until the workers that lose them are replaced.
void PrepareForStuckFrames(Random* random, SimulationOptions* o) {
  const int64_t faults_go_on_us = o->faults_us - o->load_us;
  o->shape.num_blocks = LongestBlocks(o->shape) + static_cast<int32_t>(random->Between(1, 4));
  o->shape.max_frames_ahead = 1024;  // More than ever get stuck.
  o->load_us = random->Between(8'000'000, 16'000'000);
  o->faults_us = o->load_us + faults_go_on_us;
}

// Nothing else ends a process, or looks as if it had.
void LeaveNoOtherDeaths(SimulationOptions* o) {
  o->faults.StopProcessFaults();
  o->any_peer = false;  // A router blames those that it named.
}

// What requests and whoever is outside do to workers.
void DrawDeaths(Random* random, SimulationOptions* o) {
  if (random->Chance(0.05)) {
    o->faults.failing_token = static_cast<int32_t>(random->Below(SimulatedModel::kVocabulary));
  }
  o->any_peer = random->Chance(0.15);
  if (random->Chance(0.15)) {
    o->poison = true;
    o->poison_fails = random->Chance(0.4);
    // In half of them four deaths must be enough.
    if (random->Chance(0.5)) LeaveNoOtherDeaths(o);
  }
  if (random->Chance(0.2)) {
    // A step takes 200 us and 20 us a token: from kills that no chunk outlives to rare ones.
    o->faults.kill_us = int64_t{50} << random->Between(0, 12);
    if (random->Chance(0.6)) LeaveNoOtherDeaths(o);
  }
  const double unit = random->Unit();
  o->supervised = unit < 0.5 ? 1 : unit < 0.8 ? 0 : 0.5;
}

}  // namespace

void SimulatedFaults::StopProcessFaults() {
  crash_us = router_crash_us = pause_us = stall_us = clock_jump_us = 0;
  drain_us = broken_link_us = unnoticed_break_us = one_way_cut_us = hang_us = 0;
  stuck_frame = 0;
}

SimulationOptions SimulationOptions::FromSeed(uint64_t seed) {
  Random random(Mix64(seed + 1));
  SimulationOptions o;
  o.seed = seed;
  DrawFleet(&random, &o);
  DrawSizes(&random, &o);
  DrawLoad(&random, &o);
  o.unequal = random.Chance(0.4);
  o.client_cancel = Sometimes(&random, 0.5, 0.4);
  o.short_deadline = Sometimes(&random, 0.4, 0.3);
  DrawLinks(seed, &o);
  DrawOddities(seed, &o);
  DrawSteps(seed, &o.shape);
  DrawWindow(seed, &o.shape);
  DrawMasks(seed, &o);
  if (seed % 10 == 0) {  // Nothing goes wrong: every request must end well.
    o.client_cancel = o.short_deadline = 0;
    return o;
  }
  DrawFaults(&random, &o.faults);
  if (o.faults.stuck_frame > 0) PrepareForStuckFrames(&random, &o);
  DrawDeaths(&random, &o);
  return o;
}

WorkerShape SimulationOptions::DrawShape(Random* random) const {
  if (!unequal) return shape;
  WorkerShape drawn = shape;
  drawn.block_tokens = random->Chance(0.75) ? shape.block_tokens : 48 - shape.block_tokens;
  drawn.max_model_tokens = static_cast<int32_t>(
      random->Chance(0.4) ? shape.max_model_tokens
                          : random->Between(shape.max_model_tokens / 4, shape.max_model_tokens));
  // Some have fewer blocks than their context needs.
  const int64_t pool_tokens = int64_t{shape.num_blocks} * shape.block_tokens;
  drawn.num_blocks =
      static_cast<int32_t>(random->Between(pool_tokens / 8, pool_tokens) / drawn.block_tokens + 1);
  drawn.max_sequences = static_cast<int32_t>(random->Between(1, 12));
  drawn.max_batched_tokens = static_cast<int32_t>(drawn.max_sequences + random->Between(1, 96));
  drawn.max_waiting_attempts = static_cast<int32_t>(random->Between(1, 24));
  drawn.token_us = static_cast<int32_t>(random->Between(5, 200));
  return drawn;
}

}  // namespace tandem
