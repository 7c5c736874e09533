#include "kernels/support/staging_ring.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {

absl::StatusOr<StagingRing> StagingRing::Create(Backend* backend, size_t buffer_bytes,
                                                int num_buffers) {
  TANDEM_CHECK(buffer_bytes > 0 && num_buffers > 0) << buffer_bytes << ", " << num_buffers;
  StagingRing ring(backend);
  for (int i = 0; i < num_buffers; ++i) {
    TANDEM_ASSIGN_OR_RETURN(PinnedBuffer memory, backend->AllocatePinned(buffer_bytes));
    ring.stages_.push_back({.memory = std::move(memory), .free = {}});
  }
  return ring;
}

absl::Status StagingRing::Upload(DevicePtr<std::byte> to, std::span<const std::byte> from) {
  for (size_t done = 0; done < from.size();) {
    Stage& stage = stages_[next_];
    next_ = (next_ + 1) % stages_.size();
    TANDEM_RETURN_IF_ERROR(backend_->Wait(stage.free));
    const size_t piece = std::min(stage.memory.size_bytes(), from.size() - done);
    std::memcpy(stage.memory.data(), from.data() + done, piece);
    TANDEM_RETURN_IF_ERROR(
        backend_->Upload(to + static_cast<std::ptrdiff_t>(done), stage.memory.data(), piece));
    stage.free = backend_->Record();
    done += piece;
  }
  return absl::OkStatus();
}

}  // namespace tandem
