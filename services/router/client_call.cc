#include "services/router/client_call.h"

#include <utility>

#include "runtime/base/status_macros.h"

namespace tandem {

void ClientCall::Post(TextPool* pool, size_t bytes) {
  const absl::Status posted =
      pool->Post(call_.client, bytes, [self = shared_from_this()] { self->Begin(); });
  if (!posted.ok()) Refuse(posted);
}

void ClientCall::Begin() {
  {
    MutexLock lock(&mu_);
    if (left_) return;
  }
  if (const absl::Status begun = TryBegin(); !begun.ok()) Refuse(begun);
}

absl::Status ClientCall::TryBegin() {
  TANDEM_ASSIGN_OR_RETURN(const GenerateRequest request, Parse());
  call_.on_output = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnOutput();
  };
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<RunningCall> running,
                          starter_->Begin(request, std::move(call_)));
  OnBegun(request, *running);
  bool left = false;
  {
    MutexLock lock(&mu_);
    running_ = running;
    left = left_;
  }
  if (left) running->Detach();
  OnOutput();  // What came before it could be taken.
  return absl::OkStatus();
}

void ClientCall::Refuse(const absl::Status& why) {
  starter_->metrics().RefusedCalls(absl::StatusCodeToString(why.code())).Increment();
  {
    MutexLock lock(&mu_);
    refused_ = why;
  }
  OnOutput();
}

std::vector<CallOutput> ClientCall::Take(size_t most) {
  std::shared_ptr<RunningCall> running;
  {
    MutexLock lock(&mu_);
    if (refused_.has_value()) {
      std::vector<CallOutput> outputs;
      outputs.push_back(CallEnd{.status = *std::exchange(refused_, std::nullopt)});
      return outputs;
    }
    running = running_;
  }
  return running == nullptr ? std::vector<CallOutput>() : running->Take(most);
}

void ClientCall::Leave() {
  std::shared_ptr<RunningCall> running;
  {
    MutexLock lock(&mu_);
    left_ = true;
    running = running_;
  }
  if (running != nullptr) running->Detach();
}

bool ClientCall::overflowed() const {
  const std::shared_ptr<RunningCall> call = running();
  return call != nullptr && call->overflowed();
}

void ClientCall::KeepAnswer(int64_t bytes) {
  if (const std::shared_ptr<RunningCall> call = running()) call->KeepAnswer(bytes);
}

std::shared_ptr<RunningCall> ClientCall::running() const {
  MutexLock lock(&mu_);
  return running_;
}

}  // namespace tandem
