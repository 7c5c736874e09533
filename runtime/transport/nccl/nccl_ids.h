// NCCL's unique ids, made ahead of time, so that no session waits for one.

#ifndef TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_IDS_H_
#define TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_IDS_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "runtime/transport/nccl/nccl_api.h"

namespace tandem {

// Any thread.
class NcclIds {
 public:
  // With as many as are kept ready. FailedPrecondition if NCCL does not work. `api` outlives this.
  static absl::StatusOr<std::unique_ptr<NcclIds>> Create(NcclApi* api);
  // Waits for the one that is being made.
  ~NcclIds();

  // Nobody else gets it. Unavailable while none is ready: NCCL is behind in making them.
  absl::StatusOr<NcclUniqueId> Take() EXCLUDES(mu_);

 private:
  explicit NcclIds(NcclApi* api) : api_(api) {}
  void Run() EXCLUDES(mu_);  // The thread's.
  absl::Status Make() EXCLUDES(mu_);

  NcclApi* const api_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<NcclUniqueId> ready_ GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_NCCL_NCCL_IDS_H_
