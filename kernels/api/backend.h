// Backend: every operation that a model needs, on one device.
//
// Every backend has every operation: what it cannot do fails when a layer is prepared, never in a
// step. All methods belong to the engine thread, except that PackedLinearBytes and PackLinear may
// run on any thread before the first step. Operations enqueue and return; what their arguments
// point at lives until Synchronize(). InvalidArgument if a size or stride is out of range or a
// pointer that is needed is null; array contents (ids, slots, block tables) are trusted.

#ifndef TANDEM_KERNELS_API_BACKEND_H_
#define TANDEM_KERNELS_API_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/attention.h"
#include "kernels/api/kv_pool.h"
#include "kernels/api/linear.h"
#include "kernels/api/rows.h"

namespace tandem {

class Backend;

// Memory of a backend, 64-byte aligned, zero-filled; frees itself. The backend outlives it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Backend* backend, std::byte* data, size_t size_bytes)
      : backend_(backend), data_(data), size_bytes_(size_bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  Backend* backend_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "reference", "cpu".
  virtual std::string name() const = 0;
  // Its instruction set: "reference", or one of kIsas (kernels/create_backend.h).
  virtual std::string isa() const = 0;

  // ResourceExhausted if the memory cannot be had. size_bytes may be 0.
  virtual absl::StatusOr<DeviceBuffer> Allocate(size_t size_bytes) = 0;

  // InvalidArgument if the shape is out of range (kv_pool.h).
  virtual absl::StatusOr<KvTileFormat> GetKvTileFormat(const KvTileShape& shape) const = 0;

  // A version of the packed bytes for a dtype: a cache made under another is packed again.
  virtual std::string pack_format(DType compute_dtype) const = 0;
  virtual absl::StatusOr<size_t> PackedLinearBytes(const LinearSpec& spec) const = 0;
  // Fills all of `packed`, which has PackedLinearBytes(spec) bytes and is 64-byte aligned.
  virtual absl::Status PackLinear(const LinearSpec& spec, std::span<const WeightPart> parts,
                                  std::span<std::byte> packed) const = 0;
  // `packed` (64-byte aligned, at least PackedLinearBytes) outlives the operation.
  virtual absl::StatusOr<std::unique_ptr<LinearOp>> PrepareLinear(
      const LinearSpec& spec, std::span<const std::byte> packed) = 0;

  virtual absl::Status Embedding(const EmbeddingArgs& args) = 0;
  virtual absl::Status RmsNorm(const RmsNormArgs& args) = 0;
  virtual absl::Status LayerNorm(const LayerNormArgs& args) = 0;
  virtual absl::Status Linear(const LinearArgs& args) = 0;
  virtual absl::Status SwiGlu(const SwiGluArgs& args) = 0;
  virtual absl::Status Gelu(const GeluArgs& args) = 0;
  virtual absl::Status Add(const AddArgs& args) = 0;
  virtual absl::Status GatherRows(const GatherRowsArgs& args) = 0;
  virtual absl::Status LogSoftmax(const LogSoftmaxArgs& args) = 0;

  virtual absl::Status RotaryTable(const RotaryTableArgs& args) = 0;
  virtual absl::Status RotaryKvWrite(const RotaryKvWriteArgs& args) = 0;
  virtual absl::Status DecodeAttention(const DecodeAttentionArgs& args) = 0;
  virtual absl::Status PrefillAttention(const PrefillAttentionArgs& args) = 0;
  virtual absl::Status CopyBlocks(const CopyBlocksArgs& args) = 0;

  // Any thread. Grows with every small piece of work, also in the middle of an operation.
  virtual uint64_t work_done() const = 0;

  // Returns when everything enqueued has finished. An error of an enqueued operation shows here.
  virtual absl::Status Synchronize() = 0;

 protected:
  friend class DeviceBuffer;
  virtual void Free(std::byte* data, size_t size_bytes) = 0;
};

inline DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) backend_->Free(data_, size_bytes_);
}

}  // namespace tandem

#endif  // TANDEM_KERNELS_API_BACKEND_H_
