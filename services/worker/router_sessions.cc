#include "services/worker/router_sessions.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "services/worker/token_check.h"

namespace tandem {

// Reads Submit and Cancel, posts them; writes step batches.
class RouterSessions::Session final
    : public StreamReactor<ServerReactor<proto::StepBatch>, proto::StepBatch> {
 public:
  Session(RouterSessions* sessions, SessionId id, grpc::CallbackServerContext* context,
          std::shared_ptr<MemoryBudget::Holding> holding)
      : StreamReactor(context, kMaxUnsentBatches, sessions->calls_->budget()),
        sessions_(sessions),
        id_(id),
        holding_(std::move(holding)),
        served_(context->peer()),
        window_(std::make_shared<ReadWindow>(sessions->calls_->budget(), client_,
                                             [this] { StartRead(&wire_); })) {}

  void Begin() {
    Publish({.worker_incarnation = sessions_->incarnation_});
    window_->ReadNext();
  }

  void Publish(const StepBatch& batch) {
    proto::StepBatch message;
    ToProto(batch, &message);
    if (Push(std::move(message))) return;
    LogWarning("a router does not read its batches: session closed",
               {{"session", id_}, {"unsent_batches", kMaxUnsentBatches}});
    End(absl::ResourceExhaustedError("too many unread batches"));
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(absl::OkStatus());
      return;
    }
    proto::ToWorker message;  // Of its own: one that is used again keeps its memory.
    absl::Status status = ReadMessage(&wire_, &message);
    if (status.ok()) status = Post(message);
    if (!status.ok()) {
      LogWarning("a router's message is refused", {{"session", id_}, {"why", status.ToString()}});
      return End(status);
    }
    window_->ReadNext();
  }
  void OnWriteDone(bool ok) override {
    StreamReactor::OnWriteDone(ok);
    sessions_->OnWritten();
  }
  const std::shared_ptr<GatedConnection>& connection() const { return served_.connection(); }
  // The gate still has something that gRPC has written.
  const std::shared_ptr<std::atomic<bool>>& at_gate() const { return at_gate_; }
  void OnDone() override {
    sessions_->sessions_.Remove(id_);
    sessions_->OnWritten();
    Lost();
    delete this;
  }

 private:
  void Lost() override {
    window_->Close();
    sessions_->commands_->PushAlways(RouterLost{id_, holding_});
  }

  // Not OK: the session ends with it.
  absl::Status Post(const proto::ToWorker& message) {
    absl::StatusOr<RouterCommand> command = FromProto(message);
    if (command.ok() && std::holds_alternative<Submit>(*command)) {
      const Submit& submit = std::get<Submit>(*command);
      const AttemptId attempt = submit.attempt;
      absl::Status status = CheckVocabulary(submit.token_ids, sessions_->vocab_size_);
      const auto bytes = static_cast<int64_t>(submit.token_ids.size() * sizeof(int32_t));
      if (status.ok()) status = Queue(*std::move(command), bytes);
      if (!status.ok()) Refuse(attempt, status);
    } else if (command.ok()) {
      TANDEM_ASSIGN_OR_RETURN(
          CommandCharge charge,
          window_->Wait(static_cast<int64_t>(sizeof(EngineCommand) + message.SpaceUsedLong())));
      sessions_->commands_->PushAlways(FromRouter{id_, *std::move(command), std::move(charge)});
    } else if (absl::StatusOr<AttemptId> attempt = FromProto(message.submit().attempt());
               attempt.ok()) {
      Refuse(*attempt, command.status());
    } else {
      return command.status();
    }
    return absl::OkStatus();
  }

  absl::Status Queue(RouterCommand submit, int64_t bytes) {
    TANDEM_ASSIGN_OR_RETURN(auto holding, sessions_->calls_->budget()->Hold(client_, bytes));
    if (sessions_->commands_->TryPush(FromRouter{id_, std::move(submit), std::move(holding)})) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError("the worker's queue of commands is full");
  }

  void Refuse(const AttemptId& attempt, const absl::Status& why) {
    StepBatch batch{.worker_incarnation = sessions_->incarnation_};
    const int64_t retry_after_us = absl::IsResourceExhausted(why) ? kRetryFullQueueUs : 0;
    batch.events.push_back(
        RefusedEvent{.attempt = attempt, .status = why, .retry_after_us = retry_after_us});
    Publish(batch);
  }

  RouterSessions* const sessions_;
  const SessionId id_;
  const std::shared_ptr<MemoryBudget::Holding> holding_;  // Of the call.
  const ServedCall served_;
  const std::shared_ptr<std::atomic<bool>> at_gate_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<ReadWindow> window_;
  grpc::ByteBuffer wire_;
};

ServerReactor<proto::StepBatch>* RouterSessions::Open(grpc::CallbackServerContext* context) {
  return OpenCharged<proto::StepBatch>(calls_, context, &sessions_,
                                       [&](SessionId id, auto holding) {
                                         return new Session(this, id, context, std::move(holding));
                                       });
}

void RouterSessions::Publish(SessionId session, const StepBatch& batch) {
  sessions_.With(session, [&](Session* s) { s->Publish(batch); });
}

std::vector<SessionId> RouterSessions::ids() const { return sessions_.Ids(); }

bool RouterSessions::Sent(SessionId session) {
  bool sent = true;
  sessions_.With(session, [&](const Session* s) { sent = s->unsent() == 0; });
  return sent;
}

bool RouterSessions::Written(SessionId session) {
  bool written = true;
  sessions_.With(session, [&](const Session* s) { written = s->unsent() == 0 && !*s->at_gate(); });
  return written;
}

void RouterSessions::AskGate(SessionId session) {
  std::shared_ptr<GatedConnection> connection;
  std::shared_ptr<std::atomic<bool>> at_gate;
  sessions_.With(session, [&](const Session* s) {
    connection = s->connection();
    at_gate = s->at_gate();
  });
  if (connection == nullptr) return;
  *at_gate = true;
  connection->WhenPassedOn([this, at_gate] {
    *at_gate = false;
    OnWritten();
  });
}

void RouterSessions::OnWritten() {
  MutexLock lock(&written_mu_);
  written_.Signal();  // Only the engine thread waits.
}

void RouterSessions::WaitUntilWritten(std::span<const SessionId> sessions,
                                      std::chrono::microseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  const auto sent = [this](SessionId session) { return Sent(session); };
  const auto written = [this](SessionId session) { return Written(session); };
  std::erase_if(late_, written);
  std::set<SessionId> unsent(sessions.begin(), sessions.end());
  for (const SessionId session : late_) unsent.erase(session);
  std::set<SessionId> at_gate;
  while (true) {
    // Each goes on by itself: one that does not read makes no other one late.
    std::erase_if(unsent, [&](SessionId session) {
      if (!Sent(session)) return false;
      AskGate(session);
      return at_gate.insert(session).second;
    });
    MutexLock lock(&written_mu_);
    if (std::any_of(unsent.begin(), unsent.end(), sent)) continue;
    std::erase_if(at_gate, written);
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        end - std::chrono::steady_clock::now());
    if ((unsent.empty() && at_gate.empty()) || left.count() <= 0) break;
    written_.WaitFor(&written_mu_, left);
  }
  late_.merge(unsent);
  late_.merge(at_gate);
}

bool RouterSessions::Flushed() const { return sessions_.Flushed(); }
void RouterSessions::CloseAll(const absl::Status& why) { sessions_.CloseAll(why); }

}  // namespace tandem
