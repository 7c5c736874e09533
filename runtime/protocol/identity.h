// Who is who. Every message between processes is keyed by these, so that what is late, repeated or
// from an earlier life of a process is recognised and dropped.

#ifndef TANDEM_RUNTIME_PROTOCOL_IDENTITY_H_
#define TANDEM_RUNTIME_PROTOCOL_IDENTITY_H_

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

namespace tandem {

// Minted by the router; the client's own id is a label only.
struct RequestId {
  uint64_t router_incarnation = 0;  // Random, one per router process.
  uint64_t counter = 0;
  auto operator<=>(const RequestId&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const RequestId& id) {
    return H::combine(std::move(h), id.router_incarnation, id.counter);
  }
};

// One try of a request on one worker. A resumed stream is a new attempt; numbers of one request
// are never reused. An attempt carries one or more choices of `n`.
struct AttemptId {
  RequestId request;
  uint32_t attempt = 0;
  auto operator<=>(const AttemptId&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const AttemptId& id) {
    return H::combine(std::move(h), id.request, id.attempt);
  }
};

// A prompt of a decode worker that a prefill worker computes, as the decode worker numbers them, in
// order of arrival; never reused within its process. What one router calls its attempts may be what
// another calls its own.
using JobId = uint64_t;

// A stable name and the random number of this life of the process. A new incarnation voids every
// lease, reservation and event of the old one.
struct WorkerId {
  std::string name;
  uint64_t incarnation = 0;
  auto operator<=>(const WorkerId&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const WorkerId& id) {
    return H::combine(std::move(h), id.name, id.incarnation);
  }
};

// A live connection as its owner numbers it: a router's Session, a peer's Session. Never reused
// within a process.
using SessionId = uint64_t;

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_IDENTITY_H_
