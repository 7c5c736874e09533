// A backend that hands every call on to another one, for those that look at some of them.

#ifndef TANDEM_TESTS_SUPPORT_FORWARDING_BACKEND_H_
#define TANDEM_TESTS_SUPPORT_FORWARDING_BACKEND_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/api/backend.h"

namespace tandem {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  std::string name() const override { return backend_->name(); }
  std::string isa() const override { return backend_->isa(); }
  std::optional<GpuIdentity> gpu() const override { return backend_->gpu(); }
  absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) override {
    return backend_->Allocate(size_bytes);
  }
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t size_bytes) override {
    return backend_->AllocatePinned(size_bytes);
  }
  absl::StatusOr<MirrorBuffer> AllocateMirror(size_t size_bytes) override {
    return backend_->AllocateMirror(size_bytes);
  }
  absl::StatusOr<DeviceBuffer> AllocatePool(size_t size_bytes,
                                            const KvPoolMemory& memory) override {
    return backend_->AllocatePool(size_bytes, memory);
  }
  absl::StatusOr<std::optional<DeviceMemory>> MeasureMemory() const override {
    return backend_->MeasureMemory();
  }
  MemoryKind pool_kind() const override { return backend_->pool_kind(); }
  absl::StatusOr<DeviceBuffer> PlaceWeights(std::span<const std::byte> bytes) override {
    return backend_->PlaceWeights(bytes);
  }
  absl::Status Upload(DevicePtr<void> to, const void* from, size_t size_bytes) override {
    return backend_->Upload(to, from, size_bytes);
  }
  absl::Status Download(void* to, DevicePtr<const void> from, size_t size_bytes) override {
    return backend_->Download(to, from, size_bytes);
  }
  DeviceEvent Record() override { return backend_->Record(); }
  absl::Status Wait(DeviceEvent event) override { return backend_->Wait(event); }
  absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape& shape,
                                               DType compute_dtype) const override {
    return backend_->GetKvTileFormat(shape, compute_dtype);
  }
  absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const override {
    return backend_->GetPackedFormat(spec);
  }
  absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                          std::span<std::byte> packed) const override {
    return backend_->PackLinear(spec, parts, packed);
  }
  absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                          DevicePtr<const std::byte> packed,
                                                          size_t size_bytes) override {
    return backend_->PrepareLinear(spec, packed, size_bytes);
  }
  absl::Status Replay(std::span<const int64_t> key,
                      absl::FunctionRef<absl::Status()> enqueue) override {
    return backend_->Replay(key, enqueue);
  }
  bool runs_beside_host() const override { return backend_->runs_beside_host(); }
  uint64_t work_done() const override { return backend_->work_done(); }
  absl::Status Synchronize() override { return backend_->Synchronize(); }

#define TANDEM_FORWARDED(Operation) \
  absl::Status Operation(const Operation##Args& args) override { return backend_->Operation(args); }
  TANDEM_FORWARDED(Embedding)
  TANDEM_FORWARDED(RmsNorm)
  TANDEM_FORWARDED(LayerNorm)
  TANDEM_FORWARDED(Linear)
  // One by one, so that whoever looks at either sees it.
  absl::Status RmsNormLinear(const RmsNormArgs& norm, const LinearArgs& layer) override {
    const absl::Status status = RmsNorm(norm);
    return status.ok() ? Linear(layer) : status;
  }
  absl::Status LayerNormLinear(const LayerNormArgs& norm, const LinearArgs& layer) override {
    const absl::Status status = LayerNorm(norm);
    return status.ok() ? Linear(layer) : status;
  }
  TANDEM_FORWARDED(Add)
  TANDEM_FORWARDED(SoftCap)
  TANDEM_FORWARDED(GatherRows)
  TANDEM_FORWARDED(Sample)
  TANDEM_FORWARDED(RotaryTable)
  TANDEM_FORWARDED(RotaryKvWrite)
  TANDEM_FORWARDED(DecodeAttention)
  TANDEM_FORWARDED(PrefillAttention)
  TANDEM_FORWARDED(CopyBlocks)
  TANDEM_FORWARDED(ChecksumBlocks)
  TANDEM_FORWARDED(DiscardBlocks)
#undef TANDEM_FORWARDED

 protected:
  Backend& backend() { return *backend_; }

 private:
  // Buffers belong to the backend that made them.
  void Free(DevicePtr<std::byte>, size_t) override {}
  void FreePinned(std::byte*, size_t) override {}

  const std::unique_ptr<Backend> backend_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_FORWARDING_BACKEND_H_
