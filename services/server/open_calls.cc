#include "services/server/open_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

constexpr std::chrono::milliseconds kSweepPeriod{250};
// While they are told why.
constexpr size_t kMaxRefused = 64;
// Messages that are being received may take this part of the budget, one over it.
constexpr int64_t kMessagesShare = 4;

size_t NumTurns(int64_t limit_bytes, int64_t message_bytes) {
  return static_cast<size_t>(
      std::max<int64_t>(1, limit_bytes / kMessagesShare / std::max<int64_t>(1, message_bytes)));
}

}  // namespace

OpenCalls::OpenCalls(MemoryBudget* budget, const Options& options)
    : budget_(budget),
      options_(options),
      max_waiting_(std::min(kMaxWaitingBytes, budget->limit_bytes() / kMessagesShare) / kCallBytes),
      max_turns_(NumTurns(budget->limit_bytes(), options.max_message_bytes)),
      max_turns_of_client_(std::max<size_t>(1, max_turns_ / 2)),
      messages_(budget, "messages"),
      sweeper_("calls", kSweepPeriod, [this] { Sweep(); }) {
  const absl::Status set_aside =
      messages_.Set(static_cast<int64_t>(max_turns_) * options.max_message_bytes);
  TANDEM_CHECK(set_aside.ok()) << set_aside;
}

void OpenCalls::Sweep() {
  MutexLock lock(&mu_);
  const Clock::time_point now = Clock::now();
  EndOverdue(now);
  GiveTurns();
  EndSlowTurns(now);
}

void OpenCalls::EndOldest() {
  const auto oldest = [](const Client& client) {
    return client.receiving.empty() ? client.queue.front() : client.receiving.front();
  };
  const Client& most =
      std::max_element(clients_.begin(), clients_.end(), [&](const auto& a, const auto& b) {
        if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
        return oldest(a.second)->due_ > oldest(b.second)->due_;
      })->second;
  budget_->CountCut();
  Cancel(oldest(most));
}

void OpenCalls::EndOverdue(Clock::time_point now) {
  for (auto next = timed_.begin(); next != timed_.end();) {
    Call* const call = *next++;
    if (call->due_ <= now) Cancel(call);
  }
}

// While others wait for a turn, those that last give way: of the client with most, or of those that
// have as many, the oldest first.
void OpenCalls::EndSlowTurns(Clock::time_point now) {
  while (num_waiting_ > num_receiving_) {
    const Client& most =
        std::max_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
          const auto &of_a = a.second.receiving, &of_b = b.second.receiving;
          if (of_a.size() != of_b.size() || of_a.empty()) return of_a.size() < of_b.size();
          return of_a.front()->turn_since_ > of_b.front()->turn_since_;
        })->second;
    if (most.receiving.empty()) return;
    Call* const oldest = most.receiving.front();
    if (now - oldest->turn_since_ < options_.turn) return;
    budget_->CountCut();
    Cancel(oldest);
    GiveTurns();
  }
}

// The client that has fewest goes first, of several the next one behind who was last; of its calls
// the newest, which is the least likely to be one that never sends its message, and those that have
// had an answer behind all others: they may stay open for as long as they like.
void OpenCalls::GiveTurns() {
  while (num_receiving_ < max_turns_) {
    Client* next = nullptr;
    auto candidate = clients_.upper_bound(last_turn_);
    for (size_t left = clients_.size(); left > 0; --left, ++candidate) {
      if (candidate == clients_.end()) candidate = clients_.begin();
      Client& client = candidate->second;
      if (client.queue.empty() || client.receiving.size() >= max_turns_of_client_) continue;
      if (next == nullptr || client.receiving.size() < next->receiving.size()) next = &client;
    }
    if (next == nullptr) return;
    Call* const call = next->queue.back();
    next->queue.pop_back();
    next->receiving.push_back(call);
    ++num_receiving_;
    last_turn_ = call->client_;
    call->turn_since_ = Clock::now();
    call->receive_();
  }
}

void OpenCalls::Cancel(Call* call) {
  Forget(call);
  call->served_.Leave();
  call->waits_ = false;
  call->cancel_();
}

void OpenCalls::Forget(Call* call) {
  timed_.erase(call);
  refused_.remove(call);
  const auto found = clients_.find(call->client_);
  if (found == clients_.end()) return;
  Client& client = found->second;
  const size_t size = client.size();
  num_receiving_ -= client.receiving.remove(call);
  std::erase(client.queue, call);
  num_waiting_ -= size - client.size();
  if (client.receiving.empty() && client.queue.empty()) clients_.erase(found);
}

OpenCalls::Call::Call(OpenCalls* calls, const std::string& peer, std::function<void()> receive,
                      std::function<void()> cancel)
    : calls_(calls),
      client_(ClientOfCall(peer)),
      receive_(std::move(receive)),
      cancel_(std::move(cancel)),
      served_(peer),
      held_(calls->budget_, client_, [this] { OnCut(); }) {}

OpenCalls::Call::~Call() { Settle(); }

// Under the budget's lock: where room is asked for, none of OpenCalls' is held.
void OpenCalls::Call::OnCut() {
  MutexLock lock(&calls_->mu_);
  if (waits_) calls_->Cancel(this);
}

void OpenCalls::Call::Refuse() {
  MutexLock lock(&calls_->mu_);
  calls_->refused_.push_back(this);
  waits_ = true;
  if (calls_->refused_.size() > kMaxRefused) calls_->Cancel(calls_->refused_.front());
}

absl::Status OpenCalls::Call::AwaitMessage() { return AwaitTurn(/*first=*/true); }

absl::Status OpenCalls::Call::AwaitTurn(bool first) {
  const absl::Status status = held_.Set(kCallBytes);
  MutexLock lock(&calls_->mu_);
  if (!waits_) return absl::OkStatus();  // It was cut, and `cancel` has come.
  if (!status.ok()) return status;
  due_ = Clock::now() + calls_->options_.message_timeout;
  calls_->timed_.insert(this);
  std::deque<Call*>& queue = calls_->clients_[client_].queue;
  queue.insert(first ? queue.end() : queue.begin(), this);
  if (++calls_->num_waiting_ > calls_->max_waiting_) calls_->EndOldest();
  calls_->GiveTurns();
  return absl::OkStatus();
}

absl::Status OpenCalls::Call::AwaitAnother() {
  {
    MutexLock lock(&calls_->mu_);
    waits_ = true;
  }
  held_.SetMayBeCut(true);
  return AwaitTurn(/*first=*/false);
}

bool OpenCalls::Call::Settle() {
  MutexLock lock(&calls_->mu_);
  calls_->Forget(this);
  calls_->GiveTurns();
  return std::exchange(waits_, false);
}

absl::StatusOr<std::shared_ptr<MemoryBudget::Holding>> OpenCalls::Call::Keep(int64_t bytes) {
  held_.SetMayBeCut(false);
  TANDEM_RETURN_IF_ERROR(held_.Set(kCallBytes));  // If it was cut just now.
  return calls_->budget_->Hold(client_, bytes);
}

void OpenCalls::Call::BeginWrite() {
  {
    MutexLock lock(&calls_->mu_);
    waits_ = true;
    due_ = Clock::now() + calls_->options_.write_timeout;
    calls_->timed_.insert(this);
  }
  held_.SetMayBeCut(true);
}

void OpenCalls::Call::AwaitEvent() {
  {
    MutexLock lock(&calls_->mu_);
    waits_ = true;
  }
  held_.SetMayBeCut(true);
}

void OpenCalls::Call::EndWrite() {
  held_.SetMayBeCut(false);
  Settle();
}

}  // namespace tandem
