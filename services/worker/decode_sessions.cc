#include "services/worker/decode_sessions.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/peer_terms.h"
#include "services/worker/token_check.h"

namespace tandem {

namespace {

PeerTerms TermsOf(const PrefillHello& hello) {
  return {.protocol_min = hello.protocol_min,
          .protocol_max = hello.protocol_max,
          .kv_class = hello.kv_class,
          .numerics_id = hello.numerics_id,
          .transport = hello.transport};
}

}  // namespace

absl::Status CheckHello(const PrefillHello& theirs, const PrefillHello& ours) {
  TANDEM_RETURN_IF_ERROR(CheckPeerTerms(TermsOf(ours), TermsOf(theirs)));
  if (!theirs.expected.name.empty() && theirs.expected != ours.worker) {
    return absl::UnavailableError(
        absl::StrFormat("worker: the peer wants %s/%016x, this is %s/%016x", theirs.expected.name,
                        theirs.expected.incarnation, ours.worker.name, ours.worker.incarnation));
  }
  return absl::OkStatus();
}

// Reads the Hello, then messages, which it posts.
class DecodeSessions::Session final
    : public StreamReactor<ServerReactor<proto::ToDecode>, proto::ToDecode> {
 public:
  Session(DecodeSessions* sessions, SessionId id, grpc::CallbackServerContext* context,
          std::shared_ptr<MemoryBudget::Holding> holding)
      : StreamReactor(context, kMaxUnsentPeerMessages, sessions->calls_->budget()),
        sessions_(sessions),
        id_(id),
        holding_(std::move(holding)),
        served_(context->peer()),
        window_(std::make_shared<ReadWindow>(sessions->calls_->budget(), client_,
                                             [this] { StartRead(&wire_); })) {}

  void Begin() {
    StartSendInitialMetadata();  // The other end waits for our proof.
    window_->ReadNext();
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

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(absl::OkStatus());
      return;
    }
    proto::ToPrefill message;  // Of its own: one that is used again keeps its memory.
    absl::Status status = ReadMessage(&wire_, &message);
    if (status.ok()) status = greeted_ ? Post(message) : Greet(message);
    if (!status.ok()) {
      LogWarning("a decode worker's session ends", {{"session", id_}, {"why", status.ToString()}});
      End(status);
      return;
    }
    window_->ReadNext();
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
  void Lost() override {
    window_->Close();
    sessions_->commands_->PushAlways(DecodeLost{id_, holding_});
  }

  absl::Status Greet(const proto::ToPrefill& first) EXCLUDES(mu_) {
    if (!first.has_hello()) return absl::InvalidArgumentError("the first message is no hello");
    TANDEM_ASSIGN_OR_RETURN(const PrefillHello hello, FromProto(first.hello()));
    TANDEM_RETURN_IF_ERROR(CheckHello(hello, sessions_->self_));
    TANDEM_ASSIGN_OR_RETURN(
        std::unique_ptr<KvOutbound> outbound,
        sessions_->transport_->OpenOutbound(
            hello.worker.name, hello.transport_address, [this](const absl::Status& why) {
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

  absl::Status Post(const proto::ToPrefill& in) {
    TANDEM_ASSIGN_OR_RETURN(DecodeToPrefill message, FromProto(in));
    const auto* submit = std::get_if<PrefillSubmit>(&message);
    if (submit == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(
          CommandCharge charge,
          window_->Wait(static_cast<int64_t>(sizeof(EngineCommand) + in.SpaceUsedLong())));
      sessions_->commands_->PushAlways(FromDecode{id_, std::move(message), std::move(charge)});
      return absl::OkStatus();
    }
    const AttemptId attempt = submit->attempt;
    absl::Status status = CheckVocabulary(submit->token_ids, sessions_->vocab_size_);
    const auto bytes = static_cast<int64_t>(submit->token_ids.size() * sizeof(int32_t));
    if (status.ok()) status = Queue(std::move(message), bytes);
    if (!status.ok()) {
      const int64_t retry_after_us = absl::IsResourceExhausted(status) ? kRetryFullQueueUs : 0;
      Send(PrefillRefused{.attempt = attempt, .status = status, .retry_after_us = retry_after_us});
    }
    return absl::OkStatus();
  }

  absl::Status Queue(DecodeToPrefill submit, int64_t bytes) {
    TANDEM_ASSIGN_OR_RETURN(auto holding, sessions_->calls_->budget()->Hold(client_, bytes));
    if (sessions_->commands_->TryPush(FromDecode{id_, std::move(submit), std::move(holding)})) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError("the prefill worker's queue of commands is full");
  }

  void Write(proto::ToDecode message) {
    if (Push(std::move(message))) return;
    End(absl::ResourceExhaustedError("too many unread messages"));
  }

  DecodeSessions* const sessions_;
  const SessionId id_;
  const std::shared_ptr<MemoryBudget::Holding> holding_;  // Of the call.
  const ServedCall served_;
  const std::shared_ptr<ReadWindow> window_;
  grpc::ByteBuffer wire_;
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
