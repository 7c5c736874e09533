#include "services/worker/router_sessions.h"

#include <atomic>
#include <utility>

#include "runtime/base/log.h"
#include "services/server/status_proto.h"
#include "services/worker/token_check.h"
#include "services/worker/write_queue.h"

namespace tandem {

// Reads Submit and Cancel, posts them; writes step batches. Deletes itself after OnDone.
class RouterSessions::Session final
    : public grpc::ServerBidiReactor<proto::ToWorker, proto::StepBatch> {
 public:
  Session(RouterSessions* sessions, SessionId id)
      : sessions_(sessions), id_(id), writes_(this, kMaxUnsentSteps) {}

  void Begin() {
    Publish({.worker_incarnation = sessions_->incarnation_});
    StartRead(&message_);
  }

  void Publish(const StepBatch& batch) {
    proto::StepBatch message;
    ToProto(batch, &message);
    if (writes_.Push(std::move(message))) return;
    LogWarning("a router does not read its steps: session closed",
               {{"session", id_}, {"unsent_steps", kMaxUnsentSteps}});
    End(absl::ResourceExhaustedError("too many unread steps"));
  }

  void End(const absl::Status& why) {
    if (ended_.exchange(true)) return;
    writes_.Close();
    Finish(ToGrpcStatus(why));
  }

  size_t unsent() const { return writes_.size(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(absl::OkStatus());
      return;
    }
    Post();
    StartRead(&message_);
  }
  void OnWriteDone(bool ok) override { writes_.OnWriteDone(ok); }
  void OnCancel() override { End(absl::CancelledError("the router left")); }
  void OnDone() override {
    sessions_->Remove(id_);
    sessions_->commands_->PushAlways(RouterLost{id_});
    delete this;
  }

 private:
  void Post() {
    absl::StatusOr<RouterCommand> command = FromProto(message_);
    if (command.ok() && std::holds_alternative<Submit>(*command)) {
      const Submit& submit = std::get<Submit>(*command);
      const AttemptId attempt = submit.attempt;
      absl::Status status = CheckVocabulary(submit.token_ids, sessions_->vocab_size_);
      if (status.ok() && !sessions_->commands_->TryPush(FromRouter{id_, *std::move(command)})) {
        status = absl::ResourceExhaustedError("the worker's queue of commands is full");
      }
      if (!status.ok()) Refuse(attempt, status);
    } else if (command.ok()) {
      sessions_->commands_->PushAlways(FromRouter{id_, *std::move(command)});
    } else if (absl::StatusOr<AttemptId> attempt = FromProto(message_.submit().attempt());
               attempt.ok()) {
      Refuse(*attempt, command.status());
    } else {
      LogWarning("a router's message was not understood",
                 {{"session", id_}, {"why", command.status().ToString()}});
      End(command.status());
    }
  }

  void Refuse(const AttemptId& attempt, const absl::Status& why) {
    StepBatch batch{.worker_incarnation = sessions_->incarnation_};
    batch.events.push_back(RefusedEvent{.attempt = attempt, .status = why});
    Publish(batch);
  }

  RouterSessions* const sessions_;
  const SessionId id_;
  WriteQueue<grpc::ServerBidiReactor<proto::ToWorker, proto::StepBatch>, proto::StepBatch> writes_;
  proto::ToWorker message_;
  std::atomic<bool> ended_{false};
};

grpc::ServerBidiReactor<proto::ToWorker, proto::StepBatch>* RouterSessions::Open() {
  Session* session = nullptr;
  {
    MutexLock lock(&mu_);
    const SessionId id = next_session_++;
    session = new Session(this, id);
    sessions_.emplace(id, session);
  }
  session->Begin();
  return session;
}

void RouterSessions::Publish(SessionId session, const StepBatch& batch) {
  MutexLock lock(&mu_);
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second->Publish(batch);
}

bool RouterSessions::Flushed() const {
  MutexLock lock(&mu_);
  for (const auto& [id, session] : sessions_) {
    if (session->unsent() > 0) return false;
  }
  return true;
}

void RouterSessions::CloseAll(const absl::Status& why) {
  MutexLock lock(&mu_);
  for (const auto& [id, session] : sessions_) session->End(why);
}

void RouterSessions::Remove(SessionId session) {
  MutexLock lock(&mu_);
  sessions_.erase(session);
}

}  // namespace tandem
