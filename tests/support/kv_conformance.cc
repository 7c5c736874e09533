// Two transports in this process, and one in a process that is stopped or killed.

#include "tests/support/kv_conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "runtime/transport/kv_transport.h"

namespace tandem {
namespace {

class KvTransportTest : public testing::TestWithParam<KvKind> {};

TEST_P(KvTransportTest, ThousandBlocksArriveWholeInAnyOrder) {
  constexpr int32_t kBlocks = 1000;
  constexpr uint64_t kSeed = 20'261'121;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  auto from = GetParam().make(kBlocks);
  auto to = GetParam().make(kBlocks);
  FillPool(from->transport->pool(), kSeed);
  std::vector<int32_t> places = Range(0, kBlocks);
  std::vector<int32_t> order = Range(0, kBlocks);
  Random random(kSeed + 1);
  for (int32_t i = kBlocks - 1; i > 0; --i) {
    std::swap(places[i], places[random.Below(static_cast<uint64_t>(i) + 1)]);
    std::swap(order[i], order[random.Below(static_cast<uint64_t>(i) + 1)]);
  }
  const Reservation reservation = to->receiver.Open(kJob, 0, places);
  Link link = Connect(from.get(), to.get());
  for (const int32_t ordinal : order) {
    link.outbound->Send(HeaderFor(from->transport->pool(), ordinal, reservation, ordinal), ordinal,
                        static_cast<uint64_t>(ordinal));
  }
  ASSERT_TRUE(to->recorder.WaitForReceived(kBlocks));
  ASSERT_TRUE(from->recorder.WaitForSent(kBlocks));
  std::set<int32_t> ordinals;
  for (const ReceivedFrame& frame : to->recorder.received()) {
    EXPECT_EQ(frame.outcome, FrameOutcome::kVerified);
    EXPECT_EQ(frame.job, kJob);
    ordinals.insert(frame.ordinal);
  }
  EXPECT_EQ(ordinals.size(), kBlocks);
  for (const auto& [id, ok] : from->recorder.sent()) EXPECT_TRUE(ok) << id;
  for (int32_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(std::memcmp(HostBlock(from->transport->pool(), i),
                          HostBlock(to->transport->pool(), places[i]), kBlockBytes),
              0)
        << "block " << i;
  }
}

TEST_P(KvTransportTest, LinkIsProbedAndReported) {
  auto from = GetParam().make(64);
  auto to = GetParam().make(64);
  Link link = Connect(from.get(), to.get());
  ASSERT_TRUE(to->recorder.WaitForProbe());
  const LinkReport report = to->recorder.reports().front();
  EXPECT_EQ(report.peer, "sender");
  EXPECT_GT(report.bytes_per_second, 0);
  EXPECT_EQ(report.path, GetParam().path);
  link.inbound.reset();
  EXPECT_TRUE(to->recorder.WaitForClosed(report.peer, report.path));
}

TEST_P(KvTransportTest, FrameOfAStaleGenerationIsDroppedAndCompletes) {
  auto from = GetParam().make(8);
  auto to = GetParam().make(8);
  FillPool(from->transport->pool(), 5);
  const Reservation stale = to->receiver.Open(kJob, 0, Range(0, 4));
  EXPECT_TRUE(to->receiver.Close(stale).empty());
  const Reservation fresh = to->receiver.Open(kJob, 0, Range(0, 4));
  Link link = Connect(from.get(), to.get());
  link.outbound->Send(HeaderFor(from->transport->pool(), 1, stale, 1), 1, 100);
  link.outbound->Send(HeaderFor(from->transport->pool(), 2, fresh, 2), 2, 101);
  ASSERT_TRUE(to->recorder.WaitForReceived(1));
  ASSERT_TRUE(from->recorder.WaitForSent(2));
  ASSERT_EQ(to->recorder.received().size(), 1u);
  EXPECT_EQ(to->recorder.received()[0].ordinal, 2);
  const std::vector<std::byte> untouched(kBlockBytes);
  EXPECT_EQ(std::memcmp(HostBlock(to->transport->pool(), 1), untouched.data(), kBlockBytes), 0);
}

TEST_P(KvTransportTest, FlippedBitIsFoundByTheReceiver) {
  auto from = GetParam().make(8);
  auto to = GetParam().make(8);
  FillPool(from->transport->pool(), 6);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 2));
  Link link = Connect(from.get(), to.get());
  const FrameHeader header = HeaderFor(from->transport->pool(), 0, reservation, 0);
  HostBlock(from->transport->pool(), 0)[12'345] ^= std::byte{4};
  link.outbound->Send(header, 0, 1);
  ASSERT_TRUE(to->recorder.WaitForReceived(1));
  EXPECT_EQ(to->recorder.received()[0].outcome, FrameOutcome::kCorrupt);
  ASSERT_TRUE(from->recorder.WaitForSent(1));  // Its block may be read until then.
  HostBlock(from->transport->pool(), 0)[12'345] ^= std::byte{4};
  link.outbound->Send(header, 0, 2);
  ASSERT_TRUE(to->recorder.WaitForReceived(2));
  EXPECT_EQ(to->recorder.received()[1].outcome, FrameOutcome::kVerified);
}

TEST_P(KvTransportTest, AFrameOfAnotherLengthEndsTheLinkAndHasNoPlace) {
  auto from = GetParam().make(8);
  auto to = GetParam().make(8);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 4));
  Link link = Connect(from.get(), to.get());
  FrameHeader header = HeaderFor(from->transport->pool(), 1, reservation, 1);
  header.length_bytes -= 1;
  link.outbound->Send(header, 1, 1);
  EXPECT_TRUE(to->recorder.WaitForLoss());
  EXPECT_TRUE(to->recorder.received().empty());
  link.outbound.reset();
  EXPECT_TRUE(from->recorder.WaitForSent(1));
}

TEST_P(KvTransportTest, AFrameOfAnotherShardEndsTheLinkAndHasNoPlace) {
  auto from = GetParam().make(8);
  auto to = GetParam().make(8);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 4));
  Link link = Connect(from.get(), to.get());
  FrameHeader header = HeaderFor(from->transport->pool(), 1, reservation, 1);
  header.shard = {.index = 0, .count = 2};
  link.outbound->Send(header, 1, 1);
  EXPECT_TRUE(to->recorder.WaitForLoss());
  ASSERT_EQ(to->recorder.lost().size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(to->recorder.lost()[0])) << to->recorder.lost()[0];
  EXPECT_TRUE(to->recorder.received().empty());
  link.outbound.reset();
  EXPECT_TRUE(from->recorder.WaitForSent(1));
}

TEST_P(KvTransportTest, ClosingTheSenderCompletesEverySendOnce) {
  constexpr size_t kSends = 500;
  auto from = GetParam().make(16);
  auto to = GetParam().make(16);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 16));
  Link link = Connect(from.get(), to.get());
  const FrameHeader header = HeaderFor(from->transport->pool(), 0, reservation, 0);
  for (size_t i = 0; i < kSends; ++i) link.outbound->Send(header, 0, i);
  link.outbound.reset();
  EXPECT_TRUE(from->recorder.WaitForSent(kSends));
}

TEST_P(KvTransportTest, AWithdrawnFrameNeverTravelsAndEveryOtherDoes) {
  constexpr uint64_t kSends = 60;  // More than a link has under way at once.
  auto from = GetParam().make(64);
  auto to = GetParam().make(64);
  FillPool(from->transport->pool(), 7);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 64));
  auto inbound = to->transport->OpenInbound("sender", from->target, to->OnLost());
  ASSERT_TRUE(inbound.ok()) << inbound.status();
  auto outbound = from->transport->OpenOutbound((*inbound)->address(), from->OnLost());
  ASSERT_TRUE(outbound.ok()) << outbound.status();
  for (uint64_t i = 0; i < kSends; ++i) {
    const auto block = static_cast<int32_t>(i);
    (*outbound)->Send(HeaderFor(from->transport->pool(), block, reservation, block), block, i);
  }
  (*outbound)->Withdraw(kSends - 1);
  (*outbound)->Withdraw(kSends + 1);                 // Never sent.
  const bool waits = GetParam().waits_for_receiver;  // Else it may have left already.
  if (waits) {
    ASSERT_TRUE(from->recorder.WaitForSent(1));
    EXPECT_EQ(from->recorder.sent(), (std::map<uint64_t, bool>{{kSends - 1, false}}));
  }
  (*inbound)->Attach((*outbound)->address());
  ASSERT_TRUE(to->recorder.WaitForReceived(kSends - 1));
  ASSERT_TRUE(from->recorder.WaitForSent(kSends));
  if (!waits) return;
  for (const auto& [id, ok] : from->recorder.sent()) EXPECT_EQ(ok, id != kSends - 1) << id;
  EXPECT_EQ(to->recorder.received().size(), kSends - 1);
}

TEST_P(KvTransportTest, FramesOfAClosedReceiverGetNoPlace) {
  auto from = GetParam().make(16);
  auto to = GetParam().make(16);
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 16));
  Link link = Connect(from.get(), to.get());
  const FrameHeader header = HeaderFor(from->transport->pool(), 0, reservation, 0);
  link.outbound->Send(header, 0, 1);
  ASSERT_TRUE(to->recorder.WaitForReceived(1));
  link.inbound.reset();
  for (uint64_t i = 2; i < 20; ++i) {
    link.outbound->Send(HeaderFor(from->transport->pool(), 0, reservation, static_cast<int>(i) - 1),
                        0, i);
  }
  link.outbound.reset();
  EXPECT_TRUE(from->recorder.WaitForSent(19));
  to->receiver.Close(reservation);
  // One may be landing as the link closes.
  EXPECT_TRUE(to->recorder.WaitUntil([&] { return to->receiver.num_in_flight() == 0; }));
}

TEST_P(KvTransportTest, ManyLinksOpenAndCloseOverOnePair) {
  auto from = GetParam().make(16);
  auto to = GetParam().make(16);
  FillPool(from->transport->pool(), 9);
  for (uint64_t round = 0; round < 20; ++round) {
    const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, 16));
    Link link = Connect(from.get(), to.get());
    for (int32_t i = 0; i < 16; ++i) {
      link.outbound->Send(HeaderFor(from->transport->pool(), i, reservation, i), i,
                          round * 16 + static_cast<uint64_t>(i));
    }
    ASSERT_TRUE(to->recorder.WaitForReceived((round + 1) * 16)) << "round " << round;
    ASSERT_TRUE(from->recorder.WaitForSent((round + 1) * 16)) << "round " << round;
    EXPECT_TRUE(to->receiver.Close(reservation).empty());
  }
}

TEST_P(KvTransportTest, AddressesThatAreNoneAreRefused) {
  auto from = GetParam().make(4);
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(5000, '\xff')}) {
    EXPECT_EQ(from->transport->OpenOutbound(bytes, nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// ---- Another process ----

// Reads or writes all of `bytes` on a pipe.
void PipeWrite(int fd, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  ASSERT_EQ(write(fd, &size, sizeof(size)), static_cast<ssize_t>(sizeof(size)));
  ASSERT_EQ(write(fd, text.data(), size), static_cast<ssize_t>(size));
}
std::string PipeRead(int fd) {
  uint32_t size = 0;
  if (read(fd, &size, sizeof(size)) != sizeof(size)) return {};
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = read(fd, text.data() + done, size - done);
    if (got <= 0) return {};
    done += static_cast<size_t>(got);
  }
  return text;
}

constexpr int kPeerInput = 10;
constexpr int kPeerOutput = 11;

// A receiver in a process of its own, which does nothing but receive until it is killed.
class PeerProcess {
 public:
  explicit PeerProcess(const std::string& kind) {
    int down[2], up[2];
    EXPECT_EQ(pipe(down), 0);
    EXPECT_EQ(pipe(up), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(down[0], kPeerInput);
      dup2(up[1], kPeerOutput);
      for (const int fd : {down[0], down[1], up[0], up[1]}) {
        if (fd != kPeerInput && fd != kPeerOutput) close(fd);
      }
      execl("/proc/self/exe", "kv_conformance", "--peer", kind.c_str(), nullptr);
      _exit(127);
    }
    close(down[0]);
    close(up[1]);
    input_ = down[1];
    output_ = up[0];
  }
  ~PeerProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(input_);
    close(output_);
  }
  void Signal(int signal) { kill(pid_, signal); }
  void Tell(const std::string& text) { PipeWrite(input_, text); }
  std::string Hear() { return PipeRead(output_); }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
};

constexpr int32_t kPeerBlocks = 64;

int PeerMain(const std::string& name) {
  const std::vector<KvKind> kinds = KvKinds();
  const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const KvKind& each) { return each.name == name; });
  if (kind == kinds.end()) return 1;
  auto side = kind->make(kPeerBlocks);
  const std::string target = PipeRead(kPeerInput);
  auto inbound = side->transport->OpenInbound("sender", target, side->OnLost());
  if (!inbound.ok()) return 1;
  const Reservation reservation = side->receiver.Open(kJob, 0, Range(0, kPeerBlocks));
  PipeWrite(kPeerOutput, (*inbound)->address());
  (*inbound)->Attach(PipeRead(kPeerInput));
  if (!side->recorder.WaitForProbe()) return 1;
  PipeWrite(kPeerOutput,
            std::string(reinterpret_cast<const char*>(&reservation), sizeof(reservation)));
  for (size_t count = 1;; ++count) {  // One word for each frame that arrives, until the end.
    if (side->recorder.WaitForReceived(count)) PipeWrite(kPeerOutput, "frame");
  }
}

struct PeerLink {
  std::unique_ptr<KvOutbound> outbound;
  Reservation reservation;
};

PeerLink ConnectToPeer(Side* from, PeerProcess* peer) {
  PeerLink link;
  peer->Tell(from->target.empty() ? "none" : from->target);
  auto outbound = from->transport->OpenOutbound(peer->Hear(), from->OnLost());
  EXPECT_TRUE(outbound.ok()) << outbound.status();
  link.outbound = *std::move(outbound);
  peer->Tell(link.outbound->address());
  const std::string reservation = peer->Hear();
  EXPECT_EQ(reservation.size(), sizeof(link.reservation));
  std::memcpy(&link.reservation, reservation.data(), sizeof(link.reservation));
  return link;
}

class KvPeerProcessTest : public testing::TestWithParam<KvKind> {};

TEST_P(KvPeerProcessTest, BlocksReachAnotherProcess) {
  auto from = GetParam().make(kPeerBlocks);
  FillPool(from->transport->pool(), 4);
  PeerProcess peer(GetParam().name);
  PeerLink link = ConnectToPeer(from.get(), &peer);
  for (int32_t i = 0; i < kPeerBlocks; ++i) {
    link.outbound->Send(HeaderFor(from->transport->pool(), i, link.reservation, i), i,
                        static_cast<uint64_t>(i));
  }
  for (int32_t i = 0; i < kPeerBlocks; ++i) EXPECT_EQ(peer.Hear(), "frame");
  EXPECT_TRUE(from->recorder.WaitForSent(kPeerBlocks));
}

// The Session notices the death and destroys its link; every send must have completed then.
TEST_P(KvPeerProcessTest, EverySendCompletesWhenThePeerIsKilledMidTransfer) {
  constexpr size_t kSends = 5000;
  for (int round = 0; round < 5; ++round) {
    auto from = GetParam().make(kPeerBlocks);
    PeerProcess peer(GetParam().name);
    PeerLink link = ConnectToPeer(from.get(), &peer);
    const FrameHeader header = HeaderFor(from->transport->pool(), 0, link.reservation, 0);
    for (size_t i = 0; i < kSends; ++i) {
      link.outbound->Send(header, 0, i);
      if (i == kSends / 2) {
        ASSERT_TRUE(from->recorder.WaitForSent(1));
        peer.Signal(SIGKILL);
      }
    }
    link.outbound.reset();
    EXPECT_TRUE(from->recorder.WaitForSent(kSends)) << "round " << round;
    // The transport works on with others.
    auto other = GetParam().make(kPeerBlocks);
    FillPool(from->transport->pool(), 11);
    const Reservation reservation = other->receiver.Open(kJob, 0, Range(0, kPeerBlocks));
    Link second = Connect(from.get(), other.get());
    second.outbound->Send(HeaderFor(from->transport->pool(), 3, reservation, 3), 3, kSends);
    EXPECT_TRUE(other->recorder.WaitForReceived(1)) << "round " << round;
  }
}

TEST_P(KvPeerProcessTest, StoppedPeerHoldsUpNoOtherLink) {
  constexpr size_t kSends = 5000;
  auto from = GetParam().make(kPeerBlocks);
  FillPool(from->transport->pool(), 12);
  PeerProcess peer(GetParam().name);
  PeerLink link = ConnectToPeer(from.get(), &peer);
  peer.Signal(SIGSTOP);
  const FrameHeader header = HeaderFor(from->transport->pool(), 0, link.reservation, 0);
  for (size_t i = 0; i < kSends; ++i) link.outbound->Send(header, 0, i);
  auto other = GetParam().make(kPeerBlocks);
  const Reservation reservation = other->receiver.Open(kJob, 0, Range(0, kPeerBlocks));
  Link second = Connect(from.get(), other.get());
  for (int32_t i = 0; i < kPeerBlocks; ++i) {
    second.outbound->Send(HeaderFor(from->transport->pool(), i, reservation, i), i,
                          kSends + static_cast<uint64_t>(i));
  }
  EXPECT_TRUE(other->recorder.WaitForReceived(kPeerBlocks));
  link.outbound.reset();
  EXPECT_TRUE(from->recorder.WaitForSent(kSends + kPeerBlocks));
}

std::vector<KvKind> KindsAcrossProcesses() {
  std::vector<KvKind> kinds = KvKinds();
  std::erase_if(kinds, [](const KvKind& kind) { return !kind.crosses_processes; });
  return kinds;
}
std::string NameOf(const testing::TestParamInfo<KvKind>& kind) { return kind.param.name; }

INSTANTIATE_TEST_SUITE_P(All, KvTransportTest, testing::ValuesIn(KvKinds()), NameOf);
INSTANTIATE_TEST_SUITE_P(All, KvPeerProcessTest, testing::ValuesIn(KindsAcrossProcesses()), NameOf);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KvPeerProcessTest);

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--peer") return tandem::PeerMain(argv[2]);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
