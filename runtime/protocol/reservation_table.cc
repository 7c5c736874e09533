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
  auto slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.open; });
  if (slot == slots_.end()) slot = slots_.emplace(slots_.end());
  slot->open = true;
  slot->job = job;
  slot->first_ordinal = first_ordinal;
  slot->blocks.assign(blocks.begin(), blocks.end());
  slot->landings.assign(blocks.size(), Landing::kMissing);
  slot->num_corrupt = 0;
  return {.slot = static_cast<uint32_t>(slot - slots_.begin()), .generation = slot->generation};
}

ReservationTable::Slot* ReservationTable::Find(const Reservation& reservation) {
  if (reservation.slot >= slots_.size()) return nullptr;
  Slot& slot = slots_[reservation.slot];
  if (!slot.open) return nullptr;
  const bool current = reservation.generation == slot.generation;
  return TANDEM_GUARD("reservation_generation", current) ? &slot : nullptr;
}

std::vector<int32_t> ReservationTable::Close(Reservation reservation) {
  std::vector<int32_t> in_flight;
  if (reservation.slot >= slots_.size()) return in_flight;
  Slot& slot = slots_[reservation.slot];
  if (!slot.open || slot.generation != reservation.generation) return in_flight;
  for (size_t i = 0; i < slot.blocks.size(); ++i) {
    if (slot.landings[i] == Landing::kInFlight) in_flight.push_back(slot.blocks[i]);
  }
  const uint32_t next_generation = slot.generation + 1 == 0 ? 1 : slot.generation + 1;
  slot = {};
  slot.generation = next_generation;
  return in_flight;
}

std::optional<FramePlace> ReservationTable::Begin(const FrameHeader& header) {
  Slot* const slot = Find(header.reservation);
  if (slot == nullptr) return std::nullopt;
  // What lies outside the reservation, or is not one whole block of all shards, has no place at
  // all.
  const int64_t index = static_cast<int64_t>(header.ordinal) - slot->first_ordinal;
  if (index < 0 || index >= static_cast<int64_t>(slot->blocks.size())) return std::nullopt;
  if (static_cast<int64_t>(header.length_bytes) != block_bytes_) return std::nullopt;
  if (header.shard != KvShard()) return std::nullopt;
  if (slot->num_corrupt >= kMaxCorruptPerBlock * slot->blocks.size()) return std::nullopt;
  Landing& landing = slot->landings[static_cast<size_t>(index)];
  if (landing == Landing::kInFlight) return std::nullopt;  // One writer at a time.
  if (!TANDEM_GUARD("ordinal_lands_once", landing != Landing::kVerified)) return std::nullopt;
  landing = Landing::kInFlight;
  const FramePlace place{.ticket = next_ticket_++,
                         .block = slot->blocks[static_cast<size_t>(index)]};
  in_flight_[place.ticket] = {
      .header = header, .generation = slot->generation, .job = slot->job, .block = place.block};
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
  Slot& slot = slots_[header.reservation.slot];
  if (!slot.open || slot.generation != frame.generation) return received;
  if (!ok) {
    received.outcome = FrameOutcome::kFailed;
  } else if (TANDEM_GUARD("frame_checksum",
                          FrameChecksum(header, payload_crc32c) == header.crc32c)) {
    received.outcome = FrameOutcome::kVerified;
  } else {
    received.outcome = FrameOutcome::kCorrupt;
    ++slot.num_corrupt;
  }
  slot.landings[header.ordinal - static_cast<uint32_t>(slot.first_ordinal)] =
      received.outcome == FrameOutcome::kVerified ? Landing::kVerified : Landing::kMissing;
  return received;
}

void ReservationTable::AppendState(std::string* bytes) const {
  for (const Slot& slot : slots_) {
    AppendBytes(slot.generation, bytes);
    AppendBytes(slot.open, bytes);
    AppendBytes(slot.job, bytes);
    AppendBytes(slot.first_ordinal, bytes);
    AppendBytes(slot.blocks.size(), bytes);
    for (size_t i = 0; i < slot.blocks.size(); ++i) {
      AppendBytes(slot.blocks[i], bytes);
      AppendBytes(slot.landings[i], bytes);
    }
  }
  // Tickets are names only: their order counts, not their values.
  for (const auto& [ticket, frame] : in_flight_) {
    AppendBytes(frame.header.reservation.slot, bytes);
    AppendBytes(frame.header.reservation.generation, bytes);
    AppendBytes(frame.header.ordinal, bytes);
    AppendBytes(frame.header.crc32c, bytes);
    AppendBytes(frame.job, bytes);
    AppendBytes(frame.block, bytes);
  }
}

uint32_t FrameChecksum(const FrameHeader& header, uint32_t payload_crc32c) {
  const uint32_t fields[] = {header.reservation.slot, header.reservation.generation, header.ordinal,
                             header.length_bytes, PackShard(header.shard)};
  uint8_t bytes[sizeof(fields)];
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<uint8_t>(fields[i / 4] >> (8 * (i % 4)));
  }
  return Crc32c(bytes, sizeof(bytes), payload_crc32c);
}

}  // namespace tandem
