// One streaming method of a worker behind a gate, and what its streams share.

#ifndef TANDEM_TESTS_UNIT_SERVICES_WORKER_STREAM_SERVER_H_
#define TANDEM_TESTS_UNIT_SERVICES_WORKER_STREAM_SERVER_H_

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "services/server/channel.h"
#include "services/server/gated_server.h"
#include "services/worker/command_queue.h"
#include "tests/support/eventually.h"

namespace tandem {

struct StreamParts {
  explicit StreamParts(size_t max_commands = 1000) : commands(max_commands) {
    [[maybe_unused]] static const bool held = [] {
      grpc_init();  // gRPC's global shutdown between tests takes up to 10 s.
      return true;
    }();
  }

  // The commands that have come since the last call, as the engine takes them: at least `count`.
  std::vector<EngineCommand> Take(size_t count) {
    std::vector<EngineCommand> taken;
    EXPECT_TRUE(Eventually([&] {
      std::vector<EngineCommand> more = commands.Drain();
      std::move(more.begin(), more.end(), std::back_inserter(taken));
      return taken.size() >= count;
    })) << taken.size();
    return taken;
  }
  // The next one, which is of that kind. The end of a stream may be said twice.
  template <typename Command>
  Command TakeOne() {
    std::vector<EngineCommand> taken = Take(1);
    const auto is_wanted = [](const auto& said) { return std::holds_alternative<Command>(said); };
    if (!taken.empty() && std::all_of(taken.begin(), taken.end(), is_wanted)) {
      return std::move(std::get<Command>(taken[0]));
    }
    ADD_FAILURE() << taken.size() << " commands, the first of kind "
                  << (taken.empty() ? -1 : static_cast<int>(taken[0].index()));
    return {};
  }

  MemoryBudget budget{int64_t{64} << 20};
  MemoryBudget prompts{int64_t{32} << 20};
  OpenCalls calls{&budget, {.max_message_bytes = 1 << 20}};
  CommandQueue commands;
};

// `Message` is what the server says.
template <typename Message>
class StreamServer {
 public:
  using Open = std::function<ServerReactor<Message>*(grpc::CallbackServerContext*)>;

  // `parts`, and what `open` opens, outlive this.
  StreamServer(const char* method, StreamParts* parts, Open open)
      : service_(method, &parts->calls, std::move(open)),
        server_({.gate = {.address = "127.0.0.1:0",
                          .budget = &parts->budget,
                          .max_streams = 64,
                          .max_connections = 64}},
                &parts->calls) {
    grpc::ServerBuilder builder;
    ConfigureServer(20, &builder);
    builder.RegisterService(&service_);
    EXPECT_TRUE(server_.Open(&builder).ok());
    server_.Serve();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(server_.port()); }
  std::shared_ptr<grpc::Channel> Dial() const { return DialControl(address(), 20); }
  // What is not read stays with the server: HTTP/2 lets 64 KiB pass, and no more on a fast link.
  std::shared_ptr<grpc::Channel> DialWithSmallWindow() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  }

 private:
  class Service final : public EarlyService {
   public:
    Service(const char* method, OpenCalls* calls, Open open) : EarlyService(calls) {
      AddMethod<Message>(method, std::move(open));
    }
  };

  Service service_;
  GatedServer server_;
};

inline void SetPatience(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVICES_WORKER_STREAM_SERVER_H_
