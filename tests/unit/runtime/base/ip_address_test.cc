#include "runtime/base/ip_address.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace tandem {
namespace {

TEST(IpAddressTest, LoopbackIsWhatOnlyThisMachineReaches) {
  for (const char* text : {"127.0.0.1", "127.1.2.3", "127.255.255.255", "::1", "0:0:0:0:0:0:0:1",
                           "::ffff:127.0.0.1", "::ffff:7f01:203"}) {
    EXPECT_TRUE(IsLoopback(text)) << text;
    EXPECT_TRUE(IsIpAddress(text)) << text;
  }
  for (const char* text : {"0.0.0.0", "128.0.0.1", "126.255.255.255", "10.127.0.1", "::", "::2",
                           "::127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "7f00::1"}) {
    EXPECT_FALSE(IsLoopback(text)) << text;
    EXPECT_TRUE(IsIpAddress(text)) << text;
  }
}

TEST(IpAddressTest, NamesAreNoAddresses) {
  for (const char* text :
       {"", "localhost", "127.example.org", "127.0.0.1.nip.io", "127.", "127.1", "127.0.0.1:80",
        "[::1]", "::1%lo", "127.0.0.1 ", "2130706433", "0177.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(text)) << text;
    EXPECT_FALSE(IsIpAddress(text)) << text;
  }
}

TEST(IpAddressTest, AHostAndItsPort) {
  for (const auto& [text, host, port] : std::vector<std::tuple<std::string, std::string, int>>{
           {"127.0.0.1:80", "127.0.0.1", 80},
           {"[::1]:0", "[::1]", 0},
           {"worker-0.workers:65535", "worker-0.workers", 65535}}) {
    const std::optional<HostPort> parts = ParseHostPort(text);
    ASSERT_TRUE(parts.has_value()) << text;
    EXPECT_EQ(parts->host, host);
    EXPECT_EQ(parts->port, port);
  }
  for (const char* text : {"", ":", ":80", "host", "host:", "host:x", "host:65536", "host:-1",
                           "host:+1", "host: 1", "host:1 ", "host:99999999999", "[::1]"}) {
    EXPECT_FALSE(ParseHostPort(text).has_value()) << text;
  }
}

TEST(IpAddressTest, BracketsComeInPairs) {
  EXPECT_EQ(WithoutBrackets("[::1]"), "::1");
  for (const char* text : {"::1", "[::1", "::1]", "[]", "[", "", "localhost"}) {
    EXPECT_EQ(WithoutBrackets(text), text);
  }
}

}  // namespace
}  // namespace tandem
