// The calls of a gRPC server that wait for their client: for its message, or for it to read.
//
// gRPC reads a unary call's message before anybody of ours hears of the call, for as long as the
// client likes. Calls of an EarlyReactor (early_reactor.h) begin at their headers instead, and this
// bounds them:
//
// - each is charged kCallBytes as long as it is open;
// - those whose message has not come hold at most kMaxWaitingBytes together; past that the client
//   that has most of them loses its oldest;
// - only so many messages are received at a time that they fit into a quarter of the budget, which
//   is set aside for them, and half as many of one client; the others wait for their turn, and a
//   message that takes longer than `turn` then gives way;
// - a message that has not come within its time, and a write that makes no progress, end the call;
// - a call that gives way is cancelled: a status could only be told to a client that reads, and
//   gRPC keeps the call until then. So of calls that are refused only so many at a time are told
//   why.

#ifndef TANDEM_SERVICES_SERVER_OPEN_CALLS_H_
#define TANDEM_SERVICES_SERVER_OPEN_CALLS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/memory_budget.h"
#include "runtime/base/mutex.h"
#include "runtime/base/periodic_thread.h"
#include "services/server/gated_calls.h"

namespace tandem {

// gRPC itself was measured to take 11 to 14 KiB for a call that only sent its headers; 16 KiB more
// of its message may arrive before it is read.
inline constexpr int64_t kCallBytes = int64_t{32} << 10;
inline constexpr int64_t kMaxWaitingBytes = int64_t{32} << 20;
inline constexpr int kCallWindowBytes = 16 << 10;

class OpenCalls {
 public:
  class Call;

  struct Options {
    int64_t max_message_bytes = 0;
    std::chrono::milliseconds message_timeout{30'000};
    std::chrono::milliseconds write_timeout{60'000};
    std::chrono::milliseconds turn{1'000};
  };

  // `budget` outlives this, and this all calls.
  OpenCalls(MemoryBudget* budget, const Options& options);

  MemoryBudget* budget() { return budget_; }
  int64_t max_message_bytes() const { return options_.max_message_bytes; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Client {
    std::deque<Call*> queue;     // For a turn; the last goes first.
    std::list<Call*> receiving;  // With one, the longest first.
    size_t size() const { return queue.size() + receiving.size(); }
  };

  void Sweep() EXCLUDES(mu_);  // The sweeper's thread.
  void EndOldest() REQUIRES(mu_);
  void EndOverdue(Clock::time_point now) REQUIRES(mu_);
  void EndSlowTurns(Clock::time_point now) REQUIRES(mu_);
  void GiveTurns() REQUIRES(mu_);
  void Cancel(Call* call) REQUIRES(mu_);
  void Forget(Call* call) REQUIRES(mu_);  // It awaits nothing.

  MemoryBudget* const budget_;
  const Options options_;
  const size_t max_waiting_, max_turns_, max_turns_of_client_;
  MemoryBudget::Holding messages_;
  Mutex mu_;
  std::list<Call*> refused_ GUARDED_BY(mu_);               // And perhaps not told yet.
  std::set<Call*> timed_ GUARDED_BY(mu_);                  // With a deadline.
  std::map<std::string, Client> clients_ GUARDED_BY(mu_);  // With a turn, or waiting.
  std::string last_turn_ GUARDED_BY(mu_);                  // The client that got the last one.
  size_t num_waiting_ GUARDED_BY(mu_) = 0;                 // For their message, with a turn or not.
  size_t num_receiving_ GUARDED_BY(mu_) = 0;
  PeriodicThread sweeper_;  // Last: uses the rest.
};

// One of them. Any thread, but for AwaitMessage, AwaitAnother and Keep.
class OpenCalls::Call {
 public:
  // `peer` is gRPC's. `receive` starts to read the message, `cancel` cancels the call. Both are
  // called on any thread, under locks of this class: they hand over and return.
  Call(OpenCalls* calls, const std::string& peer, std::function<void()> receive,
       std::function<void()> cancel);
  ~Call();

  // `receive` or `cancel` comes, at once or later. ResourceExhausted, with the numbers, if there is
  // no room.
  absl::Status AwaitMessage() EXCLUDES(calls_->mu_);
  // The same once the message before has been kept.
  absl::Status AwaitAnother() EXCLUDES(calls_->mu_);
  // The call is over before it begins; it may be cancelled while its client is told why.
  void Refuse() EXCLUDES(calls_->mu_);
  // The message has come: neither `receive` nor `cancel` comes any more. False if that was so
  // before.
  bool Settle() EXCLUDES(calls_->mu_);
  // For the message, which takes `bytes`. ResourceExhausted, with the numbers. Once settled.
  absl::StatusOr<std::shared_ptr<MemoryBudget::Holding>> Keep(int64_t bytes);
  // Around every write, and before the status, that the client's reading could hold up: one that
  // lasts too long, or is in the way of somebody else's memory, brings `cancel`. Once settled.
  void BeginWrite() EXCLUDES(calls_->mu_);
  void EndWrite() EXCLUDES(calls_->mu_);
  // Until the next write only somebody else's memory brings `cancel`. Once settled.
  void AwaitEvent() EXCLUDES(calls_->mu_);

 private:
  friend class OpenCalls;

  void OnCut() EXCLUDES(calls_->mu_);
  absl::Status AwaitTurn(bool first) EXCLUDES(calls_->mu_);

  OpenCalls* const calls_;
  const std::string client_;
  const std::function<void()> receive_;
  const std::function<void()> cancel_;
  // ---- Under calls_->mu_ ----
  bool waits_ = true;  // For its client.
  Clock::time_point due_;
  Clock::time_point turn_since_;
  ServedCall served_;
  // ----
  MemoryBudget::Holding held_;  // Goes first: nothing is cut any more.
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_OPEN_CALLS_H_
