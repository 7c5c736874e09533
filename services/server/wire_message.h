// Messages as they come, measured before they are parsed.
//
// Protobuf can make 32 bytes and more of each byte of a message, where fields are unknown or
// repeated messages hold nothing. So our servers receive bytes, and parse what is within bounds.

#ifndef TANDEM_SERVICES_SERVER_WIRE_MESSAGE_H_
#define TANDEM_SERVICES_SERVER_WIRE_MESSAGE_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/server/status_proto.h"

namespace tandem {

// A message may take so many times its own bytes, and so many more.
inline constexpr int64_t kMaxExpansion = 8;
// For what workers tell in many small messages inside one: the reply to an abort takes 12 times
// its bytes.
inline constexpr int64_t kMaxWorkerExpansion = 16;
inline constexpr int64_t kFreeParsedBytes = int64_t{64} << 10;

// About what `wire` takes when it is parsed as a message of `type`. ResourceExhausted, with the
// numbers, where that is more than the bounds above; InvalidArgument where it is no such message.
absl::StatusOr<int64_t> ParsedBytes(const grpc::ByteBuffer& wire,
                                    const google::protobuf::Descriptor& type,
                                    int64_t max_expansion = kMaxExpansion);

// Parses what has been measured; empties `wire`.
template <typename Message>
absl::Status ParseMessage(grpc::ByteBuffer* wire, Message* message) {
  return FromGrpcStatus(grpc::SerializationTraits<Message>::Deserialize(wire, message));
}
// Both.
template <typename Message>
absl::Status ReadMessage(grpc::ByteBuffer* wire, Message* message,
                         int64_t max_expansion = kMaxExpansion) {
  const absl::StatusOr<int64_t> bytes = ParsedBytes(*wire, *Message::descriptor(), max_expansion);
  return bytes.ok() ? ParseMessage(wire, message) : bytes.status();
}

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_WIRE_MESSAGE_H_
