#include "runtime/transport/nccl/nccl_address.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

NcclAddress Sample(bool senders) {
  NcclAddress address{.token = "0123456789abcdef", .block_bytes = 4096, .precedence = 77};
  if (senders) std::memset(address.id.emplace().internal, 'i', sizeof(NcclUniqueId));
  return address;
}

TEST(NcclAddressTest, BothEndsComeBackAsTheyWere) {
  for (const bool senders : {false, true}) {
    const auto back = DecodeNcclAddress(EncodeNcclAddress(Sample(senders)), senders);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->token, Sample(senders).token);
    EXPECT_EQ(back->block_bytes, 4096);
    EXPECT_EQ(back->precedence, 77u);
    ASSERT_EQ(back->id.has_value(), senders);
    if (senders) {
      EXPECT_EQ(std::string(back->id->internal, sizeof(NcclUniqueId)),
                std::string(sizeof(NcclUniqueId), 'i'));
    }
  }
}

TEST(NcclAddressTest, OtherLengthsVersionsAndSizesAreRefused) {
  for (const bool senders : {false, true}) {
    const std::string whole = EncodeNcclAddress(Sample(senders));
    EXPECT_FALSE(DecodeNcclAddress(whole, !senders).ok());
    EXPECT_FALSE(DecodeNcclAddress(whole + "x", senders).ok());
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_TRUE(
          absl::IsInvalidArgument(DecodeNcclAddress(whole.substr(0, size), senders).status()))
          << size;
    }
    std::string other_version = whole;
    ++other_version[0];
    EXPECT_FALSE(DecodeNcclAddress(other_version, senders).ok());
    NcclAddress empty = Sample(senders);
    empty.block_bytes = 0;
    EXPECT_FALSE(DecodeNcclAddress(EncodeNcclAddress(empty), senders).ok());
  }
}

}  // namespace
}  // namespace tandem
