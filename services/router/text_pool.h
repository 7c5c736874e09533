// The few threads that parse bodies, render templates and tokenize, so that no I/O thread and not
// the router's thread ever waits for text.
//
// Clients take turns. Long bodies never have all the threads: one is always left to the short ones,
// which would otherwise wait seconds behind a few megabytes. Nor do those that wait lock short ones
// out of the memory budget, nor one client's the others.

#ifndef TANDEM_SERVICES_ROUTER_TEXT_POOL_H_
#define TANDEM_SERVICES_ROUTER_TEXT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/client_turns.h"
#include "runtime/base/mutex.h"
#include "services/router/api_limits.h"

namespace tandem {

class TextPool {
 public:
  // At least 2 threads. Long bodies that wait have at most a quarter of `memory_limit_bytes`.
  // One client may have half of either.
  TextPool(int num_threads, size_t max_waiting, int64_t memory_limit_bytes);
  ~TextPool();  // Stop().

  // For a body of `bytes`. ResourceExhausted if too many jobs or too long ones wait, of all or of
  // this client; Unavailable once stopped; the job is then never run. Any thread.
  absl::Status Post(const std::string& client, size_t bytes, std::function<void()> job)
      EXCLUDES(mu_);
  // Runs what waits, then joins. Idempotent.
  void Stop() EXCLUDES(mu_);

 private:
  struct Job {
    bool is_long = false;
    size_t bytes = 0;
    std::function<void()> run;
  };

  absl::Status CheckRoom(const std::string& client, size_t bytes) const REQUIRES(mu_);
  void Run() EXCLUDES(mu_);
  // The oldest job, of the next client, that may run now; false if there is none.
  bool TakeJob(Job* job) REQUIRES(mu_);

  const size_t max_waiting_, max_waiting_of_client_;
  const size_t max_long_bytes_, max_long_bytes_of_client_;
  const int max_long_;  // At a time.
  Mutex mu_;
  CondVar changed_;
  ClientTurns<Job> jobs_ GUARDED_BY(mu_);
  size_t num_waiting_ GUARDED_BY(mu_) = 0;
  size_t long_bytes_ GUARDED_BY(mu_) = 0;  // Waiting.
  int num_long_ GUARDED_BY(mu_) = 0;       // Being run.
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_TEXT_POOL_H_
