#include "runtime/transport/stream/stream_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/transport/frame_wire.h"
#include "tests/support/kv_conformance.h"
#include "tests/support/local_carrier.h"

namespace tandem {
namespace {

enum class PoolOwner : uint8_t { kTransport, kCaller, kDevice };

class LocalSide final : public Side {
 public:
  LocalSide(int32_t num_blocks, PoolOwner owner) {
    static std::atomic<int> next{0};
    target = "local:" + std::to_string(next++);
    auto carrier = std::make_unique<LocalCarrier>(target);
    carrier_ = carrier.get();
    KvPool pool = {.kv = {.num_blocks = num_blocks, .block_bytes = kBlockBytes}};
    if (owner != PoolOwner::kTransport) pool.base = AllocatePool(num_blocks);
    if (owner == PoolOwner::kDevice) {
      pool.base = FarMemory::Across(pool.base);
      pool.memory = MemoryKind::kDevice;
      pool.copier = &far_memory;
    }
    auto made = StreamTransport::Create(pool, std::move(carrier), &receiver, &recorder);
    if (!made.ok()) ADD_FAILURE() << made.status();
    transport = *std::move(made);
  }
  ~LocalSide() override {
    carrier_->Shutdown();
    transport.reset();
  }

 private:
  LocalCarrier* carrier_;  // The transport's.
};

}  // namespace

std::vector<KvKind> KvKinds() {
  return {{.name = "local",
           .path = "local",
           .crosses_processes = false,
           .make = [](int32_t num_blocks) -> std::unique_ptr<Side> {
             return std::make_unique<LocalSide>(num_blocks, PoolOwner::kTransport);
           }},
          {.name = "local_registered",
           .path = "local",
           .crosses_processes = false,
           .make = [](int32_t num_blocks) -> std::unique_ptr<Side> {
             return std::make_unique<LocalSide>(num_blocks, PoolOwner::kCaller);
           }},
          {.name = "local_device",
           .path = "local",
           .crosses_processes = false,
           .make = [](int32_t num_blocks) -> std::unique_ptr<Side> {
             return std::make_unique<LocalSide>(num_blocks, PoolOwner::kDevice);
           }}};
}

namespace {

using testing::ElementsAre;

// Does nothing of itself.
class HandCarrier final : public FrameCarrier {
 public:
  std::string_view name() const override { return "hand"; }
  void Serve(FrameServer* to) override { server = to; }
  std::shared_ptr<DialledStream> Dial(const std::string& target, const std::string& token,
                                      std::shared_ptr<FrameTarget> to) override {
    struct Dialled final : DialledStream {
      void Ready() override {}
      void Cancel() override {}  // What is on its way still comes.
    };
    dialled = std::move(to);
    return std::make_shared<Dialled>();
  }

  FrameServer* server = nullptr;
  std::shared_ptr<FrameTarget> dialled;
};

struct HandStream final : public FrameStream {
  void Write(const FrameHeader& header, std::unique_ptr<FramePayload> payload) override {
    headers.push_back(header);
    payloads.push_back(std::move(payload));
  }
  void End(const absl::Status& why) override { ends.push_back(why); }

  std::vector<FrameHeader> headers;
  std::deque<std::unique_ptr<FramePayload>> payloads;
  std::vector<absl::Status> ends;
};

class StreamTransportTest : public testing::Test {
 protected:
  StreamTransportTest() {
    auto carrier = std::make_unique<HandCarrier>();
    carrier_ = carrier.get();
    side_.transport =
        *StreamTransport::Create({.kv = {.num_blocks = 8, .block_bytes = kBlockBytes}},
                                 std::move(carrier), &side_.receiver, &side_.recorder);
    server_ = carrier_->server;
    outbound_ = *side_.transport->OpenOutbound(token_, side_.OnLost());
  }
  void Send(int32_t block, uint64_t send_id) {
    outbound_->Send(HeaderFor(side_.transport->pool(), block, {.index = 1, .generation = 1}, block),
                    block, send_id);
  }
  // Writes, and reads, all probes.
  void PassProbes(FrameSource* source) {
    while (!stream_.headers.empty() && IsProbe(stream_.headers.back())) {
      stream_.payloads.clear();
      const size_t written = stream_.headers.size();
      source->OnWritten(true);
      if (stream_.headers.size() == written) return;
    }
  }

  const std::string token_ = std::string(16, 't');
  Side side_;
  HandCarrier* carrier_ = nullptr;  // The transport's.
  FrameServer* server_ = nullptr;
  std::unique_ptr<KvOutbound> outbound_;
  HandStream stream_;
};

TEST_F(StreamTransportTest, AFrameThatComesAfterItsLinkWasClosedHasNoPlace) {
  const Reservation reservation = side_.receiver.Open(kJob, 0, Range(0, 2));
  auto inbound = *side_.transport->OpenInbound("sender", "target", side_.OnLost());
  inbound->Attach(inbound->address());
  const auto arrive = [&](int32_t block) {
    const KvPool& pool = side_.transport->pool();
    const std::string_view bytes(reinterpret_cast<const char*>(pool.block(block)), kBlockBytes);
    return carrier_->dialled->OnFrame(HeaderFor(pool, block, reservation, block), {{bytes}});
  };
  EXPECT_TRUE(arrive(0).ok());
  inbound.reset();
  EXPECT_TRUE(absl::IsCancelled(arrive(1)));
  EXPECT_EQ(side_.recorder.received().size(), 1u);
  carrier_->dialled.reset();
}

TEST_F(StreamTransportTest, APayloadThatIsShorterOrLongerThanABlockIsRefusedAndTouchesNone) {
  const Reservation reservation = side_.receiver.Open(kJob, 0, Range(0, 2));
  auto inbound = *side_.transport->OpenInbound("sender", "target", side_.OnLost());
  inbound->Attach(inbound->address());
  const KvPool& pool = side_.transport->pool();
  const FrameHeader block = HeaderFor(pool, 0, reservation, 0);
  FrameHeader probe = block;
  probe.reservation = {};
  ASSERT_TRUE(IsProbe(probe));
  const std::string before(reinterpret_cast<const char*>(pool.base), 2 * kBlockBytes);
  const std::string payload(kBlockBytes + 1, 'x');
  const std::string_view bytes = payload;
  for (const FrameHeader& header : {block, probe}) {
    for (const std::vector<std::string_view>& parts : std::vector<std::vector<std::string_view>>{
             {}, {bytes.substr(2)}, {bytes}, {bytes.substr(1), bytes.substr(0, 1)}}) {
      const absl::Status status = carrier_->dialled->OnFrame(header, parts);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    }
  }
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(pool.base), 2 * kBlockBytes), before);
  EXPECT_TRUE(side_.recorder.received().empty());
  inbound.reset();
  carrier_->dialled.reset();
}

TEST_F(StreamTransportTest, ATokenIsGoodForOneStream) {
  HandStream second_stream, stranger_stream;
  const auto source = server_->Accept(&stream_);
  const auto second = server_->Accept(&second_stream);
  const auto stranger = server_->Accept(&stranger_stream);
  EXPECT_TRUE(absl::IsNotFound(stranger->Begin(std::string(16, 'x'))));
  EXPECT_TRUE(source->Begin(token_).ok());
  EXPECT_TRUE(absl::IsNotFound(second->Begin(token_)));
  EXPECT_TRUE(stranger_stream.headers.empty() && second_stream.headers.empty());
  EXPECT_FALSE(stream_.headers.empty());
  outbound_.reset();
}

TEST_F(StreamTransportTest, NothingOfALinkIsLeftThatNobodyDialled) {
  outbound_.reset();
  HandStream late;
  EXPECT_TRUE(absl::IsNotFound(server_->Accept(&late)->Begin(token_)));
  const auto again = side_.transport->OpenOutbound(token_, side_.OnLost());
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(StreamTransportTest, OneFrameOfALinkIsWrittenAtATime) {
  const auto source = server_->Accept(&stream_);
  ASSERT_TRUE(source->Begin(token_).ok());
  EXPECT_EQ(stream_.headers.size(), 1u);
  PassProbes(source.get());
  const size_t probes = stream_.headers.size();
  Send(3, 30);
  Send(5, 50);
  EXPECT_EQ(stream_.headers.size(), probes + 1);
  EXPECT_EQ(stream_.payloads.back()->bytes().data(), side_.transport->pool().block(3));
  source->OnWritten(true);
  EXPECT_EQ(stream_.headers.size(), probes + 2);
  EXPECT_EQ(stream_.payloads.back()->bytes().data(), side_.transport->pool().block(5));
  stream_.payloads.clear();
  outbound_.reset();
}

// Whatever becomes of stream, link and peer: the block may still be read.
TEST_F(StreamTransportTest, AFrameIsSentOnceItsPayloadIsDestroyedAndNoSooner) {
  auto source = server_->Accept(&stream_);
  ASSERT_TRUE(source->Begin(token_).ok());
  PassProbes(source.get());
  Send(3, 30);
  Send(5, 50);
  source->OnWritten(true);
  ASSERT_EQ(stream_.payloads.size(), 2u);
  EXPECT_TRUE(side_.recorder.sent().empty());
  stream_.payloads.pop_front();
  EXPECT_THAT(side_.recorder.sent(), ElementsAre(std::pair(30, true)));
  outbound_.reset();
  EXPECT_THAT(stream_.ends, ElementsAre(absl::CancelledError("the session ended")));
  source.reset();
  EXPECT_THAT(side_.recorder.sent(), ElementsAre(std::pair(30, true)));
  stream_.payloads.clear();
  EXPECT_THAT(side_.recorder.sent(), ElementsAre(std::pair(30, true), std::pair(50, false)));
}

TEST_F(StreamTransportTest, AReceiverThatLeavesBeforeItNamesItsLinkEndsIt) {
  const auto source = server_->Accept(&stream_);
  Send(3, 30);
  source->OnPeerGone();
  EXPECT_TRUE(side_.recorder.sent().empty());
  EXPECT_TRUE(absl::IsUnavailable(source->Begin(token_)));
  EXPECT_THAT(side_.recorder.sent(), ElementsAre(std::pair(30, false)));
  EXPECT_EQ(side_.recorder.lost().size(), 1u);
  EXPECT_TRUE(stream_.headers.empty());
}

TEST_F(StreamTransportTest, APoolOfADeviceThatNobodyCopiesIsRefused) {
  KvPool pool = {.base = FarMemory::Across(side_.AllocatePool(8)),
                 .kv = {.num_blocks = 8, .block_bytes = kBlockBytes},
                 .memory = MemoryKind::kDevice};
  const auto create = [&] {
    return StreamTransport::Create(pool, std::make_unique<HandCarrier>(), &side_.receiver,
                                   &side_.recorder)
        .status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(create()));
  pool.copier = &side_.far_memory;
  EXPECT_TRUE(create().ok());
  pool.base = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(create()));
}

class DevicePoolTest : public StreamTransportTest {
 protected:
  DevicePoolTest() {
    outbound_.reset();
    auto carrier = std::make_unique<HandCarrier>();
    carrier_ = carrier.get();
    side_.transport =
        *StreamTransport::Create({.base = FarMemory::Across(side_.AllocatePool(8)),
                                  .kv = {.num_blocks = 8, .block_bytes = kBlockBytes},
                                  .memory = MemoryKind::kDevice,
                                  .copier = &side_.far_memory},
                                 std::move(carrier), &side_.receiver, &side_.recorder);
    server_ = carrier_->server;
    outbound_ = *side_.transport->OpenOutbound(token_, side_.OnLost());
    FillPool(side_.transport->pool(), 3);
  }
};

// A link that waits holds no memory of the host, however much it has to send.
TEST_F(DevicePoolTest, ABlockIsCopiedWhenItsTurnComes) {
  const auto source = server_->Accept(&stream_);
  ASSERT_TRUE(source->Begin(token_).ok());
  PassProbes(source.get());
  EXPECT_EQ(side_.far_memory.copies, 0) << "probes are the host's";
  Send(3, 30);
  Send(5, 50);
  EXPECT_EQ(side_.far_memory.copies, 1);
  const KvPool& pool = side_.transport->pool();
  EXPECT_EQ(std::memcmp(stream_.payloads.back()->bytes().data(), HostBlock(pool, 3), kBlockBytes),
            0);
  outbound_->Withdraw(50);
  source->OnWritten(true);
  EXPECT_EQ(side_.far_memory.copies, 1);
  stream_.payloads.clear();
  EXPECT_THAT(side_.recorder.sent(), ElementsAre(std::pair(30, true), std::pair(50, false)));
  outbound_.reset();
}

TEST_F(DevicePoolTest, BlocksPassThroughPinnedMemory) {
  EXPECT_EQ(side_.far_memory.num_pinned(), StagingBuffers::kNumPinned);
  const auto source = server_->Accept(&stream_);
  ASSERT_TRUE(source->Begin(token_).ok());
  PassProbes(source.get());
  Send(3, 30);
  const Reservation reservation = side_.receiver.Open(kJob, 0, Range(0, 1));
  auto inbound = *side_.transport->OpenInbound("sender", "target", side_.OnLost());
  inbound->Attach(inbound->address());
  const std::vector<std::byte> block(kBlockBytes, std::byte{7});
  const std::string_view payload(reinterpret_cast<const char*>(block.data()), block.size());
  ASSERT_TRUE(carrier_->dialled
                  ->OnFrame(HeaderFor(side_.transport->pool(), 0, reservation, 0), {&payload, 1})
                  .ok());
  EXPECT_EQ(side_.far_memory.copies, 2);
  EXPECT_EQ(side_.far_memory.detours, 0);
  EXPECT_EQ(std::memcmp(HostBlock(side_.transport->pool(), 0), block.data(), kBlockBytes), 0);
  inbound.reset();
  carrier_->dialled.reset();
}

TEST(StagingBuffersTest, MoreThanThereAreDoWithoutPinningAndAllComeBack) {
  FarMemory device;
  {
    const auto buffers = *StagingBuffers::Create(&device, 64);
    for (int round = 0; round < 2; ++round) {
      std::set<std::byte*> places;
      std::vector<StagingBuffers::Buffer> taken;
      for (int i = 0; i < StagingBuffers::kNumPinned + 2; ++i) {
        taken.push_back(buffers->Take());
        EXPECT_EQ(taken.back().pinned(), i < StagingBuffers::kNumPinned) << round;
        EXPECT_TRUE(places.insert(taken.back().data()).second) << "given twice";
        std::memset(taken.back().data(), i, 64);
      }
    }
    EXPECT_EQ(device.num_pinned(), StagingBuffers::kNumPinned);
  }
  EXPECT_EQ(device.num_pinned(), 0);
  device.broken = true;
  EXPECT_TRUE(absl::IsResourceExhausted(StagingBuffers::Create(&device, 64).status()));
}

TEST_F(DevicePoolTest, ADeviceThatFailsLosesTheLinkAndAllThatWaits) {
  const auto source = server_->Accept(&stream_);
  ASSERT_TRUE(source->Begin(token_).ok());
  PassProbes(source.get());
  const size_t probes = stream_.headers.size();
  Send(3, 30);
  Send(5, 50);
  side_.far_memory.broken = true;
  source->OnWritten(true);
  EXPECT_EQ(stream_.headers.size(), probes + 1);
  EXPECT_THAT(stream_.ends, ElementsAre(absl::InternalError("the device has failed")));
  EXPECT_THAT(side_.recorder.lost(), ElementsAre(absl::InternalError("the device has failed")));
  EXPECT_THAT(side_.recorder.sent(), ElementsAre(std::pair(50, false)));
  stream_.payloads.clear();
  outbound_.reset();
}

TEST_F(DevicePoolTest, WhatADeviceDidNotTakeHasNotArrived) {
  const Reservation reservation = side_.receiver.Open(kJob, 0, Range(0, 2));
  auto inbound = *side_.transport->OpenInbound("sender", "target", side_.OnLost());
  inbound->Attach(inbound->address());
  const std::string bytes(kBlockBytes, 'b');
  const auto arrive = [&](int32_t block) {
    return carrier_->dialled->OnFrame(HeaderFor(side_.transport->pool(), block, reservation, block),
                                      {{bytes}});
  };
  EXPECT_TRUE(arrive(0).ok());
  EXPECT_EQ(std::memcmp(HostBlock(side_.transport->pool(), 0), bytes.data(), bytes.size()), 0);
  side_.far_memory.broken = true;
  EXPECT_TRUE(absl::IsInternal(arrive(1)));
  ASSERT_EQ(side_.recorder.received().size(), 2u);
  EXPECT_EQ(side_.recorder.received()[1].outcome, FrameOutcome::kFailed);
  EXPECT_EQ(side_.receiver.num_in_flight(), 0);
  inbound.reset();
  carrier_->dialled.reset();
}

TEST_F(StreamTransportTest, AnAnswerForAnotherLinkLosesIt) {
  const auto inbound = *side_.transport->OpenInbound("sender", "nowhere", side_.OnLost());
  inbound->Attach(std::string(16, 'x'));
  ASSERT_EQ(side_.recorder.lost().size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(side_.recorder.lost()[0]));
}

}  // namespace
}  // namespace tandem
