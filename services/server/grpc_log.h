// The log lines of gRPC and of Protobuf.

#ifndef TANDEM_SERVICES_SERVER_GRPC_LOG_H_
#define TANDEM_SERVICES_SERVER_GRPC_LOG_H_

namespace tandem {

// From now on they are lines of ours (runtime/base/log.h). They would wait for whoever reads
// standard error, on the threads that carry heartbeats, leases and calls. Of each, which a peer can
// bring about as often as it likes, the 1st, 2nd, 4th and so on. Once, at start.
void TakeOverGrpcLog();

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_GRPC_LOG_H_
