// The receiving half of UcxLinks: frames into places of the host's memory.

#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/transport/ucx/ucx_link_state.h"
#include "runtime/transport/ucx/ucx_links.h"

namespace tandem {
namespace {

constexpr char kMessagePath[] = "ucx message";
constexpr char kDevicePath[] = "ucx device memory";

}  // namespace

void UcxLinks::OpenInbound(uint64_t link, const std::string& peer,
                           std::shared_ptr<LostCallbackOnce> on_lost) {
  const char* const path = slots_ == nullptr ? kMessagePath : kDevicePath;
  inbound_.emplace(
      link,
      std::make_unique<Inbound>(Inbound{
          .id = link, .on_lost = std::move(on_lost), .probe = LinkProbe(listener_, peer, path)}));
}

bool UcxLinks::Receive() {
  if (slots_ != nullptr) return ReceiveOnDevice();
  const size_t expected_bytes =
      kFrameHeaderBytes + static_cast<size_t>(context_->pool().kv.block_bytes);
  for (size_t i = 0; i < kWindow; ++i) {
    ucp_tag_recv_info_t info = {};
    // Any link's message: those of a closed one are read, too, and dropped.
    ucp_tag_message_h message =
        ucp_tag_probe_nb(context_->worker(), 0, /*tag_mask=*/0, /*remove=*/1, &info);
    if (message == nullptr) return i > 0;
    std::unique_ptr<ReceiveRecord> record =
        NewReceive(info.sender_tag, info.length == expected_bytes);
    ucp_request_param_t params = {};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = UCP_DATATYPE_IOV;
    params.cb.recv = &UcxLinks::OnReceiveDone;
    params.user_data = record.get();
    void* request = ucp_tag_msg_recv_nbx(context_->worker(), record->parts,
                                         std::size(record->parts), message, &params);
    if (UCS_PTR_IS_PTR(request)) {
      receives_.emplace(record->number, std::move(record));
    } else {
      Finish(std::move(record), UCS_PTR_STATUS(request));
    }
  }
  return true;
}

std::unique_ptr<UcxLinks::ReceiveRecord> UcxLinks::NewReceive(uint64_t link, bool one_block_long) {
  std::unique_ptr<ReceiveRecord> record;
  if (spare_.empty()) {
    record = std::make_unique<ReceiveRecord>();
    record->links = this;
    record->payload.resize(static_cast<size_t>(context_->pool().kv.block_bytes));
    record->parts[0] = {.buffer = record->header, .length = sizeof(record->header)};
    record->parts[1] = {.buffer = record->payload.data(), .length = record->payload.size()};
  } else {
    record = std::move(spare_.back());
    spare_.pop_back();
  }
  record->number = next_record_++;
  record->link = link;
  record->one_block_long = one_block_long;
  return record;
}

void UcxLinks::OnReceiveDone(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                             void* user_data) {
  auto* const record = static_cast<ReceiveRecord*>(user_data);
  UcxLinks* const links = record->links;
  ucp_request_free(request);
  auto owned = links->receives_.extract(record->number);
  links->Finish(std::move(owned.mapped()), status);
}

void UcxLinks::Finish(std::unique_ptr<ReceiveRecord> record, ucs_status_t status) {
  const auto found = inbound_.find(record->link);
  if (found != inbound_.end() && !found->second->broken) {
    const FrameHeader frame = UnpackFrameHeader(record->header);
    if (status != UCS_OK && record->one_block_long) {
      Break(found->second.get(), UcxError("receiving a frame", status));
    } else if (!record->one_block_long) {
      Break(found->second.get(), absl::InvalidArgumentError("a frame that is not one block long"));
    } else if (const absl::Status fits = sink_.Check(frame); !fits.ok()) {
      Break(found->second.get(), fits);
    } else if (IsProbe(frame)) {
      Crc32cCopy(scratch_.data(), record->payload.data(), scratch_.size());
      found->second->probe.Count(frame);
    } else {
      auto landing = sink_.Begin(frame);
      if (landing.has_value()) {
        landing->Complete(
            Crc32cCopy(landing->data(), record->payload.data(), record->payload.size()));
      }
    }
  }
  if (spare_.size() < kWindow) spare_.push_back(std::move(record));
}

void UcxLinks::Break(Inbound* link, const absl::Status& why) {
  if (link->broken) return;
  link->broken = true;
  for (const Inbound::Message& message : std::exchange(link->queue, {})) Drop(message.handle);
  link->on_lost->Call(why);
}

void UcxLinks::CloseInbound(uint64_t link) {
  const auto found = inbound_.find(link);
  if (found == inbound_.end()) return;
  Break(found->second.get(), absl::CancelledError("closed"));
  found->second->probe.Close();
  inbound_.erase(found);
}

}  // namespace tandem
