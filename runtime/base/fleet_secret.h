// The secret that the processes of one fleet share, and proofs of knowing it.
//
// A proof is HMAC-SHA256 over words that both sides know: what is being proven, and a nonce of each
// side, so that it is good for nothing else. The secret itself never travels. There may be two of
// them while one replaces the other: a process proves with its first and believes either.

#ifndef TANDEM_RUNTIME_BASE_FLEET_SECRET_H_
#define TANDEM_RUNTIME_BASE_FLEET_SECRET_H_

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

inline constexpr char kFleetSecretVariable[] = "TANDEM_FLEET_SECRET";
inline constexpr char kFleetSecretFileHelp[] =  // What --fleet-secret-file is.
    "what routers and workers prove to each other that they know, one or two words of 32 "
    "characters or more; empty: TANDEM_FLEET_SECRET in the environment";
inline constexpr size_t kProofBytes = 32;

// Immutable; any thread.
class FleetSecret {
 public:
  using Words = std::initializer_list<std::string_view>;

  // None: proofs can be made and believed, and are worth nothing.
  FleetSecret() : keys_(1) {}

  // One or two words of at least 32 characters. InvalidArgument otherwise.
  static absl::StatusOr<FleetSecret> Parse(std::string_view text);
  // What is in `file`; if that is empty, in the environment; else none. InvalidArgument if the file
  // can be read by everybody or written by others than its owner, who is this user or root; errors
  // of ReadSmallFile and Parse.
  static absl::StatusOr<FleetSecret> Read(const std::string& file);
  // A fresh one, as text.
  static std::string Make();

  bool configured() const { return configured_; }

  std::string Prove(Words words, size_t key = 0) const;
  // The key that the proof was made with; nothing if it is none.
  std::optional<size_t> Check(Words words, std::string_view proof) const;

 private:
  bool configured_ = false;
  std::vector<std::string> keys_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_FLEET_SECRET_H_
