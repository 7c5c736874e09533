#include "services/server/listen_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

constexpr char kAnyPort[] = "127.0.0.1:0";

std::string AddressOf(const ListenSocket& socket) {
  return absl::StrCat("127.0.0.1:", socket.port());
}

int Connect(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address{.sin_family = AF_INET,
                            .sin_port = htons(static_cast<uint16_t>(port)),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                            .sin_zero = {}};
  if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return descriptor;
  }
  close(descriptor);
  return -1;
}

// Whether another user can bind it, with whatever it may say of the socket.
bool OthersCanTake(int port) {
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(2);
    for (const uint32_t host : {INADDR_LOOPBACK, INADDR_ANY}) {
      for (const int reuse : {0, 1}) {
        for (const int share : {0, 1}) {
          const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
          setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
          setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &share, sizeof(share));
          const sockaddr_in address{.sin_family = AF_INET,
                                    .sin_port = htons(static_cast<uint16_t>(port)),
                                    .sin_addr = {.s_addr = htonl(host)},
                                    .sin_zero = {}};
          if (bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
            _exit(1);
          }
          close(descriptor);
        }
      }
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2);
  return WEXITSTATUS(status) == 1;
}

TEST(ListenSocketTest, AHeldPortIsForThisUserWhetherAnybodyListensOrNot) {
  if (getuid() != 0) GTEST_SKIP() << "it takes root to become another user";
  const auto held = ListenSocket::Hold(kAnyPort);
  ASSERT_TRUE(held.ok()) << held.status();
  for (int life = 0; life < 3; ++life) {
    EXPECT_FALSE(OthersCanTake(held->port()));
    EXPECT_EQ(Connect(held->port()), -1) << "nobody listens";
    auto server = ListenSocket::Open(AddressOf(*held));
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_EQ(server->port(), held->port());
    EXPECT_FALSE(OthersCanTake(held->port()));
    // What is left of a connection that the server has closed does not keep the next life out.
    const int client = Connect(held->port());
    ASSERT_GE(client, 0);
    int accepted = -1;
    while (accepted < 0) accepted = accept(server->descriptor(), nullptr, nullptr);
    close(accepted);
    close(client);
  }
}

TEST(ListenSocketTest, TheKernelIsToldHowLongAPeerMayBeSilentOrLeaveThingsUnread) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto said = [descriptor](int level, int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    getsockopt(descriptor, level, name, &value, &size);
    return value;
  };
  using std::chrono::milliseconds;
  NoticeLostPeers(descriptor, milliseconds(2500), milliseconds(20'000), milliseconds(7000));
  EXPECT_EQ(said(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(said(IPPROTO_TCP, TCP_KEEPIDLE), 3);
  EXPECT_EQ(said(IPPROTO_TCP, TCP_KEEPINTVL) * said(IPPROTO_TCP, TCP_KEEPCNT), 20);
  EXPECT_EQ(said(IPPROTO_TCP, TCP_USER_TIMEOUT), 7000);
  NoticeLostPeers(descriptor, milliseconds(1), milliseconds(1), milliseconds(1));
  EXPECT_EQ(said(IPPROTO_TCP, TCP_KEEPIDLE), 1) << "0 would be refused";
  close(descriptor);
}

int NumDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<int>(std::distance(begin(open), end(open)));
}

TEST(ListenSocketTest, AFileThatIsNoSocketIsLeftAsItIs) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "a user's");
  const int before = NumDescriptors();
  EXPECT_EQ(ListenSocket::Open("unix:" + path).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(NumDescriptors(), before);
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "a user's");
}

TEST(ListenSocketTest, APathHasRoomInAnAddress) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  const TempFolder folder;
  const std::string longest =
      folder.path() + "/" + std::string(kMost - folder.path().size() - 1, 'x');
  EXPECT_TRUE(ListenSocket::Open("unix:" + longest).ok());
  for (const std::string& path : {std::string(), longest + "x"}) {
    EXPECT_NE(ListenSocket::Open("unix:" + path).status().message().find("empty or too long"),
              std::string::npos);
  }
}

TEST(ListenSocketTest, TwoServersDoNotShareAPort) {
  const auto held = ListenSocket::Hold(kAnyPort);
  ASSERT_TRUE(held.ok()) << held.status();
  const auto free = ListenSocket::Open(kAnyPort);
  ASSERT_TRUE(free.ok()) << free.status();
  const auto server = ListenSocket::Open(AddressOf(*held));
  ASSERT_TRUE(server.ok()) << server.status();
  const int before = NumDescriptors();
  for (const ListenSocket* taken : {&*server, &*free}) {
    const auto second = ListenSocket::Open(AddressOf(*taken));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(second.status().message().find(std::strerror(EADDRINUSE)), std::string::npos);
  }
  EXPECT_FALSE(ListenSocket::Hold(AddressOf(*free)).ok());
  EXPECT_EQ(NumDescriptors(), before);
}

}  // namespace
}  // namespace tandem
