#include "runtime/transport/nccl/nccl_pair.h"

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {

NcclPair::~NcclPair() {
  if (comm_ != nullptr) {
    if (const NcclResult ended = api_->CommAbort(comm_); ended != NcclResult::kSuccess) {
      LogWarning("NCCL did not abort a communicator; its memory is waited for",
                 {{"result", static_cast<int>(ended)}});
    }
  }
  if (stream_ != nullptr) {
    // A device that has failed moves nothing any more.
    if (const absl::Status ended = api_->StreamSynchronize(stream_); !ended.ok()) {
      LogWarning("the device failed while a KV link ended", {{"why", ended.ToString()}});
    }
  }
  for (const NcclStreamEvent event : events_) api_->EventDestroy(event);
  if (stream_ != nullptr) api_->StreamDestroy(stream_);
}

absl::Status NcclPair::Open(const NcclUniqueId& id, int rank) {
  peer_ = 1 - rank;
  TANDEM_ASSIGN_OR_RETURN(stream_, api_->StreamCreate());
  for (int i = 0; i < kWindow; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const NcclStreamEvent event, api_->EventCreate());
    events_.push_back(event);
  }
  return Settle("joining the peer", api_->CommInitRank(&comm_, 2, id, rank));
}

absl::Status NcclPair::Send(const std::byte* from, size_t size_bytes) {
  TANDEM_RETURN_IF_ERROR(
      Settle("sending a block", api_->Send(from, size_bytes, peer_, comm_, stream_)));
  return Mark();
}

absl::Status NcclPair::Receive(std::byte* to, size_t size_bytes) {
  TANDEM_RETURN_IF_ERROR(
      Settle("receiving a block", api_->Recv(to, size_bytes, peer_, comm_, stream_)));
  return Mark();
}

absl::Status NcclPair::Mark() {
  const size_t next = (oldest_ + static_cast<size_t>(under_way_)) % kWindow;
  TANDEM_RETURN_IF_ERROR(api_->EventRecord(events_[next], stream_));
  if (under_way_++ == 0) Moved();
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclPair::Passed() {
  TANDEM_ASSIGN_OR_RETURN(const bool passed, api_->EventPassed(events_[oldest_]));
  // What breaks a communicator shows in its state alone, and may let the stream go on.
  if (const NcclResult state = State(); state != NcclResult::kSuccess) {
    return Error("moving a block", state);
  }
  if (!passed) {
    TANDEM_RETURN_IF_ERROR(CheckProgress("moving a block"));
    return false;
  }
  oldest_ = (oldest_ + 1) % kWindow;
  --under_way_;
  Moved();
  return true;
}

absl::Status NcclPair::Settle(const char* doing, NcclResult result) {
  Moved();
  while (result == NcclResult::kInProgress) {
    result = State();
    if (result != NcclResult::kInProgress) break;
    TANDEM_RETURN_IF_ERROR(CheckProgress(doing));
    if (!nap_()) return absl::CancelledError(doing);
  }
  return result == NcclResult::kSuccess ? absl::OkStatus() : Error(doing, result);
}

NcclResult NcclPair::State() {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = api_->CommGetAsyncError(comm_, &state);
  return asked == NcclResult::kSuccess ? state : asked;
}

absl::Status NcclPair::Error(const char* doing, NcclResult result) {
  return absl::UnavailableError(absl::StrFormat(
      "NCCL, %s: result %d: %s", doing, static_cast<int>(result), api_->GetLastError(comm_)));
}

absl::Status NcclPair::CheckProgress(const char* doing) const {
  if (std::chrono::steady_clock::now() - moved_ < stall_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("NCCL, %s: nothing has moved for %d ms", doing, stall_.count()));
}

}  // namespace tandem
