// What one link has of NCCL: a communicator of two ranks, a stream, and operations on it, one after
// the other, of which each moves a group of blocks.
//
// Calls are begun and then asked after, with a nap in between, so that what waits for the peer can
// be given up; joining and aborting also wait for this GPU. One thread.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_PAIR_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_PAIR_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/transport/nccl/nccl_api.h"

namespace tandem {

class NcclPair {
 public:
  static constexpr size_t kGroup = 16;  // Blocks of an operation, at most.

  using Patience = std::chrono::milliseconds;

  // `nap` lasts a moment; false: nobody wants the rest. An operation that takes as long as
  // `patience` is given up. `api` outlives this.
  NcclPair(NcclApi* api, Patience patience, std::function<bool()> nap)
      : api_(api), patience_(patience), nap_(std::move(nap)) {}
  // Once it has returned nothing of this reads or writes memory any more. Waits for the device, for
  // no peer.
  ~NcclPair();
  NcclPair(const NcclPair&) = delete;
  NcclPair& operator=(const NcclPair&) = delete;

  // Once, before all others; returns when the peer has joined as the other of the ranks 0 and 1,
  // which may take as long as `patience`.
  // Unavailable, as from all of these, with NCCL's words; Cancelled if nobody wants it.
  absl::Status Open(const NcclUniqueId& id, int rank, Patience patience);

  // 1 to kGroup blocks of `size_bytes` each; returns when they have moved. The peer's next Receive,
  // of as many blocks as long, gets them.
  absl::Status Send(std::span<const std::byte* const> blocks, size_t size_bytes);
  absl::Status Receive(std::span<std::byte* const> blocks, size_t size_bytes);

 private:
  // A call answered `result`: waits until it is no longer in progress.
  absl::Status Settle(const char* doing, NcclResult result);
  // `add` is called for each of `num_blocks`.
  absl::Status Move(const char* doing, size_t num_blocks,
                    absl::FunctionRef<NcclResult(size_t block)> add);
  NcclResult State();
  absl::Status Error(const char* doing, NcclResult result);
  void Begin(Patience limit);
  // Unavailable if it lasts too long.
  absl::Status CheckProgress(const char* doing) const;

  NcclApi* const api_;
  const Patience patience_;
  const std::function<bool()> nap_;
  int peer_ = 0;
  NcclComm comm_ = nullptr;
  NcclStream stream_ = nullptr;
  NcclStreamEvent end_ = nullptr;  // An operation's.
  // What is being done: since when, and for how long at most.
  std::chrono::steady_clock::time_point began_;
  Patience limit_{};
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_PAIR_H_
