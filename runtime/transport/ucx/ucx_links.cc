#include "runtime/transport/ucx/ucx_links.h"

#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/transport/ucx/ucx_link_state.h"

namespace tandem {

UcxLinks::UcxLinks(UcxContext* context, KvReceiver* receiver, KvTransport::Listener* listener)
    : context_(context),
      receiver_(receiver),
      listener_(listener),
      scratch_(static_cast<size_t>(context->pool().block_bytes)) {}

UcxLinks::~UcxLinks() {
  TANDEM_CHECK(outbound_.empty() && inbound_.empty()) << "links outlive their transport";
  // A message that UCX never gave back holds no block any more once its worker is gone.
  for (auto& [number, record] : sends_) {
    if (!record->reported && !record->probe) listener_->OnFrameSent(record->send_id, false);
  }
}

absl::Status UcxLinks::Start() {
  const std::pair<unsigned, ucp_am_recv_callback_t> handlers[] = {{kFrameId, &UcxLinks::OnFrame},
                                                                  {kAckId, &UcxLinks::OnAck}};
  for (const auto& [id, handler] : handlers) {
    ucp_am_handler_param_t params = {};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                        UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = id;
    params.flags = UCP_AM_FLAG_WHOLE_MSG;
    params.cb = handler;
    params.arg = this;
    const ucs_status_t status = ucp_worker_set_am_recv_handler(context_->worker(), &params);
    if (status != UCS_OK) return UcxError("registering a handler", status);
  }
  return absl::OkStatus();
}

// ---- Endpoints ----

void UcxLinks::OnEndpointError(void* broken, ucp_ep_h endpoint, ucs_status_t status) {
  *static_cast<absl::Status*>(broken) = UcxError("the peer's endpoint", status);
}

absl::StatusOr<ucp_ep_h> UcxLinks::Connect(const std::string& worker_address,
                                           absl::Status* broken) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxLinks::OnEndpointError;
  params.err_handler.arg = broken;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(context_->worker(), &params, &endpoint);
  if (status != UCS_OK) return UcxError("connecting to the peer", status);
  return endpoint;
}

void UcxLinks::Close(ucp_ep_h endpoint) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;  // Completes what is on its way, with an error.
  void* request = ucp_ep_close_nbx(endpoint, &params);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void UcxLinks::Tend() {
  for (auto& [id, link] : outbound_) {
    if (!link->error->ok() && !link->broken) Break(link.get(), *link->error);
  }
  for (auto& [id, link] : inbound_) {
    if (!link->error->ok() && !link->broken) Break(link.get(), *link->error);
  }
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
  if (closing_.empty()) errors_.clear();
}

void UcxLinks::CloseAll() {
  while (!outbound_.empty()) CloseOutbound(outbound_.begin()->first);
  while (!inbound_.empty()) CloseInbound(inbound_.begin()->first);
}

// ---- Sending ----

void UcxLinks::OpenOutbound(uint64_t link, const std::string& peer, const UcxAddress& remote,
                            std::shared_ptr<LostCallbackOnce> on_lost) {
  auto opened = std::make_unique<Outbound>();
  opened->link = link;
  opened->peer = peer;
  opened->remote = remote;
  opened->on_lost = std::move(on_lost);
  Outbound* const outbound = opened.get();
  outbound_.emplace(link, std::move(opened));
  absl::StatusOr<ucp_ep_h> endpoint = Connect(remote.worker_address, outbound->error.get());
  if (!endpoint.ok()) {
    Break(outbound, endpoint.status());
    return;
  }
  outbound->endpoint = *endpoint;
  const int32_t count = NumProbes(context_->pool().block_bytes);
  for (int32_t i = 0; i < count; ++i) {
    outbound->waiting.push_back(
        {.header = ProbeHeader(i, count, context_->pool().block_bytes), .probe = true});
  }
  Pump(outbound);
}

void UcxLinks::Send(uint64_t link, const FrameHeader& header, int32_t block, uint64_t send_id) {
  const auto found = outbound_.find(link);
  if (found == outbound_.end() || found->second->broken) {
    listener_->OnFrameSent(send_id, false);
    return;
  }
  TANDEM_CHECK(block >= 0 && block < context_->pool().num_blocks)
      << "block " << block << " of " << context_->pool().num_blocks;
  found->second->waiting.push_back({.header = header, .block = block, .send_id = send_id});
  Pump(found->second.get());
}

void UcxLinks::Pump(Outbound* link) {
  while (!link->broken && !link->waiting.empty() && link->unacknowledged.size() < kWindow) {
    const Outbound::Waiting next = link->waiting.front();
    link->waiting.pop_front();
    Start(link, next.header, next.block, next.send_id, next.probe);
  }
}

void UcxLinks::Start(Outbound* link, const FrameHeader& header, int32_t block, uint64_t send_id,
                     bool probe) {
  auto made = std::make_unique<SendRecord>();
  SendRecord* const record = made.get();
  record->links = this;
  record->number = next_record_++;
  record->outbound = link->link;
  record->send_id = send_id;
  record->probe = probe;
  record->message = {
      .inbound = link->remote.link, .outbound = link->link, .record = record->number};
  PackFrameHeader(header, record->message.header);
  sends_.emplace(record->number, std::move(made));
  link->unacknowledged.insert(record->number);

  const std::byte* const payload = probe ? scratch_.data() : context_->pool().block(block);
  const auto payload_bytes = static_cast<size_t>(context_->pool().block_bytes);
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &UcxLinks::OnSendDone;
  params.user_data = record;
  record->in_ucx = true;
  void* request = ucp_am_send_nbx(link->endpoint, kFrameId, &record->message,
                                  sizeof(record->message), payload, payload_bytes, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  record->in_ucx = false;
  if (UCS_PTR_IS_ERR(request)) {
    Break(link, UcxError("sending a frame", UCS_PTR_STATUS(request)));
  }
}

void UcxLinks::OnSendDone(void* request, ucs_status_t status, void* user_data) {
  auto* const record = static_cast<SendRecord*>(user_data);
  UcxLinks* const links = record->links;
  record->in_ucx = false;
  ucp_request_free(request);
  const auto link = links->outbound_.find(record->outbound);
  if (status != UCS_OK && link != links->outbound_.end() && link->second->error->ok()) {
    *link->second->error = UcxError("sending a frame", status);  // Tend() breaks the link.
  }
  links->Settle(record);
}

void UcxLinks::Settle(SendRecord* record) {
  // A send that UCX still reads the block for must end first.
  const bool block_is_free = (record->acknowledged || record->abandoned) && !record->in_ucx;
  if (block_is_free && !record->reported) {
    record->reported = true;
    if (!record->probe) listener_->OnFrameSent(record->send_id, record->acknowledged);
  }
  if (record->reported) sends_.erase(record->number);
}

ucs_status_t UcxLinks::OnAck(void* self, const void* header, size_t header_bytes, void* data,
                             size_t data_bytes, const ucp_am_recv_param_t* param) {
  auto* const links = static_cast<UcxLinks*>(self);
  UcxAck ack;
  if (header_bytes != sizeof(ack)) return UCS_OK;
  std::memcpy(&ack, header, sizeof(ack));
  const auto link = links->outbound_.find(ack.outbound);
  if (link == links->outbound_.end() || link->second->unacknowledged.erase(ack.record) == 0) {
    return UCS_OK;
  }
  SendRecord* const record = links->sends_.at(ack.record).get();
  record->acknowledged = true;
  links->Settle(record);
  links->Pump(link->second.get());
  return UCS_OK;
}

void UcxLinks::Break(Outbound* link, const absl::Status& why) {
  if (link->broken) return;
  link->broken = true;
  if (link->endpoint != nullptr) Close(std::exchange(link->endpoint, nullptr));
  for (const uint64_t number : std::exchange(link->unacknowledged, {})) {
    const auto record = sends_.find(number);
    record->second->abandoned = true;
    Settle(record->second.get());
  }
  for (const Outbound::Waiting& frame : std::exchange(link->waiting, {})) {
    if (!frame.probe) listener_->OnFrameSent(frame.send_id, false);
  }
  link->on_lost->Call(why);
}

void UcxLinks::CloseOutbound(uint64_t link) {
  const auto found = outbound_.find(link);
  if (found == outbound_.end()) return;
  Break(found->second.get(), absl::CancelledError("closed"));
  errors_.push_back(std::move(found->second->error));
  outbound_.erase(found);
}

}  // namespace tandem
