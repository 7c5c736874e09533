#include "services/worker/grpc_frame_carrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/nccl/nccl_transport.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/kv_conformance.h"
#include "tests/unit/services/worker/grpc_side.h"

namespace tandem {

// Headers over gRPC, blocks over what stands in for NCCL.
class NcclGrpcSide final : public GrpcSide {
 public:
  explicit NcclGrpcSide(int32_t num_blocks)
      : GrpcSide(FleetSecret(), NcclTransport::kMaxPayloadBytes) {
    Open([&](std::unique_ptr<FrameCarrier> carrier) {
      return NcclTransport::Create(
          {.pool = {.base = FarMemory::Across(AllocatePool(num_blocks)),
                    .kv = {.num_blocks = num_blocks, .block_bytes = kBlockBytes},
                    .memory = MemoryKind::kDevice,
                    .copier = &far_memory},
           .api = &nccl_},
          std::move(carrier), &receiver, &recorder);
    });
  }
  ~NcclGrpcSide() override { Shutdown(); }

 private:
  FakeNccl nccl_;
};

std::vector<KvKind> KvKinds() {
  return {{.name = "grpc",
           .path = "grpc",
           .make = [](int32_t num_blocks) -> std::unique_ptr<Side> {
             return std::make_unique<GrpcSide>(num_blocks);
           }},
          {.name = "nccl", .path = "nccl", .make = [](int32_t num_blocks) -> std::unique_ptr<Side> {
             return std::make_unique<NcclGrpcSide>(num_blocks);
           }}};
}

namespace {

// Who has taken the port of a dead worker.
TEST(GrpcFrameCarrierTest, FramesOfASenderThatProvesNothingAreNotRead) {
  GrpcSide from(4);
  GrpcSide to(4, *FleetSecret::Parse(std::string(32, 's')));
  FillPool(from.transport->pool(), 1);
  const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, 4));
  Link link = Connect(&from, &to);
  link.outbound->Send(HeaderFor(from.transport->pool(), 1, reservation, 1), 1, 1);
  ASSERT_TRUE(to.recorder.WaitForLoss());
  EXPECT_TRUE(absl::IsUnauthenticated(to.recorder.lost()[0])) << to.recorder.lost()[0];
  EXPECT_TRUE(to.recorder.received().empty());
}

// A carrier of no transport.
struct Dialling {
  TestDoor door{FleetSecret()};
  GrpcFrameCarrier carrier{{.payload_bytes = kBlockBytes, .liveness_scale = 5, .door = &door}};
};

// Where no frame is wanted. Lives as long as its stream.
struct Nowhere final : FrameTarget {
  absl::Status OnFrame(const FrameHeader&, std::span<const std::string_view>) override {
    return absl::OkStatus();
  }
  void OnEnded(const absl::Status& why) override { ended.set_value(why); }
  std::promise<absl::Status> ended;
};

// Before the stream stands, as after that.
TEST(GrpcFrameCarrierTest, ReadyIsSaidWheneverTheReceiverIs) {
  GrpcSide from(4), to(4);
  const auto inbound = to.transport->OpenInbound("sender", from.target, nullptr);
  const auto outbound = from.transport->OpenOutbound((*inbound)->address(), from.OnLost());
  Dialling dialling;
  dialling.carrier.Dial(from.target, (*inbound)->address(), std::make_shared<Nowhere>())->Ready();
  ASSERT_TRUE(from.recorder.WaitForLoss());
  EXPECT_TRUE(absl::IsInvalidArgument(from.recorder.lost()[0])) << from.recorder.lost()[0];
}

TEST(GrpcFrameCarrierTest, WhoeverAsksForFramesThatAreNobodysIsToldSo) {
  GrpcSide from(4);
  Dialling dialling;
  const auto nowhere = std::make_shared<Nowhere>();
  std::future<absl::Status> ended = nowhere->ended.get_future();
  dialling.carrier.Dial(from.target, "a token of no outbound", nowhere);
  ASSERT_EQ(ended.wait_for(kPatience), std::future_status::ready);
  const absl::Status why = ended.get();
  EXPECT_THAT(std::string(why.message()), testing::HasSubstr("no KV link of that token")) << why;
}

}  // namespace
}  // namespace tandem
