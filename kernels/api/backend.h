// Backend: every operation that a model needs, on one device.
//
// Every backend has every operation: what it cannot do fails when a layer is prepared, never in a
// step. All methods belong to the engine thread, except that GetPackedFormat and PackLinear may
// run on any thread before the first step. Operations and copies enqueue and return; they run in
// the order of the calls, on one stream, but for checksums and discarding of blocks, which are done
// when their calls return. What their arguments point at, of the device or of the host, lives and
// stays as it is until an event recorded after them, or Synchronize(), has been waited for.
// InvalidArgument if a size or stride is out of range or a pointer that is needed is null; array
// contents (ids, slots, block tables) are trusted. DataLoss, from any of them, if the device is
// lost to this process with all that is in its memory: nothing succeeds there again.
//
// Memory of a backend is elsewhere: the host has no pointer to it (device_ptr.h), only copies.
// Where it is the host's own memory after all, mirrors and weights are one memory with what the
// host has, and copies between the two do nothing.

#ifndef TANDEM_KERNELS_API_BACKEND_H_
#define TANDEM_KERNELS_API_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/attention.h"
#include "kernels/api/device_ptr.h"
#include "kernels/api/kv_pool.h"
#include "kernels/api/linear.h"
#include "kernels/api/rows.h"
#include "kernels/api/sampling.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/status_macros.h"

namespace tandem {

class Backend;

// Memory of a backend, 64-byte aligned, of any content; frees itself, unless it is borrowed. The
// backend outlives it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // `owner` is null where the memory is borrowed.
  DeviceBuffer(Backend* owner, DevicePtr<std::byte> data, size_t size_bytes)
      : owner_(owner), data_(data), size_bytes_(size_bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~DeviceBuffer();

  DevicePtr<std::byte> data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  template <typename T>
  DevicePtr<T> as() const {
    return data_.as<T>();
  }

 private:
  Backend* owner_ = nullptr;
  DevicePtr<std::byte> data_;
  size_t size_bytes_ = 0;
};

// Memory of the host that copies reach without a detour (pinned, on a device), 64-byte aligned, of
// any content; frees itself. The backend outlives it.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Backend* owner, std::byte* data, size_t size_bytes)
      : owner_(owner), data_(data), size_bytes_(size_bytes) {}
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  Backend* owner_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// As many bytes on both sides. Upload(device, host) and Download(host, device) of any part carry it
// over, or do nothing where both sides are one memory.
struct MirrorBuffer {
  PinnedBuffer host;
  DeviceBuffer device;
};

// A point of the stream.
struct DeviceEvent {
  uint64_t ticket = 0;
};

// What a device has that has a memory of its own.
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // Nobody holds them, now.
};

// A GPU by the names that other tools have for it.
struct GpuIdentity {
  std::string model;               // "NVIDIA H200"
  std::string uuid;                // "GPU-1234abcd-...", as NVIDIA's tools write it.
  std::string pci_address;         // "0000:3b:00.0", as the kernel's log has it.
  std::string compute_capability;  // "9.0"
  std::string newest_cuda;         // "13.0": the newest that its driver can run.
  int64_t memory_bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "reference", "cpu", "fenced", "cuda".
  virtual std::string name() const = 0;
  // Its instruction set: "reference", one of IsaChoices (create_backend.h), or a GPU's ("sm_90").
  virtual std::string isa() const = 0;
  // Which one it is of the machine's. Nothing: it is no GPU.
  virtual std::optional<GpuIdentity> gpu() const { return std::nullopt; }

  // ResourceExhausted if the memory cannot be had. size_bytes may be 0.
  virtual absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) = 0;
  virtual absl::StatusOr<PinnedBuffer> AllocatePinned(size_t size_bytes) = 0;
  virtual absl::StatusOr<MirrorBuffer> AllocateMirror(size_t size_bytes);
  // A pool in `memory`, where that is given, as operations address it. InvalidArgument if it is too
  // small or not aligned; FailedPrecondition if the device cannot reach it.
  virtual absl::StatusOr<DeviceBuffer> AllocatePool(size_t size_bytes,
                                                    const KvPoolMemory& memory) = 0;
  // Where its pool is to lie: in memory that the host has, too, such as a transport's, or in what
  // AllocatePool allocates, which a transport is then given.
  virtual MemoryKind pool_kind() const = 0;
  // For a pool of kind kDevice; whoever has it goes first. FailedPrecondition for another.
  virtual absl::StatusOr<std::unique_ptr<DeviceCopier>> CreateCopier() {
    return absl::FailedPreconditionError("the KV pool is the host's");
  }
  // Whether operations run while the host goes on. False: they are over when their calls return.
  virtual bool runs_beside_host() const = 0;
  // The memory that weights, pool and what is computed with lie in. Nothing: the host's.
  virtual absl::StatusOr<std::optional<DeviceMemory>> MeasureMemory() const { return std::nullopt; }
  // `bytes` (64-byte aligned) as operations read them: themselves where that is possible, and then
  // they outlive the result; else a copy, made through a bounded staging ring and complete when
  // this returns.
  virtual absl::StatusOr<DeviceBuffer> PlaceWeights(std::span<const std::byte> bytes) = 0;

  // Memory of the host need not be pinned, but may then take a detour. The ranges do not overlap,
  // unless they are one and the same.
  virtual absl::Status Upload(DevicePtr<void> to, const void* from, size_t size_bytes) = 0;
  virtual absl::Status Download(void* to, DevicePtr<const void> from, size_t size_bytes) = 0;

  // After all that is enqueued.
  virtual DeviceEvent Record() = 0;
  // Returns when all before `event` has finished. Errors as of Synchronize.
  virtual absl::Status Wait(DeviceEvent event) = 0;

  // The tiles that attention of `compute_dtype` writes and reads. InvalidArgument if the shape is
  // out of range (kv_pool.h); FailedPrecondition if no kernel has these two types together.
  virtual absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape& shape,
                                                       DType compute_dtype) const = 0;

  // Whether heads of so many numbers have an attention of their own, whose bits those of other
  // heads do not show.
  virtual bool HasOwnAttention(int head_dim) const {
    static_cast<void>(head_dim);
    return false;
  }

  // InvalidArgument if a size is out of range; FailedPrecondition if no kernel has these types
  // together.
  virtual absl::StatusOr<PackedFormat> GetPackedFormat(const LinearSpec& spec) const = 0;
  // On the host. Fills all of `packed`, which has as many bytes as the format says and is 64-byte
  // aligned.
  virtual absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                                  std::span<std::byte> packed) const = 0;
  // `packed` (64-byte aligned, at least as many bytes; what PackLinear made, on the device)
  // outlives the operation.
  virtual absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(const LinearSpec& spec,
                                                                  DevicePtr<const std::byte> packed,
                                                                  size_t size_bytes) = 0;

  virtual absl::Status Embedding(const EmbeddingArgs& args) = 0;
  virtual absl::Status RmsNorm(const RmsNormArgs& args) = 0;
  virtual absl::Status LayerNorm(const LayerNormArgs& args) = 0;
  virtual absl::Status Linear(const LinearArgs& args) = 0;
  // A norm, and the layer whose input its output is: with the bits of the two, one behind the
  // other. What that array holds afterwards is anything. InvalidArgument, too, if it is not the
  // layer's input, in its rows, inputs and compute_dtype.
  virtual absl::Status RmsNormLinear(const RmsNormArgs& norm, const LinearArgs& layer) = 0;
  virtual absl::Status LayerNormLinear(const LayerNormArgs& norm, const LinearArgs& layer) = 0;
  virtual absl::Status Add(const AddArgs& args) = 0;
  virtual absl::Status SoftCap(const SoftCapArgs& args) = 0;
  virtual absl::Status GatherRows(const GatherRowsArgs& args) = 0;
  virtual absl::Status Sample(const SampleArgs& args) = 0;

  virtual absl::Status RotaryTable(const RotaryTableArgs& args) = 0;
  virtual absl::Status RotaryKvWrite(const RotaryKvWriteArgs& args) = 0;
  virtual absl::Status DecodeAttention(const DecodeAttentionArgs& args) = 0;
  virtual absl::Status PrefillAttention(const PrefillAttentionArgs& args) = 0;
  virtual absl::Status CopyBlocks(const CopyBlocksArgs& args) = 0;
  virtual absl::Status ChecksumBlocks(const ChecksumBlocksArgs& args) = 0;
  virtual absl::Status DiscardBlocks(const DiscardBlocksArgs& args) = 0;

  // Enqueues what `enqueue` does: operations on the device alone, no copies, samples or blocks. A
  // backend may keep them and, at a later call with the same key, enqueue them again instead of
  // calling: a key says which operations, on what addresses. It keeps nothing beyond a free of any
  // of its memory.
  virtual absl::Status Replay(std::span<const int64_t> key,
                              absl::FunctionRef<absl::Status()> enqueue) {
    static_cast<void>(key);
    return enqueue();
  }

  // Any thread. Grows with every small piece of work, also in the middle of an operation; a GPU's
  // when somebody has seen a point of its stream passed.
  virtual uint64_t work_done() const = 0;

  // Returns when everything enqueued has finished. An error of an enqueued operation shows here.
  virtual absl::Status Synchronize() = 0;

 protected:
  friend class DeviceBuffer;
  friend class PinnedBuffer;
  // After all that is enqueued.
  virtual void Free(DevicePtr<std::byte> data, size_t size_bytes) = 0;
  virtual void FreePinned(std::byte* data, size_t size_bytes) = 0;
};

// Two memories, unless a backend has one for both sides.
inline absl::StatusOr<MirrorBuffer> Backend::AllocateMirror(size_t size_bytes) {
  TANDEM_ASSIGN_OR_RETURN(PinnedBuffer host, AllocatePinned(size_bytes));
  TANDEM_ASSIGN_OR_RETURN(DeviceBuffer device, Allocate(size_bytes));
  return MirrorBuffer{std::move(host), std::move(device)};
}

inline DeviceBuffer::~DeviceBuffer() {
  if (owner_ != nullptr) owner_->Free(data_, size_bytes_);
}

inline PinnedBuffer::~PinnedBuffer() {
  if (owner_ != nullptr) owner_->FreePinned(data_, size_bytes_);
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_BACKEND_H_
