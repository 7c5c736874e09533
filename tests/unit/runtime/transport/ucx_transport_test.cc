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
           .make = [](int32_t num_blocks) { return MakeSide("ucx-network", num_blocks); }}};
}

namespace {

TEST(UcxTransportTest, PoolThatDoesNotFitSharedMemoryIsRefusedWithNumbers) {
  KvReceiver receiver(kBlockBytes);
  Recorder recorder;
  UcxOptions options;
  options.block_bytes = int64_t{1} << 40;
  options.num_blocks = 1000;
  const auto transport = UcxTransport::Create(options, &receiver, &recorder);
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(transport.status().message()), testing::HasSubstr("/dev/shm"));
}

}  // namespace
}  // namespace tandem
