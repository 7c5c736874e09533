// A backend that adds up how long each kind of operation takes: where a step's time goes.
//
// Operations of the backend are over when their calls return, as the cpu's are: of a device this
// would be what enqueuing takes.

#ifndef TANDEM_TESTS_BENCH_RUNTIME_EXECUTION_TIMED_BACKEND_H_
#define TANDEM_TESTS_BENCH_RUNTIME_EXECUTION_TIMED_BACKEND_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/api/backend.h"

namespace tandem {

class TimedBackend final : public Backend {
 public:
  // What a projection is called in a profile.
  using NameLinear = std::function<std::string(const LinearSpec& spec)>;

  TimedBackend(std::unique_ptr<Backend> backend, NameLinear name_linear)
      : backend_(std::move(backend)), name_linear_(std::move(name_linear)) {}

  // Seconds by kind since the last call of this.
  std::map<std::string, double> TakeSeconds() { return std::exchange(seconds_, {}); }

  std::string name() const override { return backend_->name(); }
  std::string isa() const override { return backend_->isa(); }
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
  MemoryKind pool_kind() const override { return backend_->pool_kind(); }
  absl::StatusOr<DeviceBuffer> PlaceWeights(std::span<const std::byte> bytes) override {
    return backend_->PlaceWeights(bytes);
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
  uint64_t work_done() const override { return backend_->work_done(); }
  absl::Status Synchronize() override { return backend_->Synchronize(); }

  absl::Status Upload(DevicePtr<void> to, const void* from, size_t size_bytes) override {
    return Time("copies", [&] { return backend_->Upload(to, from, size_bytes); });
  }
  absl::Status Download(void* to, DevicePtr<const void> from, size_t size_bytes) override {
    return Time("copies", [&] { return backend_->Download(to, from, size_bytes); });
  }
  absl::Status Copy(DevicePtr<void> to, DevicePtr<const void> from, size_t size_bytes) override {
    return Time("copies", [&] { return backend_->Copy(to, from, size_bytes); });
  }
  absl::Status Linear(const LinearArgs& args) override {
    return Time(name_linear_(args.op->spec()), [&] { return backend_->Linear(args); });
  }

// `kind` is what a profile calls `Operation`.
#define TANDEM_TIMED(Operation, kind)                             \
  absl::Status Operation(const Operation##Args& args) override {  \
    return Time(kind, [&] { return backend_->Operation(args); }); \
  }
  TANDEM_TIMED(Embedding, "rows")
  TANDEM_TIMED(RmsNorm, "norms")
  TANDEM_TIMED(LayerNorm, "norms")
  TANDEM_TIMED(Activate, "activation")
  TANDEM_TIMED(Add, "rows")
  TANDEM_TIMED(SoftCap, "rows")
  TANDEM_TIMED(GatherRows, "rows")
  TANDEM_TIMED(LogSoftmax, "sampling")
  TANDEM_TIMED(Sample, "sampling")
  TANDEM_TIMED(RotaryTable, "rotary and KV write")
  TANDEM_TIMED(RotaryKvWrite, "rotary and KV write")
  TANDEM_TIMED(DecodeAttention, "attention")
  TANDEM_TIMED(PrefillAttention, "attention")
  TANDEM_TIMED(CopyBlocks, "copies")
  TANDEM_TIMED(ChecksumBlocks, "copies")
  TANDEM_TIMED(DiscardBlocks, "copies")
#undef TANDEM_TIMED

 private:
  // Buffers belong to the backend that made them.
  void Free(DevicePtr<std::byte>, size_t) override {}
  void FreePinned(std::byte*, size_t) override {}

  template <typename Call>
  absl::Status Time(const std::string& kind, const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    absl::Status status = call();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    seconds_[kind] += seconds.count();
    return status;
  }

  const std::unique_ptr<Backend> backend_;
  const NameLinear name_linear_;
  std::map<std::string, double> seconds_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_RUNTIME_EXECUTION_TIMED_BACKEND_H_
