#include "runtime/transport/ucx/ucx_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "runtime/transport/frame_wire.h"
#include "runtime/transport/ucx/ucx_address.h"
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
           .make = [](int32_t num_blocks) { return MakeSide("ucx-registered", num_blocks); }},
          {.name = "ucx_device",
           .path = "ucx device memory",
           .waits_for_receiver = false,
           .make = [](int32_t num_blocks) { return MakeSide("ucx-device", num_blocks); }}};
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
  const auto nobodys = UcxTransport::Create({.pool = pool, .devices = "lo"}, &receiver, &recorder);
  EXPECT_EQ(nobodys.status().code(), absl::StatusCode::kInvalidArgument);
  FarMemory copier;
  pool.copier = &copier;
  const auto nowhere = UcxTransport::Create({.pool = pool}, &receiver, &recorder);
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(nowhere.status().message()), testing::HasSubstr("set --ucx-devices"));
}

TEST(UcxTransportTest, AnInterfaceThatIsNotThereIsRefusedWithThoseThatAre) {
  const absl::Status nowhere = CheckUcxMemory(kFarUcxMemory, "lo,nosuch0");
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(nowhere.message()),
              testing::ContainsRegex("--ucx-devices: nosuch0 is no interface .* which has .*lo"));
  EXPECT_TRUE(CheckUcxMemory(kFarUcxMemory, "all").ok());
}

TEST(UcxTransportTest, AGpuThatUcxDoesNotReachIsRefusedWithWhatItReaches) {
  if (access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "there is a GPU, which UCX may reach";
  const absl::Status reach = CheckUcxMemory({}, "lo");
  EXPECT_EQ(reach.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(reach.message()),
      testing::ContainsRegex("UCX [0-9.]+ reaches memory of: host.* lies in memory of cuda: .*"
                             "--transport grpc"));
  EXPECT_TRUE(CheckUcxMemory(kFarUcxMemory, "lo").ok()) << CheckUcxMemory(kFarUcxMemory, "lo");
  EXPECT_EQ(CheckUcxMemory(kFarUcxMemory, "").code(), absl::StatusCode::kFailedPrecondition);

  KvReceiver receiver(kBlockBytes);
  Recorder recorder;
  Side side;
  const KvPool pool = FarPool(&side, 1);
  const auto device = UcxTransport::Create({.pool = pool, .devices = "lo"}, &receiver, &recorder);
  EXPECT_EQ(device.status(), reach);
}

TEST(UcxTransportTest, PoolsOfTwoKindsHaveNoLink) {
  for (const char* const from_kind : {"ucx-device", "ucx-network"}) {
    SCOPED_TRACE(from_kind);
    auto from = MakeSide(from_kind, 4);
    auto to = MakeSide(from_kind == std::string("ucx-device") ? "ucx-network" : "ucx-device", 4);
    const auto inbound = to->transport->OpenInbound("sender", "", to->OnLost());
    const auto outbound = from->transport->OpenOutbound((*inbound)->address(), from->OnLost());
    EXPECT_EQ(outbound.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(outbound.status().message()), testing::HasSubstr("a device's"));
    // Whoever answers all the same is not attached to.
    const auto other = from->transport->OpenInbound("sender", "", from->OnLost());
    (*inbound)->Attach((*other)->address());
    EXPECT_TRUE(to->recorder.WaitForLoss());
  }
}

// The pool is the device's alone: the sender copies nothing of it, the receiver once a block.
TEST(UcxTransportTest, OfADevicesPoolUcxReadsBlocksWhereTheyLie) {
  constexpr int32_t kBlocks = 40;
  auto from = MakeSide("ucx-device", kBlocks);
  auto to = MakeSide("ucx-device", kBlocks);
  FillPool(from->transport->pool(), 21);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, kBlocks));
  Link link = Connect(from.get(), to.get());
  ASSERT_TRUE(to->recorder.WaitForProbe());
  for (int32_t i = 0; i < kBlocks; ++i) {
    link.outbound->Send(HeaderFor(from->transport->pool(), i, reservation, i), i,
                        static_cast<uint64_t>(i));
  }
  ASSERT_TRUE(to->recorder.WaitForReceived(kBlocks));
  ASSERT_TRUE(from->recorder.WaitForSent(kBlocks));
  EXPECT_EQ(from->far_memory.copies, 1);  // Zeros, at its start.
  EXPECT_TRUE(to->recorder.WaitUntil(
      [&] { return to->far_memory.copies == 1 + NumProbes(kBlockBytes) + kBlocks; }));
}

TEST(UcxTransportTest, ADeviceThatFailsEndsItsLinkAndLeavesNoBlockInFlight) {
  auto from = MakeSide("ucx-device", 8);
  auto to = MakeSide("ucx-device", 8);
  FillPool(from->transport->pool(), 22);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 8));
  Link link = Connect(from.get(), to.get());
  link.outbound->Send(HeaderFor(from->transport->pool(), 0, reservation, 0), 0, 0);
  // UCX sends several messages by turns: the last probe may come after the frame.
  ASSERT_TRUE(to->recorder.WaitUntil(
      [&] { return to->far_memory.copies == 1 + NumProbes(kBlockBytes) + 1; }));
  ASSERT_TRUE(to->recorder.WaitForReceived(1));
  to->far_memory.broken = true;
  for (int32_t i = 1; i < 8; ++i) {
    link.outbound->Send(HeaderFor(from->transport->pool(), i, reservation, i), i,
                        static_cast<uint64_t>(i));
  }
  ASSERT_TRUE(to->recorder.WaitForLoss());
  EXPECT_TRUE(absl::IsInternal(to->recorder.lost()[0])) << to->recorder.lost()[0];
  EXPECT_TRUE(from->recorder.WaitForSent(8));
  ASSERT_TRUE(to->recorder.WaitForReceived(2));
  EXPECT_EQ(to->recorder.received()[1].outcome, FrameOutcome::kFailed);
  EXPECT_EQ(to->recorder.received().size(), 2u);  // The others get no place.
  to->receiver.Close(reservation);
  EXPECT_EQ(to->receiver.num_in_flight(), 0);
  // The next link finds a device that works, and the slots.
  to->far_memory.broken = false;
  const Reservation next = to->receiver.Open(kJob, 0, Range(0, 8));
  Link second = Connect(from.get(), to.get());
  for (int32_t i = 0; i < 8; ++i) {
    second.outbound->Send(HeaderFor(from->transport->pool(), i, next, i), i,
                          static_cast<uint64_t>(8 + i));
  }
  EXPECT_TRUE(to->recorder.WaitForReceived(10));
}

// A header and a block in one message, as pools of the host send them: to a link of a device's it
// is no frame.
TEST(UcxTransportTest, AMessageThatIsNotDueEndsTheLink) {
  auto from = MakeSide("ucx-network", 4);
  auto to = MakeSide("ucx-device", 4);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 4));
  auto inbound = to->transport->OpenInbound("sender", "", to->OnLost());
  UcxAddress address = *DecodeUcxAddress((*inbound)->address());
  address.device = false;
  address.pool_key = "key";
  auto outbound = from->transport->OpenOutbound(EncodeUcxAddress(address), from->OnLost());
  ASSERT_TRUE(outbound.ok()) << outbound.status();
  (*outbound)->Send(HeaderFor(from->transport->pool(), 0, reservation, 0), 0, 1);
  ASSERT_TRUE(to->recorder.WaitForLoss());
  EXPECT_TRUE(absl::IsInvalidArgument(to->recorder.lost()[0])) << to->recorder.lost()[0];
  EXPECT_THAT(std::string(to->recorder.lost()[0].message()),
              testing::HasSubstr("65560 bytes where 24 are due"));
  EXPECT_TRUE(to->recorder.received().empty());
}

// Nobody maps a device's pool, and nobody is told how.
TEST(UcxTransportTest, ADevicesAddressHasNoKeyToItsPool) {
  auto side = MakeSide("ucx-device", 4);
  const auto inbound = side->transport->OpenInbound("sender", "", side->OnLost());
  const auto address = DecodeUcxAddress((*inbound)->address());
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_TRUE(address->device);
  EXPECT_EQ(address->pool_key, "");
  EXPECT_EQ(address->pool_base, 0u);
  EXPECT_EQ(address->socket_name, "");
}

}  // namespace
}  // namespace tandem
