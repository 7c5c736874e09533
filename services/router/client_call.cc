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
  call_.on_news = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnNews();
  };
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Generation> generation,
                          generator_->Begin(request, std::move(call_)));
  OnBegun(request, *generation);
  bool left = false;
  {
    MutexLock lock(&mu_);
    generation_ = generation;
    left = left_;
  }
  if (left) generation->Detach();
  OnNews();  // What came before it could be taken.
  return absl::OkStatus();
}

void ClientCall::Refuse(const absl::Status& why) {
  generator_->metrics().RefusedCalls(absl::StatusCodeToString(why.code())).Increment();
  {
    MutexLock lock(&mu_);
    refused_ = why;
  }
  OnNews();
}

std::vector<GenerationNews> ClientCall::Take(size_t most) {
  std::shared_ptr<Generation> running;
  {
    MutexLock lock(&mu_);
    if (refused_.has_value()) {
      std::vector<GenerationNews> news;
      news.push_back(EndNews{.status = *std::exchange(refused_, std::nullopt)});
      return news;
    }
    running = generation_;
  }
  return running == nullptr ? std::vector<GenerationNews>() : running->Take(most);
}

void ClientCall::Leave() {
  std::shared_ptr<Generation> running;
  {
    MutexLock lock(&mu_);
    left_ = true;
    running = generation_;
  }
  if (running != nullptr) running->Detach();
}

bool ClientCall::overflowed() const {
  const std::shared_ptr<Generation> running = generation();
  return running != nullptr && running->overflowed();
}

void ClientCall::KeepAnswer(int64_t bytes) {
  if (const std::shared_ptr<Generation> running = generation()) running->KeepAnswer(bytes);
}

std::shared_ptr<Generation> ClientCall::generation() const {
  MutexLock lock(&mu_);
  return generation_;
}

}  // namespace tandem
