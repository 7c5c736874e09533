// How the two ends of a Unix socket between SharedLinks prove to each other that they are of one
// fleet. The socket's name and the link's number are the receiver's, random, and told to one peer
// in an authenticated Session; the sender adds a nonce. A link takes one connection, so that
// neither proof is good twice.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_SOCKET_GREETING_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_SOCKET_GREETING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/fleet_secret.h"

namespace tandem {

// The first packet from sender to receiver.
struct SocketGreeting {
  uint64_t link = 0;  // The receiver's number.
  char nonce[16] = {};
  char proof[kProofBytes] = {};
};

SocketGreeting MakeGreeting(const FleetSecret& secret, const std::string& socket_name,
                            uint64_t link);

// The first packet back, which is the receiver's proof; nothing if the greeting proves nothing.
std::optional<std::string> AnswerGreeting(const FleetSecret& secret, const std::string& socket_name,
                                          const SocketGreeting& greeting);

bool CheckAnswer(const FleetSecret& secret, const std::string& socket_name,
                 const SocketGreeting& greeting, std::string_view answer);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_SOCKET_GREETING_H_
