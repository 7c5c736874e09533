// Links between hosts: a block and its header are one eager tagged message, whose tag is the
// receiver's number for the link, so that a completion never hangs on something that a peer must
// do. The receiver copies the block to the place it chose. Endpoints are in error mode PEER and
// closed by force, so that completions always come.
//
// Nothing goes back over UCX, and tagged eager messages ask the peer for nothing either: UCX 1.13
// aborts the process when an endpoint closes or fails while it still owes the peer a handshake, and
// when both ends connect to each other at the same moment (README.md).
//
// A device's blocks have messages of their own, each behind that of its header, as UCX sends memory
// of one kind at a time. The receiver lets UCX put one in a slot (ucx_slots.h) when its header has
// come and a slot of the link is free; what waits is UCX's. From the slot the pool's copier brings
// it to its block and sums what lies there.
//
// Progress thread only.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINKS_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINKS_H_

#include <ucp/api/ucp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/frame_queue.h"
#include "runtime/transport/frame_sink.h"
#include "runtime/transport/frame_wire.h"
#include "runtime/transport/kv_transport.h"
#include "runtime/transport/lost_callback.h"
#include "runtime/transport/ucx/ucx_address.h"
#include "runtime/transport/ucx/ucx_context.h"
#include "runtime/transport/ucx/ucx_slots.h"

namespace tandem {

class UcxLinks {
 public:
  // Frames of one link that UCX holds at a time; and messages read before others get their turn.
  static constexpr size_t kWindow = 32;

  // `slots`: null, unless the pool is a device's.
  UcxLinks(UcxContext* context, std::unique_ptr<UcxSlots> slots, KvReceiver* receiver,
           KvTransport::Listener* listener);
  ~UcxLinks();  // All links are gone, and Quiet() or the worker closed: no callback comes.

  // Before all else, on the thread that makes all other calls.
  void Begin();

  void OpenOutbound(uint64_t link, const UcxAddress& remote,
                    std::shared_ptr<LostCallbackOnce> on_lost);
  void Send(uint64_t link, const FrameHeader& header, int32_t block, uint64_t send_id);
  void Withdraw(uint64_t link, uint64_t send_id);
  void CloseOutbound(uint64_t link);  // Unknown: nothing.

  void OpenInbound(uint64_t link, const std::string& peer,
                   std::shared_ptr<LostCallbackOnce> on_lost);
  void CloseInbound(uint64_t link);  // Unknown: nothing.

  // Reads what has arrived. False if nothing had.
  bool Receive();

  // Ends what broke since the last call; collects endpoints that have closed.
  void Tend();
  void CloseAll();

  // Nothing is owed by UCX that somebody waits for: no send on its way, no endpoint closing.
  // Receives end with its worker.
  bool Quiet() const { return sends_.empty() && closing_.empty(); }

 private:
  struct Outbound;
  struct Inbound;
  struct SendRecord;
  struct ReceiveRecord;
  struct DeviceReceive;

  static void OnEndpointError(void* broken, ucp_ep_h endpoint, ucs_status_t status);
  static void OnSendDone(void* request, ucs_status_t status, void* record);
  static void OnReceiveDone(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                            void* record);
  static void OnDeviceReceiveDone(void* request, ucs_status_t status,
                                  const ucp_tag_recv_info_t* info, void* record);
  static void OnDropped(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                        void* nothing);

  void Close(ucp_ep_h endpoint);
  void Pump(Outbound* link);
  void Start(Outbound* link, const FrameQueue::Frame& frame);
  void Post(Outbound* link, SendRecord* record, const void* buffer, size_t count,
            ucp_datatype_t type, ucs_memory_type_t memory);
  void FinishMessage(SendRecord* record, ucs_status_t status);
  void Finish(SendRecord* record, ucs_status_t status);
  void Break(Outbound* link, const absl::Status& why);
  void Break(Inbound* link, const absl::Status& why);
  std::unique_ptr<ReceiveRecord> NewReceive(uint64_t link, bool one_block_long);
  void Finish(std::unique_ptr<ReceiveRecord> record, ucs_status_t status);

  // Where the pool is a device's.
  bool ReceiveOnDevice();
  void ReadQueue(Inbound* link);
  void Receive(ucp_tag_message_h message, std::unique_ptr<DeviceReceive> receive);
  void Finish(std::unique_ptr<DeviceReceive> receive, ucs_status_t status);
  absl::Status TakeHeader(Inbound* link, const FrameHeader& header);
  absl::Status Land(Inbound* link, const DeviceReceive& receive);
  void Drop(ucp_tag_message_h message);

  UcxContext* const context_;
  KvTransport::Listener* const listener_;
  const FrameSink sink_;
  const std::unique_ptr<UcxSlots> slots_;  // Null: the pool is the host's.
  std::map<uint64_t, std::unique_ptr<Outbound>> outbound_;
  std::map<uint64_t, std::unique_ptr<Inbound>> inbound_;
  std::map<uint64_t, std::unique_ptr<SendRecord>> sends_;  // In UCX, by number.
  // Messages whose second part is still to come; for ever, if the sender died in between.
  std::map<uint64_t, std::unique_ptr<ReceiveRecord>> receives_;
  std::vector<std::unique_ptr<ReceiveRecord>> spare_;                   // At most kWindow.
  std::map<uint64_t, std::unique_ptr<DeviceReceive>> device_receives_;  // In UCX, by number.
  std::vector<void*> closing_;
  // What endpoints' error handlers write to outlives the endpoints.
  std::vector<std::unique_ptr<absl::Status>> errors_;
  std::vector<std::byte> scratch_;  // Where probes come from and land.
  uint64_t next_record_ = 1;
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINKS_H_
