// One end of UCX links, for tests.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_TRANSPORT_UCX_SIDE_H_
#define TANDEM_TESTS_UNIT_RUNTIME_TRANSPORT_UCX_SIDE_H_

#include <memory>
#include <string>
#include <utility>

#include "runtime/transport/ucx/ucx_transport.h"
#include "tests/support/kv_side.h"

namespace tandem {

// UCX gets the addresses that the host has of far memory.
inline constexpr UcxMemory kFarUcxMemory = {.kind = MemoryKind::kHost, .across = FarMemory::Across};

// "ucx": shared memory; "ucx-network": messages over loopback; "ucx-registered": that, with a pool
// of ours; "ucx-device": that, with a pool of a device's whose addresses fault.
inline std::unique_ptr<Side> MakeSide(const std::string& kind, int32_t num_blocks,
                                      const FleetSecret& secret = {}) {
  auto side = std::make_unique<Side>();
  UcxOptions options;
  options.pool = {.kv = {.num_blocks = num_blocks, .block_bytes = kBlockBytes}};
  options.secret = secret;
  if (kind != "ucx") {
    options.devices = "lo";
    options.shared_memory = false;
  }
  if (kind == "ucx-registered") options.pool.base = side->AllocatePool(num_blocks);
  if (kind == "ucx-device") {
    options.pool = FarPool(side.get(), num_blocks);
    options.memory = kFarUcxMemory;
  }
  auto transport = UcxTransport::Create(options, &side->receiver, &side->recorder);
  if (!transport.ok()) ADD_FAILURE() << transport.status();
  side->transport = *std::move(transport);
  return side;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_TRANSPORT_UCX_SIDE_H_
