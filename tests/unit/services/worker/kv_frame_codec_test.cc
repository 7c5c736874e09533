#include "services/worker/kv_frame_codec.h"

#include <gtest/gtest.h>

#include "runtime/transport/frame_wire.h"
#include "tandem/v1/kv.pb.h"

namespace tandem {
namespace {

FrameHeader Header(uint32_t length_bytes) {
  return {.reservation = {.index = 0x01020304, .generation = 0xFFFFFFFF},
          .ordinal = 7,
          .length_bytes = length_bytes,
          .shard = {.index = 0x0506, .count = 0xFFFE},
          .crc32c = 0xDEADBEEF};
}

std::string Joined(const std::vector<std::string_view>& parts) {
  std::string out;
  for (const std::string_view part : parts) out.append(part);
  return out;
}

TEST(KvFrameCodecTest, WireFormIsThatOfTheProtobufMessage) {
  for (const uint32_t length : {0u, 1u, 127u, 128u, 16'384u, 70'000u}) {
    const std::string payload(length, 'x');
    const std::string bytes = EncodeFramePrefix(Header(length), length) + payload;
    v1::Frame parsed;
    ASSERT_TRUE(parsed.ParseFromString(bytes));
    EXPECT_EQ(parsed.payload(), payload);
    ASSERT_EQ(parsed.header().size(), kFrameHeaderBytes);
    EXPECT_EQ(UnpackFrameHeader(parsed.header().data()), Header(length));
    if (length == 0) continue;  // Protobuf leaves an empty field out.
    const auto frame = DecodeFrame({parsed.SerializeAsString()});
    EXPECT_FALSE(frame.ok() && frame->payload.empty());
  }
}

TEST(KvFrameCodecTest, FrameIsReadAcrossPieces) {
  const std::string payload = "0123456789abcdefghij";
  const auto length = static_cast<uint32_t>(payload.size());
  const std::string bytes = EncodeFramePrefix(Header(length), length) + payload;
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::string_view whole = bytes;
    const auto frame = DecodeFrame({whole.substr(0, cut), whole.substr(cut)});
    ASSERT_TRUE(frame.ok()) << "cut at " << cut << ": " << frame.status();
    EXPECT_EQ(frame->header, Header(length));
    EXPECT_EQ(Joined(frame->payload), payload);
  }
}

TEST(KvFrameCodecTest, APayloadNeedNotBeAsLongAsItsHeaderSays) {
  for (const std::string payload : {"", "four"}) {
    const std::string bytes =
        EncodeFramePrefix(Header(70'000), static_cast<uint32_t>(payload.size())) + payload;
    const auto frame = DecodeFrame({bytes});
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->header, Header(70'000));
    EXPECT_EQ(Joined(frame->payload), payload);
  }
}

TEST(KvFrameCodecTest, TruncatedAndOverlongFramesAreRefused) {
  const std::string payload = "0123456789";
  const std::string bytes = EncodeFramePrefix(Header(10), 10) + payload;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeFrame({std::string_view(bytes).substr(0, size)}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << size << " bytes";
  }
  const std::string longer = bytes + "x";
  EXPECT_FALSE(DecodeFrame({longer}).ok());
}

TEST(KvFrameCodecTest, FieldsOfOtherNumbersKindsAndLengthsAreRefused) {
  const std::string payload = "0123456789";
  const std::string bytes = EncodeFramePrefix(Header(10), 10) + payload;
  ASSERT_TRUE(DecodeFrame({bytes}).ok());
  // Tag and length of the header, and of the payload.
  for (const size_t at : {size_t{0}, size_t{1}, 2 + kFrameHeaderBytes, 3 + kFrameHeaderBytes}) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string wrong = bytes;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << bit));
      EXPECT_TRUE(absl::IsInvalidArgument(DecodeFrame({wrong}).status())) << at << ' ' << bit;
    }
  }
}

}  // namespace
}  // namespace tandem
