#include "services/server/wire_message.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tandem/v1/common.pb.h"
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

// Each kind of field, by what protobuf itself says that the message takes.
TEST(WireMessageTest, NoKindOfFieldTakesMoreThanWasMeasured) {
  constexpr size_t kCount = 20'000;
  const std::pair<const char*, std::string> cases[] = {
      {"unknown varint", std::string("\x78\x01", 2)},
      {"unknown fixed64", std::string("\x79") + std::string(8, 'x')},
      {"unknown fixed32", std::string("\x7d") + std::string(4, 'x')},
      {"unknown bytes", std::string("\x7a\x03") + "abc"},
      {"short unknown bytes", std::string("\x7a\0", 2)},
      {"name", std::string("\x0a\x01") + "n"},
      {"element", std::string("\x50\x01", 2)},
      {"packed", std::string("\x52\x02\x01\x01", 4)},
  };
  for (const auto& [what, piece] : cases) {
    const std::string bytes = Repeat(piece, kCount);
    const absl::StatusOr<int64_t> measured =
        ParsedBytes(Wire(bytes), *google::protobuf::FileDescriptorProto::descriptor(), 1000);
    ASSERT_TRUE(measured.ok()) << what << ": " << measured.status();
    google::protobuf::FileDescriptorProto parsed;
    ASSERT_TRUE(parsed.ParseFromString(bytes)) << what;
    EXPECT_GE(*measured + 1024, static_cast<int64_t>(parsed.SpaceUsedLong())) << what;
  }
  v1::StepBatch messages;
  for (size_t i = 0; i < kCount; ++i) messages.add_events();
  const absl::StatusOr<int64_t> measured =
      ParsedBytes(Wire(messages.SerializeAsString()), *v1::StepBatch::descriptor(), 1000);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_GE(*measured + 1024, static_cast<int64_t>(messages.SpaceUsedLong()));
}

// Nobody parses deeper than that, whoever nests messages in one another.
TEST(WireMessageTest, MessagesAreNestedSoDeepAndNoDeeper) {
  const auto nested = [](int depth) {
    google::protobuf::DescriptorProto message;
    google::protobuf::DescriptorProto* inner = &message;
    for (int i = 0; i < depth; ++i) inner = inner->add_nested_type();
    return Measured<google::protobuf::DescriptorProto>(message.SerializeAsString()).status();
  };
  EXPECT_TRUE(nested(64).ok()) << nested(64);
  EXPECT_TRUE(absl::IsInvalidArgument(nested(65))) << nested(65);
}

TEST(WireMessageTest, WhatFollowsAMessageInsideIsMeasuredToo) {
  v1::ToWorker inside;
  inside.mutable_submit()->set_model("m");
  const std::string begin = inside.SerializeAsString();
  const std::string unknown = Repeat(std::string("\x7a\0", 2), 500'000);
  EXPECT_TRUE(absl::IsResourceExhausted(Measured<v1::ToWorker>(begin + unknown).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Measured<v1::ToWorker>(begin + "\x0a").status()));
}

TEST(WireMessageTest, AWorkersMessageMayTakeMoreThanOthers) {
  v1::StepBatch batch;  // As after a router has aborted many requests.
  for (int i = 1; i <= 20'000; ++i) {
    v1::AbortReply* const reply = batch.add_events()->mutable_abort_reply();
    reply->mutable_attempt()->mutable_request()->set_router_incarnation(~uint64_t{0});
    reply->mutable_attempt()->mutable_request()->set_counter(static_cast<uint64_t>(i));
    reply->mutable_attempt()->set_attempt(1);
    reply->set_outcome(v1::ABORT_OUTCOME_ACCEPTED);
  }
  const std::string bytes = batch.SerializeAsString();
  v1::StepBatch read;
  grpc::ByteBuffer wire = Wire(bytes);
  EXPECT_TRUE(absl::IsResourceExhausted(ReadMessage(&wire, &read)));
  wire = Wire(bytes);
  EXPECT_TRUE(ReadMessage(&wire, &read, kMaxWorkerExpansion).ok());
  EXPECT_EQ(read.events_size(), batch.events_size());
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
  for (const std::string& field :
       {std::string("\x78\x81\x01"), "\x79" + std::string(8, '\xff'),
        "\x7d" + std::string(4, '\xff')}) {  // A varint, 64 bits, and 32, that nobody knows.
    const std::string fields = field + std::string("\x78\x01");
    for (size_t size = 0; size <= fields.size(); ++size) {
      v1::GenerateRequest part;
      const std::string begin = fields.substr(0, size);
      EXPECT_EQ(Measured<v1::GenerateRequest>(begin).ok(), part.ParseFromString(begin)) << size;
    }
  }
  for (const char* const begin : {"\x0a", "\x7a"}) {  // A message, something, of 2^32 - 1 bytes.
    EXPECT_FALSE(Measured<v1::ToWorker>(begin + std::string("\xff\xff\xff\xff\x0f")).ok());
  }
  EXPECT_FALSE(Measured<v1::GenerateRequest>(std::string("\0", 1)).ok());
  EXPECT_FALSE(Measured<v1::GenerateRequest>("\x0b").ok());  // A group begins.
}

}  // namespace
}  // namespace tandem
