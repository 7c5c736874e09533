// What one end of a UCX link tells the other, inside the Session's Hello.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_ADDRESS_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem {

struct UcxAddress {
  // This end's number for the link; the receiver's names it in every message. Random, so that
  // nobody can name it who was not told.
  uint64_t link = 0;
  std::string host;            // Equal: shares memory with us.
  std::string worker_address;  // UCX's own bytes.
  bool network = false;        // Listens on a named interface.
  bool device = false;         // The pool is a device's, and nobody maps it.
  std::string socket_name;     // Where SharedLinks listens; empty: shares no memory.

  // The pool, for a peer that may map it; of a device's, its sizes alone.
  std::string pool_key;
  uint64_t pool_base = 0;
  int64_t block_bytes = 0;
  int32_t num_blocks = 0;

  bool operator==(const UcxAddress&) const = default;
};

std::string EncodeUcxAddress(const UcxAddress& address);

// InvalidArgument unless `bytes` are exactly one address with sizes in range. The worker address
// and the key go to UCX unread: who has proven the fleet's secret is trusted that far (README.md).
absl::StatusOr<UcxAddress> DecodeUcxAddress(std::string_view bytes);

// Names this boot of this machine, this /dev/shm, and the PID and network namespaces: processes
// that read the same can map each other's shared memory and reach each other's Unix sockets.
std::string SharedMemoryHostId();

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_ADDRESS_H_
