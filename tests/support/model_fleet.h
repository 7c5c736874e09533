// Real models in an EngineFleet: what serves, but the network.

#ifndef TANDEM_TESTS_SUPPORT_MODEL_FLEET_H_
#define TANDEM_TESTS_SUPPORT_MODEL_FLEET_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/execution/model_executor.h"
#include "tests/support/engine_fleet.h"

namespace tandem {

// The instruction sets of this machine that give the same bits (docs/numerics.md, Classes), best
// first; "generic" alone where there are none.
std::vector<std::string> PathsOfOneClass();

// Stands where an instruction set may: the fenced device, which computes with the best of them.
inline constexpr char kFencedPath[] = "fenced";
// An emulated GPU (test_backend.h): in the class of the cpu's, and of its tensor cores.
inline constexpr char kGpuPath[] = "gpu";
inline constexpr char kTensorPath[] = "gpu-tensor";

// A checkpoint in a format (model_format.h) on the backend of that path, with so many threads where
// it has any. Dies if it cannot be loaded.
class LoadedModel {
 public:
  LoadedModel(const std::string& folder, const std::string& format, const std::string& path,
              int num_threads);

  const Model& model() const { return *model_; }
  Backend* backend() const { return backend_.get(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
};

// A ModelExecutor that counts.
class ModelFleetExecutor final : public FleetExecutor, public SynchronousExecutor {
 public:
  // Borrows `model` and `pool`. Dies if the options do not fit.
  ModelFleetExecutor(const ModelExecutorOptions& options, const LoadedModel& model,
                     const KvPoolMemory& pool);

  SynchronousExecutor& executor() override { return *this; }
  Executor* overlapping() override { return executor_->overlaps_steps() ? &overlapping_ : nullptr; }
  int64_t block_bytes() const override { return static_cast<int64_t>(executor_->block_bytes()); }
  std::span<uint8_t> BlockBytes(BlockId block) override;

  absl::Status Execute(const StepInput& input, StepOutput* output) override;
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override {
    return executor_->BlockChecksums(blocks, crc32c);
  }
  void Discard(BlockId block) override { executor_->Discard(block); }
  uint64_t work_done() const override { return executor_->work_done(); }

  // Since construction.
  int64_t computed_tokens() const { return computed_tokens_; }
  int32_t largest_batch() const { return largest_batch_; }  // Sequences in a step.
  int32_t largest_run() const { return largest_run_; }      // Tokens of a sequence in a step.

 private:
  // What the model's executor is, with what it is given counted.
  class Overlapping final : public Executor {
   public:
    explicit Overlapping(ModelFleetExecutor* fleet) : fleet_(*fleet) {}
    bool overlaps_steps() const override { return true; }
    int32_t max_drawn() const override { return 1; }
    void Begin(const StepInput& input) override {
      fleet_.Count(input);
      fleet_.executor_->Begin(input);
    }
    void BeginDraws(int32_t run, std::span<const Draw> draws) override {
      fleet_.executor_->BeginDraws(run, draws);
    }
    absl::StatusOr<StepOutput*> Finish() override { return fleet_.executor_->Finish(); }
    absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override {
      return fleet_.BlockChecksums(blocks, crc32c);
    }
    void Discard(BlockId block) override { fleet_.Discard(block); }
    uint64_t work_done() const override { return fleet_.work_done(); }

   private:
    ModelFleetExecutor& fleet_;
  };

  void Count(const StepInput& input);

  uint8_t* const pool_;  // Where a transport would read and write.
  std::unique_ptr<ModelExecutor> executor_;
  Overlapping overlapping_{this};
  int64_t computed_tokens_ = 0;
  int32_t largest_batch_ = 0;
  int32_t largest_run_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_MODEL_FLEET_H_
