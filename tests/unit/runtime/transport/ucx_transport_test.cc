#include "runtime/transport/ucx/ucx_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/kv_conformance.h"
#include "tests/unit/runtime/transport/ucx_side.h"

namespace tandem {

std::vector<KvKind> KvKinds() {
  return {{.name = "ucx",
           .path = "shared memory",
           .make = [](int32_t num_blocks) { return MakeSide("ucx", num_blocks); }},
          // The network's window empties without a receiver.
          {.name = "ucx_network",
           .path = "ucx message",
           .waits_for_receiver = false,
           .make = [](int32_t num_blocks) { return MakeSide("ucx-network", num_blocks); }},
          {.name = "ucx_registered",
           .path = "ucx message",
           .waits_for_receiver = false,
           .crosses_processes = false,
           .make = [](int32_t num_blocks) { return MakeSide("ucx-registered", num_blocks); }}};
}

namespace {

TEST(UcxTransportTest, PoolThatDoesNotFitSharedMemoryIsRefusedWithNumbers) {
  KvReceiver receiver(kBlockBytes);
  Recorder recorder;
  const auto transport =
      UcxTransport::Create({.pool = {.kv = {.num_blocks = 1000, .block_bytes = int64_t{1} << 40}}},
                           &receiver, &recorder);
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(transport.status().message()), testing::HasSubstr("/dev/shm"));
}

TEST(UcxTransportTest, PoolThatItCannotMoveIsRefused) {
  KvReceiver receiver(kBlockBytes);
  Recorder recorder;
  alignas(4096) static std::byte memory[kBlockBytes];
  KvPool pool = {.base = memory, .kv = {.num_blocks = 1, .block_bytes = kBlockBytes}};
  const auto elsewhere = UcxTransport::Create({.pool = pool}, &receiver, &recorder);
  EXPECT_EQ(elsewhere.status().code(), absl::StatusCode::kFailedPrecondition);
  pool.memory = MemoryKind::kDevice;
  FarMemory copier;
  pool.copier = &copier;
  const auto device = UcxTransport::Create({.pool = pool, .devices = "lo", .shared_memory = false},
                                           &receiver, &recorder);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.status().message()), testing::HasSubstr("65536 bytes"));
}

}  // namespace
}  // namespace tandem
