// Channels between our processes, and the keepalive of both ends.

#ifndef TANDEM_SERVICES_SERVER_CHANNEL_H_
#define TANDEM_SERVICES_SERVER_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "services/server/fleet_tls.h"
#include "services/server/limits.h"

namespace tandem {

// What a process of that memory limit takes in one message of a server's.
int MaxMessageBytes(int64_t memory_limit_bytes);

// A connection of its own for control, in the clear where `tls` is null. A peer that is silent for
// the keepalive time and timeout (1 s and 1 s, times `liveness_scale`) is lost; a larger message
// ends its call. Of a stream that nobody reads 64 KiB are taken. Nothing compressed is, which goes
// for all that follow.
std::shared_ptr<grpc::Channel> DialControl(const std::string& target, double liveness_scale,
                                           int max_message_bytes = kMaxMessageBytes,
                                           const FleetTls* tls = nullptr);

// The same for KV frames with payloads of up to `payload_bytes`, with windows to match.
std::shared_ptr<grpc::Channel> DialKv(const std::string& target, int64_t payload_bytes,
                                      double liveness_scale, const FleetTls* tls = nullptr);

// What gRPC itself counts for a server is at most half of `memory_bytes`, which bound what we hold:
// past it, it closes idle connections and then resets streams. It counts about a third of what it
// takes. Clients are told of `max_streams` calls of a connection at a time, which http2_gate.h
// enforces; and a window lets little of a message come before it is read.
void BoundServer(int64_t memory_bytes, int max_streams, grpc::ServerBuilder* builder);

// After so many milliseconds without a word, and as many without an answer, the other end is lost.
int KeepaliveMs(double liveness_scale);

// A peer that is silent for `time` and does not answer within `timeout` is lost; peers may ask the
// same as often as `min_ping_interval`.
void SetKeepalive(std::chrono::milliseconds time, std::chrono::milliseconds timeout,
                  std::chrono::milliseconds min_ping_interval, grpc::ServerBuilder* builder);

// Message limits and keepalive of a server inside the fleet.
void ConfigureServer(double liveness_scale, grpc::ServerBuilder* builder);

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_CHANNEL_H_
