// Who may use the links of the UCX transport, and who is hung up on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "runtime/transport/ucx/socket_greeting.h"
#include "runtime/transport/ucx/ucx_address.h"
#include "tests/unit/runtime/transport/ucx_side.h"

namespace tandem {
namespace {

constexpr int32_t kBlocks = 64;

// A socket with a name in the abstract namespace.
class AbstractSocket {
 public:
  explicit AbstractSocket(const std::string& name)
      : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)),
        length_(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) {
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
  }
  ~AbstractSocket() { close(fd_); }
  int Connect() const { return connect(fd_, address(), length_); }
  int Listen() const { return bind(fd_, address(), length_) != 0 ? -1 : listen(fd_, 1); }
  int fd() const { return fd_; }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  const int fd_;
  const socklen_t length_;
  sockaddr_un address_ = {};
};

const std::string kSecretText(32, 's'), kOtherText(32, 'o');

// Somebody who knows where to send, but was told no link, and guesses.
TEST(UcxTrustTest, FramesToGuessedLinksLandNowhere) {
  for (const char* kind : {"ucx", "ucx-network", "ucx-device"}) {
    SCOPED_TRACE(kind);
    auto from = MakeSide(kind, kBlocks);
    auto to = MakeSide(kind, kBlocks);
    FillPool(from->transport->pool(), 14);
    const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, kBlocks));
    Link link = Connect(from.get(), to.get());
    const auto told = DecodeUcxAddress(link.inbound->address());
    ASSERT_TRUE(told.ok()) << told.status();
    std::vector<std::unique_ptr<KvOutbound>> guesses;
    for (uint64_t guess = 0; guess < 32; ++guess) {
      UcxAddress address = *told;
      // From the beginning, and around one that is known.
      address.link = guess < 16 ? guess : told->link + guess - 15;
      auto outbound =
          from->transport->OpenOutbound(EncodeUcxAddress(address), [](const absl::Status&) {});
      ASSERT_TRUE(outbound.ok()) << outbound.status();
      (*outbound)->Send(HeaderFor(from->transport->pool(), 1, reservation, 1), 1, guess);
      guesses.push_back(*std::move(outbound));
    }
    link.outbound->Send(HeaderFor(from->transport->pool(), 2, reservation, 2), 2, 100);
    ASSERT_TRUE(to->recorder.WaitForReceived(1));
    // Over the network they are sent whatever becomes of them; here nobody ever takes them.
    if (kind == std::string("ucx")) guesses.clear();
    ASSERT_TRUE(from->recorder.WaitForSent(33));
    // All of one sender's come in order: what follows them all says that they are through.
    link.outbound->Send(HeaderFor(from->transport->pool(), 3, reservation, 3), 3, 101);
    ASSERT_TRUE(to->recorder.WaitForReceived(2));
    for (const ReceivedFrame& frame : to->recorder.received()) EXPECT_NE(frame.ordinal, 1);
  }
}

TEST(UcxTrustTest, LinkNumbersFollowNoRule) {
  auto side = MakeSide("ucx", kBlocks);
  std::set<uint64_t> numbers;
  for (int i = 0; i < 8; ++i) {
    const auto inbound = side->transport->OpenInbound("sender", "", side->OnLost());
    ASSERT_TRUE(inbound.ok()) << inbound.status();
    numbers.insert(DecodeUcxAddress((*inbound)->address())->link);
  }
  ASSERT_EQ(numbers.size(), 8u);
  uint64_t before = 0;
  for (const uint64_t number : numbers) {
    EXPECT_GT(number - before, uint64_t{1} << 20);
    before = number;
  }
}

TEST(UcxTrustTest, ASenderWithoutTheSecretIsHungUpOn) {
  auto from = MakeSide("ucx", kBlocks, *FleetSecret::Parse(kOtherText));
  auto to = MakeSide("ucx", kBlocks, *FleetSecret::Parse(kSecretText));
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, kBlocks));
  Link link = Connect(from.get(), to.get());
  link.outbound->Send(HeaderFor(from->transport->pool(), 1, reservation, 1), 1, 1);
  ASSERT_TRUE(from->recorder.WaitForSent(1));
  EXPECT_FALSE(from->recorder.sent().at(1));
  EXPECT_TRUE(from->recorder.WaitForLoss());
  EXPECT_TRUE(to->recorder.received().empty());
}

// It would not mind what it is answered.
TEST(UcxTrustTest, ASenderWithoutTheSecretIsAnsweredNothing) {
  auto to = MakeSide("ucx", kBlocks, *FleetSecret::Parse(kSecretText));
  const auto inbound = to->transport->OpenInbound("sender", "", to->OnLost());
  ASSERT_TRUE(inbound.ok()) << inbound.status();
  const UcxAddress address = *DecodeUcxAddress((*inbound)->address());
  const AbstractSocket stranger(address.socket_name);
  ASSERT_EQ(stranger.Connect(), 0) << std::strerror(errno);
  const SocketGreeting greeting =
      MakeGreeting(*FleetSecret::Parse(kOtherText), address.socket_name, address.link);
  ASSERT_EQ(send(stranger.fd(), &greeting, sizeof(greeting), MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof(greeting)));
  char answer[64];
  EXPECT_LE(recv(stranger.fd(), answer, sizeof(answer), 0), 0);
}

TEST(UcxTrustTest, AReceiverThatProvesNothingIsOfferedNothing) {
  const FleetSecret secret = *FleetSecret::Parse(kSecretText);
  auto from = MakeSide("ucx", kBlocks, secret);
  auto to = MakeSide("ucx", kBlocks, secret);
  const auto inbound = to->transport->OpenInbound("sender", "", to->OnLost());
  ASSERT_TRUE(inbound.ok()) << inbound.status();
  UcxAddress address = *DecodeUcxAddress((*inbound)->address());
  address.socket_name += "-taken";
  const AbstractSocket impostor(address.socket_name);
  ASSERT_EQ(impostor.Listen(), 0) << std::strerror(errno);
  auto outbound = from->transport->OpenOutbound(EncodeUcxAddress(address), from->OnLost());
  ASSERT_TRUE(outbound.ok()) << outbound.status();
  (*outbound)->Send(HeaderFor(from->transport->pool(), 1, {.index = 1, .generation = 1}, 1), 1, 1);
  const int fd = accept(impostor.fd(), nullptr, nullptr);
  ASSERT_GE(fd, 0);
  SocketGreeting greeting;
  ASSERT_EQ(recv(fd, &greeting, sizeof(greeting), 0), static_cast<ssize_t>(sizeof(greeting)));
  // It was told a proof, and gives it back.
  ASSERT_EQ(send(fd, greeting.proof, sizeof(greeting.proof), 0),
            static_cast<ssize_t>(sizeof(greeting.proof)));
  ASSERT_TRUE(from->recorder.WaitForSent(1));
  EXPECT_FALSE(from->recorder.sent().at(1));
  EXPECT_TRUE(from->recorder.WaitForLoss());
  char more = 0;
  EXPECT_EQ(recv(fd, &more, sizeof(more), 0), 0) << "not one offer";
  close(fd);
}

// This thread is another user's while it lives; where it may not be, `possible` is false.
class AnotherUser {
 public:
  AnotherUser() : possible(syscall(SYS_setresuid, -1, 12345, -1) == 0) {}
  ~AnotherUser() {
    if (!possible) return;
    EXPECT_EQ(syscall(SYS_setresuid, -1, own_, -1), 0);
  }

 private:
  const uid_t own_ = geteuid();

 public:
  const bool possible;
};

TEST(UcxTrustTest, AnotherUsersProcessIsHungUpOnWhateverItKnows) {
  auto to = MakeSide("ucx", kBlocks);
  const auto inbound = to->transport->OpenInbound("sender", "", to->OnLost());
  ASSERT_TRUE(inbound.ok()) << inbound.status();
  const auto address = DecodeUcxAddress((*inbound)->address());
  const AbstractSocket stranger(address->socket_name);
  {
    const AnotherUser another;
    if (!another.possible) GTEST_SKIP() << "no right to be another user";
    ASSERT_EQ(stranger.Connect(), 0);
  }
  const SocketGreeting greeting = MakeGreeting(FleetSecret(), address->socket_name, address->link);
  send(stranger.fd(), &greeting, sizeof(greeting), MSG_NOSIGNAL);
  char answer[kProofBytes];
  EXPECT_LE(recv(stranger.fd(), answer, sizeof(answer), 0), 0);
}

TEST(UcxTrustTest, AnotherUsersSocketIsNotEvenGreeted) {
  auto from = MakeSide("ucx", kBlocks);
  auto to = MakeSide("ucx", kBlocks);
  const auto inbound = to->transport->OpenInbound("sender", "", to->OnLost());
  ASSERT_TRUE(inbound.ok()) << inbound.status();
  UcxAddress address = *DecodeUcxAddress((*inbound)->address());
  address.socket_name += "-taken";
  const AbstractSocket impostor(address.socket_name);
  {
    const AnotherUser another;
    if (!another.possible) GTEST_SKIP() << "no right to be another user";
    ASSERT_EQ(impostor.Listen(), 0);
  }
  const auto outbound = from->transport->OpenOutbound(EncodeUcxAddress(address), from->OnLost());
  ASSERT_TRUE(outbound.ok()) << outbound.status();
  EXPECT_TRUE(from->recorder.WaitForLoss());
  const int fd = accept(impostor.fd(), nullptr, nullptr);
  ASSERT_GE(fd, 0);
  char greeting = 0;
  EXPECT_EQ(recv(fd, &greeting, sizeof(greeting), 0), 0);
  close(fd);
}

// Connections that name a link which never comes are forgotten when they hang up: more of them
// than may wait at once leave room for a real one.
TEST(UcxTrustTest, StrangersThatHangUpLeaveRoomForLinks) {
  constexpr int kStrangers = 600;
  auto from = MakeSide("ucx", kBlocks);
  auto to = MakeSide("ucx", kBlocks);
  FillPool(from->transport->pool(), 13);
  auto inbound = to->transport->OpenInbound("sender", from->target, to->OnLost());
  ASSERT_TRUE(inbound.ok()) << inbound.status();
  const auto address = DecodeUcxAddress((*inbound)->address());
  ASSERT_TRUE(address.ok()) << address.status();
  for (int i = 0; i < kStrangers; ++i) {
    const AbstractSocket stranger(address->socket_name);
    ASSERT_EQ(stranger.Connect(), 0);
    const SocketGreeting greeting =
        MakeGreeting(FleetSecret(), address->socket_name, 1'000'000 + static_cast<uint64_t>(i));
    ASSERT_EQ(send(stranger.fd(), &greeting, sizeof(greeting), 0),
              static_cast<ssize_t>(sizeof(greeting)));
  }
  Link link = Connect(from.get(), to.get());
  const Reservation reservation = to->receiver.Open(kJob, 0, Range(0, kBlocks));
  link.outbound->Send(HeaderFor(from->transport->pool(), 2, reservation, 2), 2, 1);
  EXPECT_TRUE(from->recorder.WaitForSent(1));
  EXPECT_TRUE(to->recorder.WaitForReceived(1));
}

}  // namespace
}  // namespace tandem
