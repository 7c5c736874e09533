#include "services/worker/decode_sessions.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/peer_terms.h"

namespace tandem {

absl::Status CheckHello(const PrefillHello& theirs, const PrefillHello& ours) {
  TANDEM_RETURN_IF_ERROR(CheckPeerTerms(ours.terms, theirs.terms));
  if (!theirs.expected.name.empty() && theirs.expected != ours.worker) {
    return absl::UnavailableError(
        absl::StrFormat("worker: the peer wants %s/%016x, this is %s/%016x", theirs.expected.name,
                        theirs.expected.incarnation, ours.worker.name, ours.worker.incarnation));
  }
  return absl::OkStatus();
}

// Reads the Hello, then messages, which it posts.
class DecodeSessions::Session final
    : public SessionReactor<proto::ToPrefill, proto::ToDecode, DecodeLost> {
 public:
  Session(DecodeSessions* sessions, SessionId id, grpc::CallbackServerContext* context,
          std::shared_ptr<MemoryBudget::Holding> holding)
      : SessionReactor(id, context, sessions->calls_, sessions->prompts_, sessions->commands_,
                       std::move(holding)),
        sessions_(sessions) {}

  void Begin() {
    StartSendInitialMetadata();  // The other end waits for our proof.
    ReadNext();
  }

  void Send(const PrefillToDecode& in) {
    proto::ToDecode message;
    ToProto(in, &message);
    Write(std::move(message));
  }

  void SendFrame(const FrameHeader& header, int32_t block, uint64_t send_id) EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (outbound_ != nullptr) {
        outbound_->Send(header, block, send_id);
        return;
      }
    }
    sessions_->commands_->PushAlways(FrameSent{send_id, false});
  }

  void WithdrawFrame(uint64_t send_id) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (outbound_ != nullptr) outbound_->Withdraw(send_id);
  }

  void OnDone() override {
    sessions_->sessions_.Remove(id_);
    std::unique_ptr<KvOutbound> outbound;
    {
      MutexLock lock(&mu_);
      outbound = std::move(outbound_);
    }
    outbound.reset();  // Completes what was being sent.
    Lost();
    delete this;
  }

 private:
  absl::Status Take(const proto::ToPrefill& in) override {
    if (!greeted_) return Greet(in);
    TANDEM_ASSIGN_OR_RETURN(DecodeToPrefill message, FromProto(in));
    const auto* submit = std::get_if<PrefillSubmit>(&message);
    if (submit == nullptr) return Post(in, FromDecode{id_, std::move(message), {}});
    const JobId job = submit->job;
    const size_t num_tokens = submit->spec.token_ids.size();
    const absl::Status status = PostPrompt(FromDecode{id_, std::move(message), {}}, num_tokens);
    if (!status.ok()) {
      Send(PrefillRefused{.job = job, .status = status, .retry_after_us = RetryAfterUs(status)});
    }
    return absl::OkStatus();
  }

  absl::Status Greet(const proto::ToPrefill& first) EXCLUDES(mu_) {
    if (!first.has_hello()) return absl::InvalidArgumentError("the first message is no hello");
    TANDEM_ASSIGN_OR_RETURN(const PrefillHello hello, FromProto(first.hello()));
    TANDEM_RETURN_IF_ERROR(CheckHello(hello, sessions_->self_));
    TANDEM_ASSIGN_OR_RETURN(
        std::unique_ptr<KvOutbound> outbound,
        sessions_->transport_->OpenOutbound(
            hello.transport_address, [this](const absl::Status& why) {
              End(absl::UnavailableError(absl::StrFormat("KV link: %s", why.ToString())));
            }));
    proto::ToDecode answer;
    PrefillHello ours = sessions_->self_;
    ours.transport_address = outbound->address();
    ToProto(ours, answer.mutable_hello());
    {
      MutexLock lock(&mu_);
      outbound_ = std::move(outbound);
    }
    greeted_ = true;
    LogInfo("a decode worker opened a session", {{"session", id_}, {"worker", hello.worker.name}});
    Write(std::move(answer));
    return absl::OkStatus();
  }

  void Write(proto::ToDecode message) {
    if (const absl::Status status = Push(std::move(message)); !status.ok()) End(status);
  }

  DecodeSessions* const sessions_;
  bool greeted_ = false;  // Reactions only.
  Mutex mu_;
  std::unique_ptr<KvOutbound> outbound_ GUARDED_BY(mu_);
};

ServerReactor<proto::ToDecode>* DecodeSessions::Open(grpc::CallbackServerContext* context) {
  return OpenCharged<proto::ToDecode>(calls_, context, &sessions_, [&](SessionId id, auto holding) {
    return new Session(this, id, context, std::move(holding));
  });
}

void DecodeSessions::Send(SessionId session, const PrefillToDecode& message) {
  sessions_.With(session, [&](Session* s) { s->Send(message); });
}

void DecodeSessions::SendFrame(SessionId session, const FrameHeader& header, int32_t block,
                               uint64_t send_id) {
  const auto send = [&](Session* s) { s->SendFrame(header, block, send_id); };
  if (!sessions_.With(session, send)) commands_->PushAlways(FrameSent{send_id, false});
}

void DecodeSessions::WithdrawFrame(SessionId session, uint64_t send_id) {
  sessions_.With(session, [&](Session* s) { s->WithdrawFrame(send_id); });
}

bool DecodeSessions::Flushed() const { return sessions_.Flushed(); }
void DecodeSessions::CloseAll(const absl::Status& why) { sessions_.CloseAll(why); }

}  // namespace tandem
