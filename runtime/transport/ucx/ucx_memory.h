// Whether, and as what, UCX reaches a device's memory.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_MEMORY_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/base/memory_kind.h"

namespace tandem {

// A GPU's, but in tests: of a device that is none, whose memory is the host's for UCX.
struct UcxMemory {
  MemoryKind kind = MemoryKind::kDevice;
  // Between the device's address of a byte and UCX's, both ways. Null: they are one.
  std::byte* (*across)(const void* address) = nullptr;
};

// What a device's transport has of the device's memory beside the pool: slots, into which UCX puts
// payloads before their blocks are known to be theirs.
struct UcxSlotPlan {
  static constexpr int kPerLink = 2;  // Payloads of one link that arrive at once.
  // Links whose slots are there from the start. Further ones take more, and leave them to the next.
  static constexpr int kPlannedLinks = 8;
  static constexpr int kPlanned = kPlannedLinks * kPerLink + 2;  // Two for probes.
  static constexpr int64_t DeviceBytes(int64_t block_bytes) { return kPlanned * block_bytes; }
};

// Opens UCX on `devices` as a transport will, and closes it. FailedPrecondition, with what is
// missing, if it cannot move blocks of a device's pool.
absl::Status CheckUcxMemory(const UcxMemory& memory, const std::string& devices);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_MEMORY_H_
