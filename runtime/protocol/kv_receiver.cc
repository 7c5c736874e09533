#include "runtime/protocol/kv_receiver.h"

namespace tandem {

Reservation KvReceiver::Open(JobId job, int32_t first_ordinal, std::span<const int32_t> blocks) {
  MutexLock lock(&mu_);
  return table_.Open(job, first_ordinal, blocks);
}

std::vector<int32_t> KvReceiver::Close(Reservation reservation) {
  MutexLock lock(&mu_);
  return table_.Close(reservation);
}

std::optional<KvReceiver::Place> KvReceiver::Begin(const FrameHeader& header) {
  MutexLock lock(&mu_);
  return table_.Begin(header);
}

ReceivedFrame KvReceiver::Finish(const Place& place, bool ok, uint32_t payload_crc32c) {
  MutexLock lock(&mu_);
  return table_.Finish(place, ok, payload_crc32c);
}

int64_t KvReceiver::num_in_flight() const {
  MutexLock lock(&mu_);
  return table_.num_in_flight();
}

ReservationTable KvReceiver::Table() const {
  MutexLock lock(&mu_);
  return table_;
}

}  // namespace tandem
