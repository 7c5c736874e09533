// The few threads that parse bodies, render templates and tokenize, so that no I/O thread and not
// the router's thread ever waits for text.

#ifndef TANDEM_SERVICES_ROUTER_TEXT_POOL_H_
#define TANDEM_SERVICES_ROUTER_TEXT_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"

namespace tandem {

class TextPool {
 public:
  TextPool(int num_threads, size_t max_waiting);
  ~TextPool();  // Runs what waits, then joins.

  // False if max_waiting jobs wait. Any thread.
  bool TryPost(std::function<void()> job) EXCLUDES(mu_);

 private:
  void Run() EXCLUDES(mu_);

  const size_t max_waiting_;
  Mutex mu_;
  CondVar ready_;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_TEXT_POOL_H_
