#include "services/worker/prefill_peers.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/request_spec.h"
#include "services/server/channel.h"
#include "services/server/fleet_auth.h"
#include "services/server/wire_message.h"
#include "services/server/write_queue.h"
#include "services/worker/decode_sessions.h"
#include "services/worker/read_window.h"
#include "services/worker/stream_reactor.h"
#include "tandem/v1/prefill.grpc.pb.h"

namespace tandem {

// Greets, once the other end has proven itself, then posts what the prefill worker says, which
// comes as bytes, to be measured. Alive until OnDone.
class PrefillPeers::Session final
    : public grpc::ClientBidiReactor<proto::ToPrefill, grpc::ByteBuffer> {
 public:
  Session(PrefillPeers* peers, PrefillPeer peer)
      : peers_(peers),
        peer_(std::move(peer)),
        channel_(DialControl(peer_.address, peers->liveness_scale_,
                             MaxMessageBytes(peers->budget_->limit_bytes()), peers->tls_)),
        proof_(peers->secret_, channel_, peer_.address, kPrefillSessionMethod, &context_),
        writes_(
            this, peers->budget_, ClientOfPeer(peer_.address), [this] { context_.TryCancel(); },
            /*held=*/!proof_.open(), kFreeUnsentBytes),
        window_(std::make_shared<ReadWindow>(peers->budget_, ClientOfPeer(peer_.address),
                                             [this] { StartRead(&wire_); })) {}

  // Every session ends with exactly one PrefillLost.
  static void Begin(const std::shared_ptr<Session>& session) EXCLUDES(session->mu_) {
    PrefillPeers* const peers = session->peers_;
    absl::StatusOr<std::unique_ptr<KvInbound>> inbound = peers->transport_->OpenInbound(
        session->peer_.worker.name, session->peer_.address,
        [raw = session.get()](const absl::Status& why) { raw->Lose(why); });
    session->self_ = session;
    proto::ToPrefill hello;
    auto holding = peers->budget_->Hold(ClientOfPeer(session->peer_.address),
                                        ReadWindow::kBytes + kFreeUnsentBytes);
    if (!holding.ok()) {
      session->Lose(holding.status());  // As below.
    } else {
      session->holding_ = *std::move(holding);
    }
    if (inbound.ok()) {
      PrefillHello ours = peers->self_;
      ours.expected = session->peer_.worker;
      ours.transport_address = (*inbound)->address();
      ToProto(ours, hello.mutable_hello());
      session->inbound_ = *std::move(inbound);
    } else {
      session->Lose(inbound.status());  // The call below ends cancelled.
    }
    grpc::TemplatedGenericStub<proto::ToPrefill, grpc::ByteBuffer>(session->channel_)
        .PrepareBidiStreamingCall(&session->context_, kPrefillSessionMethod, {}, session.get());
    session->AddHold();  // Until the queue is closed: OnDone never races a Push.
    if (const absl::Status status = session->writes_.Push(std::move(hello)); !status.ok()) {
      session->Lose(status);
    }
    session->proof_.Start([raw = session.get()] { raw->StartCall(); });
  }

  void Send(const DecodeToPrefill& in) {
    proto::ToPrefill message;
    ToProto(in, &message);
    if (const absl::Status status = writes_.Push(std::move(message)); !status.ok()) Lose(status);
  }

  // The first reason counts.
  void Lose(const absl::Status& why) EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (why_.ok()) why_ = why;
    }
    proof_.Cancel();
    window_->Lift();
  }

  size_t unsent() const { return writes_.size(); }
  uint64_t last_used = 0;  // Engine thread only.

  void OnReadInitialMetadataDone(bool ok) override {
    if (proof_.Proven(ok)) {
      writes_.Open();
      window_->ReadNext();
    } else {
      writes_.Close();
      RemoveHold();
    }
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      writes_.Close();
      RemoveHold();
      return;
    }
    proto::ToDecode message;  // A fresh one: one that is used again keeps its memory.
    absl::Status status = ReadMessage(&wire_, &message, kMaxWorkerExpansion);
    if (status.ok()) status = greeted_ ? Post(message) : Greet(message);
    if (!status.ok()) Lose(status);
    window_->ReadNext();  // After a loss it fails, and ends the session.
  }
  void OnWriteDone(bool ok) override { writes_.OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override EXCLUDES(mu_) {
    inbound_.reset();
    absl::Status why;
    {
      MutexLock lock(&mu_);
      why = why_;
    }
    if (why.ok()) why = proof_.WhyEnded(status);
    if (why.ok()) why = absl::UnavailableError("the prefill worker ended the session");
    // The pair shares no secret, and will not at the next try.
    if (absl::IsUnauthenticated(why)) why = absl::FailedPreconditionError(why.message());
    LogInfo("session with a prefill worker ended",
            {{"worker", peer_.worker.name}, {"why", WhyNotReached(why, peers_->tls_)}});
    peers_->commands_->PushAlways(PrefillLost{peer_.worker, why});
    PrefillPeers* const peers = peers_;
    self_.reset();  // Perhaps the last reference.
    peers->SessionEnded();
  }

 private:
  absl::Status Greet(const proto::ToDecode& first) {
    if (!first.has_hello()) return absl::InvalidArgumentError("the first answer is no hello");
    TANDEM_ASSIGN_OR_RETURN(const PrefillHello hello, FromProto(first.hello()));
    TANDEM_RETURN_IF_ERROR(CheckHello(hello, peers_->self_));
    if (hello.worker != peer_.worker) {
      return absl::UnavailableError(absl::StrFormat("worker: wanted %s/%016x, reached %s/%016x",
                                                    peer_.worker.name, peer_.worker.incarnation,
                                                    hello.worker.name, hello.worker.incarnation));
    }
    greeted_ = true;
    inbound_->Attach(hello.transport_address);
    return absl::OkStatus();
  }

  absl::Status Post(const proto::ToDecode& in) {
    TANDEM_ASSIGN_OR_RETURN(PrefillToDecode message, FromProto(in));
    if (const auto* first = std::get_if<FirstToken>(&message)) {
      for (const SampledToken& token : first->tokens) {  // The next step computes with them.
        TANDEM_RETURN_IF_ERROR(
            CheckTokenIds<int32_t>("first token", std::span(&token.token, 1), peers_->vocab_size_));
      }
    }
    TANDEM_ASSIGN_OR_RETURN(CommandCharge charge, window_->Admit(in));
    peers_->commands_->PushAlways(FromPrefill{peer_.worker, std::move(message), std::move(charge)});
    return absl::OkStatus();
  }

  PrefillPeers* const peers_;
  const PrefillPeer peer_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  FleetCall proof_;
  WriteQueue<grpc::ClientBidiReactor<proto::ToPrefill, grpc::ByteBuffer>, proto::ToPrefill> writes_;
  const std::shared_ptr<ReadWindow> window_;
  std::shared_ptr<MemoryBudget::Holding> holding_;  // What the window is charged to.
  grpc::ByteBuffer wire_;
  std::unique_ptr<KvInbound> inbound_;  // Begin, then reactions.
  bool greeted_ = false;                // Reactions only.
  Mutex mu_;
  absl::Status why_ GUARDED_BY(mu_);
  std::shared_ptr<Session> self_;  // Until OnDone.
};

PrefillPeers::~PrefillPeers() {
  MutexLock lock(&mu_);
  for (const auto& [worker, session] : sessions_) {
    session->Lose(absl::CancelledError("this worker is leaving"));
  }
  while (live_sessions_ > 0) session_ended_.Wait(&mu_);
}

void PrefillPeers::SessionEnded() {
  MutexLock lock(&mu_);
  --live_sessions_;
  session_ended_.SignalAll();
}

void PrefillPeers::Send(const PrefillPeer& peer, const DecodeToPrefill& message) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&mu_);
    const auto found = sessions_.find(peer.worker);
    if (found != sessions_.end()) session = found->second;
  }
  if (session == nullptr) {
    MakeRoom();
    session = Dial(peer);
  }
  session->last_used = ++num_sent_;
  session->Send(message);
}

void PrefillPeers::MakeRoom() {
  std::shared_ptr<Session> oldest;
  {
    MutexLock lock(&mu_);
    if (sessions_.size() < kMaxPrefillPeers) return;
    oldest = std::min_element(sessions_.begin(), sessions_.end(), [](const auto& a, const auto& b) {
               return a.second->last_used < b.second->last_used;
             })->second;
  }
  oldest->last_used = std::numeric_limits<uint64_t>::max();  // It is there until its PrefillLost.
  oldest->Lose(absl::UnavailableError("another prefill worker takes its place"));
}

std::shared_ptr<PrefillPeers::Session> PrefillPeers::Dial(const PrefillPeer& peer) {
  LogInfo("dialling a prefill worker", {{"worker", peer.worker.name}, {"address", peer.address}});
  auto session = std::make_shared<Session>(this, peer);
  {
    MutexLock lock(&mu_);
    ++live_sessions_;
  }
  Session::Begin(session);
  MutexLock lock(&mu_);
  sessions_.emplace(peer.worker, session);  // Only now: nothing may overtake the Hello.
  return session;
}

void PrefillPeers::Forget(const WorkerId& worker) {
  std::shared_ptr<Session> session;
  MutexLock lock(&mu_);
  const auto found = sessions_.find(worker);
  if (found == sessions_.end()) return;
  session = std::move(found->second);
  sessions_.erase(found);
}

void PrefillPeers::Renew(const WorkerId& worker, const tandem::Renew& renew) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&mu_);
    const auto found = sessions_.find(worker);
    if (found == sessions_.end()) return;
    session = found->second;
  }
  session->Send(renew);
}

bool PrefillPeers::Flushed() const {
  MutexLock lock(&mu_);
  return std::all_of(sessions_.begin(), sessions_.end(),
                     [](const auto& entry) { return entry.second->unsent() == 0; });
}

}  // namespace tandem
