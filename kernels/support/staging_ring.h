// Carries memory of the host that copies cannot reach without a detour, such as a mapped file, to a
// device: piece by piece through a few pinned buffers, each filled again once its copy is done. So
// gigabytes of weights take megabytes of pinned memory, and reading the next piece overlaps with
// copying the last.

#ifndef TANDEM_KERNELS_SUPPORT_STAGING_RING_H_
#define TANDEM_KERNELS_SUPPORT_STAGING_RING_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"

namespace tandem {

// Engine thread only. `backend` outlives the ring.
class StagingRing {
 public:
  // ResourceExhausted if there is no memory for `num_buffers` buffers of `buffer_bytes`.
  static absl::StatusOr<StagingRing> Create(Backend* backend, size_t buffer_bytes, int num_buffers);

  // `from` has been read when this returns, and is in `to` for what is enqueued afterwards. The
  // ring must live until that has been waited for.
  absl::Status Upload(DevicePtr<std::byte> to, std::span<const std::byte> from);

 private:
  struct Stage {
    PinnedBuffer memory;
    DeviceEvent free;  // When what was in it has been copied.
  };

  explicit StagingRing(Backend* backend) : backend_(backend) {}

  Backend* backend_;
  std::vector<Stage> stages_;
  size_t next_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_STAGING_RING_H_
