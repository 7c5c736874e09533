// Status to gRPC and back. The code numbers of absl::Status, gRPC and google.rpc.Code are the same.

#ifndef TANDEM_SERVICES_SERVER_STATUS_PROTO_H_
#define TANDEM_SERVICES_SERVER_STATUS_PROTO_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/v1/common.pb.h"

namespace tandem {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// Messages longer than kMaxTextBytes are cut; bytes beyond ASCII become '?'.
void StatusToProto(const absl::Status& status, v1::Status* out);
// The outer status is InvalidArgument for a code that does not exist. `out` may be OK.
absl::Status StatusFromProto(const v1::Status& status, absl::Status* out);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_STATUS_PROTO_H_
