// Waiting in tests for what other threads bring about.

#ifndef TANDEM_TESTS_SUPPORT_EVENTUALLY_H_
#define TANDEM_TESTS_SUPPORT_EVENTUALLY_H_

#include <chrono>
#include <functional>

#include "runtime/base/mutex.h"

namespace tandem {

// Looks again and again; false once `patience` is over.
inline bool Eventually(const std::function<bool()>& condition,
                       std::chrono::seconds patience = std::chrono::minutes(1)) {
  const auto end = std::chrono::steady_clock::now() + patience;
  Mutex mu;
  CondVar never;
  MutexLock lock(&mu);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    never.WaitFor(&mu, std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SUPPORT_EVENTUALLY_H_
