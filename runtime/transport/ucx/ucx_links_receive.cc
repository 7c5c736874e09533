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
      Deliver(inbound, early.message, early.payload.data(), early.payload.size());
    }
  }
  early_ = std::move(others);
}

void UcxLinks::AttachInbound(uint64_t link, const UcxAddress& remote, bool shared_memory) {
  const auto found = inbound_.find(link);
  if (found == inbound_.end() || found->second->attached) return;
  Inbound* const inbound = found->second.get();
  inbound->attached = true;
  inbound->remote = remote;
  inbound->shared_memory = shared_memory;
  absl::StatusOr<ucp_ep_h> endpoint =
      Connect(remote.worker_address, shared_memory, inbound->error.get());
  if (!endpoint.ok()) {
    Break(inbound, endpoint.status());
    return;
  }
  inbound->endpoint = *endpoint;
  if (shared_memory) {
    ucs_status_t status =
        ucp_ep_rkey_unpack(inbound->endpoint, remote.pool_key.data(), &inbound->key);
    void* mapped = nullptr;
    if (status == UCS_OK) status = ucp_rkey_ptr(inbound->key, remote.pool_base, &mapped);
    if (status != UCS_OK) {
      Break(inbound, UcxError("mapping the peer's pool", status));
      return;
    }
    inbound->remote_pool = static_cast<const std::byte*>(mapped);
    ProbeSharedMemory(inbound);
  }
  for (const UcxAck& ack : std::exchange(inbound->early_acks, {})) Acknowledge(inbound, ack);
  for (const UcxFrameMessage& offer : std::exchange(inbound->early_offers, {})) {
    if (!inbound->broken) Take(inbound, offer);
  }
}

void UcxLinks::ProbeSharedMemory(Inbound* link) {
  const int64_t block_bytes = context_->pool().block_bytes;
  const int32_t count = std::min(NumProbes(block_bytes), link->remote.num_blocks);
  const double begin = SecondsNow();
  for (int32_t i = 0; i < count; ++i) {
    Crc32cCopy(scratch_.data(), link->remote_pool + i * block_bytes, scratch_.size());
  }
  const double seconds = std::max(SecondsNow() - begin, 1e-9);
  listener_->OnLinkProbed({.peer = link->peer,
                           .path = "shared memory",
                           .bytes_per_second = static_cast<double>(count * block_bytes) / seconds});
}

ucs_status_t UcxLinks::OnOffer(void* self, const void* header, size_t header_bytes, void* data,
                               size_t data_bytes, const ucp_am_recv_param_t* param) {
  if (data_bytes == 0) static_cast<UcxLinks*>(self)->Receive(header, header_bytes, nullptr, 0);
  return UCS_OK;
}

ucs_status_t UcxLinks::OnFrame(void* self, const void* header, size_t header_bytes, void* data,
                               size_t data_bytes, const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && data_bytes > 0) {
    static_cast<UcxLinks*>(self)->Receive(header, header_bytes, data, data_bytes);
  }
  return UCS_OK;
}

void UcxLinks::Receive(const void* header, size_t header_bytes, const void* data,
                       size_t data_bytes) {
  UcxFrameMessage message;
  if (header_bytes != sizeof(message)) return;
  std::memcpy(&message, header, sizeof(message));
  const auto* const payload = static_cast<const std::byte*>(data);
  const auto link = inbound_.find(message.inbound);
  if (link != inbound_.end()) {
    Deliver(link->second.get(), message, payload, data_bytes);
    return;
  }
  // It may have overtaken the command that opens its link.
  early_.push_back({.message = message, .payload = {payload, payload + data_bytes}});
  if (early_.size() > kWindow) early_.pop_front();
}

void UcxLinks::Deliver(Inbound* link, const UcxFrameMessage& message, const std::byte* payload,
                       size_t payload_bytes) {
  if (link->broken) return;
  if (payload_bytes > 0) {
    TakeFrame(link, message, payload, payload_bytes);
  } else if (link->attached) {
    Take(link, message);
  } else if (link->early_offers.size() < kWindow) {
    link->early_offers.push_back(message);
  }
}

void UcxLinks::TakeFrame(Inbound* link, const UcxFrameMessage& message, const std::byte* payload,
                         size_t payload_bytes) {
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

void UcxLinks::Take(Inbound* link, const UcxFrameMessage& message) {
  const FrameHeader frame = UnpackFrameHeader(message.header);
  const int64_t block_bytes = context_->pool().block_bytes;
  if (link->remote_pool == nullptr ||
      message.block >= static_cast<uint32_t>(link->remote.num_blocks) ||
      frame.length_bytes != block_bytes) {
    Break(link, absl::InvalidArgumentError("a frame outside the peer's pool"));
    return;
  }
  Land(link, frame, link->remote_pool + int64_t{message.block} * block_bytes);
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
  link->remote_pool = nullptr;
  if (link->key != nullptr) ucp_rkey_destroy(std::exchange(link->key, nullptr));
  if (link->endpoint != nullptr) Close(std::exchange(link->endpoint, nullptr), link->shared_memory);
  link->on_lost->Call(why);
}

void UcxLinks::CloseInbound(uint64_t link) {
  const auto found = inbound_.find(link);
  Break(found->second.get(), absl::CancelledError("closed"));
  errors_.push_back(std::move(found->second->error));
  inbound_.erase(found);
}

}  // namespace tandem
