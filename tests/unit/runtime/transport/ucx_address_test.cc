#include "runtime/transport/ucx/ucx_address.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

UcxAddress Good() {
  return {.link = 7,
          .host = "boot/1/2",
          .worker_address = std::string("\0worker", 7),
          .network = true,
          .pool_key = "key",
          .pool_base = 1 << 20,
          .block_bytes = 65536,
          .num_blocks = 100};
}

TEST(UcxAddressTest, SurvivesTheRoundTrip) {
  const auto decoded = DecodeUcxAddress(EncodeUcxAddress(Good()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Good());
}

TEST(UcxAddressTest, EveryTruncationAndExtensionIsRefused) {
  const std::string bytes = EncodeUcxAddress(Good());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeUcxAddress(std::string_view(bytes).substr(0, size)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << size << " bytes";
  }
  EXPECT_FALSE(DecodeUcxAddress(bytes + "x").ok());
}

TEST(UcxAddressTest, PoolsThatCannotBeAreRefused) {
  UcxAddress address = Good();
  address.num_blocks = 0;
  EXPECT_FALSE(DecodeUcxAddress(EncodeUcxAddress(address)).ok());
  address = Good();
  address.block_bytes = -1;
  EXPECT_FALSE(DecodeUcxAddress(EncodeUcxAddress(address)).ok());
  address = Good();
  address.pool_base = ~uint64_t{0} - 10;  // Its end would wrap.
  EXPECT_FALSE(DecodeUcxAddress(EncodeUcxAddress(address)).ok());
}

TEST(UcxAddressTest, OnlyADevicesPoolHasNoKeyAndItSharesNoMemory) {
  UcxAddress address = Good();
  address.pool_key.clear();
  EXPECT_FALSE(DecodeUcxAddress(EncodeUcxAddress(address)).ok());
  address.device = true;
  ASSERT_TRUE(DecodeUcxAddress(EncodeUcxAddress(address)).ok());
  EXPECT_EQ(*DecodeUcxAddress(EncodeUcxAddress(address)), address);
  address.socket_name = "socket";
  EXPECT_FALSE(DecodeUcxAddress(EncodeUcxAddress(address)).ok());
  address.socket_name.clear();
  address.pool_key = "key";
  EXPECT_FALSE(DecodeUcxAddress(EncodeUcxAddress(address)).ok());
}

// Workers of before and of now understand each other while one takes the other's place.
TEST(UcxAddressTest, TheHostsPoolsHaveTheAddressThatTheyAlwaysHad) {
  UcxAddress address = Good();
  EXPECT_EQ(EncodeUcxAddress(address)[0], 1);
  address.device = true;
  address.pool_key.clear();
  EXPECT_EQ(EncodeUcxAddress(address)[0], 2);
}

TEST(UcxAddressTest, ThisHostIsThisHost) { EXPECT_EQ(SharedMemoryHostId(), SharedMemoryHostId()); }

}  // namespace
}  // namespace tandem
