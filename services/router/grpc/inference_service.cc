#include "services/router/grpc/inference_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"
#include "services/router/grpc/inference_convert.h"
#include "services/server/status_proto.h"

namespace tandem {
namespace {

// Until the client's deadline; 0 if it set none.
int64_t TimeLeftUs(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return 0;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
      deadline - std::chrono::system_clock::now());
  // Beyond a year it is none: clients write "no deadline" in many ways.
  constexpr int64_t kYearUs = int64_t{365} * 24 * 3600 * 1'000'000;
  if (left.count() > kYearUs) return 0;
  return std::max<int64_t>(left.count(), 1);
}

std::string TraceContext(const grpc::CallbackServerContext& context) {
  const auto it = context.client_metadata().find("traceparent");
  return it == context.client_metadata().end() ? ""
                                               : std::string(it->second.data(), it->second.size());
}

// What both kinds of call share: the way to a running generation. The reactor owns it together with
// the jobs and callbacks that are still on their way.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Generator* generator, const grpc::CallbackServerContext& context,
       const v1::GenerateRequest* request, bool stream)
      : answer_(*request), generator_(generator), request_(request), stream_(stream) {
    facts_.label = request->request_id();
    facts_.trace_context = TraceContext(context);
    facts_.arrived_us = generator->clock().NowUs();
    facts_.time_left_us = TimeLeftUs(context);
  }

  // `on_news` is called on any thread.
  void Post(TextPool* pool, std::function<void()> on_news) EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      on_news_ = std::move(on_news);
    }
    const absl::Status posted =
        pool->Post(request_->ByteSizeLong(), [self = shared_from_this()] { self->Begin(); });
    if (!posted.ok()) Refuse(posted);
  }

  // News since the last time, the last of them an EndNews if the call failed before it began.
  std::vector<GenerationNews> Take() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (failure_.has_value()) {
      std::vector<GenerationNews> news;
      news.push_back(EndNews{.status = *std::exchange(failure_, std::nullopt)});
      return news;
    }
    return generation_ == nullptr ? std::vector<GenerationNews>() : generation_->Take();
  }

  // The client is gone, or has its answer. The request must not be touched any more.
  void Detach() EXCLUDES(mu_) {
    std::shared_ptr<Generation> generation;
    {
      MutexLock lock(&mu_);
      detached_ = true;
      on_news_ = nullptr;
      generation = generation_;
    }
    if (generation != nullptr) generation->Detach();
  }

  // For news of Take.
  bool AddTo(const GenerationNews& news, v1::GenerateResponse* response) EXCLUDES(mu_) {
    std::shared_ptr<Generation> generation;
    {
      MutexLock lock(&mu_);
      generation = generation_;
    }
    return answer_.Add(news, generation->prompt_token_ids(0), response);
  }

 private:
  void Begin() {
    absl::StatusOr<GenerateRequest> parsed;
    {
      // The reactor, and the request with it, may be gone.
      MutexLock lock(&mu_);
      if (detached_) return;
      parsed = FromInferenceProto(*request_);
    }
    if (!parsed.ok()) return Refuse(parsed.status());
    parsed->stream = stream_;
    facts_.on_news = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->OnNews();
    };
    absl::StatusOr<std::shared_ptr<Generation>> generation =
        generator_->Begin(*parsed, std::move(facts_));
    if (!generation.ok()) return Refuse(generation.status());
    bool detached = false;
    {
      MutexLock lock(&mu_);
      generation_ = *generation;
      detached = detached_;
    }
    if (detached) (*generation)->Detach();
    OnNews();  // What came before generation_ was set.
  }

  // The call never became a request.
  void Refuse(const absl::Status& status) EXCLUDES(mu_) {
    generator_->metrics().RefusedCalls(absl::StatusCodeToString(status.code())).Increment();
    {
      MutexLock lock(&mu_);
      failure_ = status;
    }
    OnNews();
  }

  void OnNews() EXCLUDES(mu_) {
    std::function<void()> on_news;
    {
      MutexLock lock(&mu_);
      on_news = on_news_;
    }
    if (on_news) on_news();
  }

  InferenceAnswer answer_;  // Of the reactor, under its lock.
  Generator* const generator_;
  const v1::GenerateRequest* const request_;  // Until detached.
  const bool stream_;
  Generator::Call facts_;  // Until Begin.
  Mutex mu_;
  std::function<void()> on_news_ GUARDED_BY(mu_);
  std::shared_ptr<Generation> generation_ GUARDED_BY(mu_);
  std::optional<absl::Status> failure_ GUARDED_BY(mu_);
  bool detached_ GUARDED_BY(mu_) = false;
};

// What both reactors share; `Reactor` is gRPC's.
template <typename Reactor>
class CallReactor : public Reactor, public std::enable_shared_from_this<CallReactor<Reactor>> {
 public:
  CallReactor(std::shared_ptr<Call> call, std::atomic<int>* num_calls)
      : call_(std::move(call)), num_calls_(num_calls) {
    num_calls_->fetch_add(1);
  }

  void Start(TextPool* pool) {
    self_ = this->shared_from_this();
    call_->Post(pool, [weak = this->weak_from_this()] {
      if (const auto self = weak.lock()) self->Pump();
    });
  }

  void OnCancel() override EXCLUDES(mu_) {
    const auto self = this->shared_from_this();  // Finish may lead to OnDone before this returns.
    MutexLock lock(&mu_);
    End(absl::CancelledError("the client is gone"));
  }

  void OnDone() override {
    num_calls_->fetch_sub(1);
    self_.reset();
  }

 protected:
  virtual void Pump() EXCLUDES(mu_) = 0;  // There are news.

  // The client hears nothing after `status`.
  void End(const absl::Status& status) REQUIRES(mu_) {
    if (std::exchange(ended_, true)) return;
    call_->Detach();
    this->Finish(ToGrpcStatus(status));
  }

  const std::shared_ptr<Call> call_;
  Mutex mu_;
  bool ended_ GUARDED_BY(mu_) = false;

 private:
  std::atomic<int>* const num_calls_;
  std::shared_ptr<CallReactor> self_;  // Until OnDone.
};

class UnaryCall final : public CallReactor<grpc::ServerUnaryReactor> {
 public:
  UnaryCall(std::shared_ptr<Call> call, v1::GenerateResponse* response, std::atomic<int>* num_calls)
      : CallReactor(std::move(call), num_calls), response_(response) {}

 private:
  void Pump() override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (ended_) return;
    for (const GenerationNews& news : call_->Take()) {
      if (const auto* end = std::get_if<EndNews>(&news)) {
        auto* outputs = response_->mutable_outputs();
        std::sort(outputs->pointer_begin(), outputs->pointer_end(),
                  [](const auto* a, const auto* b) { return a->index() < b->index(); });
        return End(end->status);
      }
      call_->AddTo(news, response_);
    }
  }

  v1::GenerateResponse* const response_;
};

class StreamCall final : public CallReactor<grpc::ServerWriteReactor<v1::GenerateResponse>> {
 public:
  using CallReactor::CallReactor;

  void OnWriteDone(bool ok) override EXCLUDES(mu_) {
    const auto self = shared_from_this();
    MutexLock lock(&mu_);
    writing_ = false;
    response_.Clear();
    if (!ok) return End(absl::CancelledError("the client is gone"));
    WriteNext();
  }

 private:
  void Pump() override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    WriteNext();
  }

  // News that cannot be written yet wait in the generation, which bounds them.
  void WriteNext() REQUIRES(mu_) {
    while (!ended_ && !writing_) {
      if (next_ == news_.size()) {
        news_ = call_->Take();
        next_ = 0;
        if (news_.empty()) return;
      }
      const GenerationNews& news = news_[next_++];
      if (const auto* end = std::get_if<EndNews>(&news)) return End(end->status);
      if (!call_->AddTo(news, &response_)) continue;
      writing_ = true;
      StartWrite(&response_);
    }
  }

  std::vector<GenerationNews> news_ GUARDED_BY(mu_);
  size_t next_ GUARDED_BY(mu_) = 0;
  v1::GenerateResponse response_ GUARDED_BY(mu_);
  bool writing_ GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  const auto call = std::make_shared<UnaryCall>(
      std::make_shared<Call>(generator_, *context, request, /*stream=*/false), response,
      &num_calls_);
  call->Start(pool_);
  return call.get();
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto call = std::make_shared<StreamCall>(
      std::make_shared<Call>(generator_, *context, request, /*stream=*/true), &num_calls_);
  call->Start(pool_);
  return call.get();
}

}  // namespace tandem
