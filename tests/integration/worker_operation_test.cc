// What an operator, a probe and a peer that comes back find of a worker.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/small_file.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/ended_lives.h"
#include "services/server/build_info.h"
#include "services/server/channel.h"
#include "services/server/fleet_auth.h"
#include "services/server/limits.h"
#include "services/worker/hang_watch.h"
#include "services/worker/worker.h"
#include "services/worker/worker_process.h"
#include "tandem/v1/prefill.grpc.pb.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/integration/worker_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/health.h"
#include "tests/support/metric_value.h"
#include "tests/support/raw_http.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tls_answer.h"
#include "tools/tandem/child_process.h"

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(WorkerOperationTest, AnOperatorsDrainIsTheProgramsAndTakesItOutOfReadiness) {
  std::atomic<int> asked{0};
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.on_drain = [&] { ++asked; };
  auto worker = StartTestWorker(config);
  Watcher watch(*worker);
  worker->worker->Drain();
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.draining; });
  EXPECT_EQ(asked, 0) << "the program began this one itself";
  EXPECT_TRUE(Eventually([&] { return HealthOf(worker->address, "") == "NOT_SERVING"; }));
  EXPECT_EQ(HealthOf(worker->address, "liveness"), "SERVING") << "it has streams to end";
  Router(*worker).Drain();
  EXPECT_EQ(asked, 1);
}

// From its flags to the end that an operator asks for.
TEST(WorkerOperationTest, AWorkerProcessIsWhatItsFlagsSay) {
  const TempFolder folder;
  const std::string port_file = folder.path() + "/port";
  ChildProcess child(
      "worker",
      {"/proc/self/exe", "--worker", "--model=" TANDEM_TEST_DATA "/demo_model",
       "--served-model-name=served", "--name=prefill-3", "--incarnation=7",
       "--ended=5:outside,6:crash", "--role=prefill", "--transport=grpc", "--block-size=16",
       "--max-model-len=128", "--max-num-seqs=3", "--kv-memory=64MiB", "--memory-limit=64MiB",
       "--threads=1", "--cache-dir=" + folder.path(), "--port-file=" + port_file});
  ASSERT_TRUE(child.Start().ok());
  absl::StatusOr<std::string> port;
  ASSERT_TRUE(Eventually([&] { return (port = ReadSmallFile(port_file, 16)).ok(); }));
  TestWorker process;
  process.id = {.name = "prefill-3", .incarnation = 7};
  process.address = "127.0.0.1:" + port->substr(0, port->find('\n'));

  Watcher watch(process);
  const WatchUpdate first = watch.Next();
  ASSERT_TRUE(std::holds_alternative<WorkerRegistration>(first));
  const auto& registration = std::get<WorkerRegistration>(first);
  EXPECT_EQ(registration.worker, process.id);
  EXPECT_EQ(registration.role, WorkerRole::kPrefill);
  EXPECT_EQ(registration.model, "served");
  EXPECT_EQ(registration.terms.transport, "grpc");
  EXPECT_EQ(registration.terms.numerics_id.size(), 64u);
  EXPECT_EQ(registration.terms.kv_class.size(), 64u);
  EXPECT_NE(registration.terms.numerics_id, registration.terms.kv_class);
  EXPECT_EQ(registration.kv.block_tokens, 16);
  EXPECT_EQ(registration.kv.pool_bytes(), 64 << 20);
  EXPECT_EQ(registration.max_model_tokens, 128);
  EXPECT_EQ(registration.max_sequences, 3);
  EXPECT_TRUE(registration.supervised);
  EXPECT_THAT(registration.ended_lives, testing::ElementsAre(EndedLife{5, EndCause::kOutside},
                                                             EndedLife{6, EndCause::kCrash}));

  Router router(process);
  EXPECT_EQ(MetricValue(Metrics(&router), "tandem_memory_limit_bytes"), 64 << 20);
  Submit submit = MakeSubmit(1, {1, 2, 3}, 4);
  submit.model = "served";
  router.Send(submit);
  EXPECT_EQ(router.Listen().tokens[0].size(), 4u);
  router.Drain();
  watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.draining; });
  int status = -1;
  EXPECT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_EQ(DescribeExit(status), "exit status 0");
}

// A CPU in a device's place, which says at the n-th look at its memory that it is lost.
class LosableBackend final : public ForwardingBackend {
 public:
  LosableBackend(std::unique_ptr<Backend> cpu, int lost_at)
      : ForwardingBackend(std::move(cpu)), looks_left_(lost_at) {}
  absl::StatusOr<std::optional<DeviceMemory>> MeasureMemory() const override {
    if (--looks_left_ == 0) return absl::DataLossError("an error that stays");
    return DeviceMemory{.total_bytes = int64_t{8} << 30, .free_bytes = int64_t{8} << 30};
  }

 private:
  mutable std::atomic<int> looks_left_;
};

// While it plans; in its first look when it begins to serve; and behind that.
TEST(WorkerOperationTest, AWorkerWhoseDeviceIsLostAsItStartsIsToBeReplaced) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempFolder folder;
  const auto run = [&](int lost_at) {
    alarm(120);
    std::exit(RunWorkerProcess(
        {"--model=" TANDEM_TEST_DATA "/demo_model", "--transport=grpc", "--max-model-len=128",
         "--threads=1", "--kv-memory=64MiB", "--cache-dir=" + folder.path()},
        [lost_at](const BackendOptions& options) -> absl::StatusOr<std::unique_ptr<Backend>> {
          TANDEM_ASSIGN_OR_RETURN(auto cpu, CreateBackend(options));
          return std::make_unique<LosableBackend>(std::move(cpu), lost_at);
        }));
  };
  for (const auto& [lost_at, told] :
       {std::pair(1, "cannot start"), std::pair(2, "no step succeeds here any more"),
        std::pair(3, "cannot start")}) {
    EXPECT_EXIT(run(lost_at), testing::ExitedWithCode(kExitToBeReplaced),
                std::string(told) + ".*an error that stays");
  }
}

// A CPU in the place of a device that never gives its memory back.
class HoldingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  ~HoldingBackend() override {
    while (true) pause();
  }
};

// Nor does it take all of --drain-seconds, and nobody takes it for broken.
TEST(WorkerOperationTest, AWorkerThatHasDrainedEndsWellWhateverDoesNotLetGo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempFolder folder;
  const std::string port_file = folder.path() + "/port";
  const auto run = [&] {
    alarm(60);
    std::thread([&] {
      absl::StatusOr<std::string> port;
      Eventually([&] { return (port = ReadSmallFile(port_file, 16)).ok(); });
      TestWorker self;
      self.id = {.name = "worker", .incarnation = 7};
      self.address = "127.0.0.1:" + port->substr(0, port->find('\n'));
      Router(self).Drain();
    }).detach();
    std::exit(RunWorkerProcess(
        {"--model=" TANDEM_TEST_DATA "/demo_model", "--transport=grpc", "--max-model-len=128",
         "--threads=1", "--kv-memory=64MiB", "--incarnation=7", "--drain-seconds=300",
         "--cache-dir=" + folder.path(), "--port-file=" + port_file},
        [](const BackendOptions& options) -> absl::StatusOr<std::unique_ptr<Backend>> {
          TANDEM_ASSIGN_OR_RETURN(auto cpu, CreateBackend(options));
          return std::make_unique<HoldingBackend>(std::move(cpu));
        }));
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0),
              "\"drained\"(.|\n)*something that it waits for has no end");
}

// Which is UCX's word, not that of the headers.
TEST(WorkerOperationTest, AWorkerKnowsWhichUcxItHasLoaded) {
  EXPECT_NE(LoadedUcx(), "");
  EXPECT_EQ(ThisBuild().ucx_loaded, LoadedUcx() == ThisBuild().ucx ? "" : LoadedUcx());
}

// Who has not its secret is told nothing by it.
TEST(WorkerOperationTest, AWorkerProcessOfAFleetKnowsItsSecret) {
  const TempFolder folder;
  const std::string port_file = folder.path() + "/port", text(32, 's');
  const std::string secret_file = folder.Write("secret", text);
  ASSERT_EQ(chmod(secret_file.c_str(), 0600), 0);
  ChildProcess child("worker",
                     {"/proc/self/exe", "--worker", "--model=" TANDEM_TEST_DATA "/demo_model",
                      "--name=decode-0", "--role=decode", "--transport=grpc", "--max-model-len=128",
                      "--threads=1", "--fleet-secret-file=" + secret_file,
                      "--cache-dir=" + folder.path(), "--port-file=" + port_file});
  ASSERT_TRUE(child.Start().ok());
  absl::StatusOr<std::string> port;
  ASSERT_TRUE(Eventually([&] { return (port = ReadSmallFile(port_file, 16)).ok(); }));
  const std::string address = "127.0.0.1:" + port->substr(0, port->find('\n'));
  const auto channel = DialControl(address, 1);
  const auto stub = proto::Worker::NewStub(channel);
  grpc::ClientContext of_stranger, context;
  proto::ControlRequest drain;
  drain.mutable_drain();
  proto::ControlResponse response;
  EXPECT_EQ(stub->Control(&of_stranger, drain, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);

  const FleetSecret secret = *FleetSecret::Parse(text);
  FleetCall proof(&secret, channel, address, kWatchMethod, &context);
  std::promise<void> ready;
  proof.Start([&] { ready.set_value(); });
  ready.get_future().wait();
  proto::WatchRequest request;
  request.set_protocol_min(kProtocolMin);
  request.set_protocol_max(kProtocolMax);
  const auto watch = stub->Watch(&context, request);
  proto::WatchEvent first;
  ASSERT_TRUE(watch->Read(&first));
  EXPECT_EQ(first.registration().role(), proto::WORKER_ROLE_DECODE);
  EXPECT_NE(first.registration().worker().incarnation(), 0u) << "it is drawn";
  EXPECT_FALSE(first.registration().supervised());
  context.TryCancel();
  watch->Finish();
  child.Signal(SIGTERM);
  int status = -1;
  EXPECT_EQ(waitpid(child.pid(), &status, 0), child.pid());
  EXPECT_EQ(DescribeExit(status), "exit status 0");
}

// What is said again and again costs routers and the network: it has its time.
TEST(WorkerOperationTest, AHeartbeatWaitsForItsTime) {
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.liveness_scale = 1000;
  auto worker = StartTestWorker(config);
  Watcher watch(*worker);
  EXPECT_TRUE(std::holds_alternative<WorkerRegistration>(watch.Next()));
  EXPECT_TRUE(std::holds_alternative<KvEvents>(watch.Next()));
  Router router(*worker);
  const Submit submit = MakeSubmit(1, RandomTokens(64, 3), 5);
  router.Send(submit);
  ExpectAnswer(&router, submit);
  const WatchUpdate next = watch.Next();
  ASSERT_TRUE(std::holds_alternative<KvEvents>(next)) << "a heartbeat comes before";
  EXPECT_FALSE(std::get<KvEvents>(next).stored.empty()) << "steps that change nothing say nothing";
  worker->worker->Drain();
  EXPECT_TRUE(Eventually([&] { return worker->worker->Drained(); })) << "but not of a drain";
}

// Who hears only that a stream is cancelled takes the worker for lost.
TEST(WorkerOperationTest, AWorkerThatLeavesSaysSoOnEveryStream) {
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.liveness_scale = 1000;  // No heartbeat is on its way then: its stream would be cancelled.
  auto worker = StartTestWorker(std::move(config));
  const auto channel = DialControl(worker->address, 1);
  const auto of_worker = proto::Worker::NewStub(channel);
  const auto of_prefill = proto::Prefill::NewStub(channel);
  grpc::ClientContext contexts[3];
  proto::WatchRequest request;
  request.set_protocol_min(kProtocolMin);
  request.set_protocol_max(kProtocolMax);
  const auto watch = of_worker->Watch(&contexts[0], request);
  const auto router = of_worker->Session(&contexts[1]);
  const auto decode = of_prefill->Session(&contexts[2]);
  watch->WaitForInitialMetadata();
  router->WaitForInitialMetadata();
  decode->WaitForInitialMetadata();
  worker->worker->Drain();
  ASSERT_TRUE(Eventually([&] { return worker->worker->Drained(); }));
  worker.reset();
  const auto status_of = [](auto* stream, auto message) {
    while (stream->Read(&message)) {
    }
    return stream->Finish();
  };
  for (const grpc::Status& status :
       {status_of(watch.get(), proto::WatchEvent()), status_of(router.get(), proto::StepBatch()),
        status_of(decode.get(), proto::ToDecode())}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), "the worker is leaving");
  }
}

TEST(WorkerOperationTest, InsideAFleetOfCertificatesOnlyProbesNeedNone) {
  const TempFolder folder;
  const TestAuthority authority;
  const TestCertificate shown = authority.Issue("fleet");
  const FleetTlsFlags files = {.certificate = folder.Write("pem", shown.pem),
                               .key = folder.Write("key", shown.key),
                               .authorities = folder.Write("ca", authority.pem()),
                               .name = "fleet"};
  const auto start = [&](const std::string& name) {
    WorkerConfig config = SmallWorker({.name = name, .incarnation = 1});
    config.transport = "grpc";
    config.tls = files;
    config.admin = ListenAddress{.ip = "127.0.0.1"};
    return StartTestWorker(config);
  };
  const auto prefill = start("prefill"), decode = start("decode");
  const auto tls = *FleetTls::Open(files);
  Router router(*decode, DialControl(decode->address, 1, kMaxMessageBytes, tls.get()));
  Submit submit = MakeSubmit(1, RandomTokens(100, 1), 4);
  submit.prefill = prefill->peer();
  router.Send(submit);
  const Heard heard = router.Listen();
  EXPECT_TRUE(heard.prompt.by_prefill) << heard.ended;
  EXPECT_EQ(heard.tokens.at(0), Expected(submit, 0));
  EXPECT_GE(
      MetricValue(Metrics(&router), "tandem_tls_handshakes_total{result=\"ok\",use=\"fleet\"}"), 1);
  EXPECT_NE(HealthOf(decode->address, "liveness"), "SERVING") << "in the clear";
  grpc::ClientContext context;
  proto::ControlRequest request;
  proto::ControlResponse response;
  request.mutable_drain();
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("fleet");
  const auto stranger = grpc::CreateCustomChannel(
      decode->address, grpc::SslCredentials({.pem_root_certs = authority.pem()}), arguments);
  EXPECT_EQ(proto::Worker::NewStub(stranger)->Control(&context, request, &response).error_code(),
            grpc::StatusCode::UNAVAILABLE)
      << "it has no certificate";
  EXPECT_THAT(TlsAnswer(decode->worker->admin_port(), "/ready"),
              testing::StartsWith("HTTP/1.1 200 OK\r"));
}

// What a router has not read yet would be lost with the process.
TEST(WorkerOperationTest, AWorkerHasNotDrainedWhileItHasSomethingToSay) {
  TestWorkerOptions options;
  options.transport = "grpc";
  auto worker = StartWorker("hybrid", options);
  Router router(*worker, DialWithSmallWindow(worker->address));
  constexpr int kAttempts = 14;
  SubmitUnread(&router, kAttempts);
  AwaitTokens(*worker, 3000);  // More than flow control lets pass unread.
  Watcher watch(*worker);
  worker->worker->Drain();
  watch.HeartbeatUntil([](const Heartbeat& beat) {
    return beat.draining && Idle(beat) && beat.load.running_sequences == 0;
  });
  for (int beats = 0; beats < 2; ++beats) {
    EXPECT_FALSE(worker->worker->Drained());
    watch.Next();
  }
  int num_ended = 0;  // By themselves, or by the drain.
  for (proto::StepBatch batch; num_ended < kAttempts && router.ReadBatch(&batch);) {
    for (const proto::RouterEvent& event : batch.events()) {
      const bool finished = event.token().finish() != proto::FINISH_REASON_NONE;
      num_ended += event.has_ended() || (event.has_token() && finished) ? 1 : 0;
    }
  }
  EXPECT_EQ(num_ended, kAttempts);
  EXPECT_TRUE(Eventually([&] { return worker->worker->Drained(); }));
}

TEST(WorkerOperationTest, WhatIsAskedOfAWorkerIsCountedAndMeasuredInSeconds) {
  auto worker = StartTestWorker(SmallWorker({.name = "hybrid", .incarnation = 1}));
  Router router(*worker);
  Watcher watch(*worker);
  const SteadyClock clock;
  const int64_t began_us = clock.NowUs();
  worker->gate.Close();
  router.Send(MakeSubmit(1, RandomTokens(60, 3), 5));
  const Heartbeat slow = watch.HeartbeatUntil(
      [](const Heartbeat& beat) { return beat.load.since_progress_us > 100'000; });
  worker->gate.Open();
  EXPECT_EQ(router.Listen().prompt.cached_tokens, 0);
  router.Send(MakeSubmit(2, RandomTokens(60, 3), 5));
  EXPECT_EQ(router.Listen().prompt.cached_tokens, 48);
  const auto seconds = [](int64_t us) { return static_cast<double>(us) * 1e-6; };
  const double elapsed = seconds(clock.NowUs() - began_us);
  const std::string metrics = Metrics(&router);
  EXPECT_EQ(MetricValue(metrics, "tandem_worker_prompt_tokens_total"), 120);
  EXPECT_EQ(MetricValue(metrics, "tandem_worker_generated_tokens_total"), 10);
  EXPECT_EQ(MetricValue(metrics, "tandem_prefix_hit_tokens_total{source=\"own\"}"), 48);
  const double computed = MetricValue(metrics, "tandem_prompt_compute_seconds_sum");
  EXPECT_GE(computed, seconds(slow.load.since_progress_us) / 2);
  EXPECT_LE(computed + MetricValue(metrics, "tandem_prompt_wait_seconds_sum"), elapsed);
  EXPECT_GE(MetricValue(metrics, "tandem_step_seconds_sum"),
            seconds(slow.load.since_progress_us) / 2);
  EXPECT_LE(MetricValue(metrics, "tandem_step_seconds_sum"), elapsed);
}

TEST(WorkerOperationTest, AWorkerNamesItsServicesAndKnowsItsCommands) {
  auto worker = StartTestWorker(SmallWorker({.name = "hybrid", .incarnation = 1}));
  const auto channel = DialControl(worker->address, 1);
  grpc::ClientContext control_context, context;
  proto::ControlResponse response;
  EXPECT_EQ(proto::Worker::NewStub(channel)->Control(&control_context, {}, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const auto stream =
      grpc::reflection::v1alpha::ServerReflection::NewStub(channel)->ServerReflectionInfo(&context);
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_list_services("*");
  grpc::reflection::v1alpha::ServerReflectionResponse answer;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&answer));
  std::vector<std::string> names;
  for (const auto& service : answer.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "tandem.v1.Worker", "tandem.v1.Prefill", "tandem.v1.Kv", "tandem.v1.Fleet",
                         "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"));
  context.TryCancel();
  stream->Finish();
}

// Whose host has lost its power says nothing any more.
TEST(WorkerOperationTest, TheKernelNoticesPeersThatAreLostInTheirTime) {
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.liveness_scale = 10;
  auto worker = StartTestWorker(config);
  const RawHttp peer(worker->worker->port());
  ASSERT_TRUE(Eventually([&] { return peer.ServerSide() >= 0; }));
  const auto said = [&](int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    getsockopt(peer.ServerSide(), IPPROTO_TCP, name, &value, &size);
    return value;
  };
  EXPECT_TRUE(Eventually([&] { return said(TCP_USER_TIMEOUT) == 20'000; }));
  EXPECT_EQ(said(TCP_KEEPIDLE), 10);
  EXPECT_EQ(said(TCP_KEEPINTVL) * said(TCP_KEEPCNT), 10);
}

// A step may take long, and whoever restarts the process ends all of its streams.
TEST(WorkerOperationTest, OnlyAnEngineThatHasStoodForManyStallsFailsItsProbe) {
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  config.liveness_scale = 0.06;
  config.admin = ListenAddress{.ip = "127.0.0.1"};
  auto worker = StartTestWorker(config);
  const auto get = [&](const std::string& path) {
    RawAnswer answer;  // Its times are so short that it gives up a client whom the machine holds.
    EXPECT_TRUE(Eventually([&] {
      answer = RawHttp(worker->worker->admin_port()).Exchange(path);
      return answer.status != 0;
    }));
    return answer;
  };
  const int64_t hung_ms =
      30 * LivenessTimes::Scaled(config.liveness_scale).engine_stalled_us / 1000;
  const auto healthy = [&] {
    const RawAnswer answer = get("/health");
    const size_t at = answer.body.find("_ms\":");
    const int64_t since_ms = at == std::string::npos ? -1 : std::stoll(answer.body.substr(at + 5));
    EXPECT_EQ(answer.status, since_ms < hung_ms ? 200 : 503) << answer.body;
    return answer.status == 200;
  };
  EXPECT_TRUE(Eventually([&] { return get("/ready").status == 200; }));
  EXPECT_THAT(get("/metrics").body, HasSubstr("tandem_running_sequences{worker=\"hybrid\"} 0"));
  worker->gate.Close();
  Router router(*worker);
  router.Send(MakeSubmit(1, RandomTokens(30, 12), 5));
  EXPECT_TRUE(Eventually([&] { return !healthy(); }));
  EXPECT_EQ(get("/ready").status, 503);
  worker->gate.Open();
  EXPECT_TRUE(Eventually(healthy));
  EXPECT_TRUE(Eventually([&] { return get("/ready").status == 200; }));
}

// A device that waits for ever is given back by the end of the process alone. A slow step is not
// that, however long it takes.
TEST(WorkerOperationTest, AStepThatHasNoEndEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [] {
    alarm(120);  // It outlives its parent, if nothing else ends it.
    WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
    config.liveness_scale = 0.05;
    config.on_hung = [] { std::_Exit(kExitToBeReplaced); };
    auto worker = StartTestWorker(config);
    const LivenessTimes times = LivenessTimes::Scaled(config.liveness_scale);
    Watcher watch(*worker);
    worker->gate.Close(/*slow=*/true);
    Router router(*worker);
    router.Send(MakeSubmit(1, RandomTokens(30, 12), 5));
    watch.HeartbeatUntil([](const Heartbeat& beat) { return beat.load.has_work; });
    const int64_t looks = 2 * kHungStalls * times.engine_stalled_us / times.heartbeat_us;
    for (int64_t i = 0; i < looks; ++i) watch.Next();
    LogInfo("slow as it was, it went on");
    worker->gate.Close();
    while (router.Listen().finished == 0) {  // Until the process ends.
    }
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(kExitToBeReplaced),
              "slow as it was(.|\n)*a step has no end.*\"seconds\":3.*\"tokens\":30,");
}

// It takes next to no CPU time, whatever the machine does besides.
TEST(WorkerOperationTest, AnIdleWorkerRests) {
  auto worker = StartTestWorker(SmallWorker({.name = "hybrid", .incarnation = 1}));
  Watcher watch(*worker);
  const auto seconds = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  watch.HeartbeatUntil(Idle);
  const double began = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID);
  for (int beats = 0; beats < 5; ++beats) watch.HeartbeatUntil(Idle);
  EXPECT_LT(seconds(CLOCK_PROCESS_CPUTIME_ID) - used, (seconds(CLOCK_MONOTONIC) - began) / 4);
}

// Else whoever begins a long step after a quiet hour is taken for hung at once.
TEST(WorkerOperationTest, AnEngineStandsSinceItsStepBeganAndNoLonger) {
  WorkerConfig config = SmallWorker({.name = "hybrid", .incarnation = 1});
  auto worker = StartTestWorker(config);
  Watcher watch(*worker);
  Router router(*worker);
  const SteadyClock clock;
  for (int quiet = 0; quiet < 3; ++quiet) watch.HeartbeatUntil(Idle);
  worker->gate.Close();
  const int64_t asked_us = clock.NowUs();
  router.Send(MakeSubmit(1, RandomTokens(30, 12), 5));
  const Heartbeat beat =
      watch.HeartbeatUntil([](const Heartbeat& heard) { return heard.load.since_progress_us > 0; });
  EXPECT_LE(beat.load.since_progress_us, clock.NowUs() - asked_us);
  worker->gate.Open();
}

// What cuts two hosts off from each other for a while ends neither worker.
TEST(WorkerOperationTest, APrefillWorkerThatWasLostIsDialledAgain) {
  TestWorkerOptions options;
  options.transport = "grpc";
  options.liveness_scale = 0.2;  // It is done without for 0.2 s at first.
  auto decode = StartWorker("decode", options);
  WorkerConfig config = SmallWorker({.name = "prefill", .incarnation = 7});
  config.transport = "grpc";
  auto prefill = StartTestWorker(config);
  config.listen = prefill->address;
  const PrefillPeer peer = prefill->peer();
  Router router(*decode);
  uint64_t counter = 0;
  const auto ask = [&] {
    ++counter;
    Submit submit = MakeSubmit(counter, RandomTokens(100, counter), 2);
    submit.prefill = peer;
    router.Send(submit);
    return router.Listen();
  };
  EXPECT_TRUE(ask().prompt.by_prefill);
  prefill.reset();
  EXPECT_TRUE(Eventually([&] { return !ask().prompt.by_prefill; }));
  EXPECT_GE(MetricValue(Metrics(&router), "tandem_prefill_pauses_total{reason=\"lost\"}"), 1);
  prefill = StartTestWorker(config);
  EXPECT_TRUE(Eventually([&] { return ask().prompt.by_prefill; }, std::chrono::seconds(20)))
      << "it is done without for ever";
}

}  // namespace
}  // namespace tandem
