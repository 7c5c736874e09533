#include "runtime/protocol/peer_terms.h"

#include "absl/strings/str_format.h"
#include "runtime/base/guard.h"

namespace tandem {

absl::Status CheckRoutable(const PeerTerms& worker) {
  if (!ShareProtocol(worker, PeerTerms())) {
    return absl::FailedPreconditionError(
        absl::StrFormat("protocol: the worker speaks %d to %d, this router %d to %d",
                        worker.protocol_min, worker.protocol_max, kProtocolMin, kProtocolMax));
  }
  if (worker.shard != KvShard()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("kv_shard: the worker has %s, requests need %s", worker.shard.ToString(),
                        KvShard().ToString()));
  }
  return absl::OkStatus();
}

absl::Status CheckPeerTerms(const PeerTerms& ours, const PeerTerms& theirs) {
  if (!ShareProtocol(theirs, ours)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "protocol: the peer speaks %d to %d, this worker %d to %d", theirs.protocol_min,
        theirs.protocol_max, ours.protocol_min, ours.protocol_max));
  }
  if (!TANDEM_GUARD("peer_kv_class", theirs.kv_class == ours.kv_class)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "kv_class: the peer has %s, this worker %s", theirs.kv_class, ours.kv_class));
  }
  if (!TANDEM_GUARD("peer_numerics", theirs.numerics_id == ours.numerics_id)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "numerics_id: the peer has %s, this worker %s", theirs.numerics_id, ours.numerics_id));
  }
  if (theirs.transport != ours.transport) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "transport: the peer has %s, this worker %s", theirs.transport, ours.transport));
  }
  if (theirs.shard != ours.shard) {
    return absl::FailedPreconditionError(
        absl::StrFormat("kv_shard: the peer has %s, this worker %s", theirs.shard.ToString(),
                        ours.shard.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace tandem
