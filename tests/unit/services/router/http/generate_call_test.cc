#include "services/router/http/generate_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "services/router/api_error.h"
#include "services/router/http/json_request.h"
#include "tests/support/core_worker.h"
#include "tests/support/growth.h"
#include "tests/support/metric_value.h"
#include "tests/support/temp_folder.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

// Keeps the statuses of answers, headers and body of the last, and what streams write; what is
// posted runs at once, unless it `holds`.
class RecordingExchange final : public HttpExchange {
 public:
  void Send(int status, std::string_view, std::string said, Headers with) override {
    statuses.push_back(status);
    headers = std::move(with);
    body = std::move(said);
  }
  void StartStream(int status, std::string_view, Headers with) override {
    statuses.push_back(status);
    headers = std::move(with);
  }
  void Write(std::string bytes) override { written += bytes; }
  void EndStream() override {}
  void Post(std::function<void()> work) override {
    if (holds) {
      held.push_back(std::move(work));
    } else {
      work();
    }
  }
  void OnLeft(std::function<void()> left) override { leave = std::move(left); }

  std::vector<int> statuses;
  Headers headers;
  std::string body, written;
  std::function<void()> leave;
  bool holds = false;
  std::vector<std::function<void()>> held;
};

class GenerateCallTest : public testing::Test {
 protected:
  static constexpr SessionId kSession = 1;
  static constexpr int32_t kEos = 255;

  // A connection lets go of its call.
  void TearDown() override {
    exchange_->leave = nullptr;
    exchange_->held.clear();
  }

  void AddWorker(int32_t max_model_tokens = 100) {
    const WorkerRegistration registration{.worker = worker_,
                                          .role = WorkerRole::kHybrid,
                                          .model = "m",
                                          .terms = {.kv_class = "kv", .numerics_id = "n"},
                                          .kv = {.block_tokens = 16, .num_blocks = 64},
                                          .max_model_tokens = max_model_tokens,
                                          .max_sequences = 8};
    ConnectWorker(*core_, registration, kSession, session_);
  }
  std::shared_ptr<GenerateCall> Watched(std::string body, bool chat = false) {
    auto call = std::make_shared<GenerateCall>(&starter_, exchange_,
                                               HttpRequest{.body = std::move(body)}, chat);
    call->WatchClient();
    return call;
  }
  // What it begins has begun when this returns.
  void Begin(const std::shared_ptr<GenerateCall>& call) {
    TextPool pool(2, 16, int64_t{1} << 20);
    call->Post(&pool, 1);
    pool.Stop();
  }
  void Flush() { tandem::Flush(*core_); }
  int64_t InFlight() {
    Flush();
    return core_->View().requests_in_flight;
  }
  // Begins what `body` asks for, for the client "c".
  std::shared_ptr<RunningCall> BeginCall(std::string_view body, std::string label = "") {
    auto running = starter_.Begin(*ParseCompletionRequest(body), {.client = "c",
                                                                  .label = std::move(label),
                                                                  .arrived_us = clock_.NowUs(),
                                                                  .on_output = nullptr});
    EXPECT_TRUE(running.ok()) << running.status();
    return *std::move(running);
  }
  // Says this as the worker.
  void Say(std::vector<RouterEvent> events) {
    core_->OnStepBatch(kSession, {.worker_incarnation = 1, .events = std::move(events)});
    Flush();
  }
  double Refused() { return metrics_.RefusedCalls("INVALID_ARGUMENT").Value(); }

  const SteadyClock clock_;
  MemoryBudget budget_{int64_t{1} << 20};
  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  const ModelInfo model_{.served_name = "m",
                         .vocab_size = 256,
                         .max_model_tokens = 100,
                         .generation = {.eos_token_ids = {kEos}}};
  const ModelText text_;
  const std::unique_ptr<RouterCore> core_ = *RouterCore::Create(
      {.owner = {.router_incarnation = 1, .times = LivenessTimes::Scaled(1000)}}, &clock_,
      &metrics_);
  CallStarter starter_{{}, &model_, &text_, core_.get(), &metrics_, &budget_, &clock_};
  const WorkerId worker_{.name = "w", .incarnation = 1};
  const std::shared_ptr<RecordingSession> session_ = std::make_shared<RecordingSession>();
  const std::shared_ptr<RecordingExchange> exchange_ = std::make_shared<RecordingExchange>();
};

constexpr char kRuns[] = R"({"model": "m", "prompt": [1, 2, 3], "max_tokens": 5})";

TEST_F(GenerateCallTest, NobodyParsesForAClientThatLeftWhileItsBodyWaited) {
  Begin(Watched("this is no JSON"));
  EXPECT_THAT(exchange_->statuses, ElementsAre(400));
  EXPECT_EQ(Refused(), 1);

  exchange_->statuses.clear();
  const std::shared_ptr<GenerateCall> call = Watched("this is no JSON");
  exchange_->leave();
  Begin(call);
  EXPECT_THAT(exchange_->statuses, IsEmpty());
  EXPECT_EQ(Refused(), 1);
}

TEST_F(GenerateCallTest, WhatRunsEndsWhenItsClientLeaves) {
  const std::shared_ptr<GenerateCall> call = Watched(kRuns);
  Begin(call);
  EXPECT_EQ(InFlight(), 1);
  exchange_->leave();
  EXPECT_EQ(InFlight(), 0);
  EXPECT_THAT(exchange_->statuses, IsEmpty());
}

// Begins once its client has left, which it cannot know.
class LateCall final : public ClientCall {
 public:
  explicit LateCall(CallStarter* starter) : ClientCall(starter, {}) {}
  int num_outputs = 0;

 private:
  absl::StatusOr<GenerateRequest> Parse() override {
    Leave();
    return ParseCompletionRequest(kRuns);
  }
  void OnBegun(const GenerateRequest&, const RunningCall&) override {}
  void OnOutput() override { ++num_outputs; }
};

TEST_F(GenerateCallTest, WhatBeginsOnceItsClientHasLeftEnds) {
  const auto call = std::make_shared<LateCall>(&starter_);
  TextPool pool(2, 16, int64_t{1} << 20);
  call->Post(&pool, 1);
  pool.Stop();
  EXPECT_EQ(InFlight(), 0);
}

// Takes what there is whenever it is told that there is something.
class EagerCall final : public ClientCall {
 public:
  explicit EagerCall(CallStarter* starter, std::string client = "")
      : ClientCall(starter, {.client = std::move(client), .on_output = nullptr}) {}
  std::vector<CallOutput> outputs;

 private:
  absl::StatusOr<GenerateRequest> Parse() override { return ParseCompletionRequest(kRuns); }
  void OnBegun(const GenerateRequest&, const RunningCall&) override {}
  void OnOutput() override {
    for (CallOutput& output : Take()) outputs.push_back(std::move(output));
  }
};

TEST_F(GenerateCallTest, WhatComesBeforeACallCanTakeItIsTakenOnceItCan) {
  core_->Stop();  // Whoever starts is told so at once.
  const auto call = std::make_shared<EagerCall>(&starter_);
  TextPool pool(2, 16, int64_t{1} << 20);
  call->Post(&pool, 1);
  pool.Stop();
  ASSERT_EQ(call->outputs.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(std::get<CallEnd>(call->outputs[0]).status));
}

TEST_F(GenerateCallTest, TokensThatComeTogetherWithAnErrorAreStreamedBeforeIt) {
  AddWorker();
  exchange_->holds = true;
  const int64_t begun_s = WallClockSeconds();
  Begin(Watched(
      R"({"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": true, "logprobs": 0})"));
  Flush();
  const AttemptId attempt = session_->submits.at(0).attempt;
  core_->OnStepBatch(
      kSession,
      {.worker_incarnation = 1,
       .events = {TokenEvent{.attempt = attempt, .position = 3, .token = {.token = 7}},
                  EndedEvent{.attempt = attempt, .status = absl::InternalError("a bug")}}});
  Flush();
  for (const auto& work : exchange_->held) work();
  EXPECT_THAT(exchange_->statuses, ElementsAre(200));
  EXPECT_THAT(exchange_->headers, ElementsAre(Pair("Cache-Control", "no-cache")));
  const size_t token = exchange_->written.find("token_logprobs");
  EXPECT_NE(token, std::string::npos) << exchange_->written;
  EXPECT_GT(exchange_->written.find("a bug"), token) << exchange_->written;
  const int64_t created_s =
      std::stoll(exchange_->written.substr(exchange_->written.find("\"created\":") + 10));
  EXPECT_GE(created_s, begun_s);
  EXPECT_LE(created_s, WallClockSeconds());
}

TEST_F(GenerateCallTest, AStreamThatFailsBeforeItsFirstTokenHasTheStatusOfItsError) {
  AddWorker();
  Begin(Watched(R"({"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": true})"));
  Flush();
  const AttemptId attempt = session_->submits.at(0).attempt;
  Say({PromptEvent{.attempt = attempt, .prompt_logprobs = {}}});
  EXPECT_THAT(exchange_->statuses, IsEmpty());
  Say({EndedEvent{.attempt = attempt, .status = absl::InternalError("a bug")}});
  EXPECT_THAT(exchange_->statuses, ElementsAre(500));
  EXPECT_THAT(exchange_->body, HasSubstr("a bug"));
}

TEST_F(GenerateCallTest, AnAnswerWhoseOutputsCameTogetherIsSentOnce) {
  AddWorker();
  exchange_->holds = true;
  Begin(Watched(kRuns));
  Flush();
  Say({TokenEvent{.attempt = session_->submits.at(0).attempt,
                  .position = 3,
                  .token = {.token = kEos},
                  .finish = FinishReason::kStop}});
  EXPECT_GE(exchange_->held.size(), 2u) << "of which the first takes all";
  for (const auto& work : exchange_->held) work();
  EXPECT_THAT(exchange_->statuses, ElementsAre(200));
}

TEST_F(GenerateCallTest, TheTimeToTheFirstTokenBeginsWithTheCall) {
  AddWorker();
  const int64_t begun_us = clock_.NowUs();
  Begin(Watched(kRuns));
  Flush();
  Say({TokenEvent{
      .attempt = session_->submits.at(0).attempt, .position = 3, .token = {.token = 7}}});
  const double waited_s = static_cast<double>(clock_.NowUs() - begun_us) * 1e-6;
  const double told_s = MetricValue(MetricsToText(registry_.Collect()), "tandem_ttft_seconds_sum");
  EXPECT_GE(told_s, 0);
  EXPECT_LE(told_s, waited_s);
}

// A byte of a text costs more in a chat, whose messages are written out again.
TEST_F(GenerateCallTest, TextsOfABodyAreChargedWhileItIsParsed) {
  const auto refused = [this](bool chat, size_t bytes) {
    const std::string fields = chat ? R"("messages": [{"role": "user", "content": "a"}])"
                                    : R"("prompt": [1], "max_tokens": 0)";
    Begin(Watched("{" + fields + R"(, "user": ")" + std::string(bytes, 'u') + "\"}", chat));
    EXPECT_EQ(exchange_->statuses.back(), 400);
    return exchange_->body.find("parsing the body") != std::string::npos;
  };
  const size_t quarter = budget_.limit_bytes() / 4;  // So much of the memory one body may take.
  EXPECT_FALSE(refused(/*chat=*/false, quarter / 3 - 1'000));
  EXPECT_TRUE(refused(/*chat=*/false, quarter / 3));
  EXPECT_FALSE(refused(/*chat=*/true, quarter / 5 - 1'000));
  EXPECT_TRUE(refused(/*chat=*/true, quarter / 5));
}

TEST_F(GenerateCallTest, WhatATextTakesIsOfItsCallsOwnTime) {
  AddWorker();
  const int64_t spent_us = 600'000'000, left_us = 1'000'000'000;
  const auto running =
      starter_.Begin(*ParseCompletionRequest(kRuns), {.client = "c",
                                                      .arrived_us = clock_.NowUs() - spent_us,
                                                      .time_left_us = left_us,
                                                      .on_output = nullptr});
  ASSERT_TRUE(running.ok()) << running.status();
  Flush();
  EXPECT_LE(session_->submits.at(0).spec.time_left_us, left_us - spent_us);
  (*running)->Detach();
  const auto late =
      starter_.Begin(*ParseCompletionRequest(kRuns), {.client = "c",
                                                      .arrived_us = clock_.NowUs() - left_us,
                                                      .time_left_us = left_us,
                                                      .on_output = nullptr});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status()));
}

TEST_F(GenerateCallTest, PromptsShareACacheWithinTheirSaltAlone) {
  AddWorker();
  const auto root_of = [this](const std::string& more) {
    const auto running = BeginCall(R"({"model": "m", "prompt": [1, 2, 3])" + more + "}");
    Flush();
    running->Detach();
    return session_->submits.back().spec.hash_root;
  };
  const BlockHash plain = root_of(""), salted = root_of(R"(, "cache_salt": "a")");
  EXPECT_NE(plain, salted);
  EXPECT_NE(root_of(R"(, "cache_salt": "b")"), salted);
  EXPECT_EQ(root_of(R"(, "cache_salt": "a")"), salted);
}

TEST_F(GenerateCallTest, NoTwoPromptsDrawWithOneSeedUnlessTheirClientNamesIt) {
  AddWorker();
  const auto seeds = [this](const std::string& more) {
    const size_t before = session_->submits.size();
    const auto running =
        BeginCall(R"({"model": "m", "prompt": [[1, 2], [1, 2]], "max_tokens": 5)" + more + "}");
    Flush();
    running->Detach();
    std::vector<uint64_t> drawn;
    for (size_t i = before; i < session_->submits.size(); ++i) {
      drawn.push_back(session_->submits[i].spec.sampling.seed);
    }
    return drawn;
  };
  const std::vector<uint64_t> first = seeds(""), second = seeds("");
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ((std::set<uint64_t>{first[0], first[1], second[0], second[1]}).size(), 4u);
  EXPECT_THAT(seeds(R"(, "seed": 7)"), ElementsAre(7, 7));
}

TEST_F(GenerateCallTest, ACallThatRunsCanBeAbortedHoweverManyHaveEndedSince) {
  const auto first = BeginCall(kRuns, "first");
  for (int i = 0; i < 500; ++i) {
    BeginCall(kRuns, "later")->Detach();
    Flush();
  }
  const auto unnamed = BeginCall(kRuns);
  EXPECT_EQ(InFlight(), 2);
  starter_.Abort("another client", "first");
  EXPECT_EQ(InFlight(), 2);
  starter_.Abort("c", "first");
  EXPECT_EQ(InFlight(), 1);
  const std::vector<CallOutput> outputs = first->Take();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(std::get<CallEnd>(outputs[0]).status));
  starter_.Abort("c", "");
  EXPECT_EQ(InFlight(), 1) << "who has no name is meant by none";
}

TEST_F(GenerateCallTest, NamesOfCallsThatHaveEndedAreForgotten) {
  const int64_t grown = Growth([this](uint64_t number) {
    BeginCall(kRuns, std::to_string(number))->Detach();
    Flush();
  });
  EXPECT_LT(grown, 200 * 100) << "a few are swept together";
}

TEST_F(GenerateCallTest, ALogTellsOfACallByItsName) {
  const auto call = BeginCall(kRuns, "mine");
  Flush();
  testing::internal::CaptureStderr();
  core_->Stop();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(R"("request_id":"mine")"));
}

// One client's calls take neither the turn nor the room of another's.
TEST_F(GenerateCallTest, ACallWaitsForItsTextAmongThoseOfItsClient) {
  std::promise<void> go_on;
  const std::shared_future<void> gate = go_on.get_future().share();
  std::vector<std::shared_ptr<EagerCall>> calls;
  const auto post = [&](TextPool* pool, const std::string& client, size_t bytes) {
    calls.push_back(std::make_shared<EagerCall>(&starter_, client));
    calls.back()->Post(pool, bytes);
    return calls.back()->outputs.empty();  // It is not refused.
  };
  TextPool pool(2, 4, int64_t{1} << 20);
  std::promise<void> run[2];
  for (std::promise<void>& runs : run) {
    ASSERT_TRUE(pool.Post("busy", 1,
                          [&runs, gate] {
                            runs.set_value();
                            gate.wait();
                          })
                    .ok());
    runs.get_future().wait();
  }
  EXPECT_TRUE(post(&pool, "a", 1));
  EXPECT_TRUE(post(&pool, "a", 1));
  EXPECT_FALSE(post(&pool, "a", 1)) << "half of those that may wait";
  EXPECT_TRUE(post(&pool, "b", 1));
  EXPECT_FALSE(post(&pool, "c", 200'000)) << "more than an eighth of this memory";
  go_on.set_value();
  pool.Stop();
}

// Else whoever asks most would have all the room there is.
TEST_F(GenerateCallTest, OfTwoClientsTheOneWithMoreRequestsThatWaitGivesWay) {
  RouterCoreOptions options{.owner = {.router_incarnation = 1}};
  options.owner.max_waiting_requests = 3;
  const auto core = *RouterCore::Create(options, &clock_, &metrics_);
  CallStarter starter({}, &model_, &text_, core.get(), &metrics_, &budget_, &clock_);
  const auto begin = [&](const std::string& client) {
    return *starter.Begin(*ParseCompletionRequest(kRuns),
                          {.client = client, .arrived_us = clock_.NowUs(), .on_output = nullptr});
  };
  const auto first = begin("many"), second = begin("many"), third = begin("many"),
             other = begin("one");
  tandem::Flush(*core);
  EXPECT_THAT(first->Take(), IsEmpty());
  EXPECT_THAT(second->Take(), IsEmpty());
  EXPECT_THAT(other->Take(), IsEmpty());
  const std::vector<CallOutput> outputs = third->Take();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(std::get<CallEnd>(outputs[0]).status));
}

TEST_F(GenerateCallTest, OfLargePiecesOfWorkOneIsDoneAtATimeAndSmallOnesAreBesideIt) {
  constexpr int64_t kLarge = int64_t{kLongTextBytes} * Tokenizer::kEncodingFactor;
  MemoryBudget budget(16 * kLarge);
  CallStarter starter({}, &model_, &text_, core_.get(), &metrics_, &budget, &clock_);
  std::atomic<int> num_running{0}, most_running{0};
  const auto large = [&](const std::function<void()>& work) {
    EXPECT_TRUE(starter
                    .RunCharged("c", "working", kLarge,
                                [&] {
                                  most_running = std::max(most_running.load(), ++num_running);
                                  work();
                                  --num_running;
                                  return absl::OkStatus();
                                })
                    .ok());
  };
  std::promise<void> first_runs, go_on;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    large([&] {
      first_runs.set_value();
      go_on.get_future().wait();
    });
  });
  first_runs.get_future().wait();
  EXPECT_EQ(budget.held_bytes(), kLarge);
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { large([] { std::this_thread::yield(); }); });
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(
        starter.RunCharged("c", "working", kLarge - 1, [] { return absl::OkStatus(); }).ok());
    std::this_thread::yield();
  }
  go_on.set_value();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most_running, 1);
  EXPECT_EQ(budget.held_bytes(), 0);
  // One may take a quarter of the budget.
  bool ran = false;
  const auto runs = [&ran] {
    ran = true;
    return absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(starter.RunCharged("c", "working", 4 * kLarge + 1, runs)));
  EXPECT_FALSE(ran);
  EXPECT_TRUE(starter.RunCharged("c", "working", 4 * kLarge, runs).ok());
  EXPECT_TRUE(ran);
}

TEST_F(GenerateCallTest, WithoutATokenizerNoTextStopsAnAnswer) {
  const auto running =
      starter_.Begin(*ParseCompletionRequest(R"({"prompt": [1], "stop": "x"})"),
                     {.client = "c", .arrived_us = clock_.NowUs(), .on_output = nullptr});
  EXPECT_EQ(FieldOf(running.status()), "stop");
}

TEST_F(GenerateCallTest, ACallThatHasNotBegunHasNotOverflowed) {
  const std::shared_ptr<GenerateCall> call = Watched(kRuns);
  EXPECT_FALSE(call->overflowed());
  call->KeepAnswer(1);
  EXPECT_THAT(call->Take(), IsEmpty());
}

TEST_F(GenerateCallTest, AnEndTokenThatTheClientNamesAsItsStopIsTheReason) {
  AddWorker();
  const auto streamed = [this](const std::string& more) {
    exchange_->written.clear();
    Begin(Watched(R"({"model": "m", "prompt": [1, 2, 3], "stream": true, "stop_token_ids": [255])" +
                  more + "}"));
    Flush();
    const AttemptId attempt = session_->submits.back().attempt;
    core_->OnStepBatch(kSession, {.worker_incarnation = 1,
                                  .events = {TokenEvent{.attempt = attempt,
                                                        .position = 3,
                                                        .token = {.token = kEos},
                                                        .finish = FinishReason::kStop}}});
    Flush();
    return exchange_->written;
  };
  EXPECT_THAT(streamed(""), HasSubstr(R"("stop_reason":null)"));
  EXPECT_THAT(streamed(R"(, "ignore_eos": true)"), HasSubstr(R"("stop_reason":255)"));
}

TEST_F(GenerateCallTest, WhoMayComeAgainIsToldWhen) {
  TextPool stopped(2, 16, int64_t{1} << 20), full(2, 0, int64_t{1} << 20);
  stopped.Stop();
  for (TextPool* pool : {&stopped, &full}) {
    Watched(kRuns)->Post(pool, 1);
    EXPECT_THAT(exchange_->headers, ElementsAre(Pair("Retry-After", "1")));
  }
  Begin(Watched("this is no JSON"));
  EXPECT_THAT(exchange_->headers, IsEmpty());
  EXPECT_THAT(exchange_->statuses, ElementsAre(503, 429, 400));
}

TEST_F(GenerateCallTest, AWholeAnswerIsChargedWithItsCopiesUntilItIsSent) {
  constexpr int32_t kTokens = 90, kTop = 20;
  AddWorker();
  Begin(Watched(R"({"model": "m", "prompt": [1, 2, 3], "max_tokens": 90, "logprobs": 20})"));
  Flush();
  std::vector<RouterEvent> events;
  for (int32_t i = 0; i < kTokens; ++i) {
    TokenEvent event{.attempt = session_->submits.at(0).attempt, .position = 3 + i, .token = {}};
    for (int32_t id = 100; id < 100 + kTop; ++id) event.token.top.push_back({.token = id});
    if (i + 1 == kTokens) event.finish = FinishReason::kLength;
    events.emplace_back(std::move(event));
  }
  const RouterEvent last = std::move(events.back());
  events.pop_back();
  core_->OnStepBatch(kSession, {.worker_incarnation = 1, .events = std::move(events)});
  Flush();
  const int64_t least = (kTokens - 1) * kTop * std::ssize(std::string(R"("token_id:100":0)"));
  constexpr int64_t kIncluded = 64 << 10;  // Free of charge.
  EXPECT_GE(budget_.held_bytes() + kIncluded, kAnswerCopies * least);
  EXPECT_THAT(exchange_->statuses, IsEmpty());
  core_->OnStepBatch(kSession, {.worker_incarnation = 1, .events = {last}});
  Flush();
  EXPECT_THAT(exchange_->statuses, ElementsAre(200));
  EXPECT_EQ(budget_.held_bytes(), 0);
}

TEST_F(GenerateCallTest, AnAnswerWhoseLengthIsLeftOpenFitsTheWorkersThereAre) {
  const auto open = BeginCall(R"({"model": "m", "prompt": [1, 2, 3]})");  // At most 16 tokens.
  const auto asked = BeginCall(R"({"model": "m", "prompt": [1, 2, 3], "max_tokens": 16})");
  AddWorker(/*max_model_tokens=*/10);
  ASSERT_EQ(session_->submits.size(), 1u);
  EXPECT_EQ(session_->submits[0].spec.sampling.max_tokens, 7);
  EXPECT_EQ(InFlight(), 1);
  const std::vector<CallOutput> outputs = asked->Take();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(std::get<CallEnd>(outputs[0]).status));
}

TEST_F(GenerateCallTest, AnAnswerIsMeasuredOverAllPromptsOfItsCall) {
  const ModelInfo model{.served_name = "m", .vocab_size = 256, .max_model_tokens = 10'000};
  CallStarter starter({}, &model, &text_, core_.get(), &metrics_, &budget_, &clock_);
  const auto refused = [&](const std::string& prompts, const std::string& more) {
    const auto running =
        starter.Begin(*ParseCompletionRequest(R"({"prompt": [)" + prompts + "]" + more + "}"),
                      {.client = "c", .arrived_us = clock_.NowUs(), .on_output = nullptr});
    if (running.ok()) (*running)->Detach();
    return FieldOf(running.status());
  };
  // 64 · 3000 · (1 + 11) values: kMaxAnswerValues holds one prompt's, not two.
  const std::string generated = R"(, "n": 64, "max_tokens": 3000, "logprobs": 11)";
  EXPECT_EQ(refused("[1]", generated), "");
  EXPECT_EQ(refused("[1], [2]", generated), "max_tokens");
  // 60 · (1 + 9) of kPromptLogprobBytes: a quarter of this budget holds one prompt's, not two.
  std::string ids = "[1";
  for (int i = 1; i < 60; ++i) ids += ",1";
  ids += "]";
  const std::string of_prompts = R"(, "prompt_logprobs": 9)";
  EXPECT_EQ(refused(ids, of_prompts), "");
  EXPECT_EQ(refused(ids + "," + ids, of_prompts), "prompt_logprobs");
}

// A begin token twice, or none, gives other answers than the model was made for.
TEST_F(GenerateCallTest, APromptIsWhatItsTemplateOrItsTokenizerMakesOfIt) {
  const TempFolder folder;
  std::ifstream demo(std::string(TANDEM_TEST_DATA) + "/demo_model/tokenizer.json");
  boost::json::object tokenizer =
      boost::json::parse(std::string(std::istreambuf_iterator<char>(demo), {})).as_object();
  tokenizer["post_processor"] = boost::json::parse(R"({
      "type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {
          "<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}}})");
  folder.Write("tokenizer.json", boost::json::serialize(tokenizer));
  folder.Write("chat_template.jinja",
               "<|begin|>{{ messages[0].content }}{{ tone }}"
               "{% if refused %}{{ raise_exception('not so') }}{% endif %}"
               "{% if dated %}{{ strftime_now('%Y') | int > 2020 }}{% endif %}"
               "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  ModelInfo model = model_;
  model.folder = folder.path();
  const absl::StatusOr<ModelText> text = LoadModelText(model);
  ASSERT_TRUE(text.ok()) << text.status();
  CallStarter starter({}, &model, &*text, core_.get(), &metrics_, &budget_, &clock_);
  const auto prompt_of = [&](const absl::StatusOr<GenerateRequest>& request) {
    const auto running = starter.Begin(
        *request, {.client = "c", .arrived_us = clock_.NowUs(), .on_output = nullptr});
    EXPECT_TRUE(running.ok()) << running.status();
    (*running)->Detach();
    return *text->tokenizer->Decode((*running)->prompt_token_ids(0), /*skip_special_tokens=*/false);
  };
  const auto chat = [&](const std::string& more) {
    return prompt_of(
        ParseChatRequest(R"({"messages": [{"role": "user", "content": "hello"}])" + more + "}"));
  };
  const auto completion = [&](const std::string& more) {
    return prompt_of(ParseCompletionRequest(R"({"prompt": "hello")" + more + "}"));
  };
  EXPECT_EQ(chat(""), "<|begin|>hello<|assistant|>");
  EXPECT_EQ(chat(R"(, "add_special_tokens": true)"), "<|begin|><|begin|>hello<|assistant|>");
  EXPECT_EQ(chat(R"(, "add_generation_prompt": false)"), "<|begin|>hello");
  EXPECT_EQ(chat(R"(, "chat_template_kwargs": {"tone": "!"})"), "<|begin|>hello!<|assistant|>");
  EXPECT_EQ(chat(R"(, "chat_template_kwargs": {"dated": true})"),
            "<|begin|>helloTrue<|assistant|>");
  EXPECT_EQ(completion(""), "<|begin|>hello");
  EXPECT_EQ(completion(R"(, "add_special_tokens": false)"), "hello");

  const auto refused_of = [&](const absl::StatusOr<GenerateRequest>& request) {
    return starter
        .Begin(*request, {.client = "c", .arrived_us = clock_.NowUs(), .on_output = nullptr})
        .status();
  };
  const absl::Status by_template =
      refused_of(ParseChatRequest(R"({"messages": [{"role": "user", "content": "hello"}],)"
                                  R"("chat_template_kwargs": {"refused": true}})"));
  EXPECT_EQ(FieldOf(by_template), "messages") << by_template;
  EXPECT_THAT(std::string(by_template.message()), HasSubstr("not so"));
  GenerateRequest no_text;
  no_text.prompts.emplace_back("\xff");
  EXPECT_EQ(FieldOf(refused_of(no_text)), "prompt");

  // A template's engine has either several times: more than a quarter of this budget.
  const std::string large(60'000, ' ');
  for (const std::string& body :
       {R"({"messages": [{"role": "user", "content": ")" + large + R"("}]})",
        R"({"messages": [{"role": "user", "content": "hello"}],)"
        R"("chat_template_kwargs": {"tone": ")" +
            large + R"("}})"}) {
    EXPECT_THAT(std::string(refused_of(ParseChatRequest(body)).message()),
                HasSubstr("rendering the messages"));
  }
}

TEST_F(GenerateCallTest, ACallThatFindsNoThreadIsRefusedOnce) {
  const std::shared_ptr<GenerateCall> call = Watched(kRuns);
  TextPool pool(2, 16, int64_t{1} << 20);
  pool.Stop();
  call->Post(&pool, 1);
  EXPECT_THAT(exchange_->statuses, ElementsAre(503));
  EXPECT_THAT(call->Take(), IsEmpty());
  EXPECT_EQ(metrics_.RefusedCalls("UNAVAILABLE").Value(), 1);
}

}  // namespace
}  // namespace tandem
