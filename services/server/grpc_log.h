// gRPC's own log lines.

#ifndef TANDEM_SERVICES_SERVER_GRPC_LOG_H_
#define TANDEM_SERVICES_SERVER_GRPC_LOG_H_

namespace tandem {

// From now on they are lines of ours (runtime/base/log.h). gRPC itself would wait for whoever reads
// standard error, on the threads that carry heartbeats and leases. Once, at start.
void TakeOverGrpcLog();

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_GRPC_LOG_H_
