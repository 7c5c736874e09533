// Blocks of a device's memory that UCX writes: where payloads arrive before their block is known to
// be theirs. UCX allocates them, so that what peers may write to is never the pool.
//
// Progress thread only, but for Create.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_SLOTS_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_SLOTS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/status_macros.h"
#include "runtime/transport/ucx/ucx_context.h"
#include "runtime/transport/ucx/ucx_memory.h"

namespace tandem {

class UcxSlots {
 public:
  // `context` outlives this. ResourceExhausted if the device has no memory for them.
  static absl::StatusOr<std::unique_ptr<UcxSlots>> Create(UcxContext* context) {
    std::unique_ptr<UcxSlots> slots(new UcxSlots(context));
    TANDEM_RETURN_IF_ERROR(slots->Add(UcxSlotPlan::kPlanned));
    TANDEM_ASSIGN_OR_RETURN(slots->probe_, slots->Take());
    TANDEM_ASSIGN_OR_RETURN(slots->nowhere_, slots->Take());
    return slots;
  }

  // Addresses of the device.
  absl::StatusOr<std::byte*> Take() {
    if (free_.empty()) TANDEM_RETURN_IF_ERROR(Add(UcxSlotPlan::kPerLink));
    std::byte* const slot = free_.back();
    free_.pop_back();
    return slot;
  }
  // UCX writes no more of it.
  void GiveBack(std::byte* slot) { free_.push_back(slot); }
  std::byte* probe() const { return probe_; }      // Where probes come from.
  std::byte* nowhere() const { return nowhere_; }  // Where they go.

 private:
  explicit UcxSlots(UcxContext* context) : context_(context) {}
  absl::Status Add(int count) {
    const auto block_bytes = static_cast<size_t>(context_->pool().kv.block_bytes);
    TANDEM_ASSIGN_OR_RETURN(std::byte* const memory,
                            context_->Allocate(static_cast<size_t>(count) * block_bytes));
    for (int i = 0; i < count; ++i) free_.push_back(memory + static_cast<size_t>(i) * block_bytes);
    return absl::OkStatus();
  }

  UcxContext* const context_;
  std::vector<std::byte*> free_;
  std::byte* probe_ = nullptr;
  std::byte* nowhere_ = nullptr;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_SLOTS_H_
