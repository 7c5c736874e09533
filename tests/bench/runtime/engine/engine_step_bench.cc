// What a step costs beside the forward pass: schedule, blocks, publish.

#include <benchmark/benchmark.h>

#include "runtime/base/check.h"
#include "tests/support/engine_cases.h"

namespace tandem {
namespace {

// A forward pass that takes no time.
class InstantExecutor final : public Executor {
 public:
  absl::Status Execute(const StepInput& input, StepOutput* output) override {
    output->runs.resize(input.runs.size());
    for (size_t i = 0; i < input.runs.size(); ++i) {
      output->runs[i].drawn.resize(input.runs[i].draws.size());
      for (SampledToken& token : output->runs[i].drawn) token = {.token = next_++ % 1'000};
    }
    return absl::OkStatus();
  }
  uint32_t BlockChecksum(BlockId) override { return 0; }
  void Discard(BlockId) override {}
  uint64_t work_done() const override { return 0; }

 private:
  int32_t next_ = 0;
};

class CountingOutbox final : public Outbox, public PeerOutbox {
 public:
  void ToRouter(SessionId, RouterEvent event) override {
    tokens_ += std::holds_alternative<TokenEvent>(event);
  }
  void BeginChunks(std::span<const ChunkNotice>) override {}
  void ToPrefill(const PrefillPeer&, DecodeToPrefill) override {}
  void ToDecode(SessionId, PrefillToDecode) override {}
  void SendFrame(SessionId, const FrameHeader&, BlockId, uint64_t) override {}
  void WithdrawFrame(SessionId, uint64_t) override {}
  void OnPromptComputed(int64_t, int64_t) override {}
  void OnTransferred(int64_t) override {}
  void OnPeerPaused(const WorkerId&, PauseReason) override {}
  int64_t tokens() const { return tokens_; }

 private:
  int64_t tokens_ = 0;
};

void BM_DecodeStep(benchmark::State& state) {
  const auto batch = static_cast<int32_t>(state.range(0));
  InstantExecutor executor;
  CountingOutbox outbox;
  KvReceiver receiver(128);
  LeaseKeeper leases;
  EngineOptions options = SmallEngine(/*num_blocks=*/batch * 600 + 64);
  options.block_bytes = 128;
  options.max_sequences = batch;
  options.max_batched_tokens = batch + 512;
  options.max_model_tokens = 1 << 30;
  options.max_waiting_attempts = 4096;
  std::unique_ptr<Engine> engine =
      *Engine::Create(options, &executor, &outbox, &outbox, &receiver, &leases);
  uint64_t counter = 0;
  int32_t left = 0;
  int64_t steps = 0;
  for (auto _ : state) {
    if (left == 0) {
      state.PauseTiming();
      engine->OnRouterLost(1, 0);
      for (int32_t i = 0; i < batch; ++i) {
        ++counter;
        engine->OnSubmit(1, MakeSubmit(counter, RandomTokens(512, counter), 9'000), 0);
      }
      while (engine->Load().waiting_prompt_tokens > 0) engine->Step(0);
      left = 8'000;
      state.ResumeTiming();
    }
    engine->Step(0);
    --left;
    ++steps;
  }
  TANDEM_CHECK(outbox.tokens() >= steps * batch)
      << outbox.tokens() << " tokens in " << steps << " steps";
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(steps * batch), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_DecodeStep)->Arg(1)->Arg(16)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
