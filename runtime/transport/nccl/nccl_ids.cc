#include "runtime/transport/nccl/nccl_ids.h"

#include <pthread.h>

#include <chrono>
#include <cstring>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace tandem {
namespace {

// Each is a port of NCCL's on which somebody is awaited.
constexpr size_t kSpareIds = 8;
constexpr auto kPause = std::chrono::seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<NcclIds>> NcclIds::Create(NcclApi* api) {
  std::unique_ptr<NcclIds> ids(new NcclIds(api));
  for (size_t i = 0; i < kSpareIds; ++i) TANDEM_RETURN_IF_ERROR(ids->Make());
  ids->thread_ = std::thread([self = ids.get()] { self->Run(); });
  return ids;
}

NcclIds::~NcclIds() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<NcclUniqueId> NcclIds::Take() {
  MutexLock lock(&mu_);
  if (ready_.empty()) return absl::UnavailableError("NCCL is behind in making unique ids");
  const NcclUniqueId id = ready_.back();
  ready_.pop_back();
  changed_.SignalAll();
  return id;
}

void NcclIds::Run() {
  pthread_setname_np(pthread_self(), "kv-nccl-ids");
  auto next = std::chrono::steady_clock::now();  // Not before: the last one failed.
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!stopping_ && ready_.size() >= kSpareIds) changed_.Wait(&mu_);
      while (!stopping_ && std::chrono::steady_clock::now() < next) changed_.WaitUntil(&mu_, next);
      if (stopping_) return;
    }
    if (const absl::Status made = Make(); !made.ok()) {
      LogWarning("no unique id for KV links", {{"why", made.ToString()}});
      next = std::chrono::steady_clock::now() + kPause;
    }
  }
}

absl::Status NcclIds::Make() {
  NcclUniqueId id = {};
  if (const NcclResult made = api_->GetUniqueId(&id); made != NcclResult::kSuccess) {
    return absl::FailedPreconditionError(absl::StrFormat("NCCL makes no unique id: result %d: %s",
                                                         static_cast<int>(made),
                                                         api_->GetLastError(nullptr)));
  }
  MutexLock lock(&mu_);
  for (const NcclUniqueId& other : ready_) {
    // One that a file of NCCL's settings names would be everybody's.
    if (std::memcmp(&other, &id, sizeof(id)) == 0) {
      return absl::FailedPreconditionError("NCCL made one id twice: is NCCL_COMM_ID set?");
    }
  }
  ready_.push_back(id);
  return absl::OkStatus();
}

}  // namespace tandem
