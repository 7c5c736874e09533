#include "kernels/support/host_backend.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/support/host_args.h"
#include "kernels/support/host_memory.h"
#include "kernels/support/validate.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

void CopyBytes(void* to, const void* from, size_t size_bytes) {
  if (to != from && size_bytes > 0) std::memcpy(to, from, size_bytes);
}

}  // namespace

absl::StatusOr<DeviceBuffer> HostBackend::Allocate(size_t size_bytes) {
  TANDEM_ASSIGN_OR_RETURN(std::byte* const data, AllocateHostMemory(size_bytes));
  return DeviceBuffer(this, OfHost(data), size_bytes);
}

absl::StatusOr<PinnedBuffer> HostBackend::AllocatePinned(size_t size_bytes) {
  TANDEM_ASSIGN_OR_RETURN(std::byte* const data, AllocateHostMemory(size_bytes));
  return PinnedBuffer(this, data, size_bytes);
}

absl::StatusOr<MirrorBuffer> HostBackend::AllocateMirror(size_t size_bytes) {
  TANDEM_ASSIGN_OR_RETURN(PinnedBuffer host, AllocatePinned(size_bytes));
  DeviceBuffer same(/*owner=*/nullptr, OfHost(host.data()), size_bytes);
  return MirrorBuffer{std::move(host), std::move(same)};
}

absl::StatusOr<DeviceBuffer> HostBackend::AllocatePool(size_t size_bytes,
                                                       const KvPoolMemory& memory) {
  if (memory.base == nullptr) return Allocate(size_bytes);
  TANDEM_RETURN_IF_ERROR(ValidatePool(memory, size_bytes));
  if (memory.kind != MemoryKind::kHost) {
    return absl::FailedPreconditionError(
        absl::StrFormat("KV memory of %d bytes is a device's, and this is the host", memory.bytes));
  }
  return DeviceBuffer(/*owner=*/nullptr, OfHost(static_cast<std::byte*>(memory.base)), size_bytes);
}

absl::StatusOr<DeviceBuffer> HostBackend::PlaceWeights(std::span<const std::byte> bytes) {
  // Operations only read weights.
  return DeviceBuffer(/*owner=*/nullptr, OfHost(const_cast<std::byte*>(bytes.data())),
                      bytes.size());
}

absl::Status HostBackend::Upload(DevicePtr<void> to, const void* from, size_t size_bytes) {
  CopyBytes(OnHost(to), from, size_bytes);
  return absl::OkStatus();
}

absl::Status HostBackend::Download(void* to, DevicePtr<const void> from, size_t size_bytes) {
  CopyBytes(to, OnHost(from), size_bytes);
  return absl::OkStatus();
}

absl::Status HostBackend::RmsNormLinear(const RmsNormArgs& norm, const LinearArgs& layer) {
  TANDEM_RETURN_IF_ERROR(Validate(norm, layer));
  TANDEM_RETURN_IF_ERROR(RmsNorm(norm));
  return Linear(layer);
}

absl::Status HostBackend::LayerNormLinear(const LayerNormArgs& norm, const LinearArgs& layer) {
  TANDEM_RETURN_IF_ERROR(Validate(norm, layer));
  TANDEM_RETURN_IF_ERROR(LayerNorm(norm));
  return Linear(layer);
}

absl::Status HostBackend::DiscardBlocks(const DiscardBlocksArgs& args) { return Validate(args); }

void HostBackend::Free(DevicePtr<std::byte> data, size_t size_bytes) {
  FreeHostMemory(OnHost(data), size_bytes);
}

void HostBackend::FreePinned(std::byte* data, size_t size_bytes) {
  FreeHostMemory(data, size_bytes);
}

}  // namespace tandem
