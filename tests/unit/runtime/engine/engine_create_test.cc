#include <gtest/gtest.h>

#include <vector>

#include "runtime/simulation/simulated_executor.h"
#include "tests/support/engine_cases.h"

namespace tandem {
namespace {

TEST(EngineCreate, RefusesOptionsThatContradictEachOther) {
  SimulatedExecutor executor({.num_blocks = 4});
  KvReceiver receiver(128);
  LeaseKeeper leases;
  for (const auto& spoil : std::vector<void (*)(EngineOptions*)>{
           [](EngineOptions* o) { o->kv.block_tokens = 24; },
           [](EngineOptions* o) { o->kv.block_tokens = 0; },
           [](EngineOptions* o) { o->kv.num_blocks = 0; },
           [](EngineOptions* o) { o->kv.block_bytes = 0; },
           [](EngineOptions* o) { o->window = -1; }, [](EngineOptions* o) { o->max_sequences = 0; },
           [](EngineOptions* o) { o->max_batched_tokens = o->max_sequences; },
           [](EngineOptions* o) { o->max_model_tokens = 1; },
           [](EngineOptions* o) { o->max_quarantined_share = -0.1; },
           [](EngineOptions* o) { o->max_waiting_attempts = 0; }}) {
    EngineOptions options = SmallEngine();
    options.kv.block_bytes = 128;
    spoil(&options);
    const auto engine = Engine::Create(options, &executor, nullptr, nullptr, &receiver, &leases);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tandem
