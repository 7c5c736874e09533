// The receiving half of UcxLinks for a device's pool: payloads into slots, and from there to
// blocks.

#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/transport/ucx/ucx_link_state.h"
#include "runtime/transport/ucx/ucx_links.h"

namespace tandem {

// CUDA's calls make the device the thread's own, which UCX's need.
void UcxLinks::Begin() {
  if (slots_ == nullptr) return;
  const KvPool& pool = context_->pool();
  const absl::Status sent =
      pool.copier->Upload(slots_->probe(), scratch_.data(), scratch_.size()).status();
  if (!sent.ok())
    LogWarning("the device has failed", {{"why", sent.ToString()}});  // So will links.
}

bool UcxLinks::ReceiveOnDevice() {
  size_t count = 0;
  for (; count < 2 * kWindow; ++count) {
    ucp_tag_recv_info_t info = {};
    ucp_tag_message_h message =
        ucp_tag_probe_nb(context_->worker(), 0, /*tag_mask=*/0, /*remove=*/1, &info);
    if (message == nullptr) break;
    const auto found = inbound_.find(info.sender_tag);
    if (found == inbound_.end() || found->second->broken) {
      Drop(message);
    } else {
      found->second->queue.push_back({.handle = message, .bytes = info.length});
    }
  }
  for (const auto& [id, link] : inbound_) ReadQueue(link.get());
  return count > 0;
}

void UcxLinks::ReadQueue(Inbound* link) {
  while (!link->broken && !link->queue.empty() && !link->reads_header) {
    const Inbound::Message next = link->queue.front();
    const size_t wanted_bytes = link->announced.has_value()
                                    ? static_cast<size_t>(context_->pool().kv.block_bytes)
                                    : kFrameHeaderBytes;
    if (next.bytes != wanted_bytes) {
      Break(link, absl::InvalidArgumentError(absl::StrFormat(
                      "a message of %d bytes where %d are due", next.bytes, wanted_bytes)));
      return;
    }
    auto receive = std::make_unique<DeviceReceive>();
    receive->links = this;
    receive->number = next_record_++;
    receive->link = link->id;
    if (link->announced.has_value()) {
      if (link->slots == UcxSlotPlan::kPerLink) return;
      const absl::StatusOr<std::byte*> slot = slots_->Take();
      if (!slot.ok()) {
        Break(link, slot.status());
        return;
      }
      ++link->slots;
      receive->slot = *slot;
      receive->frame = *std::exchange(link->announced, std::nullopt);
    } else {
      link->reads_header = true;
    }
    link->queue.pop_front();
    Receive(next.handle, std::move(receive));
  }
}

void UcxLinks::Receive(ucp_tag_message_h message, std::unique_ptr<DeviceReceive> receive) {
  const bool payload = receive->slot != nullptr;
  void* const buffer = payload ? static_cast<void*>(context_->ForUcx(receive->slot))
                               : static_cast<void*>(receive->header);
  const size_t bytes =
      payload ? static_cast<size_t>(context_->pool().kv.block_bytes) : sizeof(receive->header);
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = payload ? context_->memory_type() : UCS_MEMORY_TYPE_HOST;
  params.cb.recv = &UcxLinks::OnDeviceReceiveDone;
  params.user_data = receive.get();
  const uint64_t number = receive->number;
  device_receives_.emplace(number, std::move(receive));  // UCX may call back before it returns.
  void* request = ucp_tag_msg_recv_nbx(context_->worker(), buffer, bytes, message, &params);
  if (!UCS_PTR_IS_PTR(request)) {
    Finish(std::move(device_receives_.extract(number).mapped()), UCS_PTR_STATUS(request));
  }
}

void UcxLinks::OnDeviceReceiveDone(void* request, ucs_status_t status,
                                   const ucp_tag_recv_info_t* info, void* user_data) {
  auto* const receive = static_cast<DeviceReceive*>(user_data);
  UcxLinks* const links = receive->links;
  ucp_request_free(request);
  auto owned = links->device_receives_.extract(receive->number);
  links->Finish(std::move(owned.mapped()), status);  // ReceiveOnDevice() goes on with the link.
}

// UCX writes no more of it, whatever became of it.
void UcxLinks::Finish(std::unique_ptr<DeviceReceive> receive, ucs_status_t status) {
  if (const auto found = inbound_.find(receive->link); found != inbound_.end()) {
    Inbound* const link = found->second.get();
    absl::Status taken;
    if (status != UCS_OK) {
      taken = UcxError("receiving a frame", status);
    } else if (link->broken) {
      // Nobody wants it.
    } else if (receive->slot != nullptr) {
      taken = Land(link, *receive);
    } else {
      taken = TakeHeader(link, UnpackFrameHeader(receive->header));
    }
    if (receive->slot != nullptr) --link->slots;
    if (!taken.ok()) Break(link, taken);
  }
  if (receive->slot != nullptr) slots_->GiveBack(receive->slot);
}

absl::Status UcxLinks::TakeHeader(Inbound* link, const FrameHeader& header) {
  link->reads_header = false;
  TANDEM_RETURN_IF_ERROR(sink_.Check(header));
  link->announced = header;
  return absl::OkStatus();
}

absl::Status UcxLinks::Land(Inbound* link, const DeviceReceive& receive) {
  DeviceCopier* const copier = context_->pool().copier;
  const auto bytes = static_cast<size_t>(context_->pool().kv.block_bytes);
  if (IsProbe(receive.frame)) {
    TANDEM_RETURN_IF_ERROR(copier->CopyWithin(slots_->nowhere(), receive.slot, bytes).status());
    link->probe.Count(receive.frame);
  } else if (std::optional<FrameSink::Landing> landing = sink_.Begin(receive.frame)) {
    TANDEM_ASSIGN_OR_RETURN(const uint32_t crc32c,
                            copier->CopyWithin(landing->data(), receive.slot, bytes));
    landing->Complete(crc32c);
  }
  return absl::OkStatus();
}

// Received into nothing: so UCX lets go of it, and the sender's send completes.
void UcxLinks::Drop(ucp_tag_message_h message) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
  params.cb.recv = &UcxLinks::OnDropped;
  ucp_tag_msg_recv_nbx(context_->worker(), nullptr, 0, message, &params);
}

void UcxLinks::OnDropped(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* nothing) {
  ucp_request_free(request);
}

}  // namespace tandem
