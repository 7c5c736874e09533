#include "services/router/worker_channel.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/protocol/peer_terms.h"
#include "services/server/channel.h"

namespace tandem {
namespace {

// A worker that takes none of them for so long is silent long before.
constexpr size_t kMaxUnsentCommands = 65'536;
// In a row. One may be of a worker that started again while its challenge was answered.
constexpr int kRefusalsToReport = 3;

}  // namespace

// ---- Watch: deletes itself at its end ----

class WorkerChannel::Watch final : public grpc::ClientReadReactor<v1::WatchEvent> {
 public:
  Watch(std::shared_ptr<WorkerChannel> channel)
      : channel_(std::move(channel)), proof_(channel_->Prove(kWatchMethod, &context_)) {
    context_.set_wait_for_ready(true);
    request_.set_router(channel_->options_.router_name);
    request_.set_protocol_min(kProtocolMin);
    request_.set_protocol_max(kProtocolMax);
  }

  void Start() {
    channel_->stub_->async()->Watch(&context_, &request_, this);
    proof_.Start([this] { StartCall(); }, /*wait_for_ready=*/true);
  }

  void Cancel() { proof_.Cancel(); }

  void OnReadInitialMetadataDone(bool ok) override {
    if (proof_.Proven(ok)) StartRead(&event_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    absl::StatusOr<WatchUpdate> update = FromProto(event_);
    if (!update.ok()) {
      LogWarning("a worker's message is refused",
                 {{"address", channel_->address_}, {"why", update.status().ToString()}});
      context_.TryCancel();
      return;
    }
    channel_->OnWatchUpdate(this, *std::move(update));
    StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    channel_->OnWatchDone(this, proof_.WhyEnded(status));
    delete this;
  }

 private:
  const std::shared_ptr<WorkerChannel> channel_;
  grpc::ClientContext context_;
  FleetCall proof_;
  v1::WatchRequest request_;
  v1::WatchEvent event_;
};

// ---- Session ----

class WorkerChannel::Session final : public grpc::ClientBidiReactor<v1::ToWorker, v1::StepBatch>,
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
    channel_->stub_->async()->Session(&context_, this);
    AddHold();  // Send and ReadNext come from other threads.
  }

  void Start() {
    proof_.Start([this] { StartCall(); });
  }

  // Commands are sent once the first batch has been read: nothing is said before the proof.
  void OnReadInitialMetadataDone(bool ok) override EXCLUDES(mu_) {
    if (!proof_.Proven(ok)) return Release();
    MutexLock lock(&mu_);
    if (held_) StartRead(&batch_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Ended();
    absl::StatusOr<StepBatch> batch = FromProto(batch_);
    if (!batch.ok()) {
      LogWarning("a worker's message is refused",
                 {{"worker", worker.name}, {"why", batch.status().ToString()}});
      return Close("refused message");
    }
    if (!std::exchange(open_, true)) {
      channel_->OnSessionOpen(this, batch->worker_incarnation);
    } else {
      channel_->core_->OnStepBatch(id, *std::move(batch));
    }
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
    if (held_) StartRead(&batch_);
  }

  void Close(std::string_view why) override {
    proof_.Cancel();
    Release();
  }

  const SessionId id;
  const WorkerId worker;
  bool announced = false;  // The core knows of it. Of the channel, under its lock.

 private:
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
  v1::StepBatch batch_;
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
      channel_(DialControl(address_, options.liveness_scale)),
      stub_(v1::Worker::NewStub(channel_)),
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
  Watch* new_watch = nullptr;
  std::shared_ptr<Session> new_session;
  int64_t next_us = now_us + 3'600'000'000;
  {
    MutexLock lock(&mu_);
    if (closing_) return next_us;
    if (watch_ == nullptr) {
      if (watch_dialling_.Due(now_us)) {
        new_watch = watch_ = new Watch(shared_from_this());
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
  if (ended) {  // Since the last look: pause, unless it was good for something.
    if (answered) pause = {};
    pause.Begin(first_pause_us, max_pause_us, now_us);
    ended = answered = false;
  }
  return !pause.Holds(now_us);
}

void WorkerChannel::RestartWatch() {
  MutexLock lock(&mu_);
  if (watch_ != nullptr) watch_->Cancel();
}

void WorkerChannel::Close() {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&mu_);
    closing_ = true;
    if (watch_ != nullptr) watch_->Cancel();
    session = session_;
  }
  if (session != nullptr) session->Close("the router ends");
  session.reset();
  MutexLock lock(&mu_);
  while (watch_ != nullptr || session_ != nullptr) idle_.Wait(&mu_);
}

void WorkerChannel::OnWatchUpdate(Watch* watch, WatchUpdate update) {
  WorkerId worker;
  std::shared_ptr<Session> outdated;
  {
    MutexLock lock(&mu_);
    if (closing_ || watch != watch_) return;
    if (const auto* registration = std::get_if<WorkerRegistration>(&update)) {
      if (session_ != nullptr && session_->worker != registration->worker) outdated = session_;
      worker_ = registration->worker;
      registered_ = true;
      watch_dialling_.answered = true;
    }
    worker = worker_;
    // Under the lock, so that the core hears of the registration before the session opens.
    core_->OnWatchUpdate(address_, worker, std::move(update));
    wake_();
  }
  if (outdated != nullptr) outdated->Close("the worker restarted");
}

void WorkerChannel::OnWatchDone(Watch* watch, const absl::Status& why) {
  MutexLock lock(&mu_);
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
