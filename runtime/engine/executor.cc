#include "runtime/engine/executor.h"

#include <utility>

#include "runtime/base/check.h"

namespace tandem {

void SynchronousExecutor::Begin(const StepInput& input) {
  TANDEM_CHECK(!begun_) << "a step is begun and not finished";
  begun_ = true;
  status_ = Execute(input, &output_);
}

void SynchronousExecutor::BeginDraws(int32_t run, std::span<const Draw>) {
  TANDEM_CHECK(false) << "the draws of run " << run << " came with it";
}

absl::StatusOr<StepOutput*> SynchronousExecutor::Finish() {
  TANDEM_CHECK(begun_) << "no step is begun";
  begun_ = false;
  if (!status_.ok()) return std::move(status_);
  return &output_;
}

}  // namespace tandem
