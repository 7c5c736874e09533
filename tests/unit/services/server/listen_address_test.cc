#include "services/server/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(ListenAddressTest, LoopbackAddressesAreRead) {
  for (const auto& [text, shown] : std::vector<std::pair<std::string, std::string>>{
           {"127.0.0.1:8000", "127.0.0.1:8000"},
           {"127.1.2.3:0", "127.1.2.3:0"},
           {"localhost:80", "127.0.0.1:80"},
           {"[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80"},
           {"[::1]:65535", "[::1]:65535"}}) {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(text, "it needs TLS");
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), shown);
  }
}

TEST(ListenAddressTest, PublicAddressesNeedTheOperatorsWord) {
  for (const std::string text :
       {"0.0.0.0:80", "10.0.0.1:80", "[::]:80", "128.0.0.1:80", "[::ffff:10.0.0.1]:80"}) {
    const absl::Status status = ParseListenAddress(text, "it needs TLS").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("loopback address: it needs TLS"));
    EXPECT_TRUE(ParseListenAddress(text, "").ok()) << text;
  }
}

TEST(ListenAddressTest, WhatIsNoAddressIsRefused) {
  for (const std::string text :
       {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1",
        "name:80", "::1:80x", "[::1]", "256.0.0.1:80", "127.0.0.1:8 0", "127.example.org:80",
        "[localhost]:80"}) {
    EXPECT_EQ(ParseListenAddress(text, "").status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace tandem
