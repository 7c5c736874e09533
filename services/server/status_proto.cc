#include "services/server/status_proto.h"

#include <string>

#include "absl/strings/str_format.h"
#include "services/server/limits.h"

namespace tandem {

namespace {

constexpr int kLastStatusCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

// Protobuf strings are UTF-8, and one that is not breaks the whole stream: anything may be in an
// error's text, so only ASCII passes.
std::string MessageOf(const absl::Status& status) {
  std::string message(status.message().data(), status.message().size());
  if (message.size() > kMaxTextBytes) message.resize(kMaxTextBytes);
  for (char& c : message) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return message;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), MessageOf(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void StatusToProto(const absl::Status& status, v1::Status* out) {
  out->set_code(status.raw_code());
  out->set_message(MessageOf(status));
}

absl::Status StatusFromProto(const v1::Status& status, absl::Status* out) {
  if (status.code() < 0 || status.code() > kLastStatusCode) {
    return absl::InvalidArgumentError(
        absl::StrFormat("status.code: %d, want 0 to %d", status.code(), kLastStatusCode));
  }
  if (status.message().size() > static_cast<size_t>(kMaxTextBytes)) {
    return absl::InvalidArgumentError(absl::StrFormat("status.message: %d bytes, at most %d",
                                                      status.message().size(), kMaxTextBytes));
  }
  *out = absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
  return absl::OkStatus();
}

}  // namespace tandem
