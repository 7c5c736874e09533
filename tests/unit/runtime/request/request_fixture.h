// A request owner with hand-made workers: tests speak for the workers and read what was sent.

#ifndef TANDEM_TESTS_UNIT_RUNTIME_REQUEST_REQUEST_FIXTURE_H_
#define TANDEM_TESTS_UNIT_RUNTIME_REQUEST_REQUEST_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/request/request_owner.h"

namespace tandem {

using Tokens = std::vector<int32_t>;

struct RecordingOutbox final : RouterOutbox {
  void SendSubmit(SessionId session, const Submit& submit) override {
    submits.emplace_back(session, submit);
  }
  void SendCancel(SessionId session, const Cancel& cancel) override {
    cancels.emplace_back(session, cancel);
  }
  void CloseSession(SessionId session, std::string_view) override { closed.push_back(session); }
  void RestartWatch(const WorkerId& worker) override { rewatched.push_back(worker); }

  std::vector<std::pair<SessionId, Submit>> submits;
  std::vector<std::pair<SessionId, Cancel>> cancels;
  std::vector<SessionId> closed;
  std::vector<WorkerId> rewatched;
};

struct RecordingSink final : RequestSink {
  void OnPrompt(const PromptReport& prompt) override {
    EXPECT_TRUE(!numerics.has_value() && !ended());
    numerics = std::string(prompt.numerics_id);
    num_prompt_logprobs = prompt.prompt_logprobs.size();
  }
  void OnDelta(const Delta& delta) override {
    EXPECT_TRUE(numerics.has_value() && !ended());
    tokens[delta.choice].push_back(delta.token->token);
    text[delta.choice] += delta.text;
    positions[delta.choice].push_back(delta.position);
    if (delta.finish != FinishReason::kNone) finish[delta.choice] = delta.finish;
  }
  void OnDone(const RequestReport& r) override {
    EXPECT_FALSE(ended());
    done = true;
    report = r;
  }
  void OnError(const absl::Status& status, const RequestReport& r) override {
    EXPECT_FALSE(ended());
    error = status;
    report = r;
  }
  bool ended() const { return done || !error.ok(); }

  std::optional<std::string> numerics;
  size_t num_prompt_logprobs = 0;
  std::map<int, std::vector<int32_t>> tokens, positions;
  std::map<int, std::string> text;
  std::map<int, FinishReason> finish;
  bool done = false;
  absl::Status error;
  RequestReport report;
};

struct LetterDetokenizer final : Detokenizer {
  std::string Append(int32_t token) override { return std::string(1, static_cast<char>(token)); }
  std::string Finish() override { return {}; }
};

class RequestFixture : public testing::Test {
 protected:
  RequestFixture() { Recreate({}); }

  void Recreate(RequestOwnerOptions options) {
    options.router_incarnation = 99;
    owner_ = *RequestOwner::Create(options, CreateLeastLoadedPrefixPolicy(1), &outbox_);
  }

  // Registers, with a snapshot and a session.
  SessionId AddWorker(const std::string& name, WorkerRole role = WorkerRole::kHybrid,
                      uint64_t incarnation = 1, const std::string& numerics = "n") {
    WorkerRegistration r;
    r.worker = {.name = name, .incarnation = incarnation};
    r.role = role;
    r.model = model_;
    r.terms.kv_class = "kv";
    r.terms.numerics_id = numerics;
    r.kv.block_tokens = 16;
    r.max_model_tokens = max_model_tokens_;
    r.kv.num_blocks = 128;
    r.max_sequences = max_sequences_;
    r.supervised = supervised_;
    r.ended_lives = ended_lives_;
    EXPECT_TRUE(owner_->OnRegistration(name + ":1", r, now_us_).ok());
    owner_->OnKvEvents(r.worker,
                       {.first_sequence = 0, .snapshot = true, .stored = {}, .removed = {}});
    return OpenSession(r.worker);
  }
  // Prefill worker "p" and decode worker "d", and every prompt is disaggregated. The session of
  // "d".
  SessionId AddPair() {
    RequestOwnerOptions options;
    options.disaggregate = DisaggregatePolicy::kAlways;
    Recreate(options);
    AddWorker("p", WorkerRole::kPrefill);
    return AddWorker("d", WorkerRole::kDecode);
  }
  SessionId OpenSession(const WorkerId& worker) {
    const SessionId session = ++last_session_;
    EXPECT_TRUE(owner_->OnSessionUp(worker, session, now_us_));
    incarnations_[session] = worker.incarnation;
    return session;
  }

  ClientRequest MakeRequest(RecordingSink* sink, int32_t choices = 1) {
    ClientRequest asked;
    asked.spec = SpecOfPrompt({1, 2, 3}, choices);
    asked.spec.sampling.max_tokens = 8;
    asked.make_detokenizer = [] { return std::make_unique<LetterDetokenizer>(); };
    asked.model = "m";
    asked.sink = sink;
    return asked;
  }
  static void SetPrompt(ClientRequest* asked, Tokens prompt) {
    asked->spec.prompt_tokens = static_cast<int32_t>(prompt.size());
    asked->spec.token_ids = std::move(prompt);
  }
  RequestId Start(RecordingSink* sink, int32_t choices = 1) {
    return *owner_->Start(MakeRequest(sink, choices), now_us_);
  }

  // It begins to compute these positions.
  void Begin(SessionId session, AttemptId attempt, int32_t first, int32_t end) {
    owner_->OnStepBatch(
        session,
        {.worker_incarnation = incarnations_[session],
         .chunks = {{.attempt = attempt, .first_position = first, .end_position = end}}},
        now_us_);
  }
  void Say(SessionId session, std::vector<RouterEvent> events) {
    owner_->OnStepBatch(session,
                        {.worker_incarnation = incarnations_[session], .events = std::move(events)},
                        now_us_);
  }
  static TokenEvent Token(AttemptId attempt, int32_t position, int32_t token, int32_t choice = 0,
                          FinishReason finish = FinishReason::kNone) {
    return {.attempt = attempt,
            .choice = choice,
            .position = position,
            .token = {.token = token, .logprob = 0, .rank = 0, .top = {}},
            .finish = finish};
  }
  // Everybody is heard, as often as it takes.
  void Advance(int64_t us) {
    const int64_t end_us = now_us_ + us;
    while (now_us_ < end_us) {
      now_us_ = std::min(end_us, now_us_ + 200'000);
      for (const auto& [name, worker] : std::map(owner_->fleet().workers())) {
        if (!muted_.contains(name)) {
          owner_->OnHeartbeat(worker.id(), worker.load, worker.draining, now_us_);
        }
      }
      owner_->Tick(now_us_);
    }
  }
  const Submit& last_submit() const { return outbox_.submits.back().second; }
  SessionId last_target() const { return outbox_.submits.back().first; }
  uint64_t resumes(ResumeReason reason) const {
    return owner_->counters().resumes[static_cast<size_t>(reason)];
  }
  uint64_t outcomes(RequestOutcome outcome) const {
    return owner_->counters().outcomes[static_cast<size_t>(outcome)];
  }
  void ExpectNothingLive() const {
    EXPECT_EQ(owner_->num_requests(), 0);
    EXPECT_EQ(owner_->num_waiting(), 0);
    for (const auto& [name, worker] : owner_->fleet().workers()) {
      EXPECT_TRUE(worker.live == LiveWork()) << name;
    }
  }

  int64_t now_us_ = 3'600'000'000'000;  // No clock begins at zero.
  RecordingOutbox outbox_;
  RecordingSink sink_;
  SessionId last_session_ = 0;
  std::map<SessionId, uint64_t> incarnations_;
  std::set<std::string> muted_;
  // What workers that are added from now on have.
  std::string model_ = "m";
  int32_t max_model_tokens_ = 2048;
  int32_t max_sequences_ = 1000;
  bool supervised_ = false;
  std::vector<EndedLife> ended_lives_;
  std::unique_ptr<RequestOwner> owner_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RUNTIME_REQUEST_REQUEST_FIXTURE_H_
