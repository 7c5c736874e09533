// One end of KV links over gRPC, for tests.

#ifndef TANDEM_TESTS_UNIT_SERVICES_WORKER_GRPC_SIDE_H_
#define TANDEM_TESTS_UNIT_SERVICES_WORKER_GRPC_SIDE_H_

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "runtime/transport/stream/stream_transport.h"
#include "services/server/channel.h"
#include "services/worker/grpc_frame_carrier.h"
#include "tests/support/kv_side.h"
#include "tests/support/test_door.h"

namespace tandem {

// A transport with its server.
class GrpcSide : public Side {
 public:
  explicit GrpcSide(int32_t num_blocks, const FleetSecret& secret = {})
      : GrpcSide(secret, kBlockBytes) {
    Open([&](std::unique_ptr<FrameCarrier> carrier) {
      return StreamTransport::Create({.kv = {.num_blocks = num_blocks, .block_bytes = kBlockBytes}},
                                     std::move(carrier), &receiver, &recorder);
    });
  }
  ~GrpcSide() override { Shutdown(); }

 protected:
  // As GrpcFrameOptions.
  GrpcSide(const FleetSecret& secret, int64_t payload_bytes)
      : door_(secret), secret_(secret), payload_bytes_(payload_bytes) {}

  // `create` makes the transport over a carrier, or says why not.
  template <typename Create>
  void Open(const Create& create) {
    [[maybe_unused]] static const bool held = [] {
      grpc_init();  // gRPC's global shutdown between tests takes up to 10 s.
      return true;
    }();
    auto carrier =
        std::make_unique<GrpcFrameCarrier>(GrpcFrameOptions{.payload_bytes = payload_bytes_,
                                                            .liveness_scale = kLivenessScale,
                                                            .door = &door_,
                                                            .secret = secret_});
    grpc::ServerBuilder builder;
    ConfigureServer(kLivenessScale, &builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(carrier->service());
    builder.RegisterService(door_.service());
    auto made = create(std::move(carrier));
    if (!made.ok()) ADD_FAILURE() << made.status();
    transport = *std::move(made);
    server_ = builder.BuildAndStart();
    target = "127.0.0.1:" + std::to_string(port);
    door_.ListensOn(target);
  }
  void Shutdown() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    server_->Wait();
    server_.reset();
    transport.reset();
  }

 private:
  // A busy machine makes no peer seem dead; a stopped one is found in 10 s, a third of what tests
  // wait for it.
  static constexpr double kLivenessScale = 5;

  TestDoor door_;
  const FleetSecret secret_;
  const int64_t payload_bytes_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVICES_WORKER_GRPC_SIDE_H_
