// A SimulatedExecutor whose blocks lie in a transport's pool, so that what real transports move is
// what tokens are made of. It can be held up in the middle of a step.

#ifndef TANDEM_TESTS_SUPPORT_POOLED_EXECUTOR_H_
#define TANDEM_TESTS_SUPPORT_POOLED_EXECUTOR_H_

#include <atomic>
#include <chrono>
#include <cstring>

#include "runtime/base/crc32c.h"
#include "runtime/base/mutex.h"
#include "runtime/simulation/simulated_executor.h"
#include "runtime/transport/kv_transport.h"

namespace tandem {

// While closed, steps wait; a slow one shows work meanwhile, as item after item would.
class StepGate {
 public:
  void Close(bool slow = false) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    open_ = false;
    slow_ = slow;
  }
  void Open() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.SignalAll();
  }
  void Pass() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (!open_) {
      changed_.WaitFor(&mu_, std::chrono::milliseconds(20));
      if (slow_) ++work_;
    }
  }

  uint64_t work() const { return work_; }

 private:
  Mutex mu_;
  CondVar changed_;
  std::atomic<uint64_t> work_{0};
  bool open_ GUARDED_BY(mu_) = true;
  bool slow_ GUARDED_BY(mu_) = false;
};

class PooledExecutor final : public SynchronousExecutor {
 public:
  PooledExecutor(const SimulatedExecutorOptions& options, const KvPool& pool, StepGate* gate)
      : executor_(options), pool_(pool), gate_(gate) {}

  absl::Status Execute(const StepInput& input, StepOutput* output) override {
    gate_->Pass();
    for (const BlockCopy& copy : input.copies) Load(copy.source);
    for (const SequenceRun& run : input.runs) {
      for (const BlockId block : run.block_table) Load(block);
    }
    const absl::Status status = executor_.Execute(input, output);
    for (const BlockCopy& copy : input.copies) Store(copy.destination);
    for (const SequenceRun& run : input.runs) {
      for (const BlockId block : run.block_table) Store(block);
    }
    return status;
  }
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override {
    for (const BlockId block : blocks) {
      *crc32c++ = Crc32c(pool_.block(block), static_cast<size_t>(pool_.kv.block_bytes));
    }
    return absl::OkStatus();
  }
  void Discard(BlockId block) override {
    std::memset(pool_.block(block), 0xFF, static_cast<size_t>(pool_.kv.block_bytes));
  }
  uint64_t work_done() const override { return executor_.work_done() + gate_->work(); }

 private:
  // Blocks that are being received or sent stay as they are: only tables of this step move.
  void Load(BlockId block) {
    std::memcpy(executor_.BlockBytes(block).data(), pool_.block(block),
                static_cast<size_t>(pool_.kv.block_bytes));
  }
  void Store(BlockId block) {
    const auto bytes = executor_.BlockBytes(block);
    if (std::memcmp(pool_.block(block), bytes.data(), bytes.size()) == 0) return;
    std::memcpy(pool_.block(block), bytes.data(), bytes.size());
  }

  SimulatedExecutor executor_;
  const KvPool pool_;
  StepGate* const gate_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_POOLED_EXECUTOR_H_
