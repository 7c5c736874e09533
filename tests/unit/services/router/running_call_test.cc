#include "services/router/running_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>
#include <thread>

#include "services/router/router_core.h"
#include "tests/support/core_worker.h"

namespace tandem {
namespace {

class RunningCallTest : public testing::Test {
 protected:
  RunningCallTest() : metrics_(&registry_) {
    RouterCoreOptions options;
    options.owner.router_incarnation = 1;
    options.owner.times = LivenessTimes::Scaled(1000);  // Nobody is silent, however slow this is.
    core_ = *RouterCore::Create(options, &clock_, &metrics_);
  }

  void AddWorker() {
    const WorkerRegistration registration{.worker = worker_,
                                          .role = WorkerRole::kHybrid,
                                          .model = "m",
                                          .terms = {.kv_class = "kv", .numerics_id = "n"},
                                          .kv = {.block_tokens = 16, .num_blocks = 2'048},
                                          .max_model_tokens = 32'768,
                                          .max_sequences = 8};
    ConnectWorker(*core_, registration, kSession, session_);
  }

  std::shared_ptr<RunningCall> Make(int num_prompts, std::function<void()> on_output = nullptr,
                                    int32_t max_tokens = 8, MemoryBudget* budget = nullptr,
                                    int64_t took_us = 0) {
    auto call = std::make_shared<RunningCall>(
        core_.get(), &metrics_, budget != nullptr ? budget : &budget_, &clock_, "client", "label",
        clock_.NowUs() - took_us, std::move(on_output));
    for (int i = 0; i < num_prompts; ++i) {
      EXPECT_TRUE(call->AddPrompt(Asked({1, 2, 3}, 1, max_tokens), {}).ok());
    }
    return call;
  }
  static ClientRequest Asked(std::vector<int32_t> ids, int32_t choices, int32_t max_tokens = 8) {
    ClientRequest asked;
    asked.spec = SpecOfPrompt(std::move(ids), choices);
    asked.spec.sampling.max_tokens = max_tokens;
    asked.spec.sampling.num_logprobs = kMostTop;
    asked.model = "m";
    return asked;
  }
  // A call of what is asked, with these end tokens.
  std::shared_ptr<RunningCall> Begin(ClientRequest asked, std::vector<int32_t> eos = {}) {
    const std::shared_ptr<RunningCall> call = Make(0);
    EXPECT_TRUE(call->AddPrompt(std::move(asked), std::move(eos)).ok());
    call->Start();
    Flush();
    return call;
  }

  // A call of one prompt, which a worker has.
  std::shared_ptr<RunningCall> Running() {
    AddWorker();
    return Begin(Asked({1, 2, 3}, 1));
  }

  // The router's thread does nothing more until go_on_.
  void StandStill(size_t max_queued_commands) {
    RouterCoreOptions options;
    options.owner.router_incarnation = 1;
    options.owner.times = LivenessTimes::Scaled(1000);  // Nobody is silent, however slow this is.
    options.max_queued_commands = max_queued_commands;
    core_ = *RouterCore::Create(options, &clock_, &metrics_);
    StandStill();
  }
  void StandStill() {
    std::promise<void> stands;
    core_->PublishThen([this, &stands] {
      stands.set_value();
      go_on_.get_future().wait();
    });
    stands.get_future().wait();
  }

  void Flush() { tandem::Flush(*core_); }

  void Say(std::vector<RouterEvent> events) {
    core_->OnStepBatch(kSession, {.worker_incarnation = 1, .events = std::move(events)});
    Flush();
  }
  RouterEvent Token(size_t submit, int32_t position, FinishReason finish) {
    return TokenEvent{.attempt = session_->submits.at(submit).attempt,
                      .position = position,
                      .token = {.token = 7},
                      .finish = finish};
  }
  static absl::Status EndOf(RunningCall* call) {
    for (const CallOutput& output : call->Take()) {
      if (const auto* end = std::get_if<CallEnd>(&output)) return end->status;
    }
    return absl::NotFoundError("it has not ended");
  }

  static constexpr SessionId kSession = 1;
  static constexpr int32_t kMostTop = kMaxTopLogprobs;  // Every call asks for so many.
  const WorkerId worker_{.name = "w", .incarnation = 1};
  static constexpr int64_t kBudgetBytes = int64_t{1} << 20;

  const SteadyClock clock_;
  MemoryBudget budget_{kBudgetBytes}, ample_{256 * kBudgetBytes};
  MetricsRegistry registry_;
  RouterMetrics metrics_;
  std::shared_ptr<RecordingSession> session_ = std::make_shared<RecordingSession>();
  std::promise<void> go_on_;
  std::unique_ptr<RouterCore> core_;
};

TEST_F(RunningCallTest, NothingOfAFinishedCallIsKept) {
  AddWorker();
  std::shared_ptr<RunningCall> call = Make(2);
  const std::weak_ptr<RunningCall> watched = call;
  call->Start();
  Flush();
  Say({Token(0, 3, FinishReason::kLength), Token(1, 3, FinishReason::kLength)});
  EXPECT_TRUE(EndOf(call.get()).ok());
  call.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(RunningCallTest, APromptIsChargedUntilItsFirstToken) {
  constexpr int64_t kBytes = 3 * kQueuedTokenBytes + kQueuedChoiceBytes;
  AddWorker();
  const std::shared_ptr<RunningCall> call = Make(3);
  EXPECT_EQ(budget_.held_bytes(), 3 * kBytes);
  call->Start();
  Flush();
  EXPECT_EQ(budget_.held_bytes(), 3 * kBytes);
  Say({Token(0, 3, FinishReason::kNone)});
  EXPECT_EQ(budget_.held_bytes(), 2 * kBytes);
  Say({Token(0, 4, FinishReason::kLength), Token(1, 3, FinishReason::kLength)});
  EXPECT_EQ(budget_.held_bytes(), kBytes);
  call->Cancel(absl::CancelledError("enough"));
  Flush();
  EXPECT_EQ(budget_.held_bytes(), 0);
}

TEST_F(RunningCallTest, PromptsThatWaitGiveWayToOthers) {
  const std::shared_ptr<RunningCall> call = Make(1500);
  call->Start();  // There is no worker.
  Flush();
  MemoryBudget::Holding other(&budget_, "other");
  EXPECT_TRUE(other.Set(kBudgetBytes / 2).ok());
  Flush();
  const absl::Status end = EndOf(call.get());
  EXPECT_TRUE(absl::IsResourceExhausted(end)) << end;
  EXPECT_EQ(core_->View().requests_in_flight, 0);
  EXPECT_EQ(budget_.held_bytes(), other.bytes());
}

TEST_F(RunningCallTest, APromptThatFindsNoRoomIsRefusedWithTheNumbers) {
  MemoryBudget::Holding other(&budget_, "other");
  ASSERT_TRUE(other.Set(kBudgetBytes - 1000).ok());
  const std::shared_ptr<RunningCall> call = Make(1);
  ClientRequest asked;
  asked.spec = SpecOfPrompt({1, 2, 3}, 1);
  asked.stop_strings = {std::string(500, 's')};
  const absl::Status status = call->AddPrompt(std::move(asked), {});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(status.message().find(std::to_string(kBudgetBytes)), std::string::npos) << status;
}

TEST_F(RunningCallTest, WhatNobodyTakesIsChargedAndThenDropped) {
  AddWorker();
  const std::shared_ptr<RunningCall> call = Make(1, /*on_output=*/nullptr, /*max_tokens=*/3000);
  call->Start();
  Flush();
  int32_t position = 3;
  const auto more = [&](int count) {
    std::vector<RouterEvent> events;
    for (int i = 0; i < count; ++i) events.push_back(Token(0, position++, FinishReason::kNone));
    Say(std::move(events));
  };
  more(800);
  EXPECT_GT(budget_.held_bytes(), 0);
  EXPECT_GE(call->Take().size(), 800u);
  EXPECT_EQ(budget_.held_bytes(), 0);
  more(790);
  EXPECT_GT(budget_.held_bytes(), 0) << "what waits once more";
  EXPECT_EQ(call->Take().size(), 790u);
  // Somebody else needs the memory.
  MemoryBudget::Holding other(&budget_, "other");
  ASSERT_TRUE(other.Set(kBudgetBytes - 70'000).ok());
  more(100);
  EXPECT_FALSE(call->overflowed());
  more(1100);
  EXPECT_TRUE(call->overflowed());
  EXPECT_EQ(metrics_.slow_readers.Value(), 1);
  EXPECT_EQ(budget_.held_bytes(), other.bytes()) << "what waited is gone";
  Flush();
  EXPECT_EQ(core_->View().requests_in_flight, 0);
  const std::vector<CallOutput> outputs = call->Take();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(std::get<CallEnd>(outputs[0]).status));
}

TEST_F(RunningCallTest, OnlySoManyBytesWaitHoweverLargeTheBudgetIs) {
  AddWorker();
  const std::shared_ptr<RunningCall> call =
      Make(1, /*on_output=*/nullptr, /*max_tokens=*/20'000, &ample_);
  call->Start();
  Flush();
  const std::vector<TokenLogprob> top(kMostTop);
  const auto event_bytes =
      static_cast<int64_t>(sizeof(CallOutput) + top.size() * sizeof(TokenLogprob));
  const auto most = static_cast<int32_t>(RunningCall::kMaxPendingBytes / event_bytes);
  ASSERT_LT(most, 19'900);
  for (int32_t i = 0; i < most - 50; ++i) {
    TokenEvent event = std::get<TokenEvent>(Token(0, 3 + i, FinishReason::kNone));
    event.token.top = top;
    Say({event});
  }
  EXPECT_FALSE(call->overflowed());
  EXPECT_GE(ample_.held_bytes(), (most - 50) * event_bytes - (int64_t{64} << 10));
  for (int32_t i = most - 50; i < most + 50; ++i) {
    TokenEvent event = std::get<TokenEvent>(Token(0, 3 + i, FinishReason::kNone));
    event.token.top = top;
    Say({event});
  }
  EXPECT_TRUE(call->overflowed());
  EXPECT_EQ(ample_.held_bytes(), 0);
}

TEST_F(RunningCallTest, TheEndIsToldHoweverMuchWaits) {
  AddWorker();
  const auto make = [this] {
    const std::shared_ptr<RunningCall> call = Make(1, nullptr, /*max_tokens=*/20'000, &ample_);
    call->Start();
    Flush();
    return call;
  };
  const auto token = [this](size_t submit, int32_t index, FinishReason finish) {
    TokenEvent event = std::get<TokenEvent>(Token(submit, 3 + index, finish));
    event.token.top.resize(kMostTop);
    return event;
  };
  const std::shared_ptr<RunningCall> first = make(), second = make();
  int32_t most = 0;  // Tokens that may wait.
  for (; !first->overflowed(); ++most) Say({token(0, most, FinishReason::kNone)});
  std::vector<RouterEvent> tokens;
  for (int32_t i = 0; i + 1 < most; ++i) {
    tokens.emplace_back(token(1, i, i + 2 < most ? FinishReason::kNone : FinishReason::kLength));
  }
  Say(std::move(tokens));
  EXPECT_FALSE(second->overflowed());
  EXPECT_EQ(EndOf(second.get()), absl::OkStatus());
}

TEST_F(RunningCallTest, WhatWasTakenOneByOneWaitsNoMore) {
  AddWorker();
  const std::shared_ptr<RunningCall> call =
      Make(1, /*on_output=*/nullptr, /*max_tokens=*/20'000, &ample_);
  call->Start();
  Flush();
  const std::vector<TokenLogprob> top(kMostTop);
  const auto event_bytes =
      static_cast<int64_t>(sizeof(CallOutput) + top.size() * sizeof(TokenLogprob));
  const auto most = static_cast<int32_t>(RunningCall::kMaxPendingBytes / event_bytes);
  for (int32_t i = 0; i < most + 50; ++i) {
    TokenEvent event = std::get<TokenEvent>(Token(0, 3 + i, FinishReason::kNone));
    event.token.top = top;
    Say({event});
    if (i == 0) continue;  // So that something is always left.
    EXPECT_EQ(call->Take(/*most=*/1).size(), 1u);
  }
  EXPECT_FALSE(call->overflowed());
}

TEST_F(RunningCallTest, AnAnswerThatIsMadeWholeIsChargedAsItGrows) {
  const std::shared_ptr<RunningCall> call = Running();
  Say({Token(0, 3, FinishReason::kNone)});
  call->Take();
  constexpr int64_t kIncluded = int64_t{64} << 10;
  call->KeepAnswer(kIncluded);
  EXPECT_EQ(budget_.held_bytes(), 0);
  call->KeepAnswer(4 * kIncluded);
  EXPECT_EQ(budget_.held_bytes(), 3 * kIncluded);
  call->KeepAnswer(4 * kIncluded + 1);
  EXPECT_EQ(budget_.held_bytes(), 4 * kIncluded) << "in steps";
  call->KeepAnswer(0);
  EXPECT_EQ(budget_.held_bytes(), 0);
  call->KeepAnswer(kBudgetBytes + 2 * kIncluded);
  const absl::Status end = EndOf(call.get());
  EXPECT_TRUE(absl::IsResourceExhausted(end)) << end;
  EXPECT_THAT(std::string(end.message()),
              testing::AllOf(testing::HasSubstr("not streamed"),
                             testing::HasSubstr(std::to_string(kBudgetBytes))));
  Flush();
  EXPECT_EQ(core_->View().requests_in_flight, 0);
}

TEST_F(RunningCallTest, AWholeAnswerGivesWayToOthers) {
  const std::shared_ptr<RunningCall> call = Running();
  Say({Token(0, 3, FinishReason::kNone)});
  call->Take();
  call->KeepAnswer(kBudgetBytes);
  MemoryBudget::Holding other(&budget_, "other");
  EXPECT_TRUE(other.Set(kBudgetBytes / 2).ok());
  Flush();
  EXPECT_TRUE(absl::IsResourceExhausted(EndOf(call.get())));
  EXPECT_EQ(core_->View().requests_in_flight, 0);
}

TEST_F(RunningCallTest, APromptsErrorEndsTheOthersOfTheCall) {
  AddWorker();
  const std::shared_ptr<RunningCall> call = Make(2);
  call->Start();
  Flush();
  EXPECT_EQ(core_->View().requests_in_flight, 2);
  Say({EndedEvent{.attempt = session_->submits.at(0).attempt,
                  .status = absl::InternalError("not a number")}});
  Flush();
  EXPECT_EQ(core_->View().requests_in_flight, 0);
  const std::vector<CallOutput> outputs = call->Take();
  ASSERT_EQ(outputs.size(), 1u) << "one end, whatever becomes of the others";
  EXPECT_TRUE(absl::IsInternal(std::get<CallEnd>(outputs[0]).status));
}

TEST_F(RunningCallTest, UsageIsOfAllPrompts) {
  AddWorker();
  const std::shared_ptr<RunningCall> call = Make(2);
  call->Start();
  Flush();
  for (const size_t i : {0, 1}) {
    Say({PromptEvent{.attempt = session_->submits.at(i).attempt,
                     .cached_tokens = static_cast<int32_t>(i) + 1,
                     .by_prefill = false,
                     .prompt_logprobs = {}},
         Token(i, 3, FinishReason::kLength)});
  }
  const std::vector<CallOutput> outputs = call->Take();
  const auto& end = std::get<CallEnd>(outputs.back());
  EXPECT_EQ(end.usage.prompt_tokens, 6);
  EXPECT_EQ(end.usage.completion_tokens, 2);
  EXPECT_EQ(end.usage.cached_tokens, 3);
}

TEST_F(RunningCallTest, ACallThatIsDetachedRunsNothingAndHoldsItsFrontEndNoMore) {
  AddWorker();
  auto front_end = std::make_shared<int>();
  const std::weak_ptr<int> watched = front_end;
  const std::shared_ptr<RunningCall> call = Make(
      1, [front_end = std::move(front_end)] {}, /*max_tokens=*/800);
  call->Start();
  Flush();
  EXPECT_FALSE(watched.expired());
  std::vector<RouterEvent> events;
  for (int32_t i = 0; i < 799; ++i) events.push_back(Token(0, 3 + i, FinishReason::kNone));
  Say(std::move(events));
  EXPECT_GT(budget_.held_bytes(), 0);
  call->Detach();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(budget_.held_bytes(), 0) << "for what nobody takes";
  Flush();
  EXPECT_EQ(core_->View().requests_in_flight, 0);
  EXPECT_THAT(call->Take(), testing::IsEmpty()) << "not even its end";
}

TEST_F(RunningCallTest, AFrontEndIsToldWhenThereIsSomethingToTakeAgain) {
  AddWorker();
  int num_told = 0;
  const std::shared_ptr<RunningCall> call = Make(1, [&num_told] { ++num_told; });
  call->Start();
  Flush();
  Say({Token(0, 3, FinishReason::kNone), Token(0, 4, FinishReason::kNone)});
  EXPECT_EQ(num_told, 1);
  EXPECT_EQ(call->Take().size(), 3u) << "the prompt and two tokens";
  Say({Token(0, 5, FinishReason::kLength)});
  EXPECT_EQ(num_told, 2);
}

TEST_F(RunningCallTest, AnOutputIsOfItsPromptAndItsChoice) {
  AddWorker();
  const std::shared_ptr<RunningCall> call = Make(0);
  for (int32_t prompt = 0; prompt < 2; ++prompt) {
    ClientRequest asked = Asked({1, 2, 3 + prompt}, 2);
    asked.spec.sampling.num_prompt_logprobs = 0;
    ASSERT_TRUE(call->AddPrompt(std::move(asked), {}).ok());
  }
  EXPECT_EQ(call->num_prompts(), 2);
  EXPECT_THAT(call->prompt_token_ids(1), testing::ElementsAre(1, 2, 4));
  call->Start();
  Flush();
  PromptEvent of_prompt{.attempt = session_->submits.at(1).attempt,
                        .cached_tokens = 2,
                        .by_prefill = false,
                        .prompt_logprobs = {{.token = 2, .logprob = -2}, {.token = 4}}};
  TokenEvent of_choice = std::get<TokenEvent>(Token(1, 3, FinishReason::kLength));
  of_choice.choice = 1;
  Say({of_prompt, of_choice});
  const std::vector<CallOutput> outputs = call->Take();
  ASSERT_EQ(outputs.size(), 2u);
  const auto& prompt = std::get<PromptOutput>(outputs[0]);
  EXPECT_EQ(prompt.prompt, 1);
  EXPECT_EQ(prompt.cached_tokens, 2);
  EXPECT_EQ(prompt.numerics_id, "n");
  EXPECT_EQ(prompt.prompt_logprobs, of_prompt.prompt_logprobs);
  const auto& choice = std::get<ChoiceOutput>(outputs[1]);
  EXPECT_EQ(choice.choice, 3) << "the second of the second prompt";
  EXPECT_EQ(choice.token.token, 7);
  EXPECT_EQ(choice.finish, FinishReason::kLength);
}

// Each token is a text of kLetters bytes.
class LongText final : public Detokenizer {
 public:
  static constexpr int64_t kLetters = 40'000;
  std::string Append(int32_t) override { return std::string(kLetters, 'a'); }
  std::string Finish() override { return ""; }
};

TEST_F(RunningCallTest, WhatEndedAChoiceIsNamed) {
  constexpr int32_t kEnd = 7, kStop = 8;  // The model's, and the client's.
  AddWorker();
  const auto last_of = [this](int32_t id, FinishReason finish) {
    ClientRequest asked = Asked({1, 2, 3}, 1);
    asked.spec.sampling.stop_token_ids = {kEnd, kStop};
    const std::shared_ptr<RunningCall> call = Begin(std::move(asked), {kEnd});
    TokenEvent event = std::get<TokenEvent>(Token(session_->submits.size() - 1, 3, finish));
    event.token.token = id;
    Say({event});
    return std::get<ChoiceOutput>(call->Take().at(1));
  };
  const ChoiceOutput by_end = last_of(kEnd, FinishReason::kStop);
  EXPECT_TRUE(by_end.stopped_by_eos);
  EXPECT_EQ(by_end.stop_token, kEnd);
  const ChoiceOutput by_stop = last_of(kStop, FinishReason::kStop);
  EXPECT_FALSE(by_stop.stopped_by_eos);
  EXPECT_EQ(by_stop.stop_token, kStop);
  const ChoiceOutput by_length = last_of(kStop, FinishReason::kLength);
  EXPECT_FALSE(by_length.stopped_by_eos);
  EXPECT_EQ(by_length.stop_token, -1) << "that ended nothing";
  ClientRequest asked = Asked({1, 2, 3}, 1);
  asked.spec.sampling.stop_token_ids = {kEnd};
  asked.stop_strings = {"aa"};
  asked.make_detokenizer = [] { return std::make_unique<LongText>(); };
  const std::shared_ptr<RunningCall> call = Begin(std::move(asked));
  Say({Token(3, 3, FinishReason::kNone)});
  const ChoiceOutput by_text = std::get<ChoiceOutput>(call->Take().at(1));
  EXPECT_EQ(by_text.stop_string, "aa");
  EXPECT_EQ(by_text.stop_token, -1) << "the text came first";
}

TEST_F(RunningCallTest, TextAndLogprobsOfAPromptThatNobodyTakesAreCharged) {
  constexpr int64_t kIncluded = int64_t{64} << 10;
  constexpr int32_t kTokens = 10'000;
  ClientRequest asked = Asked(std::vector<int32_t>(kTokens, 5), 1);
  asked.spec.sampling.num_prompt_logprobs = 0;
  asked.make_detokenizer = [] { return std::make_unique<LongText>(); };
  AddWorker();
  const std::shared_ptr<RunningCall> call = Begin(std::move(asked));
  Say({PromptEvent{.attempt = session_->submits.at(0).attempt,
                   .by_prefill = false,
                   .prompt_logprobs = std::vector<SampledToken>(kTokens - 1)}});
  const int64_t of_prompt = budget_.held_bytes();
  EXPECT_GE(of_prompt, (kTokens - 1) * int64_t{sizeof(SampledToken)} - kIncluded);
  std::vector<RouterEvent> events;
  for (int32_t i = 0; i < 5; ++i) events.push_back(Token(0, kTokens + i, FinishReason::kNone));
  Say(std::move(events));
  EXPECT_GE(budget_.held_bytes(), of_prompt + 5 * LongText::kLetters - kIncluded);
  EXPECT_EQ(call->Take().size(), 6u);
  EXPECT_EQ(budget_.held_bytes(), 0);
}

// What is complete is nobody's loss.
TEST_F(RunningCallTest, ACallThatEndsBeforeItGivesWayHasItsAnswer) {
  const std::shared_ptr<RunningCall> call = Running();
  Say({Token(0, 3, FinishReason::kNone)});
  call->Take();
  call->KeepAnswer(kBudgetBytes);
  const RouterEvent last = Token(0, 4, FinishReason::kLength);
  StandStill();
  core_->OnStepBatch(kSession, {.worker_incarnation = 1, .events = {last}});
  MemoryBudget::Holding other(&budget_, "other");
  EXPECT_TRUE(other.Set(kBudgetBytes / 2).ok());
  EXPECT_EQ(budget_.num_cut(), 1);
  go_on_.set_value();
  Flush();
  EXPECT_EQ(EndOf(call.get()), absl::OkStatus());
}

TEST_F(RunningCallTest, AWholeAnswerIsChargedBesideThePromptsThatWait) {
  constexpr int64_t kIncluded = int64_t{64} << 10,
                    kMoreBytes = 2 * kQueuedBiasBytes + int64_t{sizeof(std::string)} + 100;
  constexpr int64_t kPromptBytes = 3 * kQueuedTokenBytes + kQueuedChoiceBytes;
  AddWorker();
  const std::shared_ptr<RunningCall> call = Make(1);
  ClientRequest biased = Asked({1, 2, 3}, 1);
  biased.spec.sampling.logit_bias = {{3, 1.0f}, {7, 1.0f}};
  biased.stop_strings = {std::string(100, 's')};
  biased.make_detokenizer = [] { return std::make_unique<LongText>(); };
  ASSERT_TRUE(call->AddPrompt(std::move(biased), {}).ok());
  EXPECT_EQ(budget_.held_bytes(), 2 * kPromptBytes + kMoreBytes);
  call->Start();
  Flush();
  Say({Token(0, 3, FinishReason::kNone)});
  call->Take();
  call->KeepAnswer(2 * kIncluded);
  EXPECT_EQ(budget_.held_bytes(), kPromptBytes + kMoreBytes + kIncluded);
  Say({PromptEvent{.attempt = session_->submits.at(1).attempt, .prompt_logprobs = {}}});
  EXPECT_EQ(budget_.held_bytes(), kIncluded);
}

TEST_F(RunningCallTest, NothingOfACancelledCallIsKept) {
  std::shared_ptr<RunningCall> call = Make(2);
  const std::weak_ptr<RunningCall> watched = call;
  call->Start();
  call->Cancel(absl::CancelledError("aborted"));
  Flush();
  call.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(RunningCallTest, ACallThatEndedBeforeItsStartRunsNothing) {
  const std::shared_ptr<RunningCall> call = Make(3);
  call->Cancel(absl::CancelledError("aborted"));
  call->Start();
  Flush();
  EXPECT_EQ(core_->View().requests_in_flight, 0);
  EXPECT_TRUE(absl::IsCancelled(EndOf(call.get())));
}

// However many prompts it has: others need the queue, too.
TEST_F(RunningCallTest, ACallIsStartedAndCancelledByOneCommandEach) {
  StandStill(/*max_queued_commands=*/3);
  const std::shared_ptr<RunningCall> call = Make(100), next = Make(1), refused = Make(2);
  call->Start();
  call->Cancel(absl::CancelledError("aborted"));
  call->Detach();
  next->Start();
  refused->Start();
  EXPECT_TRUE(absl::IsResourceExhausted(EndOf(refused.get())));
  EXPECT_EQ(metrics_.RefusedCalls("RESOURCE_EXHAUSTED").Value(), 1);
  go_on_.set_value();
  Flush();
  EXPECT_EQ(core_->View().requests_in_flight, 1);
}

TEST_F(RunningCallTest, TheTimeToTheFirstTokenIsTheSumOfItsParts) {
  const std::shared_ptr<RunningCall> call = Running();
  Say({Token(0, 3, FinishReason::kNone), Token(0, 4, FinishReason::kLength)});
  double whole = 0, parts = 0;
  int num_parts = 0;
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (family.name == "tandem_ttft_seconds") whole += metric.histogram.sample_sum;
      if (family.name != "tandem_ttft_part_seconds") continue;
      parts += metric.histogram.sample_sum;
      ++num_parts;
      EXPECT_EQ(metric.histogram.sample_count, 1u);
    }
  }
  EXPECT_EQ(num_parts, 3);
  EXPECT_GT(whole, 0);
  EXPECT_NEAR(parts, whole, 1e-9);
}

TEST_F(RunningCallTest, WhatCameBeforeTheRouterIsTheTimeOfTheText) {
  constexpr int64_t kTookUs = 1'000'000'000;
  AddWorker();
  const std::shared_ptr<RunningCall> call = Make(1, nullptr, 8, nullptr, kTookUs);
  call->Start();
  Flush();
  Say({Token(0, 3, FinishReason::kLength)});
  int num_seen = 0;
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      const bool part = family.name == "tandem_ttft_part_seconds";
      if (!part && family.name != "tandem_ttft_seconds" && family.name != "tandem_e2e_seconds") {
        continue;
      }
      ++num_seen;
      const std::string name = part ? metric.label[0].value : family.name;
      const bool has_it = !part || name == "text";
      EXPECT_EQ(metric.histogram.sample_sum >= 1e-6 * kTookUs, has_it) << name;
    }
  }
  EXPECT_EQ(num_seen, 3 + 2);
}

TEST_F(RunningCallTest, MetricsCountAPromptOnceAndTheTokensOfEveryChoice) {
  AddWorker();
  const std::shared_ptr<RunningCall> call = Begin(Asked({1, 2, 3}, 2));
  const auto token = [this](int32_t choice, int32_t position, FinishReason finish) {
    TokenEvent event = std::get<TokenEvent>(Token(0, position, finish));
    event.choice = choice;
    return event;
  };
  Say({PromptEvent{.attempt = session_->submits.at(0).attempt,
                   .cached_tokens = 2,
                   .by_prefill = false,
                   .prompt_logprobs = {}},
       token(0, 3, FinishReason::kNone), token(1, 3, FinishReason::kNone),
       token(0, 4, FinishReason::kLength), token(1, 4, FinishReason::kLength)});
  EXPECT_EQ(metrics_.prompt_tokens.Value(), 3);
  EXPECT_EQ(metrics_.cached_prompt_tokens.Value(), 2);
  EXPECT_EQ(metrics_.generated_tokens.Value(), 4);
  std::map<std::string, prometheus::ClientMetric::Histogram> histograms;
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    if (!family.metric.empty()) histograms[family.name] = family.metric[0].histogram;
  }
  EXPECT_EQ(histograms["tandem_ttft_seconds"].sample_count, 1u);
  EXPECT_EQ(histograms["tandem_itl_seconds"].sample_count, 2u);
  EXPECT_EQ(histograms["tandem_e2e_seconds"].sample_count, 1u);
  EXPECT_EQ(histograms["tandem_request_prompt_tokens"].sample_sum, 3);
  EXPECT_EQ(histograms["tandem_request_generated_tokens"].sample_sum, 4);
}

TEST_F(RunningCallTest, WhatARequestWaitsForAWorkerIsTheTimeOfTheQueue) {
  const std::shared_ptr<RunningCall> call = Make(1);
  call->Start();
  Flush();
  const int64_t waits_us = clock_.NowUs();
  while (clock_.NowUs() < waits_us + 2) std::this_thread::yield();
  AddWorker();
  Say({Token(0, 3, FinishReason::kLength)});
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    if (family.name != "tandem_ttft_part_seconds") continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      EXPECT_GE(metric.histogram.sample_sum, metric.label[0].value == "queue" ? 1e-6 : 0)
          << metric.label[0].value;
    }
  }
}

TEST_F(RunningCallTest, AFailureIsLoggedOnceWithoutItsText) {
  const std::shared_ptr<RunningCall> call = Running();
  testing::internal::CaptureStderr();
  Say({EndedEvent{.attempt = session_->submits.at(0).attempt,
                  .status = absl::InternalError("a bug")}});
  call->Cancel(absl::CancelledError("aborted"));
  const std::shared_ptr<RunningCall> other = Make(1);
  other->Start();
  other->Cancel(absl::CancelledError("a client's doing is no failure"));
  Flush();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr(R"("message":"request failed","request_id":"label")"));
  EXPECT_THAT(log, testing::HasSubstr(R"("code":"INTERNAL","why":"a bug")"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST_F(RunningCallTest, ARouterThatEndsSaysSo) {
  const std::shared_ptr<RunningCall> running = Make(1);
  running->Start();
  core_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(running.get())));
  const std::shared_ptr<RunningCall> late = Make(1);
  late->Start();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(late.get())));
}

TEST_F(RunningCallTest, EveryPublishIsAnsweredWheneverTheCoreEnds) {
  constexpr int kThreads = 4, kEach = 2000;
  std::atomic<int> answered{0}, posted{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) {
        core_->PublishThen([&] { ++answered; });
        ++posted;
      }
    });
  }
  while (posted < kEach) std::this_thread::yield();
  core_->Stop();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, kThreads * kEach);
  core_->PublishThen([&] { ++answered; });
  EXPECT_EQ(answered, kThreads * kEach + 1) << "and after its end";
}

}  // namespace
}  // namespace tandem
