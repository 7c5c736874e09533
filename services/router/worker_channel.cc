#include "services/router/worker_channel.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/protocol/peer_terms.h"
#include "services/server/channel.h"
#include "services/server/wire_message.h"

namespace tandem {
namespace {

// A worker that takes none of them for so long is silent long before.
constexpr size_t kMaxUnsentCommands = 65'536;
// In a row. One may be of a worker that started again while its challenge was answered.
constexpr int kRefusalsToReport = 3;
// A call that lasted so long has ended the pauses before it.
constexpr int64_t kSettledUs = 1'000'000;
// A message that takes more, in memory, is charged: together with what it is turned into twice
// that.
constexpr int64_t kFreeMessageBytes = 1 << 20;

// Its answers come as bytes.
template <typename Request>
using BytesStub = grpc::TemplatedGenericStub<Request, grpc::ByteBuffer>;

}  // namespace

// ---- Watch ----

// A method that streams both ways looks on the wire like one that streams its answers.
class WorkerChannel::Watch final
    : public grpc::ClientBidiReactor<v1::WatchRequest, grpc::ByteBuffer>,
      public WatchReader,
      public std::enable_shared_from_this<Watch> {
 public:
  explicit Watch(std::shared_ptr<WorkerChannel> channel)
      : channel_(std::move(channel)), proof_(channel_->Prove(kWatchMethod, &context_)) {
    context_.set_wait_for_ready(true);
    request_.set_router(channel_->options_.router_name);
    request_.set_protocol_min(kProtocolMin);
    request_.set_protocol_max(kProtocolMax);
    // Not in Start: whoever finds the Watch may cancel it before.
    BytesStub<v1::WatchRequest>(channel_->channel_)
        .PrepareBidiStreamingCall(&context_, kWatchMethod, {}, this);
    StartWriteLast(&request_, grpc::WriteOptions());
    AddHold();  // ReadNext comes from the core's thread.
  }

  void Start() {
    proof_.Start([this] { StartCall(); }, /*wait_for_ready=*/true);
  }

  void Cancel() EXCLUDES(mu_) {
    proof_.Cancel();
    Release();
  }

  void OnReadInitialMetadataDone(bool ok) override EXCLUDES(mu_) {
    if (!proof_.Proven(ok)) return Release();
    ReadNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Release();
    const absl::Status status = Take();
    if (status.ok()) return;
    LogWarning("a worker's message is refused",
               {{"address", channel_->address_}, {"why", status.ToString()}});
    Cancel();
  }

  void OnDone(const grpc::Status& status) override {
    channel_->OnWatchDone(this, proof_.WhyEnded(status));
  }

  void ReadNext() override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (held_) StartRead(&wire_);
  }

 private:
  absl::Status Take() {
    v1::WatchEvent event;
    RouterCore::Holding holding;
    TANDEM_RETURN_IF_ERROR(channel_->Receive(&wire_, &event, &holding));
    TANDEM_ASSIGN_OR_RETURN(WatchUpdate update, FromProto(event));
    return channel_->OnWatchUpdate(this, std::move(update), std::move(holding));
  }

  // No operation is started from now on.
  void Release() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (!std::exchange(held_, false)) return;
    }
    RemoveHold();
  }

  const std::shared_ptr<WorkerChannel> channel_;
  grpc::ClientContext context_;
  FleetCall proof_;
  v1::WatchRequest request_;
  grpc::ByteBuffer wire_;
  Mutex mu_;
  bool held_ GUARDED_BY(mu_) = true;
};

// ---- Session ----

class WorkerChannel::Session final : public grpc::ClientBidiReactor<v1::ToWorker, grpc::ByteBuffer>,
                                     public SessionWriter,
                                     public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<WorkerChannel> channel, SessionId session_id, const WorkerId& worker_id)
      : id(session_id),
        worker(worker_id),
        channel_(std::move(channel)),
        proof_(channel_->Prove(kWorkerSessionMethod, &context_)) {
    context_.set_wait_for_ready(false);
    // Not in Start: whoever finds the session may close it before.
    BytesStub<v1::ToWorker>(channel_->channel_)
        .PrepareBidiStreamingCall(&context_, kWorkerSessionMethod, {}, this);
    AddHold();  // Send and ReadNext come from other threads.
  }

  void Start() {
    proof_.Start([this] { StartCall(); });
  }

  // Commands are sent once the first batch has been read: nothing is said before the proof.
  void OnReadInitialMetadataDone(bool ok) override EXCLUDES(mu_) {
    if (!proof_.Proven(ok)) return Release();
    MutexLock lock(&mu_);
    if (held_) StartRead(&wire_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Ended();
    const absl::Status status = Take();
    if (status.ok()) return;
    LogWarning("a worker's message is refused",
               {{"worker", worker.name}, {"why", status.ToString()}});
    Close("refused message");
  }

  void OnWriteDone(bool ok) override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    writing_ = false;
    unsent_.pop_front();
    if (ok) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    channel_->OnSessionDone(this, proof_.WhyEnded(status));
  }

  // ---- SessionWriter ----

  void Send(const RouterCommand& command) override EXCLUDES(mu_) {
    bool overflow = false;
    {
      MutexLock lock(&mu_);
      if (!held_) return;
      ToProto(command, &unsent_.emplace_back());
      overflow = unsent_.size() > kMaxUnsentCommands;
      WriteNext();
    }
    if (overflow) Close("the worker takes no commands");
  }

  void ReadNext() override EXCLUDES(mu_) {
    if (!std::exchange(accepted_, true)) channel_->OnSessionAccepted(this);
    MutexLock lock(&mu_);
    if (held_) StartRead(&wire_);
  }

  void Close(std::string_view why) override {
    proof_.Cancel();
    Release();
  }

  const SessionId id;
  const WorkerId worker;
  bool announced = false;  // The core knows of it. Of the channel, under its lock.

 private:
  absl::Status Take() {
    v1::StepBatch message;
    RouterCore::Holding holding;
    TANDEM_RETURN_IF_ERROR(channel_->Receive(&wire_, &message, &holding));
    TANDEM_ASSIGN_OR_RETURN(StepBatch batch, FromProto(message));
    if (!std::exchange(open_, true)) {
      channel_->OnSessionOpen(this, batch.worker_incarnation);
    } else {
      channel_->core_->OnStepBatch(id, std::move(batch), std::move(holding));
    }
    return absl::OkStatus();
  }

  void WriteNext() REQUIRES(mu_) {
    if (writing_ || unsent_.empty() || !held_) return;
    writing_ = true;
    StartWrite(&unsent_.front());
  }

  // The worker says nothing more. A write that it does not take would outlast the session.
  void Ended() EXCLUDES(mu_) {
    bool writing = false;
    {
      MutexLock lock(&mu_);
      writing = writing_;
    }
    if (writing) context_.TryCancel();
    Release();
  }

  // No operation is started from now on.
  void Release() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (!std::exchange(held_, false)) return;
    }
    RemoveHold();
  }

  const std::shared_ptr<WorkerChannel> channel_;
  grpc::ClientContext context_;
  FleetCall proof_;
  grpc::ByteBuffer wire_;
  bool open_ = false;      // Reading reactions only.
  bool accepted_ = false;  // The core's thread only.

  Mutex mu_;
  bool held_ GUARDED_BY(mu_) = true;
  bool writing_ GUARDED_BY(mu_) = false;
  std::deque<v1::ToWorker> unsent_ GUARDED_BY(mu_);
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
      channel_(DialControl(address_, options.liveness_scale,
                           MaxMessageBytes(options.budget->limit_bytes()))),
      watch_dialling_(options),
      session_dialling_(options) {}

WorkerChannel::~WorkerChannel() = default;

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
  int64_t next_us = now_us + 3'600'000'000;
  {
    MutexLock lock(&mu_);
    if (closing_) return next_us;
    if (watch_ == nullptr) {
      if (watch_dialling_.Due(now_us)) {
        new_watch = watch_ = std::make_shared<Watch>(shared_from_this());
      } else {
        next_us = std::min(next_us, watch_dialling_.pause.until_us);
      }
    } else if (registered_ && session_ == nullptr) {
      if (session_dialling_.Due(now_us)) {
        const SessionId id = next_session_->fetch_add(1);
        new_session = session_ = std::make_shared<Session>(shared_from_this(), id, worker_);
      } else {
        next_us = std::min(next_us, session_dialling_.pause.until_us);
      }
    }
  }
  if (new_watch != nullptr) new_watch->Start();
  if (new_session != nullptr) new_session->Start();
  return next_us;
}

bool WorkerChannel::Dialling::Due(int64_t now_us) {
  if (ended) {  // Since the last look: pause, the shorter if it was good for something.
    if (answered && now_us - dialled_us >= kSettledUs) pause = {};
    pause.Begin(first_pause_us, max_pause_us, now_us);
    ended = answered = false;
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
  BytesStub<v1::ControlRequest>(channel_).UnaryCall(context, kControlMethod, {}, request, answer,
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
    closing_ = true;
    watch = watch_;
    session = session_;
  }
  if (watch != nullptr) watch->Cancel();
  if (session != nullptr) session->Close("the router ends");
  watch.reset();
  session.reset();
  MutexLock lock(&mu_);
  while (watch_ != nullptr || session_ != nullptr) idle_.Wait(&mu_);
}

absl::Status WorkerChannel::OnWatchUpdate(Watch* watch, WatchUpdate update,
                                          RouterCore::Holding holding) {
  std::shared_ptr<Session> outdated;
  {
    MutexLock lock(&mu_);
    if (closing_ || watch != watch_.get()) return absl::OkStatus();
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
      wake_();
    }
    // Under the lock, so that the core hears of the registration before the session opens.
    core_->OnWatchUpdate(address_, worker_, std::move(update), watch->shared_from_this(),
                         std::move(holding));
  }
  if (outdated != nullptr) outdated->Close("the worker restarted");
  return absl::OkStatus();
}

void WorkerChannel::OnWatchDone(Watch* watch, const absl::Status& why) {
  std::shared_ptr<Watch> last;  // Released after the lock.
  MutexLock lock(&mu_);
  last = std::move(watch_);
  watch_ = nullptr;
  watch_dialling_.ended = true;
  if (registered_) {
    core_->OnWatchLost(worker_);
    LogInfo("watch ended", {{"worker", worker_.name}, {"why", why.ToString()}});
    num_refusals_ = 0;
  } else if (!absl::IsUnavailable(why) && !absl::IsCancelled(why) &&
             ++num_refusals_ == kRefusalsToReport) {
    LogWarning(absl::IsUnauthenticated(why) ? "a worker and this router do not trust each other"
                                            : "a worker refuses this router",
               {{"address", address_}, {"why", why.ToString()}});
  }
  registered_ = false;
  wake_();
  idle_.SignalAll();
}

void WorkerChannel::OnSessionOpen(Session* session, uint64_t incarnation) {
  bool wanted = false;
  {
    MutexLock lock(&mu_);
    wanted = !closing_ && session_.get() == session && session->worker.incarnation == incarnation;
    if (wanted) {
      session->announced = true;
      core_->OnSessionUp(session->worker, session->id, session_);
    }
  }
  if (!wanted) session->Close("another incarnation answered");
}

void WorkerChannel::OnSessionAccepted(Session* session) {
  MutexLock lock(&mu_);
  if (session_.get() == session) session_dialling_.answered = true;
}

void WorkerChannel::OnSessionDone(Session* session, const absl::Status& why) {
  std::shared_ptr<Session> last;  // Released after the lock.
  {
    MutexLock lock(&mu_);
    last = std::move(session_);
    session_ = nullptr;
    session_dialling_.ended = true;
    if (session->announced) {
      core_->OnSessionLost(session->id);
      LogInfo("session ended", {{"worker", session->worker.name}, {"why", why.ToString()}});
    }
    wake_();
    idle_.SignalAll();
  }
}

}  // namespace tandem
