// Links between processes of one host. Blocks lie in shared memory that UCX has allocated and maps;
// the sender offers a block by its index, the receiver copies it out and acknowledges.
//
// Offers and acknowledgements are packets on a Unix socket, not active messages: UCX's
// shared-memory queue has many writers, and one that dies or stops between claiming a slot and
// filling it blocks the queue for all others. A socket also tells at once that its peer is gone.
// Abstract names are for everybody to see and take, so both ends look who the other is, and prove
// themselves (socket_greeting.h) before anything else is said.
//
// Progress thread only.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_SHARED_LINKS_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_SHARED_LINKS_H_

#include <poll.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/fleet_secret.h"
#include "runtime/transport/frame_sink.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/lost_callback.h"
#include "runtime/transport/ucx/ucx_address.h"
#include "runtime/transport/ucx/ucx_context.h"

namespace tandem {

class SharedLinks {
 public:
  // Frames of one link that are offered and not acknowledged.
  static constexpr size_t kWindow = 32;

  // Unavailable if the socket cannot be made.
  static absl::StatusOr<std::unique_ptr<SharedLinks>> Create(UcxContext* context,
                                                             const FleetSecret& secret,
                                                             KvReceiver* receiver,
                                                             KvTransport::Listener* listener);
  ~SharedLinks();  // All links are closed.

  // Where a sender connects: a name in the abstract namespace.
  const std::string& socket_name() const { return socket_name_; }

  void OpenOutbound(uint64_t link, const UcxAddress& remote,
                    std::shared_ptr<LostCallbackOnce> on_lost);
  void Send(uint64_t link, const FrameHeader& header, int32_t block, uint64_t send_id);
  void Withdraw(uint64_t link, uint64_t send_id);
  void CloseOutbound(uint64_t link);  // Unknown: nothing.

  // Maps the sender's pool; its connection is read from now on.
  void AttachInbound(uint64_t link, const std::string& peer, const UcxAddress& remote,
                     std::shared_ptr<LostCallbackOnce> on_lost);
  void CloseInbound(uint64_t link);  // Unknown: nothing.

  void CloseAll();

  // What to wait for, and what to do about it. Handle takes the array that AppendPollFds filled.
  void AppendPollFds(std::vector<pollfd>* fds) const;
  void Handle(const std::vector<pollfd>& fds);

 private:
  struct Outbound;
  struct Inbound;
  struct Offer;

  SharedLinks(UcxContext* context, const FleetSecret& secret, KvReceiver* receiver,
              KvTransport::Listener* listener);
  absl::Status Listen();
  void Accept();
  void Decline();
  void Identify(int fd);
  void Pump(Outbound* link);
  void ReadAnswer(Outbound* link);
  void ReadAcks(Outbound* link);
  void Break(Outbound* link, const absl::Status& why);
  absl::Status Map(Inbound* link);
  void Probe(Inbound* link);
  void ReadOffers(Inbound* link);
  absl::Status Take(Inbound* link, const Offer& offer);
  void Break(Inbound* link, const absl::Status& why);

  UcxContext* const context_;
  const FleetSecret secret_;
  KvTransport::Listener* const listener_;
  const FrameSink sink_;
  std::string socket_name_;
  int listen_fd_ = -1;
  int spare_fd_ = -1;  // For Decline.
  std::map<uint64_t, std::unique_ptr<Outbound>> outbound_;
  std::map<uint64_t, std::unique_ptr<Inbound>> inbound_;
  std::vector<int> strangers_;     // Accepted; have not greeted.
  std::map<uint64_t, int> early_;  // Connections of links that are not attached yet.
  std::map<std::string, ucp_ep_h>
      endpoints_;                   // By worker address; UCX frees none before its worker.
  std::vector<std::byte> scratch_;  // Where probes land.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_SHARED_LINKS_H_
