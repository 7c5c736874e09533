#include "runtime/transport/nccl/nccl_pair.h"

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
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
  if (end_ != nullptr) api_->EventDestroy(end_);
  if (stream_ != nullptr) api_->StreamDestroy(stream_);
}

absl::Status NcclPair::Open(const NcclUniqueId& id, int rank, Patience patience) {
  Begin(patience);
  peer_ = 1 - rank;
  TANDEM_ASSIGN_OR_RETURN(stream_, api_->StreamCreate());
  TANDEM_ASSIGN_OR_RETURN(end_, api_->EventCreate());
  return Settle("joining the peer", api_->CommInitRank(&comm_, 2, id, rank));
}

absl::Status NcclPair::Send(std::span<const std::byte* const> blocks, size_t size_bytes) {
  return Move("sending blocks", blocks.size(), [&](size_t block) {
    return api_->Send(blocks[block], size_bytes, peer_, comm_, stream_);
  });
}

absl::Status NcclPair::Receive(std::span<std::byte* const> blocks, size_t size_bytes) {
  return Move("receiving blocks", blocks.size(), [&](size_t block) {
    return api_->Recv(blocks[block], size_bytes, peer_, comm_, stream_);
  });
}

absl::Status NcclPair::Move(const char* doing, size_t num_blocks,
                            absl::FunctionRef<NcclResult(size_t)> add) {
  TANDEM_CHECK(num_blocks > 0 && num_blocks <= kGroup) << num_blocks << " blocks";
  Begin(patience_);
  NcclResult added = api_->GroupStart();
  if (added != NcclResult::kSuccess) return Error(doing, added);
  const auto went_well = [&] {
    return added == NcclResult::kSuccess || added == NcclResult::kInProgress;
  };
  for (size_t i = 0; i < num_blocks && went_well(); ++i) added = add(i);
  const NcclResult ended = api_->GroupEnd();
  TANDEM_RETURN_IF_ERROR(Settle(doing, went_well() ? ended : added));
  TANDEM_RETURN_IF_ERROR(api_->EventRecord(end_, stream_));
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const bool passed, api_->EventPassed(end_));
    // What breaks a communicator shows in its state alone, and may let the stream go on.
    if (const NcclResult state = State(); state != NcclResult::kSuccess) {
      return Error(doing, state);
    }
    if (passed) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(CheckProgress(doing));
    if (!nap_()) return absl::CancelledError(doing);
  }
}

absl::Status NcclPair::Settle(const char* doing, NcclResult result) {
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

void NcclPair::Begin(Patience limit) {
  began_ = std::chrono::steady_clock::now();
  limit_ = limit;
}

absl::Status NcclPair::CheckProgress(const char* doing) const {
  if (std::chrono::steady_clock::now() - began_ < limit_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("NCCL, %s: nothing has moved for %d ms", doing, limit_.count()));
}

}  // namespace tandem
