// What backends that compute on the host have in common: their memory is the host's, their copies
// are done when they return, and what both sides have is one memory.

#ifndef TANDEM_KERNELS_SUPPORT_HOST_BACKEND_H_
#define TANDEM_KERNELS_SUPPORT_HOST_BACKEND_H_

#include "kernels/api/backend.h"

namespace tandem {

class HostBackend : public Backend {
 public:
  absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) override;
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t size_bytes) override;
  absl::StatusOr<MirrorBuffer> AllocateMirror(size_t size_bytes) override;
  absl::StatusOr<DeviceBuffer> AllocatePool(size_t size_bytes, const KvPoolMemory& memory) override;
  MemoryKind pool_kind() const override { return MemoryKind::kHost; }
  bool runs_beside_host() const override { return false; }
  absl::StatusOr<DeviceBuffer> PlaceWeights(std::span<const std::byte> bytes) override;

  absl::Status Upload(DevicePtr<void> to, const void* from, size_t size_bytes) override;
  absl::Status Download(void* to, DevicePtr<const void> from, size_t size_bytes) override;

  absl::Status RmsNormLinear(const RmsNormArgs& norm, const LinearArgs& layer) override;
  absl::Status LayerNormLinear(const LayerNormArgs& norm, const LinearArgs& layer) override;
  absl::Status DiscardBlocks(const DiscardBlocksArgs& args) override;

  DeviceEvent Record() override { return {}; }
  absl::Status Wait(DeviceEvent) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 protected:
  void Free(DevicePtr<std::byte> data, size_t size_bytes) override;
  void FreePinned(std::byte* data, size_t size_bytes) override;
};

}  // namespace tandem

#endif  // TANDEM_KERNELS_SUPPORT_HOST_BACKEND_H_
