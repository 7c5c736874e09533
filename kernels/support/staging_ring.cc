#include "kernels/support/staging_ring.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<StagingRing> StagingRing::Create(Backend* backend, size_t slot_bytes,
                                                int num_slots) {
  TANDEM_CHECK(slot_bytes > 0 && num_slots > 0) << slot_bytes << ", " << num_slots;
  StagingRing ring(backend);
  for (int i = 0; i < num_slots; ++i) {
    TANDEM_ASSIGN_OR_RETURN(PinnedBuffer buffer, backend->AllocatePinned(slot_bytes));
    ring.slots_.push_back({.buffer = std::move(buffer), .free = {}});
  }
  return ring;
}

absl::Status StagingRing::Upload(DevicePtr<std::byte> to, std::span<const std::byte> from) {
  for (size_t done = 0; done < from.size();) {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    TANDEM_RETURN_IF_ERROR(backend_->Wait(slot.free));
    const size_t piece = std::min(slot.buffer.size_bytes(), from.size() - done);
    std::memcpy(slot.buffer.data(), from.data() + done, piece);
    TANDEM_RETURN_IF_ERROR(
        backend_->Upload(to + static_cast<std::ptrdiff_t>(done), slot.buffer.data(), piece));
    slot.free = backend_->Record();
    done += piece;
  }
  return absl::OkStatus();
}

}  // namespace tandem
