// The memory that a transport moves blocks of.

#ifndef TANDEM_RUNTIME_TRANSPORT_KV_POOL_H_
#define TANDEM_RUNTIME_TRANSPORT_KV_POOL_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "runtime/base/memory_kind.h"
#include "runtime/kv_cache/kv_geometry.h"

namespace tandem {

// As asked for, and as a transport has it. Asked for without a base, the transport allocates it;
// with one, it registers what is there, which outlives it.
struct KvPool {
  std::byte* base = nullptr;  // Page-aligned, touched.
  KvGeometry kv;
  MemoryKind memory = MemoryKind::kHost;

  std::byte* block(int32_t index) const { return base + int64_t{index} * kv.block_bytes; }
};

// For a transport whose blocks go through the host: InvalidArgument if there are none,
// FailedPrecondition if the host cannot reach them.
inline absl::Status CheckHostPool(std::string_view transport, const KvPool& pool) {
  if (pool.kv.block_bytes < 1 || pool.kv.num_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("a KV pool of %d blocks of %d bytes",
                                                      pool.kv.num_blocks, pool.kv.block_bytes));
  }
  if (pool.memory != MemoryKind::kHost) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the %s transport moves host memory, and the KV pool of %d bytes is a device's", transport,
        pool.kv.pool_bytes()));
  }
  return absl::OkStatus();
}

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_KV_POOL_H_
