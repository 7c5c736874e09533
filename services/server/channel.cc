#include "services/server/channel.h"

#include <grpc/compression.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>

#include "services/server/limits.h"
#include "services/server/open_calls.h"

namespace tandem {

namespace {

constexpr double kKeepaliveMs = 1000;
// Short, so that a process that was restarted is back at once.
constexpr int kFirstBackoffMs = 50;
constexpr int kMaxBackoffMs = 250;
constexpr int kKvHttp2FrameBytes = 1 << 20;
constexpr int kKvWindowBytes = 8 << 20;
constexpr int64_t kMostFrameBytesBesideItsPayload = 64;

grpc::ChannelArguments Arguments(double liveness_scale) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, KeepaliveMs(liveness_scale));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KeepaliveMs(liveness_scale));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // No connection and no backoff is shared with another channel to the same target.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, KeepaliveMs(liveness_scale));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  // Addresses name our own processes: never through a proxy.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // gRPC inflates a message before any limit looks at it, and whoever has taken a worker's port
  // answers before it has proven anything. The first asks peers for nothing compressed, the second
  // leaves it as it comes, which no message of ours is.
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  return arguments;
}

std::shared_ptr<grpc::Channel> Dial(const std::string& target, grpc::ChannelArguments arguments,
                                    const FleetTls* tls) {
  if (tls != nullptr) tls->Configure(&arguments);
  return grpc::CreateCustomChannel(
      target, tls == nullptr ? grpc::InsecureChannelCredentials() : tls->CredentialsFor(target),
      arguments);
}

// gRPC 1.51 joins the threads of its callback queue when the last channel or server that used it
// goes. Where that happens in a reaction, on one of these threads, the process aborts. One channel
// that leads nowhere and is never destroyed holds the queue for the life of the process; it takes
// its hold at the first call, which fails at once.
void HoldCallbackQueue() {
  struct Call {
    grpc::ClientContext context;
    const grpc::Slice nothing{""};
    const grpc::ByteBuffer request{&nothing, 1};
    grpc::ByteBuffer response;
  };
  // Volatile: leak checkers are to find the pointer, which nothing reads.
  [[maybe_unused]] static grpc::GenericStub* volatile const stub = [] {
    auto* const nowhere = new grpc::GenericStub(grpc::CreateChannel("", nullptr));
    auto* const call = new Call;
    nowhere->UnaryCall(&call->context, "/", grpc::StubOptions(), &call->request, &call->response,
                       [call](const grpc::Status&) { delete call; });
    return nowhere;
  }();
}

}  // namespace

int MaxMessageBytes(int64_t memory_limit_bytes) {
  return static_cast<int>(std::min<int64_t>(kMaxMessageBytes, memory_limit_bytes / 4));
}

int KeepaliveMs(double liveness_scale) {
  return std::max(1, static_cast<int>(kKeepaliveMs * liveness_scale));
}

std::shared_ptr<grpc::Channel> DialControl(const std::string& target, double liveness_scale,
                                           int max_message_bytes, const FleetTls* tls) {
  HoldCallbackQueue();
  grpc::ChannelArguments arguments = Arguments(liveness_scale);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetMaxReceiveMessageSize(max_message_bytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return Dial(target, arguments, tls);
}

std::shared_ptr<grpc::Channel> DialKv(const std::string& target, int64_t payload_bytes,
                                      double liveness_scale, const FleetTls* tls) {
  HoldCallbackQueue();
  grpc::ChannelArguments arguments = Arguments(liveness_scale);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(
      std::min<int64_t>(payload_bytes + kMostFrameBytesBesideItsPayload, INT32_MAX)));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kKvHttp2FrameBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kKvWindowBytes);
  return Dial(target, arguments, tls);
}

void BoundServer(int64_t memory_bytes, int max_streams, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("server");
  quota.Resize(static_cast<size_t>(memory_bytes / 2));
  builder->SetResourceQuota(quota);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, max_streams);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kCallWindowBytes);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // As of a channel. The first ends such a call with UNIMPLEMENTED.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

void SetKeepalive(std::chrono::milliseconds time, std::chrono::milliseconds timeout,
                  std::chrono::milliseconds min_ping_interval, grpc::ServerBuilder* builder) {
  const auto set = [builder](const char* name, std::chrono::milliseconds value) {
    builder->AddChannelArgument(name, static_cast<int>(value.count()));
  };
  set(GRPC_ARG_KEEPALIVE_TIME_MS, time);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout);
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, min_ping_interval);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

void ConfigureServer(double liveness_scale, grpc::ServerBuilder* builder) {
  HoldCallbackQueue();
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(-1);  // What we send, we have bounded.
  const std::chrono::milliseconds keepalive(KeepaliveMs(liveness_scale));
  SetKeepalive(keepalive, keepalive, std::min(std::chrono::milliseconds(100), keepalive / 2),
               builder);
}

}  // namespace tandem
