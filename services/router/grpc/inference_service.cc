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
#include "services/router/client_call.h"
#include "services/router/grpc/inference_convert.h"
#include "services/server/gated_calls.h"
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

class CallReactor;

CallStarter::Call CallOf(const grpc::CallbackServerContext& context,
                         const v1::GenerateRequest& request, const Clock& clock) {
  return {.client = ClientOfCall(context.peer()),
          .label = request.request_id(),
          .arrived_us = clock.NowUs(),
          .time_left_us = TimeLeftUs(context),
          .on_output = nullptr};
}

class InferenceCall final : public ClientCall {
 public:
  InferenceCall(CallStarter* starter, const grpc::CallbackServerContext& context,
                std::shared_ptr<const v1::GenerateRequest> request, bool stream,
                std::weak_ptr<CallReactor> reactor)
      : ClientCall(starter, CallOf(context, *request, starter->clock())),
        answer_(*request),
        request_(std::move(request)),
        stream_(stream),
        reactor_(std::move(reactor)) {}

  // For an output of Take.
  bool AddTo(const CallOutput& output, v1::GenerateResponse* response) {
    return answer_.Add(output, running()->prompt_token_ids(0), response);
  }

 private:
  absl::StatusOr<GenerateRequest> Parse() override {
    absl::StatusOr<GenerateRequest> parsed = FromInferenceProto(*request_);
    request_.reset();
    if (parsed.ok()) parsed->stream = stream_;
    return parsed;
  }
  void OnBegun(const GenerateRequest&, const RunningCall&) override {}
  void OnOutput() override;

  InferenceAnswer answer_;                              // The reactor's, under its lock.
  std::shared_ptr<const v1::GenerateRequest> request_;  // Until it is parsed.
  const bool stream_;
  const std::weak_ptr<CallReactor> reactor_;
};

// What both reactors share.
class CallReactor : public EarlyReactor<v1::GenerateRequest, v1::GenerateResponse>,
                    public std::enable_shared_from_this<CallReactor> {
 public:
  struct Parts {
    CallStarter* starter;
    TextPool* pool;
    OpenCalls* calls;
    std::atomic<int>* num_calls;
  };

  CallReactor(const Parts& parts, grpc::CallbackServerContext* context, bool stream)
      : EarlyReactor(parts.calls, context), parts_(parts), stream_(stream) {}

  template <typename Reactor>
  static CallReactor* Make(const Parts& parts, grpc::CallbackServerContext* context) {
    const auto reactor = std::make_shared<Reactor>(parts, context);
    reactor->self_ = reactor;
    reactor->AwaitRequest();
    return reactor.get();
  }

  void OnCancel() override EXCLUDES(mu_) {
    const auto self = shared_from_this();
    MutexLock lock(&mu_);
    End(absl::CancelledError("the client is gone"));
  }

  void OnDone() override {
    {
      MutexLock lock(&mu_);
      if (call_ != nullptr) parts_.num_calls->fetch_sub(1);
    }
    self_.reset();
  }

  virtual void Pump() EXCLUDES(mu_) = 0;  // There are outputs to take.

 protected:
  void OnRequest(std::shared_ptr<const v1::GenerateRequest> request) override EXCLUDES(mu_) {
    const auto self = shared_from_this();  // End may lead to OnDone before this returns.
    const size_t bytes = request->ByteSizeLong();
    auto call = std::make_shared<InferenceCall>(parts_.starter, *context(), std::move(request),
                                                stream_, weak_from_this());
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      call_ = call;
      parts_.num_calls->fetch_add(1);
    }
    call->Post(parts_.pool, bytes);
  }

  // The client hears nothing after `status`; false if the call had ended before.
  bool Detach() REQUIRES(mu_) {
    if (std::exchange(ended_, true)) return false;
    if (call_ != nullptr) call_->Leave();
    return true;
  }
  void End(const absl::Status& status) REQUIRES(mu_) {
    if (Detach()) Finish(ToGrpcStatus(status));
  }

  Mutex mu_;
  std::shared_ptr<InferenceCall> call_ GUARDED_BY(mu_);  // From OnRequest.
  bool ended_ GUARDED_BY(mu_) = false;

 private:
  const Parts parts_;
  const bool stream_;
  std::shared_ptr<CallReactor> self_;  // Until OnDone.
};

void InferenceCall::OnOutput() {
  if (const auto reactor = reactor_.lock()) reactor->Pump();
}

class UnaryCall final : public CallReactor {
 public:
  UnaryCall(const Parts& parts, grpc::CallbackServerContext* context)
      : CallReactor(parts, context, /*stream=*/false) {}

 private:
  void Pump() override EXCLUDES(mu_) {
    std::shared_ptr<InferenceCall> call;
    int64_t response_bytes = 0;
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      for (const CallOutput& output : call_->Take()) {
        if (const auto* end = std::get_if<CallEnd>(&output)) return EndWith(end->status);
        call_->AddTo(output, &response_);
        response_bytes_ += ResponseBytes(output);
      }
      call = call_;
      response_bytes = response_bytes_;
    }
    call->KeepAnswer(response_bytes);  // May end the call, which comes here again.
  }

  void EndWith(const absl::Status& status) REQUIRES(mu_) {
    if (!status.ok()) return End(status);
    auto* outputs = response_.mutable_outputs();
    std::sort(outputs->pointer_begin(), outputs->pointer_end(),
              [](const auto* a, const auto* b) { return a->index() < b->index(); });
    if (Detach()) FinishWith(&response_);
  }

  v1::GenerateResponse response_;
  int64_t response_bytes_ = 0;
};

class StreamCall final : public CallReactor {
 public:
  StreamCall(const Parts& parts, grpc::CallbackServerContext* context)
      : CallReactor(parts, context, /*stream=*/true) {}

 private:
  void OnWritten(bool ok) override EXCLUDES(mu_) {
    const auto self = shared_from_this();
    MutexLock lock(&mu_);
    writing_ = false;
    response_.Clear();
    if (!ok) return End(absl::CancelledError("the client is gone"));
    WriteNext();
  }
  void Pump() override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    // The write would hold up the word that it is over.
    if (writing_ && call_->overflowed()) context()->TryCancel();
    WriteNext();
  }

  // Outputs that cannot be written yet wait in the RunningCall, which bounds them.
  void WriteNext() REQUIRES(mu_) {
    while (!ended_ && !writing_) {
      const std::vector<CallOutput> outputs = call_->Take(1);
      if (outputs.empty()) return;
      if (const auto* end = std::get_if<CallEnd>(&outputs[0])) return End(end->status);
      if (!call_->AddTo(outputs[0], &response_)) continue;
      writing_ = true;
      Write(&response_);
    }
  }

  v1::GenerateResponse response_ GUARDED_BY(mu_);
  bool writing_ GUARDED_BY(mu_) = false;
};

}  // namespace

InferenceService::InferenceService(CallStarter* starter, TextPool* pool, OpenCalls* calls,
                                   Admission admission)
    : EarlyService(calls, std::move(admission)) {
  const CallReactor::Parts parts{starter, pool, calls, &num_calls_};
  AddMethod<v1::GenerateResponse>("/tandem.v1.Inference/Generate", [parts](auto* context) {
    return CallReactor::Make<UnaryCall>(parts, context);
  });
  AddMethod<v1::GenerateResponse>("/tandem.v1.Inference/GenerateStream", [parts](auto* context) {
    return CallReactor::Make<StreamCall>(parts, context);
  });
}

}  // namespace tandem
