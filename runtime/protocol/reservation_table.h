// KvReceiver without its lock: a value that the transfer explorer can copy and compare.

#ifndef TANDEM_RUNTIME_PROTOCOL_RESERVATION_TABLE_H_
#define TANDEM_RUNTIME_PROTOCOL_RESERVATION_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/protocol/identity.h"
#include "runtime/protocol/peer_messages.h"

namespace tandem {

enum class FrameOutcome : uint8_t {
  kVerified,  // Landed, checksum right.
  kCorrupt,   // Landed, checksum wrong: ask again.
  kFailed,    // The transport gave up (peer lost).
  kOrphaned,  // Landed after its reservation closed: the block is free now.
};

struct ReceivedFrame {
  Reservation reservation;
  JobId job = 0;
  int32_t ordinal = 0;
  int32_t block = 0;
  FrameOutcome outcome = FrameOutcome::kFailed;
};

// Where an arriving frame goes.
struct FramePlace {
  uint64_t ticket = 0;
  int32_t block = 0;
};

// The contracts are KvReceiver's. Not thread-safe.
class ReservationTable {
 public:
  explicit ReservationTable(int64_t block_bytes) : block_bytes_(block_bytes) {}

  Reservation Open(JobId job, int32_t first_ordinal, std::span<const int32_t> blocks);
  std::vector<int32_t> Close(Reservation reservation);
  std::optional<FramePlace> Begin(const FrameHeader& header);
  ReceivedFrame Finish(const FramePlace& place, bool ok, uint32_t payload_crc32c);
  int64_t num_in_flight() const { return static_cast<int64_t>(in_flight_.size()); }

  // Appends bytes that are equal for equal states.
  void AppendState(std::string* bytes) const;

 private:
  enum class Landing : uint8_t { kMissing, kInFlight, kVerified };
  struct Entry {
    uint32_t generation = 1;  // The open reservation's, or the next one's.
    bool open = false;
    JobId job = 0;
    int32_t first_ordinal = 0;
    std::vector<int32_t> blocks;
    std::vector<Landing> landings;  // Parallel to blocks.
    size_t num_corrupt = 0;
  };
  struct InFlight {
    FrameHeader header;
    uint32_t generation = 0;  // The reservation's.
    JobId job = 0;
    int32_t block = 0;
  };

  // Null: no open reservation of that name.
  Entry* Find(const Reservation& reservation);

  int64_t block_bytes_;
  std::vector<Entry> entries_;
  std::map<uint64_t, InFlight> in_flight_;  // By ticket.
  uint64_t next_ticket_ = 1;
};

// The checksum a header must carry: that of the payload continued over reservation, ordinal,
// length and shard.
uint32_t FrameChecksum(const FrameHeader& header, uint32_t payload_crc32c);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_PROTOCOL_RESERVATION_TABLE_H_
