// Links between hosts: blocks travel inside eager active messages, so that a completion never hangs
// on something that a peer must do; the receiver copies them to the place it chose. Endpoints are
// in error mode PEER and closed by force, so that completions always come.
//
// Progress thread only.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINKS_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINKS_H_

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/transport/frame_wire.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/lost_callback.h"
#include "runtime/transport/ucx/ucx_address.h"
#include "runtime/transport/ucx/ucx_context.h"

namespace tandem {

// The header of a Frame, which carries the payload, and of an Offer, which says where it lies. As
// it lies in memory (little-endian).
struct UcxFrameMessage {
  uint64_t inbound = 0;   // The receiver's number for the link.
  uint64_t outbound = 0;  // The sender's.
  uint64_t record = 0;    // Comes back in the Ack.
  uint32_t unused = 0;
  uint8_t header[kFrameHeaderBytes] = {};
};
static_assert(sizeof(UcxFrameMessage) == 48);

// The header of an acknowledgement.
struct UcxAck {
  uint64_t outbound = 0;  // The sender's number for the link.
  uint64_t record = 0;    // Of the frame's message.
};

class UcxLinks {
 public:
  // Frames of one link that are on their way without an acknowledgement.
  static constexpr size_t kWindow = 32;

  UcxLinks(UcxContext* context, KvReceiver* receiver, KvTransport::Listener* listener);
  ~UcxLinks();  // All links are gone and Quiet(), or the worker is about to be destroyed.

  // Registers the active message handlers.
  absl::Status Start();

  void OpenOutbound(uint64_t link, const std::string& peer, const UcxAddress& remote,
                    std::shared_ptr<LostCallbackOnce> on_lost);
  void Send(uint64_t link, const FrameHeader& header, int32_t block, uint64_t send_id);
  void CloseOutbound(uint64_t link);  // Unknown: nothing.

  void OpenInbound(uint64_t link, const std::string& peer,
                   std::shared_ptr<LostCallbackOnce> on_lost);
  void AttachInbound(uint64_t link, const UcxAddress& remote);
  void CloseInbound(uint64_t link);  // Unknown: nothing.

  // Ends what broke since the last call; collects endpoints that have closed.
  void Tend();
  void CloseAll();

  // Nothing is owed to or by UCX: no message on its way, no endpoint closing.
  bool Quiet() const { return sends_.empty() && acks_.empty() && closing_.empty(); }

 private:
  struct Outbound;
  struct Inbound;
  struct SendRecord;
  struct AckRecord;

  static ucs_status_t OnFrame(void* self, const void* header, size_t header_bytes, void* data,
                              size_t data_bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t OnAck(void* self, const void* header, size_t header_bytes, void* data,
                            size_t data_bytes, const ucp_am_recv_param_t* param);
  static void OnEndpointError(void* broken, ucp_ep_h endpoint, ucs_status_t status);
  static void OnSendDone(void* request, ucs_status_t status, void* record);
  static void OnAckDone(void* request, ucs_status_t status, void* record);

  absl::StatusOr<ucp_ep_h> Connect(const std::string& worker_address, absl::Status* broken);
  void Close(ucp_ep_h endpoint);

  void Pump(Outbound* link);
  void Start(Outbound* link, const FrameHeader& header, int32_t block, uint64_t send_id,
             bool probe);
  void Settle(SendRecord* record);
  void Break(Outbound* link, const absl::Status& why);
  void Break(Inbound* link, const absl::Status& why);
  void Take(Inbound* link, const UcxFrameMessage& message, const std::byte* payload,
            size_t payload_bytes);
  void Land(Inbound* link, const FrameHeader& header, const std::byte* source);
  void CountProbe(Inbound* link, const FrameHeader& header, const std::byte* source);
  void Acknowledge(Inbound* link, const UcxAck& ack);

  UcxContext* const context_;
  KvReceiver* const receiver_;
  KvTransport::Listener* const listener_;
  std::map<uint64_t, std::unique_ptr<Outbound>> outbound_;
  std::map<uint64_t, std::unique_ptr<Inbound>> inbound_;
  std::map<uint64_t, std::unique_ptr<SendRecord>> sends_;  // By number, until both ends are done.
  std::map<uint64_t, std::unique_ptr<AckRecord>> acks_;
  std::vector<void*> closing_;
  // What endpoints' error handlers write to outlives the endpoints.
  std::vector<std::unique_ptr<absl::Status>> errors_;
  std::vector<std::byte> scratch_;  // Where probes land.
  struct EarlyMessage {
    UcxFrameMessage message;
    std::vector<std::byte> payload;
  };
  std::deque<EarlyMessage> early_;  // For links that nobody has opened yet; at most kWindow.
  uint64_t next_record_ = 1;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINKS_H_
