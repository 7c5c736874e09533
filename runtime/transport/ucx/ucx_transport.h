// KvTransport over UCX.
//
// Within a host the pool is shared memory, out of which the receiver copies (SharedLinks); between
// hosts blocks travel in tagged messages on the named interfaces (UcxLinks). Either way the
// receiver copies a block to the place it chose and checksums it there, and a link has at most 32
// frames under way. A device's pool has messages alone, within a host too (--ucx-devices lo): UCX
// brings a payload to a slot of the device's memory, and the pool's copier from there to its block.
//
// One thread makes every UCX call. It sleeps in poll() when nothing moves.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_TRANSPORT_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_TRANSPORT_H_

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/mutex.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/ucx/ucx_address.h"
#include "runtime/transport/ucx/ucx_context.h"

namespace tandem {

class SharedLinks;
class UcxLinks;

class UcxTransport final : public KvTransport {
 public:
  // `receiver` and `listener` outlive the transport. Errors of UcxContext::Create.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const UcxOptions& options,
                                                              KvReceiver* receiver,
                                                              Listener* listener);
  ~UcxTransport() override;

  std::string_view name() const override { return "ucx"; }
  const KvPool& pool() const override { return context_->pool(); }
  absl::StatusOr<std::unique_ptr<KvInbound>> OpenInbound(const std::string& peer,
                                                         const std::string& peer_target,
                                                         LostCallback on_lost) override;
  absl::StatusOr<std::unique_ptr<KvOutbound>> OpenOutbound(const std::string& receiver_address,
                                                           LostCallback on_lost) override;

  // Runs `command` on the progress thread, soon. For the links' handles.
  void Post(std::function<void()> command) EXCLUDES(mu_);

 private:
  UcxTransport(std::unique_ptr<UcxContext> context, const UcxOptions& options, int wake_fd);
  void Run();
  bool RunCommands() EXCLUDES(mu_);
  void Wait(bool busy);
  UcxAddress LocalAddress(uint64_t link) const;

  const std::unique_ptr<UcxContext> context_;
  const bool network_;
  const bool shared_memory_;
  const std::string host_id_;
  const int wake_fd_;
  std::unique_ptr<SharedLinks> shared_links_;  // Progress thread.
  std::unique_ptr<UcxLinks> links_;            // Progress thread.
  std::vector<pollfd> polled_;                 // Progress thread.

  Mutex mu_;
  std::vector<std::function<void()>> commands_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_TRANSPORT_H_
