// What UcxLinks keeps about each link and message; private to its three source files.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/transport/link_probe.h"
#include "runtime/transport/ucx/ucx_links.h"

namespace tandem {

struct UcxLinks::Outbound {
  uint64_t link = 0;
  uint64_t remote_link = 0;
  std::shared_ptr<LostCallbackOnce> on_lost;
  ucp_ep_h endpoint = nullptr;
  std::unique_ptr<absl::Status> error = std::make_unique<absl::Status>();  // By the endpoint.
  bool broken = false;

  FrameQueue waiting;
  size_t in_ucx = 0;
};

struct UcxLinks::Inbound {
  uint64_t id = 0;
  std::shared_ptr<LostCallbackOnce> on_lost;
  LinkProbe probe;
  bool broken = false;

  // Where the pool is a device's: headers and payloads in turn, in the order of sends.
  struct Message {
    ucp_tag_message_h handle;
    size_t bytes;
  };
  std::deque<Message> queue;             // What UCX holds of them.
  bool reads_header = false;             // One that has begun and is not there yet.
  std::optional<FrameHeader> announced;  // Its payload is the next message.
  int slots = 0;                         // In which payloads arrive.
};

// The frame's header, then the block, in a message or two. UCX reads both until all completes.
struct UcxLinks::SendRecord {
  UcxLinks* links = nullptr;
  uint64_t number = 0;
  uint64_t outbound = 0;
  uint64_t send_id = 0;
  bool probe = false;
  int messages = 1;  // Not completed; UCX has them, or will.
  ucs_status_t status = UCS_OK;
  uint8_t header[kFrameHeaderBytes] = {};
  ucp_dt_iov_t parts[2] = {};
};

// A message of a device's link on its way into memory that UCX writes until it completes.
struct UcxLinks::DeviceReceive {
  UcxLinks* links = nullptr;
  uint64_t number = 0;
  uint64_t link = 0;
  uint8_t header[kFrameHeaderBytes] = {};
  // For a payload: where it arrives, an address of the device, and what came before it.
  std::byte* slot = nullptr;
  FrameHeader frame;
};

// The same at the other end.
struct UcxLinks::ReceiveRecord {
  UcxLinks* links = nullptr;
  uint64_t number = 0;
  uint64_t link = 0;
  bool one_block_long = false;  // And a header, as every frame is.
  uint8_t header[kFrameHeaderBytes] = {};
  std::vector<std::byte> payload;
  ucp_dt_iov_t parts[2] = {};
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_
