#include "runtime/transport/ucx/socket_greeting.h"

#include <cstring>

#include "runtime/base/entropy.h"

namespace tandem {
namespace {

constexpr std::string_view kSender = "tandem-kv-socket-v1 sender";
constexpr std::string_view kReceiver = "tandem-kv-socket-v1 receiver";

std::string_view LinkOf(const SocketGreeting& greeting) {
  return {reinterpret_cast<const char*>(&greeting.link), sizeof(greeting.link)};
}

std::string_view NonceOf(const SocketGreeting& greeting) {
  return {greeting.nonce, sizeof(greeting.nonce)};
}

}  // namespace

SocketGreeting MakeGreeting(const FleetSecret& secret, const std::string& socket_name,
                            uint64_t link) {
  SocketGreeting greeting{.link = link};
  std::memcpy(greeting.nonce, RandomBytes(sizeof(greeting.nonce)).data(), sizeof(greeting.nonce));
  const std::string proof =
      secret.Prove({kSender, socket_name, LinkOf(greeting), NonceOf(greeting)});
  std::memcpy(greeting.proof, proof.data(), sizeof(greeting.proof));
  return greeting;
}

std::optional<std::string> AnswerGreeting(const FleetSecret& secret, const std::string& socket_name,
                                          const SocketGreeting& greeting) {
  const std::optional<size_t> key =
      secret.Check({kSender, socket_name, LinkOf(greeting), NonceOf(greeting)},
                   {greeting.proof, sizeof(greeting.proof)});
  if (!key.has_value()) return std::nullopt;
  return secret.Prove({kReceiver, socket_name, LinkOf(greeting), NonceOf(greeting)}, *key);
}

bool CheckAnswer(const FleetSecret& secret, const std::string& socket_name,
                 const SocketGreeting& greeting, std::string_view answer) {
  return secret.Check({kReceiver, socket_name, LinkOf(greeting), NonceOf(greeting)}, answer)
      .has_value();
}

}  // namespace tandem
