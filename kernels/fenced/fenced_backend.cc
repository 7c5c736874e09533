#include "kernels/fenced/fenced_backend.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/fenced/fenced_stream.h"
#include "kernels/support/host_args.h"
#include "kernels/support/host_memory.h"
#include "kernels/support/staging_ring.h"
#include "kernels/support/validate.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// Small, so that the weights of every test take several turns of the ring.
constexpr size_t kRingBufferBytes = 64 * 1024;
constexpr int kNumRingBuffers = 2;
constexpr size_t kMaxKept = 16;

// As f32 or bf16 each of its numbers is a NaN; as an id or a position it is out of range.
void Poison(void* data, size_t size_bytes) {
  if (size_bytes > 0) std::memset(data, 0xFF, size_bytes);
}

// The blocks of one call may be copied in any order.
std::vector<int32_t> Backwards(const int32_t* blocks, int64_t count) {
  return {std::reverse_iterator(blocks + count), std::reverse_iterator(blocks)};
}

class FencedLinearOp final : public LinearOp {
 public:
  explicit FencedLinearOp(std::unique_ptr<LinearOp> inner)
      : LinearOp(inner->spec()), inner_(std::move(inner)) {}
  const LinearOp* inner() const { return inner_.get(); }

 private:
  const std::unique_ptr<LinearOp> inner_;
};

// Copies at once, and finds what a step has not been waited for.
class FencedCopier final : public DeviceCopier {
 public:
  absl::Status Download(void* to, const void* device, size_t size_bytes) override {
    std::memcpy(to, Inside(device), size_bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) override {
    std::byte* const inside = Inside(device);
    std::memcpy(inside, from, size_bytes);
    return Crc32c(inside, size_bytes);
  }
  absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from, size_t size_bytes) override {
    return Upload(device, Inside(from), size_bytes);
  }

 private:
  static std::byte* Inside(const void* device) {
    const auto address = reinterpret_cast<uintptr_t>(device);
    return OnHost(AcrossFence(DevicePtr<std::byte>::At(address)));
  }
};

class FencedBackend final : public Backend {
 public:
  FencedBackend(std::unique_ptr<Backend> inner, MemoryKind pool_kind)
      : inner_(std::move(inner)), pool_kind_(pool_kind) {}

  std::string name() const override { return "fenced"; }
  std::string isa() const override { return inner_->isa(); }

  void FailCall(int64_t call) { calls_to_failure_ = call; }

  absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) override {
    TANDEM_RETURN_IF_ERROR(CountCall());
    TANDEM_ASSIGN_OR_RETURN(std::byte* const data, AllocateHostMemory(size_bytes));
    Poison(data, size_bytes);
    return DeviceBuffer(this, AcrossFence(OfHost(data)), size_bytes);
  }

  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t size_bytes) override {
    TANDEM_ASSIGN_OR_RETURN(std::byte* const data, AllocateHostMemory(size_bytes));
    Poison(data, size_bytes);
    return PinnedBuffer(this, data, size_bytes);
  }

  absl::StatusOr<DeviceBuffer> AllocatePool(size_t size_bytes,
                                            const KvPoolMemory& memory) override {
    if (memory.base == nullptr) return Allocate(size_bytes);
    TANDEM_RETURN_IF_ERROR(ValidatePool(memory, size_bytes));
    const DevicePtr<std::byte> given = OfHost(static_cast<std::byte*>(memory.base));
    const DevicePtr<std::byte> pool =
        memory.kind == MemoryKind::kDevice ? given : AcrossFence(given);
    Poison(OnHost(AcrossFence(pool)), size_bytes);
    return DeviceBuffer(/*owner=*/nullptr, pool, size_bytes);
  }

  MemoryKind pool_kind() const override { return pool_kind_; }
  absl::StatusOr<std::unique_ptr<DeviceCopier>> CreateCopier() override {
    if (pool_kind_ != MemoryKind::kDevice) return Backend::CreateCopier();
    return std::make_unique<FencedCopier>();
  }

  absl::StatusOr<DeviceBuffer> PlaceWeights(std::span<const std::byte> bytes) override {
    TANDEM_ASSIGN_OR_RETURN(DeviceBuffer placed, Allocate(bytes.size()));
    TANDEM_ASSIGN_OR_RETURN(StagingRing ring,
                            StagingRing::Create(this, kRingBufferBytes, kNumRingBuffers));
    TANDEM_RETURN_IF_ERROR(ring.Upload(placed.data(), bytes));
    TANDEM_RETURN_IF_ERROR(Synchronize());
    return placed;
  }

  absl::Status Upload(DevicePtr<void> to, const void* from, size_t size_bytes) override {
    void* const inside = OnHost(AcrossFence(to));
    return Later([=] { return CopyBytes(inside, from, size_bytes); });
  }

  absl::Status Download(void* to, DevicePtr<const void> from, size_t size_bytes) override {
    Poison(to, size_bytes);
    const void* const inside = OnHost(AcrossFence(from));
    return Later([=] { return CopyBytes(to, inside, size_bytes); });
  }

  DeviceEvent Record() override { return {.ticket = stream_.Release()}; }
  absl::Status Wait(DeviceEvent event) override { return stream_.Wait(event.ticket); }
  absl::Status Synchronize() override { return Wait(Record()); }

  absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape& shape,
                                               DType compute_dtype) const override {
    return inner_->GetKvTileFormat(shape, compute_dtype);
  }
  absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const override {
    return inner_->GetPackedFormat(spec);
  }
  absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                          std::span<std::byte> packed) const override {
    return inner_->PackLinear(spec, parts, packed);
  }
  absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                          DevicePtr<const std::byte> packed,
                                                          size_t size_bytes) override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<LinearOp> op,
                            inner_->PrepareLinear(spec, AcrossFence(packed), size_bytes));
    return std::make_unique<FencedLinearOp>(std::move(op));
  }

  absl::Status Embedding(const EmbeddingArgs& args) override {
    return Enqueue(args, &Backend::Embedding);
  }
  absl::Status RmsNorm(const RmsNormArgs& args) override {
    return Enqueue(args, &Backend::RmsNorm);
  }
  absl::Status LayerNorm(const LayerNormArgs& args) override {
    return Enqueue(args, &Backend::LayerNorm);
  }
  absl::Status Linear(const LinearArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    LinearArgs inner_args = args;
    inner_args.op = static_cast<const FencedLinearOp*>(args.op)->inner();
    return Enqueue(inner_args, &Backend::Linear);
  }
  absl::Status RmsNormLinear(const RmsNormArgs& norm, const LinearArgs& layer) override {
    TANDEM_RETURN_IF_ERROR(Validate(norm, layer));
    TANDEM_RETURN_IF_ERROR(RmsNorm(norm));
    return Linear(layer);
  }
  absl::Status LayerNormLinear(const LayerNormArgs& norm, const LinearArgs& layer) override {
    TANDEM_RETURN_IF_ERROR(Validate(norm, layer));
    TANDEM_RETURN_IF_ERROR(LayerNorm(norm));
    return Linear(layer);
  }
  absl::Status Add(const AddArgs& args) override { return Enqueue(args, &Backend::Add); }
  absl::Status SoftCap(const SoftCapArgs& args) override {
    return Enqueue(args, &Backend::SoftCap);
  }
  absl::Status GatherRows(const GatherRowsArgs& args) override {
    return Enqueue(args, &Backend::GatherRows);
  }
  absl::Status Sample(const SampleArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    std::fill_n(args.results, args.count, absl::InternalError("a result was not waited for"));
    return Enqueue(args, &Backend::Sample);
  }
  absl::Status RotaryTable(const RotaryTableArgs& args) override {
    return Enqueue(args, &Backend::RotaryTable);
  }
  absl::Status RotaryKvWrite(const RotaryKvWriteArgs& args) override {
    return Enqueue(args, &Backend::RotaryKvWrite);
  }
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override {
    return Enqueue(args, &Backend::DecodeAttention);
  }
  absl::Status PrefillAttention(const PrefillAttentionArgs& args) override {
    return Enqueue(args, &Backend::PrefillAttention);
  }

  absl::Status CopyBlocks(const CopyBlocksArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    CopyBlocksArgs inner_args = args;
    inner_args.base = AcrossFence(args.base);
    return Later([this, inner_args, sources = Backwards(args.sources, args.count),
                  destinations = Backwards(args.destinations, args.count)]() mutable {
      inner_args.sources = sources.data();
      inner_args.destinations = destinations.data();
      return inner_->CopyBlocks(inner_args);
    });
  }

  absl::Status ChecksumBlocks(const ChecksumBlocksArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    TANDEM_RETURN_IF_ERROR(CountCall());
    const std::byte* const base = OnHost(AcrossFence(args.base));
    for (int64_t i = 0; i < args.count; ++i) {
      args.checksums[i] =
          Crc32c(base + static_cast<size_t>(args.blocks[i]) * args.block_stride_bytes,
                 args.block_stride_bytes);
    }
    return absl::OkStatus();
  }

  absl::Status DiscardBlocks(const DiscardBlocksArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Validate(args));
    TANDEM_RETURN_IF_ERROR(Synchronize());  // What was enqueued before may still read them.
    for (int64_t i = 0; i < args.count; ++i) {
      Poison(OnHost(AcrossFence(args.base)) +
                 static_cast<size_t>(args.blocks[i]) * args.block_stride_bytes,
             args.block_stride_bytes);
    }
    return absl::OkStatus();
  }

  // Keeps what came once, so that a key that says too little shows the second time.
  absl::Status Replay(std::span<const int64_t> key,
                      absl::FunctionRef<absl::Status()> enqueue) override {
    const std::vector<int64_t> name(key.begin(), key.end());
    if (const auto kept = kept_.find(name); kept != kept_.end()) {
      for (const FencedStream::Work& work : kept->second) TANDEM_RETURN_IF_ERROR(Later(work));
      return absl::OkStatus();
    }
    if (kept_.size() >= kMaxKept) kept_.clear();
    std::vector<FencedStream::Work> works;
    keeping_ = &works;
    const absl::Status status = enqueue();
    keeping_ = nullptr;
    if (status.ok()) kept_[name] = std::move(works);
    return status;
  }

  bool runs_beside_host() const override { return true; }
  uint64_t work_done() const override { return inner_->work_done(); }

 protected:
  void Free(DevicePtr<std::byte> data, size_t size_bytes) override {
    kept_.clear();
    FreeLater(OnHost(AcrossFence(data)), size_bytes);
  }
  void FreePinned(std::byte* data, size_t size_bytes) override { FreeLater(data, size_bytes); }

 private:
  static absl::Status CopyBytes(void* to, const void* from, size_t size_bytes) {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
    return absl::OkStatus();
  }

  absl::Status CountCall() {
    if (calls_to_failure_ == 0 || --calls_to_failure_ > 0) return absl::OkStatus();
    return absl::InternalError("the device was told to fail");
  }

  absl::Status Later(FencedStream::Work work) {
    TANDEM_RETURN_IF_ERROR(CountCall());
    if (keeping_ != nullptr) keeping_->push_back(work);
    stream_.Push(std::move(work));
    return absl::OkStatus();
  }

  void FreeLater(std::byte* data, size_t size_bytes) {
    stream_.Push([=] {
      Poison(data, size_bytes);
      FreeHostMemory(data, size_bytes);
      return absl::OkStatus();
    });
  }

  // What Validate wants besides the arguments.
  template <typename Args>
  absl::Status Check(const Args& args) const {
    if constexpr (requires { args.kv; }) {
      const absl::StatusOr<KvTileFormat> format =
          inner_->GetKvTileFormat(args.kv.shape, args.compute_dtype);
      return Validate(args, format.ok() ? format->tile_bytes : 0);
    } else {
      return Validate(args);
    }
  }

  // The arguments are checked now, as every backend does, and used later.
  template <typename Args>
  absl::Status Enqueue(const Args& args, absl::Status (Backend::*operation)(const Args&)) {
    TANDEM_RETURN_IF_ERROR(Check(args));
    Args inner_args = args;
    std::apply([](auto&... pointer) { ((pointer = AcrossFence(pointer)), ...); },
               Args::Pointers(inner_args));
    return Later([this, inner_args, operation] { return (inner_.get()->*operation)(inner_args); });
  }

  const std::unique_ptr<Backend> inner_;
  const MemoryKind pool_kind_;
  int64_t calls_to_failure_ = 0;                                          // 0: none is to fail.
  std::map<std::vector<int64_t>, std::vector<FencedStream::Work>> kept_;  // by Replay
  std::vector<FencedStream::Work>* keeping_ = nullptr;                    // while it is running
  FencedStream stream_;  // Last: its work uses the backend above.
};

}  // namespace

std::unique_ptr<Backend> CreateFencedBackend(std::unique_ptr<Backend> inner, MemoryKind pool_kind) {
  return std::make_unique<FencedBackend>(std::move(inner), pool_kind);
}

void FailCall(Backend* fenced, int64_t call) {
  static_cast<FencedBackend*>(fenced)->FailCall(call);
}

}  // namespace tandem
