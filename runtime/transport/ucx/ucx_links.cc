#include "runtime/transport/ucx/ucx_links.h"

#include <utility>

#include "runtime/base/check.h"
#include "runtime/transport/ucx/ucx_link_state.h"

namespace tandem {

UcxLinks::UcxLinks(UcxContext* context, std::unique_ptr<UcxSlots> slots, KvReceiver* receiver,
                   KvTransport::Listener* listener)
    : context_(context),
      listener_(listener),
      sink_(context->pool(), receiver, listener),
      slots_(std::move(slots)),
      scratch_(static_cast<size_t>(context->pool().kv.block_bytes)) {}

UcxLinks::~UcxLinks() {
  TANDEM_CHECK(outbound_.empty() && inbound_.empty()) << "links outlive their transport";
  // A message that UCX never gave back holds no block any more: its worker is gone.
  for (const auto& [number, record] : sends_) {
    if (!record->probe) listener_->OnFrameSent(record->send_id, false);
  }
}

// ---- Endpoints ----

void UcxLinks::OnEndpointError(void* broken, ucp_ep_h endpoint, ucs_status_t status) {
  *static_cast<absl::Status*>(broken) = UcxError("the peer's endpoint", status);
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

void UcxLinks::OpenOutbound(uint64_t link, const UcxAddress& remote,
                            std::shared_ptr<LostCallbackOnce> on_lost) {
  auto opened = std::make_unique<Outbound>();
  opened->link = link;
  opened->remote_link = remote.link;
  opened->on_lost = std::move(on_lost);
  Outbound* const outbound = opened.get();
  outbound_.emplace(link, std::move(opened));

  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(remote.worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxLinks::OnEndpointError;
  params.err_handler.arg = outbound->error.get();
  const ucs_status_t status = ucp_ep_create(context_->worker(), &params, &outbound->endpoint);
  if (status != UCS_OK) {
    Break(outbound, UcxError("connecting to the peer", status));
    return;
  }
  outbound->waiting.PushProbes(context_->pool().kv.block_bytes);
  Pump(outbound);
}

void UcxLinks::Send(uint64_t link, const FrameHeader& header, int32_t block, uint64_t send_id) {
  const auto found = outbound_.find(link);
  if (found == outbound_.end() || found->second->broken) {
    listener_->OnFrameSent(send_id, false);
    return;
  }
  TANDEM_CHECK(block >= 0 && block < context_->pool().kv.num_blocks)
      << "block " << block << " of " << context_->pool().kv.num_blocks;
  found->second->waiting.Push(header, block, send_id);
  Pump(found->second.get());
}

void UcxLinks::Withdraw(uint64_t link, uint64_t send_id) {
  const auto found = outbound_.find(link);
  if (found == outbound_.end()) return;
  if (found->second->waiting.Withdraw(send_id)) listener_->OnFrameSent(send_id, false);
}

void UcxLinks::Pump(Outbound* link) {
  while (!link->broken && !link->waiting.empty() && link->in_ucx < kWindow) {
    Start(link, link->waiting.Pop());
  }
}

void UcxLinks::Start(Outbound* link, const FrameQueue::Frame& frame) {
  auto made = std::make_unique<SendRecord>();
  SendRecord* const record = made.get();
  record->links = this;
  record->number = next_record_++;
  record->outbound = link->link;
  record->send_id = frame.send_id;
  record->probe = frame.probe();
  PackFrameHeader(frame.header, record->header);
  sends_.emplace(record->number, std::move(made));
  ++link->in_ucx;

  const KvPool& pool = context_->pool();
  const auto block_bytes = static_cast<size_t>(pool.kv.block_bytes);
  if (slots_ == nullptr) {
    record->parts[0] = {.buffer = record->header, .length = sizeof(record->header)};
    record->parts[1] = {.buffer = frame.probe() ? scratch_.data() : pool.block(frame.block),
                        .length = block_bytes};
    Post(link, record, record->parts, std::size(record->parts), UCP_DATATYPE_IOV,
         UCS_MEMORY_TYPE_HOST);
    return;
  }
  record->messages = 2;
  Post(link, record, record->header, sizeof(record->header), ucp_dt_make_contig(1),
       UCS_MEMORY_TYPE_HOST);
  if (record->status != UCS_OK) {
    FinishMessage(record, record->status);  // A payload without a header would be out of turn.
    return;
  }
  std::byte* const payload = frame.probe() ? slots_->probe() : pool.block(frame.block);
  Post(link, record, context_->ForUcx(payload), block_bytes, ucp_dt_make_contig(1),
       context_->memory_type());
}

void UcxLinks::Post(Outbound* link, SendRecord* record, const void* buffer, size_t count,
                    ucp_datatype_t type, ucs_memory_type_t memory) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.datatype = type;
  params.memory_type = memory;
  params.cb.send = &UcxLinks::OnSendDone;
  params.user_data = record;
  void* request = ucp_tag_send_nbx(link->endpoint, buffer, count, link->remote_link, &params);
  if (!UCS_PTR_IS_PTR(request)) FinishMessage(record, UCS_PTR_STATUS(request));
}

void UcxLinks::OnSendDone(void* request, ucs_status_t status, void* user_data) {
  auto* const record = static_cast<SendRecord*>(user_data);
  UcxLinks* const links = record->links;
  const uint64_t outbound = record->outbound;
  ucp_request_free(request);
  links->FinishMessage(record, status);
  if (const auto link = links->outbound_.find(outbound); link != links->outbound_.end()) {
    links->Pump(link->second.get());
  }
}

// The last of a frame's messages finishes it.
void UcxLinks::FinishMessage(SendRecord* record, ucs_status_t status) {
  if (record->status == UCS_OK) record->status = status;
  if (--record->messages == 0) Finish(record, record->status);
}

void UcxLinks::Finish(SendRecord* record, ucs_status_t status) {
  if (const auto found = outbound_.find(record->outbound); found != outbound_.end()) {
    --found->second->in_ucx;
    if (status != UCS_OK && found->second->error->ok()) {
      *found->second->error = UcxError("sending a frame", status);  // Tend() breaks the link.
    }
  }
  if (!record->probe) listener_->OnFrameSent(record->send_id, status == UCS_OK);
  sends_.erase(record->number);
}

void UcxLinks::Break(Outbound* link, const absl::Status& why) {
  if (link->broken) return;
  link->broken = true;
  if (link->endpoint != nullptr) Close(std::exchange(link->endpoint, nullptr));
  for (const uint64_t send_id : link->waiting.Clear()) listener_->OnFrameSent(send_id, false);
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
