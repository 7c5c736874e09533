#include "runtime/transport/nccl/nccl_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/nccl/nccl_address.h"
#include "runtime/transport/nccl/nccl_group.h"
#include "runtime/transport/nccl/nccl_pair.h"
#include "tests/support/kv_conformance.h"
#include "tests/unit/runtime/transport/nccl_side.h"

namespace tandem {

std::vector<KvKind> KvKinds() {
  return {{.name = "nccl",
           .path = "nccl",
           .crosses_processes = false,
           .make = [](int32_t num_blocks) -> std::unique_ptr<Side> {
             return std::make_unique<NcclSide>(num_blocks);
           }}};
}

namespace {

using Call = FakeNccl::Call;

constexpr std::chrono::milliseconds kShort(4000);  // Until a link that stands still is given up.
const int64_t kProbes = NumProbes(kBlockBytes);

// Sends `block` as ordinal `block`, with that number too.
void Send(NcclSide* from, KvOutbound* outbound, Reservation reservation, int32_t block) {
  outbound->Send(HeaderFor(from->transport->pool(), block, reservation, block), block,
                 static_cast<uint64_t>(block));
}

uint64_t PrecedenceOf(const NcclSide& side) {
  const auto inbound = side.transport->OpenInbound("sender", "", nullptr);
  return DecodeNcclAddress((*inbound)->address(), /*senders=*/false)->precedence;
}

// Makes `count` sends, ordinals and blocks from 0 on: the very first is under way alone and stays
// so, as NCCL is held or hangs; all others wait.
void SendWhileOneIsUnderWay(NcclSide* from, KvOutbound* outbound, Reservation reservation,
                            int32_t count) {
  const int64_t before = from->nccl.calls(Call::kSend);
  Send(from, outbound, reservation, 0);
  ASSERT_TRUE(from->nccl.WaitForCalls(Call::kSend, before + 1));
  for (int32_t i = 1; i < count; ++i) Send(from, outbound, reservation, i);
}

// A fresh link between them moves a block, with the number `send_id`.
void ExpectAnotherLinkWorks(NcclSide* from, NcclSide* to, uint64_t send_id) {
  const size_t before = to->recorder.received().size();
  const size_t sent = from->recorder.sent().size();
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 1));
  Link link = Connect(from, to);
  link.outbound->Send(HeaderFor(from->transport->pool(), 0, reservation, 0), 0, send_id);
  ASSERT_TRUE(to->recorder.WaitForReceived(before + 1));
  EXPECT_EQ(to->recorder.received().back().outcome, FrameOutcome::kVerified);
  EXPECT_TRUE(from->recorder.WaitForSent(sent + 1));
}

TEST(NcclTransportTest, FramesOfManyLinksAtOnceAreNotMixed) {
  constexpr int32_t kBlocks = 48, kLinks = 3;
  const auto seed = static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  NcclSide left(kBlocks * 2), right(kBlocks * 2);
  FillPool(left.transport->pool(), seed + 1);
  FillPool(right.transport->pool(), seed + 2);
  // Both ways, and several of a pair: the first half of a pool is sent, the second received.
  struct Way {
    NcclSide* from;
    NcclSide* to;
    Link link;
    Reservation open, stale;
  };
  std::vector<Way> ways;
  for (int32_t i = 0; i < 2 * kLinks; ++i) {
    Way way{.from = i % 2 == 0 ? &left : &right, .to = i % 2 == 0 ? &right : &left};
    const int32_t first = kBlocks + i / 2 * (kBlocks / kLinks);
    way.stale = way.to->receiver.Open(kJob, 0, Range(first, first + kBlocks / kLinks));
    way.to->receiver.Close(way.stale);
    way.open = way.to->receiver.Open(kJob, 0, Range(first, first + kBlocks / kLinks));
    way.link = Connect(way.from, way.to);
    ways.push_back(std::move(way));
  }
  uint64_t stale_id = 1000;
  for (int32_t ordinal = 0; ordinal < kBlocks / kLinks; ++ordinal) {
    for (int32_t i = 0; i < 2 * kLinks; ++i) {
      Way& way = ways[static_cast<size_t>(i)];
      const int32_t block = i / 2 * (kBlocks / kLinks) + ordinal;
      const KvPool& pool = way.from->transport->pool();
      while (random.Below(3) == 0) {
        way.link.outbound->Send(HeaderFor(pool, block, way.stale, ordinal), block, stale_id++);
      }
      way.link.outbound->Send(HeaderFor(pool, block, way.open, ordinal), block,
                              static_cast<uint64_t>(block));
    }
  }
  for (NcclSide* const to : {&left, &right}) {
    ASSERT_TRUE(to->recorder.WaitForReceived(kBlocks));
    EXPECT_EQ(to->recorder.received().size(), static_cast<size_t>(kBlocks));
    for (const ReceivedFrame& frame : to->recorder.received()) {
      EXPECT_EQ(frame.outcome, FrameOutcome::kVerified);
    }
    const KvPool& from = (to == &left ? right : left).transport->pool();
    for (int32_t i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(std::memcmp(HostBlock(from, i), HostBlock(to->transport->pool(), kBlocks + i),
                            kBlockBytes),
                0)
          << i;
    }
  }
}

TEST(NcclTransportTest, NothingIsReceivedBeforeItsHeader) {
  NcclSide from(4), to(4);
  Link link = Connect(&from, &to);
  ASSERT_TRUE(to.recorder.WaitForProbe());
  EXPECT_EQ(to.nccl.calls(Call::kRecv), kProbes);
  EXPECT_EQ(from.nccl.calls(Call::kSend), kProbes);
}

TEST(NcclTransportTest, MemoryIsTakenOnce) {
  NcclSide from(4), to(4);
  for (uint64_t i = 0; i < 5; ++i) ExpectAnotherLinkWorks(&from, &to, i);
  EXPECT_EQ(to.nccl.calls(Call::kMalloc), 1);
  EXPECT_EQ(from.nccl.calls(Call::kMalloc), 1);
}

TEST(NcclTransportTest, WhatCannotBeIsRefusedWhenItIsMade) {
  const auto make = [](Side* side, KvPool pool, FakeNccl* nccl) {
    return NcclTransport::Create({.pool = pool, .api = nccl},
                                 std::make_unique<LocalCarrier>("none"), &side->receiver,
                                 &side->recorder)
        .status();
  };
  struct Bare : Side {
  } side;
  FakeNccl nccl;
  const KvPool pool = FarPool(&side, 4);
  KvPool hosts = pool;
  hosts.memory = MemoryKind::kHost;
  EXPECT_TRUE(absl::IsFailedPrecondition(make(&side, hosts, &nccl)));
  EXPECT_EQ(nccl.calls(Call::kGetUniqueId), 0);
  nccl.Fail(Call::kGetUniqueId);
  EXPECT_TRUE(absl::IsFailedPrecondition(make(&side, pool, &nccl)));
  nccl.Fail(Call::kMalloc);
  EXPECT_TRUE(absl::IsResourceExhausted(make(&side, pool, &nccl)));
  side.far_memory.broken = true;
  EXPECT_TRUE(absl::IsInternal(make(&side, pool, &nccl)));
  side.far_memory.broken = false;
  EXPECT_TRUE(make(&side, pool, &nccl).ok());
  nccl.RepeatIds();
  EXPECT_TRUE(absl::IsFailedPrecondition(make(&side, pool, &nccl)));
}

TEST(NcclTransportTest, AnAnswerForAnotherLinkIsRefused) {
  NcclSide from(4), to(4);
  const auto inbound = to.transport->OpenInbound("sender", from.target, to.OnLost());
  NcclAddress answer{.token = std::string(NcclAddress::kTokenBytes, 't'),
                     .block_bytes = kBlockBytes};
  answer.id.emplace();
  (*inbound)->Attach(EncodeNcclAddress(answer));
  ASSERT_EQ(to.recorder.lost().size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(to.recorder.lost()[0]));
  EXPECT_EQ(to.nccl.num_comms(), 0);
  answer.id.reset();
  answer.block_bytes = kBlockBytes / 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      from.transport->OpenOutbound(EncodeNcclAddress(answer), nullptr).status()));
  // Neither of two with one precedence could go first.
  const auto own = from.transport->OpenInbound("sender", to.target, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      from.transport->OpenOutbound((*own)->address(), nullptr).status()));
}

TEST(NcclTransportTest, ALinkIsRefusedAtOnceWhileThereIsNoUniqueId) {
  NcclSide from(4), to(4);
  from.nccl.Hang(Call::kGetUniqueId);
  std::vector<std::unique_ptr<KvOutbound>> outbounds;
  std::vector<std::unique_ptr<KvInbound>> inbounds;
  const auto open = [&] {
    inbounds.push_back(*to.transport->OpenInbound("sender", from.target, nullptr));
    auto made = from.transport->OpenOutbound(inbounds.back()->address(), nullptr);
    if (made.ok()) outbounds.push_back(*std::move(made));
    return made.status();
  };
  absl::Status status;
  while (status.ok() && outbounds.size() < 100) status = open();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  const int64_t made = from.nccl.calls(Call::kGetUniqueId);
  from.nccl.Release();
  ASSERT_TRUE(from.nccl.WaitForCalls(Call::kGetUniqueId, made + 2));
  ExpectAnotherLinkWorks(&from, &to, 1);
}

TEST(NcclTransportTest, BlocksThatWaitGoInGroups) {
  constexpr int64_t kGroups = 2;
  constexpr int32_t kSends = 1 + kGroups * int32_t{NcclPair::kGroup};
  NcclSide from(kSends), to(kSends);
  FillPool(from.transport->pool(), 3);
  const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, kSends));
  Link link = Connect(&from, &to);
  ASSERT_TRUE(to.recorder.WaitForProbe());
  from.nccl.Hold(true);
  SendWhileOneIsUnderWay(&from, link.outbound.get(), reservation, kSends);
  const int64_t before = from.nccl.calls(Call::kGroupStart);
  from.nccl.Hold(false);
  ASSERT_TRUE(from.recorder.WaitForSent(kSends));
  ASSERT_TRUE(to.recorder.WaitForReceived(kSends));
  EXPECT_EQ(from.nccl.calls(Call::kGroupStart) - before, kGroups);
  for (const ReceivedFrame& frame : to.recorder.received()) {
    EXPECT_EQ(frame.outcome, FrameOutcome::kVerified);
  }
  for (int32_t i = 0; i < kSends; ++i) {
    EXPECT_EQ(std::memcmp(HostBlock(from.transport->pool(), i), HostBlock(to.transport->pool(), i),
                          kBlockBytes),
              0)
        << i;
  }
}

// ---- What fails ----

struct Failure {
  Call call;
  int number;
  bool senders;
};

class NcclFailureTest : public testing::TestWithParam<Failure> {};

TEST_P(NcclFailureTest, EverySendCompletesAndTheNextLinkWorks) {
  constexpr int32_t kSends = 12;
  NcclSide from(16), to(16);
  FillPool(from.transport->pool(), 3);
  FakeNccl& failing = GetParam().senders ? from.nccl : to.nccl;
  failing.Fail(GetParam().call, GetParam().number);
  const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, 16));
  {
    Link link = Connect(&from, &to);
    for (int32_t i = 0; i < kSends; ++i) Send(&from, link.outbound.get(), reservation, i);
    if (GetParam().call == Call::kCommAbort || GetParam().call == Call::kStreamSynchronize) {
      ASSERT_TRUE(to.recorder.WaitForProbe());
    } else if (GetParam().senders) {
      ASSERT_TRUE(from.recorder.WaitForLoss());
      link.outbound.reset();  // As the Session does.
      ASSERT_TRUE(to.recorder.WaitForLoss());
    } else {
      ASSERT_TRUE(to.recorder.WaitForLoss());
      link.inbound.reset();
      ASSERT_TRUE(from.recorder.WaitForLoss());
    }
  }
  ASSERT_TRUE(from.recorder.WaitForSent(kSends));
  ASSERT_TRUE(failing.WaitForComms(0));
  ASSERT_TRUE(failing.WaitForFailure(GetParam().call));
  to.receiver.Close(reservation);
  EXPECT_TRUE(to.recorder.WaitUntil([&] { return to.receiver.num_in_flight() == 0; }));
  ExpectAnotherLinkWorks(&from, &to, 100);
}

std::vector<Failure> Failures() {
  std::vector<Failure> failures;
  for (const bool senders : {true, false}) {
    for (const Call call : {Call::kCommInitRank, Call::kCommAbort, Call::kStreamCreate,
                            Call::kStreamSynchronize, Call::kEventCreate}) {
      failures.push_back({call, 1, senders});
    }
    for (const Call call : {Call::kCommGetAsyncError, Call::kEventRecord, Call::kEventPassed,
                            Call::kGroupStart, Call::kGroupEnd}) {
      for (const int number : {1, 2, 5}) failures.push_back({call, number, senders});
    }
    for (const int number : {1, 2, 3, 20, 40}) {
      failures.push_back({senders ? Call::kSend : Call::kRecv, number, senders});
    }
  }
  return failures;
}

INSTANTIATE_TEST_SUITE_P(All, NcclFailureTest, testing::ValuesIn(Failures()),
                         [](const testing::TestParamInfo<Failure>& failure) {
                           return (failure.param.senders ? "sender" : "receiver") +
                                  std::to_string(static_cast<int>(failure.param.call)) + "_" +
                                  std::to_string(failure.param.number);
                         });

TEST(NcclTransportTest, ABrokenCommunicatorIsSeenThoughTheStreamGoesOn) {
  NcclSide from(16), to(16);
  const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, 16));
  Link link = Connect(&from, &to);
  ASSERT_TRUE(to.recorder.WaitForProbe());
  from.nccl.Break(NcclResult::kRemoteError);
  Send(&from, link.outbound.get(), reservation, 1);
  ASSERT_TRUE(from.recorder.WaitForLoss());
  EXPECT_TRUE(absl::IsUnavailable(from.recorder.lost()[0]));
  ASSERT_TRUE(from.recorder.WaitForSent(1));
  EXPECT_EQ(from.recorder.sent(), (std::map<uint64_t, bool>{{1, false}}));
}

TEST(NcclTransportTest, ABlockThatCannotBeCopiedToItsPlaceEndsTheLink) {
  NcclSide from(16), to(16);
  const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, 16));
  Link link = Connect(&from, &to);
  ASSERT_TRUE(to.recorder.WaitForProbe());
  to.far_memory.broken = true;
  Send(&from, link.outbound.get(), reservation, 1);
  ASSERT_TRUE(to.recorder.WaitForLoss());
  ASSERT_TRUE(to.recorder.WaitForReceived(1));
  EXPECT_NE(to.recorder.received()[0].outcome, FrameOutcome::kVerified);
  EXPECT_EQ(to.receiver.num_in_flight(), 0);
}

// ---- What has no end ----

TEST(NcclTransportTest, APeerThatNeverJoinsIsGivenUp) {
  for (const bool senders : {true, false}) {
    NcclSide from(4, kShort), to(4, kShort);
    (senders ? from : to).nccl.Hang(Call::kCommInitRank);
    const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, 4));
    Link link = Connect(&from, &to);
    Send(&from, link.outbound.get(), reservation, 1);
    ASSERT_TRUE(from.recorder.WaitForLoss());
    ASSERT_TRUE(to.recorder.WaitForLoss());
    EXPECT_TRUE(from.recorder.WaitForSent(1));
    EXPECT_FALSE(from.recorder.sent()[1]);
  }
}

TEST(NcclTransportTest, ABlockThatStandsStillIsGivenUp) {
  for (const Call call : {Call::kSend, Call::kRecv}) {
    NcclSide from(4, kShort), to(4, kShort);
    const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, 4));
    Link link = Connect(&from, &to);
    ASSERT_TRUE(to.recorder.WaitForProbe());
    (call == Call::kSend ? from : to).nccl.Hang(call);
    Send(&from, link.outbound.get(), reservation, 1);
    ASSERT_TRUE(from.recorder.WaitForLoss());
    ASSERT_TRUE(to.recorder.WaitForLoss());
    EXPECT_TRUE(from.recorder.WaitForSent(1));
    EXPECT_FALSE(from.recorder.sent()[1]);
    EXPECT_TRUE(to.recorder.received().empty());
  }
}

// A sender whose link to `to` was closed with one block under way, of which NCCL does not let go;
// its link to `other` then gets a block, with the number 103.
struct HeldSender {
  explicit HeldSender(int32_t sends, std::chrono::milliseconds stall = kPatience)
      : num_sends(sends), from(sends, stall), to(sends), other(sends) {}

  // All but the first of `num_sends` to `to` still wait when the link is closed.
  void CloseWithOneUnderWay() {
    const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, num_sends));
    const Reservation others = other.receiver.Open(kJob, 0, Range(0, num_sends));
    Link link = Connect(&from, &to);
    second = Connect(&from, &other);
    ASSERT_TRUE(to.recorder.WaitForProbe());
    ASSERT_TRUE(other.recorder.WaitForProbe());
    from.nccl.Hang(Call::kCommAbort);
    to.nccl.Hang(Call::kRecv);
    SendWhileOneIsUnderWay(&from, link.outbound.get(), reservation, num_sends);
    begun = from.nccl.calls(Call::kSend);
    link.outbound.reset();
    ASSERT_TRUE(from.nccl.WaitForCalls(Call::kCommAbort, 1));
    second.outbound->Send(HeaderFor(from.transport->pool(), 3, others, 3), 3, 103);
  }

  const int32_t num_sends;
  NcclSide from, to, other;
  Link second;
  int64_t begun = 0;  // Sends, before the link was closed.
};

// Until NCCL has let go of them. Meanwhile the GPU may still run what waits for a peer, and nobody
// else begins anything there.
TEST(NcclTransportTest, BlocksUnderWayDoNotCompleteBeforeTheirCommunicatorIsAborted) {
  constexpr int32_t kSends = 20;
  HeldSender held(kSends);
  ASSERT_NO_FATAL_FAILURE(held.CloseWithOneUnderWay());
  ASSERT_TRUE(held.from.recorder.WaitForSent(kSends - 1));
  EXPECT_EQ(held.from.recorder.sent().size(), size_t{kSends - 1});
  EXPECT_EQ(held.from.nccl.calls(Call::kSend), held.begun);
  held.from.nccl.Release();
  ASSERT_TRUE(held.other.recorder.WaitForReceived(1));
  ASSERT_TRUE(held.from.recorder.WaitForSent(kSends + 1));
  for (const auto& [id, ok] : held.from.recorder.sent()) EXPECT_EQ(ok, id == 103) << id;
}

// Whichever of the two has precedence.
TEST(NcclTransportTest, AGpuThatNcclDoesNotLetGoOfIsNotWaitedForWithoutEnd) {
  bool seen[2] = {};
  while (!seen[0] || !seen[1]) {
    HeldSender held(4, kShort);
    if (std::exchange(seen[PrecedenceOf(held.from) < PrecedenceOf(held.other)], true)) continue;
    ASSERT_NO_FATAL_FAILURE(held.CloseWithOneUnderWay());
    ASSERT_TRUE(held.from.recorder.WaitForLoss());
    EXPECT_TRUE(absl::IsUnavailable(held.from.recorder.lost()[0]));
    held.from.nccl.Release();
  }
}

// Whose thread touches it, and what it reports to, once it goes on.
TEST(NcclTransportTest, ATransportIsThereForAsLongAsAnAbortOfItsLinksTakes) {
  auto from = std::make_unique<NcclSide>(4);
  NcclSide to(4);
  FakeNccl& nccl = from->nccl;
  nccl.Hang(Call::kCommAbort);
  {
    Link link = Connect(from.get(), &to);
    ASSERT_TRUE(to.recorder.WaitForProbe());
  }
  ASSERT_TRUE(nccl.WaitForCalls(Call::kCommAbort, 1));
  const auto gone = std::async(std::launch::async, [&] { from.reset(); });
  EXPECT_EQ(gone.wait_for(std::chrono::seconds(3)), std::future_status::timeout);
  nccl.Release();
  gone.wait();
}

// Copies to a block wait while it is shut.
class GatedCopier final : public DeviceCopier {
 public:
  absl::Status Download(void* to, const void* device, size_t size_bytes) override {
    return memory_.Download(to, device, size_bytes);
  }
  absl::StatusOr<uint32_t> Upload(void* device, const void* from, size_t size_bytes) override {
    return memory_.Upload(device, from, size_bytes);
  }
  absl::StatusOr<uint32_t> CopyWithin(void* device, const void* from, size_t size_bytes) override
      EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (shut_) {
      waits_ = true;
      changed_.SignalAll();
      changed_.Wait(&mu_);
    }
    return memory_.CopyWithin(device, from, size_bytes);
  }
  void SetShut(bool shut) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    shut_ = shut;
    changed_.SignalAll();
  }
  void WaitForCopy() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (!waits_) changed_.Wait(&mu_);
  }

 private:
  FarMemory memory_;
  Mutex mu_;
  CondVar changed_;
  bool shut_ GUARDED_BY(mu_) = false;
  bool waits_ GUARDED_BY(mu_) = false;
};

TEST(NcclTransportTest, WhatHasArrivedGetsNoPlaceOnceTheReceiverIsClosed) {
  constexpr int32_t kSends = 8;
  GatedCopier copier;
  NcclSide from(kSends), to(kSends, kPatience, &copier);
  FillPool(from.transport->pool(), 8);
  const Reservation reservation = to.receiver.Open(kJob, 0, Range(0, kSends));
  Link link = Connect(&from, &to);
  ASSERT_TRUE(to.recorder.WaitForProbe());
  copier.SetShut(true);
  from.nccl.Hold(true);
  SendWhileOneIsUnderWay(&from, link.outbound.get(), reservation, kSends);
  from.nccl.Hold(false);
  copier.WaitForCopy();  // The first one's, and all others arrive meanwhile.
  ASSERT_TRUE(from.recorder.WaitForSent(kSends));
  link.inbound.reset();  // At once, though it copies.
  EXPECT_EQ(to.receiver.num_in_flight(), 1);
  copier.SetShut(false);
  ASSERT_TRUE(to.nccl.WaitForComms(0));
  ASSERT_TRUE(to.recorder.WaitForReceived(1));
  EXPECT_EQ(to.recorder.received()[0].outcome, FrameOutcome::kVerified);
  ExpectAnotherLinkWorks(&from, &to, 100);  // After what was left of the other's.
  EXPECT_EQ(to.recorder.received().size(), 2u);
  EXPECT_EQ(to.receiver.num_in_flight(), 0);
}

// Whichever of the two has precedence.
TEST(NcclTransportTest, AReceiverWithoutRoomHoldsUpNobodyElse) {
  constexpr int32_t kSends = 8;
  bool seen[2] = {};
  while (!seen[0] || !seen[1]) {
    GatedCopier copier;
    NcclSide from(kSends), full(kSends, kPatience, &copier), other(kSends);
    if (std::exchange(seen[PrecedenceOf(from) < PrecedenceOf(full)], true)) continue;
    const Reservation reservation = full.receiver.Open(kJob, 0, Range(0, kSends));
    Link link = Connect(&from, &full);
    ASSERT_TRUE(full.recorder.WaitForProbe());
    copier.SetShut(true);
    // Groups of one block: two have the slots, and the third waits for them.
    for (int32_t i = 0; i < 2; ++i) {
      Send(&from, link.outbound.get(), reservation, i);
      ASSERT_TRUE(from.recorder.WaitForSent(static_cast<size_t>(i) + 1));
    }
    Send(&from, link.outbound.get(), reservation, 2);
    ExpectAnotherLinkWorks(&from, &other, 100);
    copier.SetShut(false);
    EXPECT_TRUE(full.recorder.WaitForReceived(3));
    EXPECT_TRUE(from.recorder.WaitForSent(4));
  }
}

// ---- A peer that does not keep to it ----

// Streams that a test feeds by hand.
class HandCarrier final : public FrameCarrier {
 public:
  explicit HandCarrier(std::shared_ptr<FrameTarget>* to) : to_(to) {}
  std::string_view name() const override { return "hand"; }
  void Serve(FrameServer* server) override {}
  std::shared_ptr<DialledStream> Dial(const std::string& target, const std::string& token,
                                      std::shared_ptr<FrameTarget> to) override {
    *to_ = std::move(to);
    return dialled_;
  }
  // Until the receiver has said so.
  bool WaitForReady() {
    return dialled_->ready.WaitForNotificationWithTimeout(absl::FromChrono(kPatience));
  }

 private:
  struct Dialled final : DialledStream {
    void Ready() override {
      if (!ready.HasBeenNotified()) ready.Notify();
    }
    void Cancel() override {}
    absl::Notification ready;
  };
  const std::shared_ptr<Dialled> dialled_ = std::make_shared<Dialled>();
  std::shared_ptr<FrameTarget>* const to_;
};

struct Nowhere final : FrameTarget {
  absl::Status OnFrame(const FrameHeader&, std::span<const std::string_view>) override {
    return absl::OkStatus();
  }
  void OnEnded(const absl::Status&) override {}
};

// A receiver whose peer the test is.
struct HandFed {
  HandFed() {
    auto made = std::make_unique<HandCarrier>(&stream);
    carrier = made.get();
    side.transport = *NcclTransport::Create({.pool = FarPool(&side, 4), .api = &nccl},
                                            std::move(made), &side.receiver, &side.recorder);
    inbound = *side.transport->OpenInbound("sender", "", side.OnLost());
    auto answer = *DecodeNcclAddress(inbound->address(), /*senders=*/false);
    EXPECT_EQ(nccl.GetUniqueId(&answer.id.emplace()), NcclResult::kSuccess);
    inbound->Attach(EncodeNcclAddress(answer));
    EXPECT_EQ(nccl.CommInitRank(&comm, 2, *answer.id, 0), NcclResult::kInProgress);
    header = HeaderFor(side.transport->pool(), 1, {.index = 1, .generation = 1}, 1);
  }
  ~HandFed() {
    inbound.reset();
    stream.reset();
    side.transport.reset();
    nccl.CommAbort(comm);
  }

  struct Bare : Side {
  } side;
  FakeNccl nccl;
  NcclComm comm = nullptr;
  HandCarrier* carrier = nullptr;  // The transport's.
  std::shared_ptr<FrameTarget> stream;
  std::unique_ptr<KvInbound> inbound;
  FrameHeader header;
};

TEST(NcclTransportTest, ASenderSaysNothingUnasked) {
  HandFed fed;
  EXPECT_TRUE(absl::IsInvalidArgument(fed.stream->OnFrame(fed.header, {})));
  EXPECT_TRUE(fed.stream->OnFrame(kNoHeader, {}).ok());
  ASSERT_TRUE(fed.carrier->WaitForReady());
  EXPECT_TRUE(fed.stream->OnFrame(kNoHeader, {}).ok());  // Nothing comes of it,
  EXPECT_TRUE(absl::IsInvalidArgument(fed.stream->OnFrame(fed.header, {})));
  EXPECT_TRUE(fed.stream->OnFrame(kNoHeader, {}).ok());  // and it may ask again.
}

TEST(NcclTransportTest, AReceiverIsReadyWhenItIsAsked) {
  NcclSide from(4), to(4);
  auto inbound = *to.transport->OpenInbound("sender", from.target, to.OnLost());
  auto outbound = *from.transport->OpenOutbound(inbound->address(), from.OnLost());
  const auto dialled = LocalCarrier("hand").Dial(
      from.target, DecodeNcclAddress(inbound->address(), /*senders=*/false)->token,
      std::make_shared<Nowhere>());
  dialled->Ready();
  ASSERT_TRUE(from.recorder.WaitForLoss());
  EXPECT_TRUE(absl::IsInvalidArgument(from.recorder.lost()[0])) << from.recorder.lost()[0];
}

TEST(NcclTransportTest, AGroupIsWholeHeadersOfOurBlocksAndNoMoreThanThereIsRoomFor) {
  HandFed fed;
  const auto feed = [&](const FrameHeader& last, size_t count, size_t cut) {
    std::string following;
    for (size_t i = 0; i < count; ++i) {
      following.resize(following.size() + kFrameHeaderBytes);
      PackFrameHeader(i + 1 < count ? fed.header : last, &following[i * kFrameHeaderBytes]);
    }
    following.resize(following.size() - cut);
    // In two pieces, as slices come.
    const std::string_view all = following;
    const std::string_view pieces[] = {all.substr(0, all.size() / 3), all.substr(all.size() / 3)};
    return fed.stream->OnFrame(fed.header, pieces);
  };
  FrameHeader longer = fed.header;
  ++longer.length_bytes;
  EXPECT_TRUE(fed.stream->OnFrame(kNoHeader, {}).ok());
  ASSERT_TRUE(fed.carrier->WaitForReady());
  EXPECT_TRUE(absl::IsInvalidArgument(feed(fed.header, NcclPair::kGroup, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(feed(fed.header, 1, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(feed(longer, NcclPair::kGroup - 1, 0)));
  EXPECT_TRUE(feed(fed.header, NcclPair::kGroup - 1, 0).ok());
}

}  // namespace
}  // namespace tandem
