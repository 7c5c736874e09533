#include "services/server/gated_calls.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

#include "runtime/base/ip_address.h"

namespace tandem {
namespace {

TEST(GatedCallsTest, OneClientHasHalfOfThePlacesAtMost) {
  int rooms = 0;
  const auto calls = std::make_shared<UnservedCalls>(8, [&] { ++rooms; });
  GatedConnection one(calls, "ipv4:127.0.0.1:1"), again(calls, "ipv4:127.0.0.1:2");
  GatedConnection other(calls, "ipv4:127.0.0.2:1");
  EXPECT_EQ(one.client(), "127.0.0.1");
  one.SetOpen(3);
  EXPECT_TRUE(calls->HasRoomOrAwait(one.client()));
  again.SetOpen(1);
  EXPECT_FALSE(calls->HasRoomOrAwait(one.client()));
  EXPECT_TRUE(calls->HasRoomOrAwait(other.client()));
  again.SetOpen(0);
  EXPECT_EQ(rooms, 1);
  again.SetOpen(2);
  again.SetOpen(0);
  EXPECT_EQ(rooms, 1) << "nobody has asked again";
  EXPECT_TRUE(calls->HasRoomOrAwait(one.client()));
}

TEST(GatedCallsTest, AllTogetherHaveThePlacesThatThereAre) {
  int rooms = 0;
  const auto calls = std::make_shared<UnservedCalls>(8, [&] { ++rooms; });
  GatedConnection one(calls, "ipv4:127.0.0.1:1"), two(calls, "ipv4:127.0.0.2:1");
  one.SetOpen(4);
  two.SetOpen(4);
  EXPECT_EQ(calls->count(), 8);
  EXPECT_FALSE(calls->HasRoomOrAwait("127.0.0.3"));
  two.SetOpen(3);
  EXPECT_EQ(rooms, 1);
  EXPECT_TRUE(calls->HasRoomOrAwait("127.0.0.3"));
  two.SetOpen(4);
  EXPECT_FALSE(calls->HasRoomOrAwait("127.0.0.3"));
  calls->Stop();
  two.SetOpen(0);
  EXPECT_EQ(rooms, 1) << "nobody is there any more";
}

TEST(GatedCallsTest, AClientHasOneNameWhateverKindOfSocketItComesTo) {
  sockaddr_storage address{};
  EXPECT_EQ(NameOfPeer(address), kUnixAddress);
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(4711);
  ASSERT_EQ(inet_pton(AF_INET, "10.1.2.3", &v4.sin_addr), 1);
  EXPECT_EQ(NameOfPeer(address), "ipv4:10.1.2.3:4711");
  for (const auto& [text, name] : std::map<std::string, std::string>{
           {"::ffff:10.1.2.3", "ipv4:10.1.2.3:80"}, {"2001:db8::1", "ipv6:[2001:db8::1]:80"}}) {
    address = {};
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(80);
    ASSERT_EQ(inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr), 1);
    EXPECT_EQ(NameOfPeer(address), name);
  }
}

}  // namespace
}  // namespace tandem
