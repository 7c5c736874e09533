// A UCX context with one worker and the KV pool, owned together.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_CONTEXT_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_CONTEXT_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/fleet_secret.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/ucx/huge_view.h"
#include "runtime/transport/ucx/shm_folder.h"
#include "runtime/transport/ucx/ucx_memory.h"

namespace tandem {

struct UcxOptions {
  KvPool pool;  // As asked for; shared memory is UCX's own to allocate.
  // Interfaces on which UCX may listen ("eth0,mlx5_0:1"). Empty: shared memory of this host only;
  // UCX's TCP transport honours a write to any address that a packet names.
  std::string devices;
  // Off, or the pool is a device's: links use the network even within a host (needs `devices`), as
  // between hosts.
  bool shared_memory = true;
  bool shares_memory() const { return shared_memory && pool.memory == MemoryKind::kHost; }
  UcxMemory memory;    // A device's pool lies there.
  FleetSecret secret;  // Proven on the Unix sockets of links.
};

// Unavailable, with what was tried and UCX's own words.
absl::Status UcxError(const std::string& what, ucs_status_t status);

// Single-threaded but for Create and the accessors of constants.
class UcxContext {
 public:
  // Errors of CheckPool; ResourceExhausted if /dev/shm has not room for the pool;
  // FailedPrecondition if UCX cannot be used as configured, or does not reach the pool.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(const UcxOptions& options);
  ~UcxContext();  // Endpoints are closed before.

  // Operations that it still holds may call back meanwhile, and never afterwards.
  void CloseWorker();

  // Memory of the pool's device that UCX may write to, 64-byte aligned, for as long as this lives:
  // an address of the device. ResourceExhausted if there is none.
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes);
  // What UCX is to send from or receive into, at an address of the device or of the host's pool.
  std::byte* ForUcx(std::byte* address) const {
    return ucx_memory_.across == nullptr ? address : ucx_memory_.across(address);
  }
  ucs_memory_type_t memory_type() const;  // The pool's, and that of what Allocate gives.

  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }
  const KvPool& pool() const { return pool_; }
  // What a peer calls its first byte, with the key: where UCX has it.
  uint64_t pool_address() const { return pool_address_; }
  const std::string& worker_address() const { return worker_address_; }
  const std::string& pool_key() const { return pool_key_; }

 private:
  UcxContext(std::unique_ptr<ShmFolder> folder, const UcxOptions& options)
      : folder_(std::move(folder)),
        ucx_memory_(options.pool.memory == MemoryKind::kHost ? UcxMemory{.kind = MemoryKind::kHost}
                                                             : options.memory) {}
  absl::Status OpenWorker();
  absl::Status MapPool(const KvPool& pool);
  absl::Status MapDevicePool(const KvPool& pool);
  void SeePoolInHugePages(size_t pool_bytes);

  const std::unique_ptr<ShmFolder> folder_;
  const UcxMemory ucx_memory_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  std::vector<ucp_mem_h> allocated_;
  int event_fd_ = -1;
  KvPool pool_;
  uint64_t pool_address_ = 0;
  HugeView view_;  // Where the pool's base is, if UCX has allocated it.
  std::string worker_address_;
  std::string pool_key_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_CONTEXT_H_
