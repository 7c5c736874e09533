// The bytes that a process may hold for its clients and peers: what they send before it is a
// running request, and what they leave unread. Whoever keeps such bytes charges them here before
// they grow.
//
// One number bounds all of them, so that no sum of small allowances can exhaust the machine. When
// it is used up, what is idle (a connection without a request) goes first: of the clients with most
// of that, give or take a slack, the oldest. It goes for whoever holds no more than a quarter, as
// else many clients with a connection each would crowd out everybody who has a request besides.
// Then, of the clients with something that may be cut the one that holds most gives way: the
// largest such holding is cut, the oldest among equals. A client that asks while it holds most
// itself gives way like any other, so nobody can crowd out somebody who holds less; for what is
// idle only who holds more by the slack does. What is cut takes a moment to go; a client makes room
// for itself only while that is little.

#ifndef TANDEM_RUNTIME_BASE_MEMORY_BUDGET_H_
#define TANDEM_RUNTIME_BASE_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"

namespace tandem {

inline constexpr char kMemoryLimitHelp[] =  // What --memory-limit is.
    "what a process holds for clients and peers beyond weights, KV and running requests, at least "
    "32MiB; 0: a tenth of what the machine or cgroup allows, of a worker that shares it of its "
    "share, from 64MiB to 256MiB";

class MemoryBudget {
 public:
  class Holding;

  // Outlives its holdings.
  explicit MemoryBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t held_bytes() const EXCLUDES(mu_);
  // Charges `bytes` to `client` for as long as somebody keeps the holding, which is never cut.
  // ResourceExhausted, with the numbers.
  absl::StatusOr<std::shared_ptr<Holding>> Hold(const std::string& client, int64_t bytes);
  // Ever given back; what the allocator may have kept of it.
  int64_t returned_bytes() const EXCLUDES(mu_);
  int64_t num_refused() const EXCLUDES(mu_);
  int64_t num_cut() const { return num_cut_; }
  // For who cuts by a bound of its own.
  void CountCut() { ++num_cut_; }

 private:
  using Order = std::tuple<int64_t, int64_t, Holding*>;  // Bytes, -age.

  struct Client {
    int64_t bytes = 0;
    int64_t idle_bytes = 0;
    std::set<Order> may_be_cut;        // And is not idle.
    std::map<int64_t, Holding*> idle;  // By number: the oldest first.
  };

  absl::Status Set(Holding* holding, int64_t bytes) EXCLUDES(mu_);
  void SetMayBeCut(Holding* holding, bool may_be_cut) EXCLUDES(mu_);
  void SetIdle(Holding* holding, bool idle) EXCLUDES(mu_);
  void Enlist(Holding* holding, int64_t bytes) REQUIRES(mu_);
  void Delist(Holding* holding) REQUIRES(mu_);
  void Rank(const std::string& name, const Client& client) REQUIRES(mu_);
  void Unrank(const std::string& name, const Client& client) REQUIRES(mu_);
  int64_t Slack() const;
  void Left(Holding* holding) REQUIRES(mu_);  // What was cut of it.
  // The holding that gives way if `asking` grows to `bytes`. Null: nobody does.
  Holding* Victim(Holding* asking, int64_t bytes) REQUIRES(mu_);
  Holding* IdleVictim(Holding* asking, int64_t bytes) REQUIRES(mu_);
  absl::Status Exhausted(int64_t bytes) const REQUIRES(mu_);

  const int64_t limit_bytes_;
  mutable Mutex mu_;
  int64_t held_bytes_ GUARDED_BY(mu_) = 0;
  int64_t returned_bytes_ GUARDED_BY(mu_) = 0;
  int64_t leaving_bytes_ GUARDED_BY(mu_) = 0;  // Cut, and not given back yet.
  int64_t num_refused_ GUARDED_BY(mu_) = 0;
  std::atomic<int64_t> num_cut_{0};
  int64_t next_number_ GUARDED_BY(mu_) = 0;
  std::map<std::string, Client> clients_ GUARDED_BY(mu_);
  std::set<std::pair<int64_t, std::string>> by_bytes_ GUARDED_BY(mu_);  // Who may be cut.
  // Who has something idle: how many slacks of it, -age of the oldest.
  std::set<std::tuple<int64_t, int64_t, std::string>> by_idle_ GUARDED_BY(mu_);
};

// What one connection, call or job holds for a client. Its methods are called by one thread at a
// time.
class MemoryBudget::Holding {
 public:
  // `cut` is called at most once, on any thread and under the budget's lock, when the holding has
  // to give way: it hands over and returns. Not any more once the destructor has returned. Without
  // it the holding is never cut.
  Holding(MemoryBudget* budget, std::string client, std::function<void()> cut = nullptr);
  ~Holding();  // Gives everything back.
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

  // Before the buffer grows to `bytes`, or after it shrank. ResourceExhausted, with the numbers, if
  // there is no room, or once this was cut; it then holds what it held before, or nothing.
  absl::Status Set(int64_t bytes) { return budget_->Set(this, bytes); }
  // From the start it may, if it was given a `cut`.
  void SetMayBeCut(bool may_be_cut) { budget_->SetMayBeCut(this, may_be_cut); }
  // Nobody waits for what it is held for: it goes before all that is not. At first it is not.
  void SetIdle(bool idle) { budget_->SetIdle(this, idle); }
  int64_t bytes() const;

 private:
  friend class MemoryBudget;

  MemoryBudget* const budget_;
  const std::string client_;
  const std::function<void()> cut_;
  // ---- Under the budget's lock ----
  int64_t number_ = 0;  // Counts holdings: the oldest has the smallest.
  int64_t bytes_ = 0;
  int64_t leaving_bytes_ = 0;
  bool was_cut_ = false;
  // Written under that lock, by the holding's own thread alone, which reads them without it.
  bool may_be_cut_ = false;
  bool idle_ = false;
};

// "127.0.0.1" of "ipv4:127.0.0.1:80" (as gRPC names a peer), "127.0.0.1:80" and
// "[::ffff:127.0.0.1]:80"; of IPv6 the half that names the network, as a host has all the rest to
// choose from.
std::string ClientOfPeer(const std::string& peer);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_MEMORY_BUDGET_H_
