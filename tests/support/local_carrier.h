// Streams of frames between transports of this process. Each end has a thread, as an RPC system
// would have.

#ifndef TANDEM_TESTS_SUPPORT_LOCAL_CARRIER_H_
#define TANDEM_TESTS_SUPPORT_LOCAL_CARRIER_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/transport/stream/frame_stream.h"

namespace tandem {

// Runs what is posted, in order, on a thread of its own.
class LocalLoop {
 public:
  LocalLoop() : thread_([this] { Run(); }) {}
  // After Stop: nothing. Any thread.
  void Post(std::function<void()> task) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
    changed_.SignalAll();
  }
  // Once, on another thread. What has been posted is still run.
  void Stop() EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      stopped_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

 private:
  void Run() EXCLUDES(mu_) {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(&mu_);
        while (tasks_.empty() && !stopped_) changed_.Wait(&mu_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mu_);
  bool stopped_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

class LocalStream final : public FrameStream,
                          public DialledStream,
                          public std::enable_shared_from_this<LocalStream> {
 public:
  LocalStream(std::shared_ptr<LocalLoop> from, std::shared_ptr<LocalLoop> to_loop,
              std::shared_ptr<FrameTarget> to)
      : from_(std::move(from)), to_loop_(std::move(to_loop)), to_(std::move(to)) {}

  // On the sender's loop.
  void Begin(FrameServer* server, const std::string& token) {
    source_ = server->Accept(this);
    if (const absl::Status begun = source_->Begin(token); !begun.ok()) End(begun);
  }

  void Write(const FrameHeader& header, std::unique_ptr<FramePayload> payload) override {
    to_loop_->Post([self = shared_from_this(), header,
                    payload = std::shared_ptr<FramePayload>(std::move(payload))]() mutable {
      self->Deliver(header, std::move(payload));
    });
  }
  void End(const absl::Status& why) override { Finish(why, /*peer_gone=*/false); }
  void Ready() override {
    from_->Post([self = shared_from_this()] {
      if (self->source_ != nullptr) self->source_->OnReady();
    });
  }
  void Cancel() override { Finish(absl::CancelledError("cancelled"), /*peer_gone=*/true); }

 private:
  // On the receiver's loop.
  void Deliver(const FrameHeader& header, std::shared_ptr<FramePayload> payload) {
    if (to_ == nullptr) return;
    const std::span<const std::byte> bytes = payload->bytes();
    const auto* const data = reinterpret_cast<const char*>(bytes.data());
    const size_t half = bytes.size() / 2;  // Pieces, as they come from a network.
    const std::string_view pieces[] = {{data, half}, {data + half, bytes.size() - half}};
    const absl::Status taken = to_->OnFrame(header, pieces);
    payload.reset();
    if (!taken.ok()) return End(taken);
    from_->Post([self = shared_from_this()] {
      if (self->source_ != nullptr) self->source_->OnWritten(true);
    });
  }
  void Finish(const absl::Status& why, bool peer_gone) EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
    }
    from_->Post([self = shared_from_this(), peer_gone] {
      if (peer_gone && self->source_ != nullptr) self->source_->OnPeerGone();
      self->source_.reset();
    });
    to_loop_->Post([self = shared_from_this(), why] {
      const std::shared_ptr<FrameTarget> to = std::move(self->to_);
      to->OnEnded(why);
    });
  }

  const std::shared_ptr<LocalLoop> from_;
  const std::shared_ptr<LocalLoop> to_loop_;
  std::unique_ptr<FrameSource> source_;  // Sender's loop.
  std::shared_ptr<FrameTarget> to_;      // Receiver's loop.
  Mutex mu_;
  bool ended_ GUARDED_BY(mu_) = false;
};

class LocalCarrier final : public FrameCarrier {
 public:
  // `address` is what others dial; one carrier at a time has it.
  explicit LocalCarrier(std::string address) : address_(std::move(address)) {}
  ~LocalCarrier() override {
    Shutdown();
    loop_->Stop();
  }

  // Ends all streams that were dialled here; nobody dials it any more.
  void Shutdown() {
    {
      MutexLock lock(&RegistryMutex());
      Registry().erase(address_);
    }
    loop_->Post([this] {
      for (const auto& weak : streams_) {
        if (const auto stream = weak.lock()) stream->End(absl::UnavailableError("shut down"));
      }
    });
  }

  std::string_view name() const override { return "local"; }
  void Serve(FrameServer* server) override {
    server_ = server;
    MutexLock lock(&RegistryMutex());
    Registry()[address_] = this;
  }
  std::shared_ptr<DialledStream> Dial(const std::string& target, const std::string& token,
                                      std::shared_ptr<FrameTarget> to) override {
    MutexLock lock(&RegistryMutex());
    const auto found = Registry().find(target);
    LocalCarrier* const carrier = found == Registry().end() ? nullptr : found->second;
    const auto& from = carrier == nullptr ? loop_ : carrier->loop_;
    auto stream = std::make_shared<LocalStream>(from, loop_, std::move(to));
    if (carrier == nullptr) {
      stream->End(absl::UnavailableError("nobody is there"));
    } else {
      from->Post([carrier, stream, token] {
        carrier->streams_.push_back(stream);
        stream->Begin(carrier->server_, token);
      });
    }
    return stream;
  }

 private:
  static Mutex& RegistryMutex() {
    static Mutex mu;
    return mu;
  }
  static std::map<std::string, LocalCarrier*>& Registry() {
    static std::map<std::string, LocalCarrier*> carriers;
    return carriers;
  }

  const std::string address_;
  FrameServer* server_ = nullptr;
  std::vector<std::weak_ptr<LocalStream>> streams_;  // The loop's.
  const std::shared_ptr<LocalLoop> loop_ = std::make_shared<LocalLoop>();
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_LOCAL_CARRIER_H_
