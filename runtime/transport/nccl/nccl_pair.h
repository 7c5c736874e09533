// What one link has of NCCL: a communicator of two ranks, a stream, and operations on it, of which
// a bounded number is under way, in order.
//
// Calls are begun and then asked after, with a nap in between: nothing of NCCL is waited for that
// could not be given up. One thread.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_PAIR_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_PAIR_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/transport/nccl/nccl_api.h"

namespace tandem {

class NcclPair {
 public:
  static constexpr int kWindow = 8;  // Operations under way at a time.

  // `nap` lasts a moment; false: nobody wants the rest. What does not move for as long as `stall`
  // is given up. `api` outlives this.
  NcclPair(NcclApi* api, std::chrono::milliseconds stall, std::function<bool()> nap)
      : api_(api), stall_(stall), nap_(std::move(nap)) {}
  // Once it has returned nothing of this reads or writes memory any more. Waits for the device, for
  // no peer.
  ~NcclPair();
  NcclPair(const NcclPair&) = delete;
  NcclPair& operator=(const NcclPair&) = delete;

  // Once, before all others; returns when the peer has joined as the other of the ranks 0 and 1.
  // Unavailable, as from all of these, with NCCL's words; Cancelled if nobody wants it.
  absl::Status Open(const NcclUniqueId& id, int rank);

  bool HasRoom() const { return under_way_ < kWindow; }
  bool idle() const { return under_way_ == 0; }
  // There is room. The peer's next Receive of as many bytes gets them.
  absl::Status Send(const std::byte* from, size_t size_bytes);
  absl::Status Receive(std::byte* to, size_t size_bytes);
  // Whether the oldest operation under way, of which there is one, has ended: then it is no more.
  absl::StatusOr<bool> Passed();

 private:
  // A call answered `result`: waits until it is no longer in progress.
  absl::Status Settle(const char* doing, NcclResult result);
  // An operation has settled.
  absl::Status Mark();
  NcclResult State();
  absl::Status Error(const char* doing, NcclResult result);
  // Unavailable if nothing has moved for too long.
  absl::Status CheckProgress(const char* doing) const;
  void Moved() { moved_ = std::chrono::steady_clock::now(); }

  NcclApi* const api_;
  const std::chrono::milliseconds stall_;
  const std::function<bool()> nap_;
  int peer_ = 0;
  NcclComm comm_ = nullptr;
  NcclStream stream_ = nullptr;
  std::vector<NcclStreamEvent> events_;  // A ring: of those under way, and free.
  size_t oldest_ = 0;
  int under_way_ = 0;
  std::chrono::steady_clock::time_point moved_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_PAIR_H_
