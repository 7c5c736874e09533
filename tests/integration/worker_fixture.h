// A worker behind its services whose model is simulated, and those who call it: a router with a
// Session, and a Watch.

#ifndef TANDEM_TESTS_INTEGRATION_WORKER_FIXTURE_H_
#define TANDEM_TESTS_INTEGRATION_WORKER_FIXTURE_H_

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "services/server/channel.h"
#include "services/server/convert.h"
#include "services/server/metrics_registry.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/metric_value.h"
#include "tests/support/test_worker.h"

namespace tandem {

inline constexpr auto kRouterPatience = std::chrono::seconds(30);
inline constexpr double kRouterLivenessScale = 100;  // It outlasts a pause of the whole machine.

struct TestWorkerOptions {
  std::string transport = "ucx";
  WorkerRole role = WorkerRole::kHybrid;
  std::string kv_class = "class";
  double liveness_scale = 1;
  int64_t memory_limit_bytes = int64_t{64} << 20;
};

inline std::unique_ptr<TestWorker> StartWorker(const std::string& name,
                                               const TestWorkerOptions& options) {
  static uint64_t incarnation = 1000;
  WorkerConfig config = SmallWorker({.name = name, .incarnation = ++incarnation});
  config.registration.role = options.role;
  config.registration.terms.kv_class = options.kv_class;
  config.transport = options.transport;
  config.liveness_scale = options.liveness_scale;
  config.memory_limit_bytes = options.memory_limit_bytes;
  return StartTestWorker(config);
}

// What a router would hear of one attempt.
struct Heard {
  std::map<int32_t, std::vector<SampledToken>> tokens;
  size_t finished = 0;
  PromptEvent prompt;
  absl::Status refused;
  int64_t retry_after_us = 0;  // Where it is refused.
  absl::Status ended;
};

// What is not read stays with the worker: HTTP/2 lets 64 KiB pass, and no more on a fast link.
inline std::shared_ptr<grpc::Channel> DialWithSmallWindow(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// A router with one Session.
class Router {
 public:
  explicit Router(const TestWorker& worker)
      : Router(worker, DialControl(worker.address, kRouterLivenessScale)) {}
  Router(const TestWorker& worker, std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)),
        stub_(proto::Worker::NewStub(channel_)),
        incarnation_(worker.id.incarnation) {
    context_.set_deadline(std::chrono::system_clock::now() + kRouterPatience);
    stream_ = stub_->Session(&context_);
    proto::StepBatch first;
    EXPECT_TRUE(stream_->Read(&first));
    EXPECT_EQ(first.worker_incarnation(), incarnation_);
    EXPECT_EQ(first.events_size(), 0);
  }
  ~Router() {
    context_.TryCancel();
    stream_->Finish();
  }

  void Send(const RouterCommand& command) {
    proto::ToWorker message;
    ToProto(command, &message);
    EXPECT_TRUE(stream_->Write(message));
  }

  // Reads until every choice of the attempt has ended, or the session has.
  Heard Listen(size_t num_choices = 1) {
    Heard heard;
    proto::StepBatch message;
    while (heard.finished < num_choices && heard.refused.ok() && heard.ended.ok() &&
           stream_->Read(&message)) {
      const auto batch = FromProto(message);
      if (!batch.ok()) {
        ADD_FAILURE() << batch.status();
        break;
      }
      EXPECT_EQ(batch->worker_incarnation, incarnation_);
      for (const RouterEvent& event : batch->events) Take(event, &heard);
    }
    return heard;
  }

  // The chunks of the next message, which says nothing else.
  std::vector<ChunkBegun> NextChunks() {
    proto::StepBatch message;
    EXPECT_TRUE(stream_->Read(&message));
    const auto batch = FromProto(message);
    EXPECT_TRUE(batch.ok() && batch->events.empty()) << batch.status();
    return batch.ok() ? batch->chunks : std::vector<ChunkBegun>();
  }
  // Asks the worker to, as an operator does.
  void Drain() {
    grpc::ClientContext context;
    proto::ControlRequest request;
    proto::ControlResponse response;
    request.mutable_drain();
    EXPECT_TRUE(stub_->Control(&context, request, &response).ok());
  }
  bool ReadBatch(proto::StepBatch* batch) { return stream_->Read(batch); }
  void HalfClose() { stream_->WritesDone(); }
  proto::Worker::Stub* stub() { return stub_.get(); }

 private:
  static void Take(const RouterEvent& event, Heard* heard) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      heard->tokens[token->choice].push_back(token->token);
      if (token->finish != FinishReason::kNone) ++heard->finished;
    } else if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
      heard->prompt = *prompt;
    } else if (const auto* refused = std::get_if<RefusedEvent>(&event)) {
      heard->refused = refused->status;
      heard->retry_after_us = refused->retry_after_us;
    } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
      heard->ended = ended->status;
    }
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Worker::Stub> stub_;
  const uint64_t incarnation_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ToWorker, proto::StepBatch>> stream_;
};

inline std::vector<SampledToken> Expected(const Submit& submit, int32_t choice) {
  return SimulatedModel(kTestVocabulary)
      .Generate(submit.spec.token_ids, choice, submit.spec.sampling);
}

inline void ExpectAnswer(Router* router, const Submit& submit) {
  const Heard heard = router->Listen();
  ASSERT_TRUE(heard.ended.ok() && heard.refused.ok()) << heard.ended << heard.refused;
  EXPECT_EQ(heard.tokens.at(0), Expected(submit, 0));
}

// A Watch that reads until `done` says so.
class Watcher {
 public:
  explicit Watcher(const TestWorker& worker)
      : stub_(proto::Worker::NewStub(DialControl(worker.address, kRouterLivenessScale))) {
    context_.set_deadline(std::chrono::system_clock::now() + kRouterPatience);
    proto::WatchRequest request;
    request.set_router("test");
    request.set_protocol_min(kProtocolMin);
    request.set_protocol_max(kProtocolMax);
    reader_ = stub_->Watch(&context_, request);
  }
  ~Watcher() {
    context_.TryCancel();
    reader_->Finish();
  }

  WatchUpdate Next() {
    proto::WatchEvent event;
    if (!reader_->Read(&event)) {
      ADD_FAILURE() << "the watch ended";
      return Heartbeat{};
    }
    const auto update = FromProto(event);
    EXPECT_TRUE(update.ok()) << update.status();
    return update.ok() ? *update : WatchUpdate(Heartbeat{});
  }
  template <typename Done>
  Heartbeat HeartbeatUntil(const Done& done) {
    while (!testing::Test::HasFailure()) {
      const WatchUpdate update = Next();
      const auto* heartbeat = std::get_if<Heartbeat>(&update);
      if (heartbeat != nullptr && done(*heartbeat)) return *heartbeat;
    }
    return {};
  }

 private:
  std::unique_ptr<proto::Worker::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<proto::WatchEvent>> reader_;
};

inline bool Idle(const Heartbeat& heartbeat) {
  const BlockCounts& blocks = heartbeat.load.blocks;
  return blocks.free + blocks.cached == blocks.total && blocks.total == kTestBlocks;
}

inline std::string Metrics(Router* router) {
  grpc::ClientContext context;
  proto::ControlRequest request;
  proto::ControlResponse response;
  request.mutable_metrics();
  EXPECT_TRUE(router->stub()->Control(&context, request, &response).ok());
  const auto families = MetricsFromProto(response.metrics());
  EXPECT_TRUE(families.ok()) << families.status();
  return families.ok() ? MetricsToText(*families) : "";
}

// Asks until the metrics are as wanted.
template <typename Wanted>
void ExpectMetrics(Router* router, const Wanted& wanted) {
  const auto end = std::chrono::steady_clock::now() + kRouterPatience;
  std::string metrics = Metrics(router);
  while (!wanted(metrics) && std::chrono::steady_clock::now() < end) metrics = Metrics(router);
  EXPECT_TRUE(wanted(metrics)) << metrics;
}

// Eight run at a time, so 60 steps for each.
inline constexpr int kUnreadTokens = 480;

inline void SubmitUnread(Router* router, int num_attempts) {
  for (int i = 1; i <= num_attempts; ++i) {
    Submit submit = MakeSubmit(i, RandomTokens(20, i), kUnreadTokens);
    submit.spec.sampling.num_logprobs = 20;  // Which take most of what is said of a token.
    router->Send(submit);
  }
}

inline double GeneratedTokens(Router* router) {
  return MetricValue(Metrics(router), "tandem_worker_generated_tokens_total");
}

// A worker that has not begun looks like one that has cut its router off.
inline void AwaitTokens(const TestWorker& worker, double num_tokens) {
  Router other(worker);
  EXPECT_TRUE(Eventually([&] { return GeneratedTokens(&other) > num_tokens; }));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_WORKER_FIXTURE_H_
