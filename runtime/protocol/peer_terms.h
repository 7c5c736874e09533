// What two workers must have in common before the blocks of one go into the pool of the other. The
// router pairs by it; the workers check it again when one dials the other, because by then either
// may have restarted as something else.

#ifndef TANDEM_RUNTIME_PROTOCOL_PEER_TERMS_H_
#define TANDEM_RUNTIME_PROTOCOL_PEER_TERMS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/protocol/kv_shard.h"

namespace tandem {

// What this build speaks with routers and workers.
inline constexpr int32_t kProtocolMin = 3, kProtocolMax = 3;

struct PeerTerms {
  int32_t protocol_min = kProtocolMin, protocol_max = kProtocolMax;
  std::string kv_class;     // The same bytes mean the same.
  std::string numerics_id;  // The same prefix has the same bytes: else a stream has no one origin.
  std::string transport;    // "ucx", "ucx-device" (of pools of devices), "grpc" or "nccl".
  KvShard shard;            // What the pool has of every block that is promised and sent.

  bool operator==(const PeerTerms&) const = default;
};

// Whether there is a protocol that both speak.
inline bool ShareProtocol(const PeerTerms& a, const PeerTerms& b) {
  return a.protocol_max >= b.protocol_min && a.protocol_min <= b.protocol_max;
}

// A router of this build can send requests to a worker with these terms. FailedPrecondition, with
// both values.
absl::Status CheckRoutable(const PeerTerms& worker);

// FailedPrecondition, with both values of what differs.
absl::Status CheckPeerTerms(const PeerTerms& ours, const PeerTerms& theirs);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_PEER_TERMS_H_
