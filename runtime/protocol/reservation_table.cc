#include "runtime/protocol/reservation_table.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/guard.h"
#include "runtime/protocol/append_bytes.h"
#include "runtime/protocol/decode_transfer.h"

namespace tandem {

namespace {

// More often none is sent. A sender that goes on would fill the engine's queue with what has
// landed.
constexpr size_t kMaxCorruptPerBlock = kMaxResends + 1;

}  // namespace

Reservation ReservationTable::Open(JobId job, int32_t first_ordinal,
                                   std::span<const int32_t> blocks) {
  auto entry =
      std::find_if(entries_.begin(), entries_.end(), [](const Entry& s) { return !s.open; });
  if (entry == entries_.end()) entry = entries_.emplace(entries_.end());
  entry->open = true;
  entry->job = job;
  entry->first_ordinal = first_ordinal;
  entry->blocks.assign(blocks.begin(), blocks.end());
  entry->landings.assign(blocks.size(), Landing::kMissing);
  entry->num_corrupt = 0;
  return {.index = static_cast<uint32_t>(entry - entries_.begin()),
          .generation = entry->generation};
}

ReservationTable::Entry* ReservationTable::Find(const Reservation& reservation) {
  if (reservation.index >= entries_.size()) return nullptr;
  Entry& entry = entries_[reservation.index];
  if (!entry.open) return nullptr;
  const bool current = reservation.generation == entry.generation;
  return TANDEM_GUARD("reservation_generation", current) ? &entry : nullptr;
}

std::vector<int32_t> ReservationTable::Close(Reservation reservation) {
  std::vector<int32_t> in_flight;
  if (reservation.index >= entries_.size()) return in_flight;
  Entry& entry = entries_[reservation.index];
  if (!entry.open || entry.generation != reservation.generation) return in_flight;
  for (size_t i = 0; i < entry.blocks.size(); ++i) {
    if (entry.landings[i] == Landing::kInFlight) in_flight.push_back(entry.blocks[i]);
  }
  const uint32_t next_generation = entry.generation + 1 == 0 ? 1 : entry.generation + 1;
  entry = {};
  entry.generation = next_generation;
  return in_flight;
}

std::optional<FramePlace> ReservationTable::Begin(const FrameHeader& header) {
  Entry* const entry = Find(header.reservation);
  if (entry == nullptr) return std::nullopt;
  // What lies outside the reservation, or is not one whole block of all shards, has no place at
  // all.
  const int64_t index = static_cast<int64_t>(header.ordinal) - entry->first_ordinal;
  if (index < 0 || index >= static_cast<int64_t>(entry->blocks.size())) return std::nullopt;
  if (static_cast<int64_t>(header.length_bytes) != block_bytes_) return std::nullopt;
  if (header.shard != KvShard()) return std::nullopt;
  if (entry->num_corrupt >= kMaxCorruptPerBlock * entry->blocks.size()) return std::nullopt;
  Landing& landing = entry->landings[static_cast<size_t>(index)];
  if (landing == Landing::kInFlight) return std::nullopt;  // One writer at a time.
  if (!TANDEM_GUARD("ordinal_lands_once", landing != Landing::kVerified)) return std::nullopt;
  landing = Landing::kInFlight;
  const FramePlace place{.ticket = next_ticket_++,
                         .block = entry->blocks[static_cast<size_t>(index)]};
  in_flight_[place.ticket] = {
      .header = header, .generation = entry->generation, .job = entry->job, .block = place.block};
  return place;
}

ReceivedFrame ReservationTable::Finish(const FramePlace& place, bool ok, uint32_t payload_crc32c) {
  const auto found = in_flight_.find(place.ticket);
  TANDEM_CHECK(found != in_flight_.end()) << "ticket " << place.ticket << " is not in flight";
  const InFlight frame = found->second;
  in_flight_.erase(found);
  const FrameHeader& header = frame.header;
  ReceivedFrame received{.reservation = header.reservation,
                         .job = frame.job,
                         .ordinal = static_cast<int32_t>(header.ordinal),
                         .block = frame.block,
                         .outcome = FrameOutcome::kOrphaned};
  Entry& entry = entries_[header.reservation.index];
  if (!entry.open || entry.generation != frame.generation) return received;
  if (!ok) {
    received.outcome = FrameOutcome::kFailed;
  } else if (TANDEM_GUARD("frame_checksum",
                          FrameChecksum(header, payload_crc32c) == header.crc32c)) {
    received.outcome = FrameOutcome::kVerified;
  } else {
    received.outcome = FrameOutcome::kCorrupt;
    ++entry.num_corrupt;
  }
  entry.landings[header.ordinal - static_cast<uint32_t>(entry.first_ordinal)] =
      received.outcome == FrameOutcome::kVerified ? Landing::kVerified : Landing::kMissing;
  return received;
}

void ReservationTable::AppendState(std::string* bytes) const {
  for (const Entry& entry : entries_) {
    AppendBytes(entry.generation, bytes);
    AppendBytes(entry.open, bytes);
    AppendBytes(entry.job, bytes);
    AppendBytes(entry.first_ordinal, bytes);
    AppendBytes(entry.blocks.size(), bytes);
    for (size_t i = 0; i < entry.blocks.size(); ++i) {
      AppendBytes(entry.blocks[i], bytes);
      AppendBytes(entry.landings[i], bytes);
    }
  }
  // Tickets are names only: their order counts, not their values.
  for (const auto& [ticket, frame] : in_flight_) {
    AppendBytes(frame.header.reservation.index, bytes);
    AppendBytes(frame.header.reservation.generation, bytes);
    AppendBytes(frame.header.ordinal, bytes);
    AppendBytes(frame.header.crc32c, bytes);
    AppendBytes(frame.job, bytes);
    AppendBytes(frame.block, bytes);
  }
}

uint32_t FrameChecksum(const FrameHeader& header, uint32_t payload_crc32c) {
  const uint32_t fields[] = {header.reservation.index, header.reservation.generation,
                             header.ordinal, header.length_bytes, PackShard(header.shard)};
  uint8_t bytes[sizeof(fields)];
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<uint8_t>(fields[i / 4] >> (8 * (i % 4)));
  }
  return Crc32c(bytes, sizeof(bytes), payload_crc32c);
}

}  // namespace tandem
