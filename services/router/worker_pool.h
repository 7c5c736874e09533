// All worker channels of a router, tended by one thread: dials, dials again, and follows a DNS name
// whose addresses come and go.

#ifndef TANDEM_SERVICES_ROUTER_WORKER_POOL_H_
#define TANDEM_SERVICES_ROUTER_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "services/router/worker_channel.h"

namespace tandem {

// host:port of every address that `name` (host:port) has now. Blocks. Unavailable if there is none,
// InvalidArgument if it is no host:port.
absl::StatusOr<std::vector<std::string>> ResolveWorkers(const std::string& name);

struct WorkerPoolOptions {
  std::vector<std::string> addresses;  // The static list, or...
  std::string dns_name;                // ...name:port, asked every second.
  // Asks for it, on a thread that may outlive the pool.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string&)> resolve =
      ResolveWorkers;
  WorkerChannelOptions channel;
};

class WorkerPool {
 public:
  // Starts the thread. Everything borrowed outlives it.
  WorkerPool(const WorkerPoolOptions& options, RouterCore* core, const Clock* clock);
  ~WorkerPool();  // Close().

  // Ends every call and the thread.
  void Close() EXCLUDES(mu_);
  // Any thread.
  void RestartWatch(const WorkerId& worker) EXCLUDES(mu_);
  std::vector<std::shared_ptr<WorkerChannel>> channels() const EXCLUDES(mu_);
  // Behind a DNS name: that it was resolved at least once. Always true for a static list.
  bool resolved() const { return resolved_.load(std::memory_order_relaxed); }

 private:
  // One look at the DNS name, by a thread of its own that nobody waits for: a name server may be
  // silent for as long as it likes.
  struct Lookup {
    Mutex mu;
    std::function<void()> wake GUARDED_BY(mu);  // Null: nobody cares any more.
    bool done GUARDED_BY(mu) = false;
    absl::StatusOr<std::vector<std::string>> addresses GUARDED_BY(mu);
  };

  void Run() EXCLUDES(mu_);
  // When there is something to do again.
  int64_t TendLookup(int64_t now_us) EXCLUDES(mu_);
  void BeginLookup();
  void AddChannel(const std::string& address) REQUIRES(mu_);
  void Follow(const std::vector<std::string>& addresses) EXCLUDES(mu_);
  void Wake() EXCLUDES(mu_);

  const WorkerPoolOptions options_;
  RouterCore* const core_;
  const Clock* const clock_;
  std::atomic<SessionId> next_session_{1};
  std::atomic<bool> resolved_{false};

  mutable Mutex mu_;
  CondVar due_;
  bool woken_ GUARDED_BY(mu_) = false;
  bool closing_ GUARDED_BY(mu_) = false;
  std::map<std::string, std::shared_ptr<WorkerChannel>> channels_ GUARDED_BY(mu_);

  // ---- The thread's ----
  std::shared_ptr<Lookup> lookup_;
  int64_t next_lookup_us_ = 0;

  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_WORKER_POOL_H_
