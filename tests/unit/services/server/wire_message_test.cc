#include "services/server/wire_message.h"

#include <gtest/gtest.h>

#include <string>

#include "tandem/v1/inference.pb.h"
#include "tandem/v1/worker.pb.h"

namespace tandem {
namespace {

grpc::ByteBuffer Wire(const std::string& bytes) {
  // In pieces, as it comes.
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += 1000) slices.emplace_back(bytes.substr(at, 1000));
  return {slices.data(), slices.size()};
}

std::string Repeat(const std::string& piece, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += piece;
  return all;
}

template <typename Message>
absl::StatusOr<int64_t> Measured(const std::string& bytes) {
  return ParsedBytes(Wire(bytes), *Message::descriptor());
}

TEST(WireMessageTest, WhatItTakesIsKnownBefore) {
  v1::ToWorker message;
  for (int i = 0; i < 100'000; ++i)
    message.mutable_submit()->mutable_spec()->add_token_ids(i % 32'000);
  message.mutable_submit()->set_model(std::string(1000, 'm'));
  const std::string bytes = message.SerializeAsString();
  const absl::StatusOr<int64_t> measured = Measured<v1::ToWorker>(bytes);
  ASSERT_TRUE(measured.ok()) << measured.status();
  grpc::ByteBuffer wire = Wire(bytes);
  v1::ToWorker read;
  ASSERT_TRUE(ReadMessage(&wire, &read).ok());
  EXPECT_EQ(read.SerializeAsString(), bytes);
  EXPECT_GE(*measured + kFreeParsedBytes, static_cast<int64_t>(read.SpaceUsedLong()));
}

TEST(WireMessageTest, ManyTimesItsOwnBytesIsTooMuch) {
  constexpr size_t kCount = 500'000;
  // Fields that nobody knows, empty strings, and messages without anything in them.
  EXPECT_TRUE(absl::IsResourceExhausted(
      Measured<v1::AbortRequest>(Repeat(std::string("\x7a\0", 2), kCount)).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(
      Measured<v1::AbortRequest>(Repeat(std::string("\x0a\0", 2), kCount)).status()));
  const absl::Status status =
      Measured<v1::GenerateRequest>(Repeat(std::string("\x7a\0", 2), kCount)).status();
  EXPECT_NE(status.message().find(std::to_string(2 * kCount)), std::string::npos) << status;
  // Some of a newer protocol's are no harm.
  EXPECT_TRUE(Measured<v1::AbortRequest>(Repeat(std::string("\x7a\0", 2), 100)).ok());
}

TEST(WireMessageTest, WhatIsNoMessageIsNotParsed) {
  v1::GenerateRequest message;
  message.set_text("a prompt");
  const std::string bytes = message.SerializeAsString();
  for (size_t size = 1; size < bytes.size(); ++size) {
    v1::GenerateRequest part;
    const std::string begin = bytes.substr(0, size);
    EXPECT_EQ(Measured<v1::GenerateRequest>(begin).ok(), part.ParseFromString(begin)) << size;
  }
  EXPECT_FALSE(Measured<v1::GenerateRequest>(std::string("\0", 1)).ok());
  EXPECT_FALSE(Measured<v1::GenerateRequest>("\x0b").ok());  // A group begins.
}

}  // namespace
}  // namespace tandem
