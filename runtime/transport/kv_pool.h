// The memory that a transport moves blocks of.

#ifndef TANDEM_RUNTIME_TRANSPORT_KV_POOL_H_
#define TANDEM_RUNTIME_TRANSPORT_KV_POOL_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "runtime/base/device_copier.h"
#include "runtime/base/memory_kind.h"
#include "runtime/kv_cache/kv_geometry.h"

namespace tandem {

// As asked for, and as a transport has it. Asked for without a base, the transport allocates it;
// with one, it registers what is there, which outlives it.
struct KvPool {
  std::byte* base = nullptr;  // Page-aligned, touched.
  KvGeometry kv;
  MemoryKind memory = MemoryKind::kHost;
  // For a pool of a device, which the host does not address: reaches its blocks. Outlives the
  // transport.
  DeviceCopier* copier = nullptr;

  std::byte* block(int32_t index) const { return base + int64_t{index} * kv.block_bytes; }
};

// InvalidArgument if there are no blocks, or no way to those of a device.
inline absl::Status CheckPool(const KvPool& pool) {
  if (pool.kv.block_bytes < 1 || pool.kv.num_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("a KV pool of %d blocks of %d bytes",
                                                      pool.kv.num_blocks, pool.kv.block_bytes));
  }
  if (pool.memory != MemoryKind::kHost && (pool.base == nullptr || pool.copier == nullptr)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a KV pool of %d bytes of a device's that nobody copies", pool.kv.pool_bytes()));
  }
  return absl::OkStatus();
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_KV_POOL_H_
