#include "services/router/worker_channel.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/peer_terms.h"
#include "services/server/channel.h"
#include "services/server/wire_message.h"
#include "services/server/write_queue.h"

namespace tandem {
namespace {

// In a row. One may be of a worker that started again while its challenge was answered.
constexpr int kRefusalsToReport = 3;
// A call that lasted so long has ended the pauses before it.
constexpr int64_t kSettledUs = 1'000'000;
// Without a registration, before the log says so; times the liveness scale.
constexpr double kUnheardUs = 10e6;
// To the next look at a channel of which nothing is due.
constexpr int64_t kIdleLookUs = 3'600'000'000;
// To the next look at whether a worker that the router has no use for is of use.
constexpr int64_t kRefusedPauseUs = 2'000'000;
// A message that takes more, in memory, is charged: together with what it is turned into twice
// that. So are commands that a worker leaves unread beyond this much: a worker that reads is not
// lost because clients have used the budget up.
constexpr int64_t kFreeMessageBytes = 1 << 20;

// Its answers come as bytes.
template <typename Request>
using BytesStub = grpc::TemplatedGenericStub<Request, grpc::ByteBuffer>;

}  // namespace

// ---- Watch and Session ----

// A call whose answers come as bytes, one at a time: the core's thread asks for the next one, and a
// hold keeps the call until nobody will. A method that streams its answers alone looks on the wire
// like one that streams both ways.
template <typename Request>
class WorkerChannel::Call : public grpc::ClientBidiReactor<Request, grpc::ByteBuffer> {
 public:
  void Start() {
    proof_.Start([this] { this->StartCall(); });
  }

  void Cancel() EXCLUDES(mu_) {
    proof_.Cancel();
    Release();
  }

  void OnReadInitialMetadataDone(bool ok) override EXCLUDES(mu_) {
    if (!proof_.Proven(ok)) return Release();
    Read();
  }

  void OnReadDone(bool ok) override EXCLUDES(mu_) {
    if (!ok) return Release();
    const absl::Status status = Take();
    if (status.ok()) return;
    LogWarning("a worker's message is refused",
               {{"address", channel_->address_}, {"why", status.ToString()}});
    if (!absl::IsResourceExhausted(status)) Refused();
    Cancel();
  }

 protected:
  Call(std::shared_ptr<WorkerChannel> channel, const std::shared_ptr<grpc::Channel>& wire,
       const char* method)
      : channel_(std::move(channel)),
        proof_(&channel_->options_.secret, wire, channel_->address_, method, &context_) {
    // Not in Start: whoever finds the call may cancel it before.
    BytesStub<Request>(wire).PrepareBidiStreamingCall(&context_, method, {}, this);
    this->AddHold();
  }

  // Deals with what is in wire_. Not OK: the call ends for it.
  virtual absl::Status Take() = 0;
  // For what its worker said: the next call is a while off.
  virtual void Refused() = 0;
  // Nothing is written from now on. True if a write is in flight.
  virtual bool StopWriting() { return false; }

  void Read() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (held_) this->StartRead(&wire_);
  }
  // What is in wire_, checked.
  template <typename Message>
  decltype(FromProto(Message())) Received(RouterCore::Holding* holding) {
    Message message;
    TANDEM_RETURN_IF_ERROR(channel_->Receive(&wire_, &message, holding));
    return FromProto(message);
  }

  const std::shared_ptr<WorkerChannel> channel_;
  grpc::ClientContext context_;
  FleetCall proof_;
  grpc::ByteBuffer wire_;

 private:
  // No operation is started from now on.
  void Release() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (!std::exchange(held_, false)) return;
    }
    // A write that the worker does not take would outlast the call.
    if (StopWriting()) context_.TryCancel();
    this->RemoveHold();
  }

  Mutex mu_;
  bool held_ GUARDED_BY(mu_) = true;
};

class WorkerChannel::Watch final : public Call<v1::WatchRequest>,
                                   public WatchReader,
                                   public std::enable_shared_from_this<Watch> {
 public:
  Watch(std::shared_ptr<WorkerChannel> channel, const std::shared_ptr<grpc::Channel>& wire)
      : Call(std::move(channel), wire, kWatchMethod) {
    request_.set_router(channel_->options_.router_name);
    request_.set_protocol_min(kProtocolMin);
    request_.set_protocol_max(kProtocolMax);
    StartWriteLast(&request_, grpc::WriteOptions());
  }

  void ReadNext(bool wants_session) override {
    channel_->OnWatchAccepted(this, wants_session);
    Read();
  }
  void Refuse() override {
    Refused();
    Cancel();
  }

  void OnDone(const grpc::Status& status) override {
    channel_->OnWatchDone(this, proof_.WhyEnded(status));
  }

 private:
  absl::Status Take() override {
    RouterCore::Holding holding;
    TANDEM_ASSIGN_OR_RETURN(WatchUpdate update, Received<v1::WatchEvent>(&holding));
    return channel_->OnWatchUpdate(this, std::move(update), std::move(holding));
  }
  void Refused() override { channel_->OnWatchRefused(this); }

  v1::WatchRequest request_;
};

class WorkerChannel::Session final : public Call<v1::ToWorker>,
                                     public SessionWriter,
                                     public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<WorkerChannel> channel, const std::shared_ptr<grpc::Channel>& wire,
          SessionId session_id, const WorkerId& worker_id)
      : Call(std::move(channel), wire, kWorkerSessionMethod),
        id(session_id),
        worker(worker_id),
        writes_(
            this, channel_->options_.budget, ClientOfPeer(channel_->address_),
            [this] { context_.TryCancel(); }, /*held=*/false, kFreeMessageBytes) {}

  void OnWriteDone(bool ok) override { writes_.OnWriteDone(ok); }

  void OnDone(const grpc::Status& status) override {
    channel_->OnSessionDone(this, proof_.WhyEnded(status));
  }

  // ---- SessionWriter ----

  // The core hears of the session with its first batch: nothing is said before the proof.
  void Send(const RouterCommand& command) override {
    v1::ToWorker message;
    ToProto(command, &message);
    const absl::Status status = writes_.Push(std::move(message));
    if (status.ok()) return;
    LogWarning("no command can be sent to a worker: session closed",
               {{"worker", worker.name}, {"why", status.ToString()}});
    Close();
  }

  void ReadNext() override {
    if (!std::exchange(accepted_, true)) channel_->OnSessionAccepted(this);
    Read();
  }

  void Close() override { Cancel(); }

  const SessionId id;
  const WorkerId worker;
  bool announced = false;  // The core knows of it. Of the channel, under its lock.

 private:
  absl::Status Take() override {
    RouterCore::Holding holding;
    TANDEM_ASSIGN_OR_RETURN(StepBatch batch, Received<v1::StepBatch>(&holding));
    if (!std::exchange(open_, true)) {
      channel_->OnSessionOpen(this, batch.worker_incarnation);
    } else {
      channel_->core_->OnStepBatch(id, std::move(batch), std::move(holding));
    }
    return absl::OkStatus();
  }
  void Refused() override { channel_->OnSessionRefused(); }
  bool StopWriting() override { return writes_.Close(); }

  bool open_ = false;      // Reading reactions only.
  bool accepted_ = false;  // The core's thread only.
  WriteQueue<grpc::ClientBidiReactor<v1::ToWorker, grpc::ByteBuffer>, v1::ToWorker> writes_;
};

// ---- WorkerChannel ----

WorkerChannel::WorkerChannel(std::string address, const WorkerChannelOptions& options,
                             RouterCore* core, std::atomic<SessionId>* next_session,
                             std::function<void()> wake)
    : address_(std::move(address)),
      options_(options),
      core_(core),
      next_session_(next_session),
      wake_(std::move(wake)),
      watch_dialling_(options),
      session_dialling_(options) {}

WorkerChannel::~WorkerChannel() = default;

std::shared_ptr<grpc::Channel> WorkerChannel::wire() const {
  MutexLock lock(&mu_);
  return wire_;
}

void WorkerChannel::FollowCertificates() {
  const uint64_t num_changes = options_.tls == nullptr ? 0 : options_.tls->num_changes();
  if (wire_ != nullptr && num_changes == tls_changes_) return;
  tls_changes_ = num_changes;
  wire_ = DialControl(address_, options_.liveness_scale,
                      MaxMessageBytes(options_.budget->limit_bytes()), options_.tls);
}

WorkerId WorkerChannel::worker() const {
  MutexLock lock(&mu_);
  return worker_;
}

bool WorkerChannel::connected() const {
  MutexLock lock(&mu_);
  return registered_;
}

int64_t WorkerChannel::Tend(int64_t now_us) {
  std::shared_ptr<Watch> new_watch;
  std::shared_ptr<Session> new_session;
  int64_t next_us = 0;
  {
    MutexLock lock(&mu_);
    next_us = TellUnheard(now_us);
    FollowCertificates();
    if (watch_ == nullptr) {
      if (watch_dialling_.Due(now_us)) {
        new_watch = watch_ = std::make_shared<Watch>(shared_from_this(), wire_);
      } else {
        next_us = std::min(next_us, watch_dialling_.pause.until_us);
      }
    } else if (wants_session_ && session_ == nullptr) {
      if (session_dialling_.Due(now_us)) {
        const SessionId id = next_session_->fetch_add(1);
        new_session = session_ = std::make_shared<Session>(shared_from_this(), wire_, id, worker_);
      } else {
        next_us = std::min(next_us, session_dialling_.pause.until_us);
      }
    }
  }
  if (new_watch != nullptr) new_watch->Start();
  if (new_session != nullptr) new_session->Start();
  return next_us;
}

int64_t WorkerChannel::TellUnheard(int64_t now_us) {
  if (registered_) {
    unheard_since_us_ = 0;
    told_unheard_ = false;
  } else if (unheard_since_us_ == 0) {
    unheard_since_us_ = now_us;
  }
  if (registered_ || told_unheard_) return now_us + kIdleLookUs;
  const int64_t due_us =
      unheard_since_us_ + static_cast<int64_t>(kUnheardUs * options_.liveness_scale);
  if (now_us < due_us) return due_us;
  told_unheard_ = true;
  LogWarning("no worker registers",
             {{"address", address_},
              {"for_s", static_cast<double>(now_us - unheard_since_us_) * 1e-6},
              {"tls", options_.tls != nullptr},
              {"why", why_unheard_}});
  return now_us + kIdleLookUs;
}

bool WorkerChannel::Dialling::Due(int64_t now_us) {
  if (ended) {  // Since the last look: pause, the shorter if it was good for something.
    if (answered && now_us - dialled_us >= kSettledUs) pause = {};
    if (refused) {
      pause = {.until_us = now_us + kRefusedPauseUs, .length_us = max_pause_us};
    } else {
      pause.Begin(first_pause_us, max_pause_us, now_us);
    }
    ended = answered = refused = false;
  }
  if (pause.Holds(now_us)) return false;
  dialled_us = now_us;
  return true;
}

template <typename Message>
absl::Status WorkerChannel::Receive(grpc::ByteBuffer* wire, Message* message,
                                    RouterCore::Holding* holding) const {
  TANDEM_ASSIGN_OR_RETURN(const int64_t bytes,
                          ParsedBytes(*wire, *Message::descriptor(), kMaxWorkerExpansion));
  if (bytes > kFreeMessageBytes) {
    TANDEM_ASSIGN_OR_RETURN(*holding, options_.budget->Hold(ClientOfPeer(address_), 2 * bytes));
  }
  return ParseMessage(wire, message);
}

void WorkerChannel::Control(grpc::ClientContext* context, const v1::ControlRequest* request,
                            grpc::ByteBuffer* answer,
                            std::function<void(grpc::Status)> done) const {
  BytesStub<v1::ControlRequest>(wire()).UnaryCall(context, kControlMethod, {}, request, answer,
                                                  std::move(done));
}

void WorkerChannel::RestartWatch() {
  std::shared_ptr<Watch> watch;
  {
    MutexLock lock(&mu_);
    watch = watch_;
  }
  if (watch != nullptr) watch->Cancel();
}

void WorkerChannel::Close() {
  std::shared_ptr<Watch> watch;
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&mu_);
    watch = watch_;
    session = session_;
  }
  if (watch != nullptr) watch->Cancel();
  if (session != nullptr) session->Close();
  MutexLock lock(&mu_);
  while (watch_ != nullptr || session_ != nullptr) idle_.Wait(&mu_);
}

absl::Status WorkerChannel::OnWatchUpdate(Watch* watch, WatchUpdate update,
                                          RouterCore::Holding holding) {
  std::shared_ptr<Session> outdated;
  {
    MutexLock lock(&mu_);
    const auto* const registration = std::get_if<WorkerRegistration>(&update);
    if ((registration != nullptr) == registered_) {
      return absl::InvalidArgumentError(registered_ ? "a second registration of one Watch"
                                                    : "a Watch begins with the registration");
    }
    if (registration != nullptr) {
      if (session_ != nullptr && session_->worker != registration->worker) outdated = session_;
      worker_ = registration->worker;
      registered_ = true;
      watch_dialling_.answered = true;
    }
    // Under the lock, so that the core hears of the end after it.
    core_->OnWatchUpdate(address_, worker_, std::move(update), watch->shared_from_this(),
                         std::move(holding));
  }
  if (outdated != nullptr) outdated->Close();
  return absl::OkStatus();
}

void WorkerChannel::OnWatchAccepted(Watch* watch, bool wants_session) {
  MutexLock lock(&mu_);
  if (watch != watch_.get()) return;
  if (!std::exchange(wants_session_, wants_session) && wants_session) wake_();
}

void WorkerChannel::OnWatchRefused(Watch* watch) {
  std::shared_ptr<Session> useless;
  {
    MutexLock lock(&mu_);
    if (watch != watch_.get()) return;
    watch_dialling_.refused = true;
    useless = session_;
  }
  if (useless != nullptr) useless->Close();
}

void WorkerChannel::OnWatchDone(Watch* watch, const absl::Status& why) {
  std::shared_ptr<Watch> last;  // Released after the lock.
  MutexLock lock(&mu_);
  last = std::move(watch_);
  watch_ = nullptr;
  watch_dialling_.ended = true;
  why_unheard_ = WhyNotReached(why, options_.tls);
  if (registered_) {
    core_->OnWatchLost(address_, worker_);
    if (!watch_dialling_.refused) {
      LogInfo("watch ended", {{"worker", worker_.name}, {"why", why.ToString()}});
    }
    num_refusals_ = 0;
  } else if (!absl::IsUnavailable(why) && !absl::IsCancelled(why) &&
             !absl::IsDeadlineExceeded(why) && ++num_refusals_ == kRefusalsToReport) {
    LogWarning(absl::IsUnauthenticated(why) ? "a worker and this router do not trust each other"
                                            : "a worker refuses this router",
               {{"address", address_}, {"why", why.ToString()}});
  }
  registered_ = wants_session_ = false;
  wake_();
  idle_.SignalAll();
}

void WorkerChannel::OnSessionOpen(Session* session, uint64_t incarnation) {
  bool wanted = false;
  {
    MutexLock lock(&mu_);
    wanted = session->worker.incarnation == incarnation;
    if (wanted) {
      session->announced = true;
      core_->OnSessionUp(session->worker, session->id, session_);
    }
  }
  if (!wanted) session->Close();
}

void WorkerChannel::OnSessionAccepted(Session* session) {
  MutexLock lock(&mu_);
  if (session_.get() == session) session_dialling_.answered = true;
}

void WorkerChannel::OnSessionRefused() {
  MutexLock lock(&mu_);
  session_dialling_.refused = true;
}

void WorkerChannel::OnSessionDone(Session* session, const absl::Status& why) {
  std::shared_ptr<Session> last;  // Released after the lock.
  {
    MutexLock lock(&mu_);
    last = std::move(session_);
    session_ = nullptr;
    session_dialling_.ended = true;
    if (session->announced) core_->OnSessionLost(session->id);
    if (session_dialling_.answered) {  // Else the core did not take it.
      LogInfo("session ended", {{"worker", session->worker.name}, {"why", why.ToString()}});
    }
    wake_();
    idle_.SignalAll();
  }
}

}  // namespace tandem
