// What requests and attempts are called in logs, by routers and workers alike: "9f3c01d2-17", and
// "9f3c01d2-17-1" the first attempt of it, where "9f3c01d2" is the router's life.

#ifndef TANDEM_SERVICES_SERVER_ATTEMPT_NAME_H_
#define TANDEM_SERVICES_SERVER_ATTEMPT_NAME_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "runtime/protocol/identity.h"

namespace tandem {

inline std::string NameOf(const RequestId& request) {
  return absl::StrFormat("%08x-%d", request.router_incarnation >> 32, request.counter);
}

inline std::string NameOf(const AttemptId& attempt) {
  return absl::StrFormat("%s-%d", NameOf(attempt.request), attempt.attempt);
}

}  // namespace tandem

#endif  // TANDEM_SERVICES_SERVER_ATTEMPT_NAME_H_
