#include "services/worker/router_sessions.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {

// Reads Submit and Cancel, posts them; writes step batches.
class RouterSessions::Session final
    : public SessionReactor<proto::ToWorker, proto::StepBatch, RouterLost> {
 public:
  Session(RouterSessions* sessions, SessionId id, grpc::CallbackServerContext* context,
          std::shared_ptr<MemoryBudget::Holding> holding)
      : SessionReactor(id, context, sessions->calls_, sessions->prompts_, sessions->commands_,
                       std::move(holding)),
        sessions_(sessions) {}

  void Begin() {
    Publish({.worker_incarnation = sessions_->incarnation_});
    ReadNext();
  }

  void Publish(const StepBatch& batch) {
    proto::StepBatch message;
    ToProto(batch, &message);
    const absl::Status status = Push(std::move(message));
    if (status.ok()) return;
    LogWarning("no batch can be sent to a router: session closed",
               {{"session", id_}, {"why", status.ToString()}});
    End(status);
  }

  void OnWriteDone(bool ok) override {
    SessionReactor::OnWriteDone(ok);
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
  absl::Status Take(const proto::ToWorker& message) override {
    absl::StatusOr<RouterCommand> command = FromProto(message);
    if (command.ok() && std::holds_alternative<Submit>(*command)) {
      const Submit& submit = std::get<Submit>(*command);
      const AttemptId attempt = submit.attempt;
      const size_t num_tokens = submit.spec.token_ids.size();
      const absl::Status status = PostPrompt(FromRouter{id_, *std::move(command), {}}, num_tokens);
      if (!status.ok()) Refuse(attempt, status);
    } else if (command.ok()) {
      return Post(message, FromRouter{id_, *std::move(command), {}});
    } else if (absl::StatusOr<AttemptId> attempt = FromProto(message.submit().attempt());
               attempt.ok()) {
      Refuse(*attempt, command.status());
    } else {
      return command.status();
    }
    return absl::OkStatus();
  }

  void Refuse(const AttemptId& attempt, const absl::Status& why) {
    StepBatch batch{.worker_incarnation = sessions_->incarnation_};
    batch.events.push_back(
        RefusedEvent{.attempt = attempt, .status = why, .retry_after_us = RetryAfterUs(why)});
    Publish(batch);
  }

  RouterSessions* const sessions_;
  const std::shared_ptr<std::atomic<bool>> at_gate_ = std::make_shared<std::atomic<bool>>(false);
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
    if (unsent.empty() && at_gate.empty()) break;
    if (!written_.WaitUntil(&written_mu_, end)) break;
  }
  late_.merge(unsent);
  late_.merge(at_gate);
}

bool RouterSessions::Flushed() const { return sessions_.Flushed(); }
void RouterSessions::CloseAll(const absl::Status& why) { sessions_.CloseAll(why); }

}  // namespace tandem
