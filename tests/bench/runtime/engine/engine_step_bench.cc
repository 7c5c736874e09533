// What a step costs beside the forward pass: schedule, blocks, publish. And what is left of it
// where a device computes the next step meanwhile.

#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "tests/support/engine_cases.h"

namespace tandem {
namespace {

// A forward pass that takes no time.
class InstantExecutor final : public SynchronousExecutor {
 public:
  absl::Status Execute(const StepInput& input, StepOutput* output) override {
    output->runs.resize(input.runs.size());
    for (size_t i = 0; i < input.runs.size(); ++i) {
      output->runs[i].drawn.resize(input.runs[i].draws.size());
      for (SampledToken& token : output->runs[i].drawn) token = {.token = next_++ % 1'000};
    }
    return absl::OkStatus();
  }
  absl::Status BlockChecksums(std::span<const BlockId>, uint32_t*) override {
    return absl::OkStatus();
  }
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
  void OnPeerPaused(const WorkerId&, PauseReason, const std::string&) override {}
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
  options.kv.block_bytes = 128;
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

// A device beside the engine's thread, which takes 5 ms for a step. Beginning one takes 1 ms of the
// host.
class DeviceExecutor final : public Executor {
 public:
  static constexpr std::chrono::microseconds kStep{5'000}, kHost{1'000};

  explicit DeviceExecutor(bool overlaps) : overlaps_(overlaps), thread_([this] { Run(); }) {}
  ~DeviceExecutor() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  bool overlaps_steps() const override { return overlaps_; }
  int32_t max_drawn() const override { return 1; }
  void Begin(const StepInput& input) override {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < kHost) {
    }
    MutexLock lock(&mu_);
    steps_[begun_++ % kMaxStepsBegun] = {std::chrono::steady_clock::now(), input.runs.size()};
    changed_.SignalAll();
  }
  void BeginDraws(int32_t, std::span<const Draw>) override {}
  absl::StatusOr<StepOutput*> Finish() override {
    MutexLock lock(&mu_);
    while (over_ <= finished_) changed_.Wait(&mu_);
    output_.runs.resize(steps_[finished_++ % kMaxStepsBegun].runs);
    for (RunOutput& run : output_.runs) run.drawn.assign(1, {.token = 7});
    return &output_;
  }
  absl::Status BlockChecksums(std::span<const BlockId>, uint32_t*) override {
    return absl::OkStatus();
  }
  void Discard(BlockId) override {}
  uint64_t work_done() const override { return 0; }

 private:
  // A step begins when it is asked for and the one before is over, however late this thread wakes.
  void Run() {
    std::chrono::steady_clock::time_point end;
    for (uint64_t step = 0;; ++step) {
      {
        MutexLock lock(&mu_);
        while (begun_ <= step && !stopping_) changed_.Wait(&mu_);
        if (begun_ <= step) return;
        end = std::max(end, steps_[step % kMaxStepsBegun].begun) + kStep;
      }
      std::this_thread::sleep_until(end);
      MutexLock lock(&mu_);
      over_ = step + 1;
      changed_.SignalAll();
    }
  }

  struct Step {
    std::chrono::steady_clock::time_point begun;
    size_t runs = 0;
  };

  const bool overlaps_;
  StepOutput output_;
  Mutex mu_;
  CondVar changed_;
  Step steps_[kMaxStepsBegun] GUARDED_BY(mu_);  // By number.
  uint64_t begun_ GUARDED_BY(mu_) = 0, over_ GUARDED_BY(mu_) = 0, finished_ GUARDED_BY(mu_) = 0;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// of_device: the tokens, of those that the device would have made without ever waiting.
void BM_DecodeOnDevice(benchmark::State& state) {
  constexpr int32_t kBatch = 16;
  DeviceExecutor executor(/*overlaps=*/state.range(0) != 0);
  CountingOutbox outbox;
  KvReceiver receiver(128);
  LeaseKeeper leases;
  EngineOptions options = SmallEngine(/*num_blocks=*/kBatch * 300);
  options.kv.block_bytes = 128;
  options.max_sequences = kBatch;
  options.max_batched_tokens = 1'024;
  options.max_model_tokens = 1 << 30;
  std::unique_ptr<Engine> engine =
      *Engine::Create(options, &executor, &outbox, &outbox, &receiver, &leases);
  for (uint64_t i = 1; i <= kBatch; ++i) {
    engine->OnSubmit(1, MakeSubmit(i, RandomTokens(32, i), 4'000), 0);
  }
  while (outbox.tokens() < 2 * kBatch) engine->Step(0);
  const int64_t before = outbox.tokens();
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) {
    for (const int64_t tokens = outbox.tokens(); outbox.tokens() == tokens;) engine->Step(0);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::chrono::duration<double> alone =
      DeviceExecutor::kStep * (outbox.tokens() - before) / kBatch;
  state.counters["of_device"] = alone / took;
}
BENCHMARK(BM_DecodeOnDevice)
    ->ArgName("overlap")
    ->Arg(0)
    ->Arg(1)
    ->Iterations(500)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
