// What the reactors of this worker's streams share, and where they are found.

#ifndef TANDEM_SERVICES_WORKER_STREAM_REACTOR_H_
#define TANDEM_SERVICES_WORKER_STREAM_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/log.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"
#include "services/server/early_reactor.h"
#include "services/server/gated_calls.h"
#include "services/server/status_proto.h"
#include "services/server/wire_message.h"
#include "services/server/write_queue.h"
#include "services/worker/command_queue.h"
#include "services/worker/read_window.h"

namespace tandem {

// What may wait to be sent on a stream beside what is charged for it: who has no room for more
// keeps its streams. Part of kCallBytes.
inline constexpr int64_t kFreeUnsentBytes = int64_t{4} << 10;

// A prompt that waits: its tokens and what is kept for each of its blocks; and what it is kept in,
// with room for the tokens that follow. 5 KiB, and 4.0 to 4.6 for a token, were measured.
inline constexpr int64_t kPromptBytes = int64_t{8} << 10;
inline constexpr int64_t kPromptTokenBytes = 5;

// A stream that writes Messages one after another and ends once. `Reactor` is gRPC's. Its own
// OnDone, the last call, says Lost() once more, for what was read meanwhile, and ends with
// `delete this`.
template <typename Reactor, typename Message>
class StreamReactor : public Reactor {
 public:
  void End(const absl::Status& why) {
    if (ended_.exchange(true)) return;
    const bool writing = writes_.Close();
    Lost();
    // A peer that does not read would hold the write, and Finish behind it, for as long as it
    // likes.
    if (writing) context_->TryCancel();
    this->Finish(ToGrpcStatus(why));
  }
  size_t unsent() const { return writes_.size(); }

  void OnWriteDone(bool ok) override { writes_.OnWriteDone(ok); }
  void OnCancel() override { End(absl::CancelledError("the peer left")); }

 protected:
  // `context` is the call's. `budget` outlives this. `for_reactor` is what Reactor is made with.
  template <typename... ForReactor>
  StreamReactor(grpc::CallbackServerContext* context, MemoryBudget* budget,
                ForReactor... for_reactor)
      : Reactor(for_reactor...),
        client_(ClientOfCall(context->peer())),
        context_(context),
        writes_(
            this, budget, client_, [context] { context->TryCancel(); }, /*held=*/false,
            kFreeUnsentBytes) {}

  // Nobody hears of this stream any more: what it began ends now. Any thread, perhaps under the
  // registry's lock.
  virtual void Lost() {}

  // ResourceExhausted if the peer has left too much unread.
  absl::Status Push(Message message) { return writes_.Push(std::move(message)); }

  const std::string client_;  // Whom the budget names.

 private:
  grpc::CallbackServerContext* const context_;
  WriteQueue<Reactor, Message> writes_;
  std::atomic<bool> ended_{false};
};

// A session: its peer says a Said after another, which are read as the window lets them. The engine
// hears of its end as LostCommand.
template <typename Said, typename Message, typename LostCommand>
class SessionReactor : public StreamReactor<ServerReactor<Message>, Message> {
 public:
  void OnReadDone(bool ok) override {
    if (!ok) return this->End(absl::OkStatus());
    Said message;  // A fresh one: one that is used again keeps its memory.
    absl::Status status = ReadMessage(&wire_, &message);
    if (status.ok()) status = Take(message);
    if (status.ok()) return window_->ReadNext();
    LogWarning(
        "a session ends, its message is refused",
        {{"session", id_}, {"message", Said::descriptor()->name()}, {"why", status.ToString()}});
    this->End(status);
  }

 protected:
  // The pointers outlive this. `prompts` is what prompts may have of the budget. `holding` is of
  // the call.
  SessionReactor(SessionId id, grpc::CallbackServerContext* context, OpenCalls* calls,
                 MemoryBudget* prompts, CommandQueue* commands,
                 std::shared_ptr<MemoryBudget::Holding> holding)
      : StreamReactor<ServerReactor<Message>, Message>(context, calls->budget()),
        id_(id),
        served_(context->peer()),
        budget_(calls->budget()),
        prompts_(prompts),
        commands_(commands),
        holding_(std::move(holding)),
        window_(std::make_shared<ReadWindow>(budget_, this->client_,
                                             [this] { this->StartRead(&wire_); })) {}

  // Not OK: the session ends with it.
  virtual absl::Status Take(const Said& message) = 0;

  void Lost() override {
    window_->Close();
    commands_->PushAlways(LostCommand{id_, holding_});
  }
  void ReadNext() { window_->ReadNext(); }

  // Posts what `message` has become.
  template <typename Command>
  absl::Status Post(const Said& message, Command command) {
    TANDEM_ASSIGN_OR_RETURN(command.charge, window_->Admit(message));
    commands_->PushAlways(std::move(command));
    return absl::OkStatus();
  }
  // The same for a prompt of so many tokens, which is refused where there is no room; charged until
  // the engine lets go of it.
  template <typename Command>
  absl::Status PostPrompt(Command command, size_t num_tokens) {
    const int64_t bytes = kPromptBytes + kPromptTokenBytes * static_cast<int64_t>(num_tokens);
    TANDEM_ASSIGN_OR_RETURN(auto of_prompts, prompts_->Hold(this->client_, bytes));
    TANDEM_ASSIGN_OR_RETURN(auto of_all, budget_->Hold(this->client_, bytes));
    command.charge = std::make_shared<std::pair<decltype(of_prompts), decltype(of_all)>>(
        std::move(of_prompts), std::move(of_all));
    if (commands_->TryPush(std::move(command))) return absl::OkStatus();
    return absl::ResourceExhaustedError("the worker's queue of commands is full");
  }
  // For who was refused by it: steps empty the queue, whatever they compute.
  static int64_t RetryAfterUs(const absl::Status& refusal) {
    return absl::IsResourceExhausted(refusal) ? 100'000 : 0;
  }

  const SessionId id_;
  const ServedCall served_;

 private:
  MemoryBudget* const budget_;
  MemoryBudget* const prompts_;
  CommandQueue* const commands_;
  const std::shared_ptr<MemoryBudget::Holding> holding_;
  const std::shared_ptr<ReadWindow> window_;
  grpc::ByteBuffer wire_;
};

// The open streams of one kind, by an id that is never used again. A stream removes itself in its
// OnDone; under the lock it is there.
template <typename Stream>
class StreamRegistry {
 public:
  // `make(id)` makes the reactor of a new RPC. Its Begin() runs before anybody else finds it.
  template <typename Make>
  Stream* Open(const Make& make) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    const uint64_t id = next_id_++;
    Stream* const stream = make(id);
    streams_.emplace(id, stream);
    stream->Begin();
    return stream;
  }
  void Remove(uint64_t id) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    streams_.erase(id);
  }

  // False if it is gone.
  template <typename Use>
  bool With(uint64_t id, const Use& use) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    const auto found = streams_.find(id);
    if (found == streams_.end()) return false;
    use(found->second);
    return true;
  }
  template <typename Use>
  void ForEach(const Use& use) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    for (const auto& [id, stream] : streams_) use(stream);
  }

  std::vector<uint64_t> Ids() const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    std::vector<uint64_t> ids;
    for (const auto& [id, stream] : streams_) ids.push_back(id);
    return ids;
  }

  // Nothing waits to be written.
  bool Flushed() const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& entry) { return entry.second->unsent() == 0; });
  }
  void CloseAll(const absl::Status& why) EXCLUDES(mu_) {
    ForEach([&](Stream* stream) { stream->End(why); });
  }

 private:
  mutable Mutex mu_;
  uint64_t next_id_ GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Stream*> streams_ GUARDED_BY(mu_);
};

// A session, with what of it may wait for the engine.
inline constexpr int64_t kSessionBytes = kCallBytes + ReadWindow::kBytes;

// The reactor of a new session, from `make(id, holding)`: its client is charged for as long as it
// keeps the holding. One that refuses the call if there is no room.
template <typename Response, typename Stream, typename Make>
ServerReactor<Response>* OpenCharged(OpenCalls* calls, grpc::CallbackServerContext* context,
                                     StreamRegistry<Stream>* streams, const Make& make) {
  auto holding = calls->budget()->Hold(ClientOfCall(context->peer()), kSessionBytes);
  if (!holding.ok()) return new RefusedCall<Response>(calls, context, holding.status());
  return streams->Open([&](uint64_t id) { return make(id, *std::move(holding)); });
}

}  // namespace tandem

#endif  // TANDEM_SERVICES_WORKER_STREAM_REACTOR_H_
