// Worker processes that end, a router that asks why, and whoever told them how the last one ended:
// real processes, real signals, with a model that is simulated and in which one token aborts.

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "services/server/channel.h"
#include "services/server/listen_socket.h"
#include "tandem/v1/worker.grpc.pb.h"
#include "tests/integration/router_fixture.h"
#include "tests/support/test_worker.h"
#include "tools/tandem/child_process.h"
#include "tools/tandem/worker_lives.h"

namespace tandem {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

constexpr int32_t kDeadlyToken = 3000;
constexpr int32_t kFailingToken = 3001;  // A step that computes it fails.
constexpr int32_t kVocabulary = 4096;
constexpr int32_t kBlocks = 256;
constexpr int32_t kPrompt = 450;  // Eight steps of at most 64 tokens.
constexpr int kPoisonAt = 300;

// What takes time here is what is tested; nothing waits for another by it.
void Last(std::chrono::milliseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  Mutex mu;
  CondVar never;
  MutexLock lock(&mu);
  while (std::chrono::steady_clock::now() < end) never.WaitFor(&mu, duration);
}

// ---- A worker process ----

class AbortingExecutor final : public SynchronousExecutor {
 public:
  AbortingExecutor(const KvPool& pool, int32_t step_ms)
      : executor_({.num_blocks = kBlocks, .vocabulary = 1000}, pool, &gate_), step_ms_(step_ms) {}

  absl::Status Execute(const StepInput& input, StepOutput* output) override {
    for (const SequenceRun& run : input.runs) {
      if (std::find(run.token_ids.begin(), run.token_ids.end(), kDeadlyToken) !=
          run.token_ids.end()) {
        std::abort();
      }
    }
    Last(std::chrono::milliseconds(step_ms_));
    for (const SequenceRun& run : input.runs) {
      if (std::find(run.token_ids.begin(), run.token_ids.end(), kFailingToken) !=
          run.token_ids.end()) {
        return absl::InternalError("the device is gone");
      }
    }
    return executor_.Execute(input, output);
  }
  absl::Status BlockChecksums(std::span<const BlockId> blocks, uint32_t* crc32c) override {
    return executor_.BlockChecksums(blocks, crc32c);
  }
  void Discard(BlockId block) override { executor_.Discard(block); }
  uint64_t work_done() const override { return executor_.work_done(); }

 private:
  StepGate gate_;
  PooledExecutor executor_;
  const int32_t step_ms_;
};

int WorkerMain(const std::vector<std::string>& arguments) {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::string name, ended;
  int64_t incarnation = 0;
  int32_t port = 0, step_ms = 0;
  FlagSet flags("worker", "");
  flags.Add("name", &name, "NAME", "");
  flags.Add("port", &port, "N", "");
  flags.Add("step-ms", &step_ms, "N", "");
  flags.Add("incarnation", &incarnation, "N", "");
  flags.Add("ended", &ended, "LIST", "");
  if (!flags.Parse(arguments).ok()) return 2;
  WorkerConfig config = SmallWorker(
      {.name = name, .incarnation = static_cast<uint64_t>(incarnation)}, "demo_model", kBlocks);
  config.registration.supervised = true;
  config.registration.ended_lives = *ParseEndedLives(ended);
  config.engine.vocab_size = kVocabulary;
  config.transport = "grpc";
  config.listen = absl::StrCat("127.0.0.1:", port);
  const auto worker =
      Worker::Create(config, [&](const KvPool& pool) -> absl::StatusOr<std::unique_ptr<Executor>> {
        return std::make_unique<AbortingExecutor>(pool, step_ms);
      });
  if (!worker.ok()) return 1;
  for (;;) pause();
}

// ---- Who starts them again ----

class Supervisor {
 public:
  ~Supervisor() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    for (Child& child : children_) {
      child.process.Signal(SIGKILL);
      if (child.process.running()) waitpid(child.process.pid(), nullptr, 0);
    }
  }

  void Start(int num_workers, int step_ms) {
    for (int i = 0; i < num_workers; ++i) {
      ListenSocket port = *ListenSocket::Hold("127.0.0.1:0");
      children_.push_back(
          {.process = ChildProcess(
               absl::StrCat("w", i),
               {"/proc/self/exe", "--worker", absl::StrCat("--name=w", i),
                absl::StrCat("--port=", port.port()), absl::StrCat("--step-ms=", step_ms)}),
           .lives = {},
           .port = std::move(port)});
    }
    thread_ = std::thread([this] { Run(); });
  }

  std::string address(int worker) const {
    return absl::StrCat("127.0.0.1:", children_[static_cast<size_t>(worker)].port.port());
  }
  void Kill(int worker) {
    MutexLock lock(&mu_);
    children_[static_cast<size_t>(worker)].process.Signal(SIGKILL);
  }
  // How processes have ended so far.
  std::vector<EndCause> ends() const {
    MutexLock lock(&mu_);
    return ends_;
  }

 private:
  struct Child {
    ChildProcess process;
    WorkerLives lives;
    ListenSocket port;
  };

  void Run() {
    while (!stopping_) {
      {
        MutexLock lock(&mu_);
        for (Child& child : children_) Look(&child);
      }
      Last(std::chrono::milliseconds(5));
    }
  }
  void Look(Child* child) REQUIRES(mu_) {
    int status = 0;
    const pid_t pid = child->process.pid();
    if (child->process.running() && waitpid(pid, &status, WNOHANG) > 0) {
      child->process.OnExited(SteadyClock().NowUs());
      ends_.push_back(memory_kills_.CauseOfExit(pid, status, /*count=*/0));
      child->lives.End(ends_.back());
    }
    if (child->process.running()) return;
    ASSERT_TRUE(child->process.Start(child->lives.Begin(++incarnation_)).ok());
    memory_kills_.Began(child->process.pid(), /*count=*/0);
  }

  mutable Mutex mu_;
  std::deque<Child> children_;
  std::vector<EndCause> ends_ GUARDED_BY(mu_);
  MemoryKills memory_kills_ GUARDED_BY(mu_);
  uint64_t incarnation_ GUARDED_BY(mu_) = 1000;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

std::vector<int32_t> PromptOf(uint64_t seed) { return RandomTokens(kPrompt, seed); }

class BlameTest : public RouterFixture {
 protected:
  void StartFleet(int num_workers, int step_ms) {
    supervisor_.Start(num_workers, step_ms);
    RouterOptions options{.model = Folder(),
                          .http = {.ip = "127.0.0.1"},
                          .grpc = {.ip = "127.0.0.1"},
                          .disaggregate = DisaggregatePolicy::kNever,
                          .liveness_scale = 5};
    for (int i = 0; i < num_workers; ++i) options.workers.push_back(supervisor_.address(i));
    absl::StatusOr<std::unique_ptr<RouterApp>> router = RouterApp::Create(options);
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    ASSERT_TRUE(Eventually([&] { return router_->Ready(); }));
  }
  RawAnswer Ask(const std::vector<int32_t>& prompt) {
    return Post(
        "/v1/completions",
        absl::StrCat(
            "{\"model\":\"demo_model\",\"prompt\":[", absl::StrJoin(prompt, ","),
            "],\"temperature\":0,\"max_tokens\":4,\"ignore_eos\":true,\"return_token_ids\":true}"));
  }
  static std::string Ids(const RawAnswer& answer) {
    return boost::json::serialize(
        boost::json::parse(answer.body).at("choices").at(0).at("token_ids"));
  }
  static std::string Expected(const std::vector<int32_t>& prompt) {
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = 4;
    boost::json::array ids;
    for (const SampledToken& token : SimulatedModel(1000).Generate(prompt, 0, sampling)) {
      ids.push_back(token.token);
    }
    return boost::json::serialize(ids);
  }
  // The answer to a prompt with this token at kPoisonAt, beside others that are answered.
  RawAnswer AskPoison(int32_t token) {
    std::atomic<bool> done{false};
    std::vector<std::thread> innocents;
    for (int i = 0; i < 3; ++i) {
      innocents.emplace_back([&, i] {
        for (uint64_t seed = 100 + 1000 * static_cast<uint64_t>(i); !done; ++seed) {
          const std::vector<int32_t> prompt = PromptOf(seed);
          const RawAnswer answer = Ask(prompt);
          EXPECT_EQ(answer.status, 200) << answer.body;
          if (answer.status != 200) return;
          EXPECT_EQ(Ids(answer), Expected(prompt));
        }
      });
    }
    std::vector<int32_t> poison = PromptOf(7);
    poison[kPoisonAt] = token;
    RawAnswer answer = Ask(poison);
    done = true;
    for (std::thread& innocent : innocents) innocent.join();
    EXPECT_EQ(answer.status, 500);
    EXPECT_THAT(answer.body, HasSubstr("4 workers in a row"));
    return answer;
  }

  Supervisor supervisor_;
};

TEST_F(BlameTest, WhatAbortsEveryWorkerEndsAfterFourOfThemAndNamesThePlace) {
  StartFleet(/*num_workers=*/2, /*step_ms=*/2);
  const RawAnswer answer = AskPoison(kDeadlyToken);
  EXPECT_THAT(answer.body, HasSubstr("running it alone: crash, crash, crash, crash"));
  const size_t at = answer.body.find("at token ");
  ASSERT_NE(at, std::string::npos) << answer.body;
  int begin = 0, last = 0;
  ASSERT_EQ(sscanf(answer.body.c_str() + at, "at token %d to %d", &begin, &last), 2) << answer.body;
  EXPECT_LE(begin, kPoisonAt);
  EXPECT_GE(begin, kPoisonAt - 64);
  EXPECT_GE(last, kPoisonAt);
  EXPECT_THAT(supervisor_.ends(), testing::AllOf(SizeIs(4), Each(EndCause::kCrash)));
}

TEST_F(BlameTest, WhatFailsEveryStepEndsAfterFourOfThemAndNobodyElseDoes) {
  StartFleet(/*num_workers=*/2, /*step_ms=*/2);
  const RawAnswer answer = AskPoison(kFailingToken);
  EXPECT_THAT(answer.body, HasSubstr("a step failed, a step failed, a step failed, a step failed"));
  EXPECT_GE(Metric("tandem_stream_resumes_total{reason=\"step_failed\"}"), 4);
  EXPECT_THAT(supervisor_.ends(), testing::IsEmpty()) << "their processes go on";
}

TEST_F(BlameTest, KillsThatComeFasterThanAPromptIsComputedEndNobody) {
  StartFleet(/*num_workers=*/1, /*step_ms=*/100);
  const std::vector<int32_t> prompt = PromptOf(3);
  RawAnswer answer;
  std::atomic<bool> answered{false};
  std::thread client([&] {
    answer = Ask(prompt);
    answered = true;
  });
  for (int kills = 0; kills < 8 && !answered; ++kills) {
    const double attempts = kills + 1;
    EXPECT_TRUE(Eventually([&] {
      return answered ||
             Metric("tandem_attempts_total{prefill=\"no\",reason=\"only\"}") >= attempts;
    }));
    Last(std::chrono::milliseconds(150));  // It is in the second of eight steps of 100 ms.
    supervisor_.Kill(0);
  }
  client.join();
  EXPECT_EQ(answer.status, 200) << answer.body;
  if (answer.status == 200) {
    EXPECT_EQ(Ids(answer), Expected(prompt));
  }
  EXPECT_GE(Metric("tandem_stream_resumes_total{reason=\"session_lost\"}"), 8);
  EXPECT_THAT(supervisor_.ends(), Each(EndCause::kOutside));
}

// Whatever becomes of a process: what a step was going to compute had left it before.
TEST_F(BlameTest, TheChunkThatAbortsAWorkerHasBeenSaidBefore) {
  supervisor_.Start(/*num_workers=*/1, /*step_ms=*/0);
  std::vector<int32_t> poison = PromptOf(9);
  poison[100] = kDeadlyToken;
  for (uint64_t death = 1; death <= 20; ++death) {
    const auto channel = DialControl(supervisor_.address(0), 1);
    const auto stub = proto::Worker::NewStub(channel);
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const auto stream = stub->Session(&context);
    proto::StepBatch batch;
    ASSERT_TRUE(stream->Read(&batch));
    const Submit submit = [&] {
      Submit s = MakeSubmit(death, poison, 4);
      s.model = "demo_model";
      return s;
    }();
    proto::ToWorker message;
    ToProto(RouterCommand(submit), &message);
    ASSERT_TRUE(stream->Write(message));
    ChunkBegun last;
    while (stream->Read(&batch)) {
      const auto read = FromProto(batch);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_TRUE(read->events.empty());
      for (const ChunkBegun& chunk : read->chunks) last = chunk;
    }
    stream->Finish();
    EXPECT_EQ(last,
              (ChunkBegun{.attempt = submit.attempt, .first_position = 64, .end_position = 128}));
    EXPECT_TRUE(Eventually([&] { return supervisor_.ends().size() == death; }));
  }
  EXPECT_THAT(supervisor_.ends(), Each(EndCause::kCrash));
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--worker") {
    return tandem::WorkerMain(std::vector<std::string>(argv + 2, argv + argc));
  }
  grpc_init();  // Held: gRPC's global shutdown between tests takes up to 10 s.
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
