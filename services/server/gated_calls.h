// The calls of the connections that http2_gate.h gives to gRPC: whose they are, and which of them
// nobody of ours serves.
//
// gRPC knows a connection's socket pair only and names its peer "fd:7". It takes 11 to 14 KiB for
// a call as soon as it has read its headers, long before any code of ours hears of it, and keeps it
// for a while after its end. Such calls are unserved: as many as streams are open without a
// ServedCall, or ServedCalls are there without an open stream, and those that were cut.

#ifndef TANDEM_SERVICES_SERVER_GATED_CALLS_H_
#define TANDEM_SERVICES_SERVER_GATED_CALLS_H_

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/mutex.h"

namespace tandem {

// Counts the calls that gRPC has not served yet, over all connections of a gate. Any thread.
class UnservedCalls {
 public:
  // `on_room` is called on any thread, under a lock: it hands over and returns.
  UnservedCalls(int most, std::function<void()> on_room)
      : most_(most), on_room_(std::move(on_room)) {}

  int count() const EXCLUDES(mu_);
  // False if there are `most`, or half as many of this client: `on_room` comes once, as soon as
  // there are fewer than now.
  bool HasRoomOrAwait(const std::string& client) EXCLUDES(mu_);
  // `on_room` does not come any more.
  void Stop() EXCLUDES(mu_);

 private:
  friend class GatedConnection;

  const int most_;
  const std::function<void()> on_room_;
  mutable Mutex mu_;
  int count_ GUARDED_BY(mu_) = 0;
  std::map<std::string, int> by_client_ GUARDED_BY(mu_);  // Only clients that have some.
  bool awaited_ GUARDED_BY(mu_) = false;
};

// Any thread.
class GatedConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // `address` as gRPC would write it: "ipv4:127.0.0.1:4711".
  GatedConnection(std::shared_ptr<UnservedCalls> calls, std::string address);

  const std::string& address() const { return address_; }
  const std::string& client() const { return client_; }  // To the memory budget.
  // As the frames say.
  void SetOpen(int open);
  // Calls `done` once what gRPC has written so far is with the client's kernel socket, where it
  // survives this process, or never will be; perhaps at once. `done` hands over and returns.
  void WhenPassedOn(std::function<void()> done);
  // The gate says how that is done, under a lock. Null: nothing is held back.
  void SetPassOn(std::function<void(std::function<void()>)> pass_on);
  // A call of it has proven that it comes from the fleet.
  void SetProven();
  bool proven() const { return proven_; }
  // Set by the gate: `proven` is called once it is, on any thread, under a lock: it hands over and
  // returns. Null: not any more.
  void SetOnProven(std::function<void()> proven);
  // Has unserved calls, and nothing has happened to any of its calls since.
  bool StuckSince(Clock::time_point time) const;

  // From now on `peer`, as gRPC names the descriptor, is this connection. gRPC closes a descriptor
  // only once the last call of its connection is gone.
  static void Name(int descriptor, std::shared_ptr<GatedConnection> connection);

 private:
  friend class ServedCall;

  void AddServed(int served, int leaving);
  void Change(int open, int served, int leaving) REQUIRES(calls_->mu_);
  int num_unserved() const REQUIRES(calls_->mu_);

  const std::shared_ptr<UnservedCalls> calls_;
  const std::string address_, client_;
  int open_ GUARDED_BY(calls_->mu_) = 0;
  int served_ GUARDED_BY(calls_->mu_) = 0;
  int leaving_ GUARDED_BY(calls_->mu_) = 0;  // Cut.
  Clock::time_point changed_ GUARDED_BY(calls_->mu_);
  Mutex pass_mu_;
  std::function<void(std::function<void()>)> pass_on_ GUARDED_BY(pass_mu_);
  std::function<void()> on_proven_ GUARDED_BY(pass_mu_);
  std::atomic<bool> proven_{false};
};

// As gRPC names who connects from there: "ipv4:127.0.0.1:4711", also where the socket is one of
// IPv6.
std::string NameOfPeer(const sockaddr_storage& address);
// The client's address, behind a gate or not: "ipv4:127.0.0.1:4711", from the peer of a context.
std::string AddressOfPeer(const std::string& peer);
// To the memory budget.
std::string ClientOfCall(const std::string& peer);
// SetProven of the connection, if it is behind a gate.
void SetPeerProven(const std::string& peer);

// Somebody serves a call for as long as this lives. Any thread.
class ServedCall {
 public:
  explicit ServedCall(const std::string& peer);  // A context's.
  ~ServedCall();
  ServedCall(const ServedCall&) = delete;
  ServedCall& operator=(const ServedCall&) = delete;

  // It was cut. One thread at a time.
  void Leave();
  const std::shared_ptr<GatedConnection>& connection() const { return connection_; }

 private:
  const std::shared_ptr<GatedConnection> connection_;  // Null: there is no gate.
  bool leaving_ = false;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_GATED_CALLS_H_
