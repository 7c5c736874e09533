// The receiving half of UcxLinks: frames into places, acknowledgements back.

#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/transport/ucx/ucx_link_state.h"
#include "runtime/transport/ucx/ucx_links.h"

namespace tandem {

namespace {

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void UcxLinks::OpenInbound(uint64_t link, const std::string& peer,
                           std::shared_ptr<LostCallbackOnce> on_lost) {
  auto opened = std::make_unique<Inbound>();
  opened->link = link;
  opened->peer = peer;
  opened->on_lost = std::move(on_lost);
  Inbound* const inbound = opened.get();
  inbound_.emplace(link, std::move(opened));
  std::deque<EarlyMessage> others;
  for (EarlyMessage& early : std::exchange(early_, {})) {
    if (early.message.inbound != link) {
      others.push_back(std::move(early));
    } else {
      Take(inbound, early.message, early.payload.data(), early.payload.size());
    }
  }
  early_ = std::move(others);
}

void UcxLinks::AttachInbound(uint64_t link, const UcxAddress& remote) {
  const auto found = inbound_.find(link);
  if (found == inbound_.end() || found->second->attached) return;
  Inbound* const inbound = found->second.get();
  inbound->attached = true;
  inbound->remote = remote;
  absl::StatusOr<ucp_ep_h> endpoint = Connect(remote.worker_address, inbound->error.get());
  if (!endpoint.ok()) {
    Break(inbound, endpoint.status());
    return;
  }
  inbound->endpoint = *endpoint;
  for (const UcxAck& ack : std::exchange(inbound->early_acks, {})) Acknowledge(inbound, ack);
}

ucs_status_t UcxLinks::OnFrame(void* self, const void* header, size_t header_bytes, void* data,
                               size_t data_bytes, const ucp_am_recv_param_t* param) {
  auto* const links = static_cast<UcxLinks*>(self);
  UcxFrameMessage message;
  if (header_bytes != sizeof(message) || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_OK;
  }
  std::memcpy(&message, header, sizeof(message));
  const auto* const payload = static_cast<const std::byte*>(data);
  const auto link = links->inbound_.find(message.inbound);
  if (link != links->inbound_.end()) {
    links->Take(link->second.get(), message, payload, data_bytes);
    return UCS_OK;
  }
  // It may have overtaken the command that opens its link.
  links->early_.push_back({.message = message, .payload = {payload, payload + data_bytes}});
  if (links->early_.size() > kWindow) links->early_.pop_front();
  return UCS_OK;
}

void UcxLinks::Take(Inbound* link, const UcxFrameMessage& message, const std::byte* payload,
                    size_t payload_bytes) {
  if (link->broken) return;
  const FrameHeader frame = UnpackFrameHeader(message.header);
  const auto block_bytes = static_cast<size_t>(context_->pool().block_bytes);
  if (payload_bytes != block_bytes || frame.length_bytes != block_bytes) {
    Break(link, absl::InvalidArgumentError("a frame that is not one block long"));
    return;
  }
  if (IsProbe(frame)) {
    CountProbe(link, frame, payload);
  } else {
    Land(link, frame, payload);
  }
  Acknowledge(link, {.outbound = message.outbound, .record = message.record});
}

void UcxLinks::Land(Inbound* link, const FrameHeader& header, const std::byte* source) {
  const std::optional<KvReceiver::Place> place = receiver_->Begin(header);
  if (!place.has_value()) return;
  const uint32_t crc =
      Crc32cCopy(context_->pool().block(place->block), source, header.length_bytes);
  listener_->OnFrameReceived(receiver_->Finish(*place, true, crc), header.length_bytes);
}

void UcxLinks::CountProbe(Inbound* link, const FrameHeader& header, const std::byte* source) {
  Crc32cCopy(scratch_.data(), source, scratch_.size());
  if (header.ordinal == 0) {
    link->first_probe_seconds = SecondsNow();
  } else if (header.ordinal + 1 == header.reservation.slot) {
    const double seconds = std::max(SecondsNow() - link->first_probe_seconds, 1e-9);
    listener_->OnLinkProbed({.peer = link->peer,
                             .path = "ucx active message",
                             .bytes_per_second = static_cast<double>(header.ordinal) *
                                                 static_cast<double>(header.length_bytes) /
                                                 seconds});
  }
}

void UcxLinks::Acknowledge(Inbound* link, const UcxAck& ack) {
  if (link->broken) return;
  if (link->endpoint == nullptr) {
    if (link->early_acks.size() < 2 * kWindow) link->early_acks.push_back(ack);
    return;
  }
  auto made = std::make_unique<AckRecord>();
  AckRecord* const record = made.get();
  record->links = this;
  record->number = next_record_++;
  record->message = ack;
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &UcxLinks::OnAckDone;
  params.user_data = record;
  void* request = ucp_am_send_nbx(link->endpoint, kAckId, &record->message, sizeof(record->message),
                                  nullptr, 0, &params);
  if (UCS_PTR_IS_PTR(request)) {
    acks_.emplace(record->number, std::move(made));
  } else if (UCS_PTR_IS_ERR(request)) {
    Break(link, UcxError("acknowledging a frame", UCS_PTR_STATUS(request)));
  }
}

void UcxLinks::OnAckDone(void* request, ucs_status_t status, void* user_data) {
  auto* const record = static_cast<AckRecord*>(user_data);
  ucp_request_free(request);
  record->links->acks_.erase(record->number);
}

void UcxLinks::Break(Inbound* link, const absl::Status& why) {
  if (link->broken) return;
  link->broken = true;
  if (link->endpoint != nullptr) Close(std::exchange(link->endpoint, nullptr));
  link->on_lost->Call(why);
}

void UcxLinks::CloseInbound(uint64_t link) {
  const auto found = inbound_.find(link);
  if (found == inbound_.end()) return;
  Break(found->second.get(), absl::CancelledError("closed"));
  errors_.push_back(std::move(found->second->error));
  inbound_.erase(found);
}

}  // namespace tandem
