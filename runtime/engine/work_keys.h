// How the engine names its work: attempts of routers, and prompts that it computes for decode
// workers.
//
// What a peer calls something means that on its own session: another peer's same word is another
// thing, and neither can touch the other's.

#ifndef TANDEM_RUNTIME_ENGINE_WORK_KEYS_H_
#define TANDEM_RUNTIME_ENGINE_WORK_KEYS_H_

#include <compare>

#include "runtime/protocol/identity.h"

namespace tandem {

struct AttemptKey {
  SessionId router = 0;
  AttemptId attempt;
  auto operator<=>(const AttemptKey&) const = default;
};

struct JobKey {
  SessionId decode = 0;
  JobId job = 0;
  auto operator<=>(const JobKey&) const = default;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_ENGINE_WORK_KEYS_H_
