// Where arriving KV frames go: the fence between the network and the block pool.
//
// The engine opens a reservation over granted blocks; the transport asks for the place of each
// frame and reports when its bytes have landed. A frame that names no open reservation, a stale
// generation, an ordinal outside it or one that has already landed gets no place. A block whose
// place has been given out is in flight until Finish, whatever happens to its reservation in
// between: closing hands back at once only the blocks that nothing can still write to.
//
// Thread-safe: the engine thread and the transport's thread meet here.

#ifndef TANDEM_RUNTIME_PROTOCOL_KV_RECEIVER_H_
#define TANDEM_RUNTIME_PROTOCOL_KV_RECEIVER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"
#include "runtime/protocol/reservation_table.h"

namespace tandem {

class KvReceiver {
 public:
  explicit KvReceiver(int64_t block_bytes) : table_(block_bytes) {}
  // As it is now: for who explores what may happen.
  KvReceiver(const KvReceiver& other) : table_(other.Table()) {}
  KvReceiver& operator=(const KvReceiver&) = delete;

  // ---- Engine thread ----

  // blocks[i] receives ordinal first_ordinal + i.
  Reservation Open(JobId job, int32_t first_ordinal, std::span<const int32_t> blocks) EXCLUDES(mu_);
  // No later frame gets a place. Returns the blocks that are in flight, to be quarantined until
  // their ReceivedFrame (kOrphaned); all others may be reused at once. Unknown: nothing.
  std::vector<int32_t> Close(Reservation reservation) EXCLUDES(mu_);

  // ---- Transport thread ----

  using Place = FramePlace;
  // Nothing: drop the frame, it belongs to no open reservation.
  std::optional<Place> Begin(const FrameHeader& header) EXCLUDES(mu_);
  // Exactly once per Place, when no byte of the frame can be written any more. `payload_crc32c` is
  // that of the bytes as they lie in the block; ignored unless `ok`. The caller hands the result
  // to Engine::OnFrameReceived.
  ReceivedFrame Finish(const Place& place, bool ok, uint32_t payload_crc32c) EXCLUDES(mu_);

  int64_t num_in_flight() const EXCLUDES(mu_);
  ReservationTable Table() const EXCLUDES(mu_);  // A copy.

 private:
  mutable Mutex mu_;
  ReservationTable table_ GUARDED_BY(mu_);
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_KV_RECEIVER_H_
