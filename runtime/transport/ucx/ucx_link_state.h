// What UcxLinks keeps about each link and message; private to its two source files.

#ifndef TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_
#define TANDEM_RUNTIME_TRANSPORT_UCX_UCX_LINK_STATE_H_

#include <memory>
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
  std::shared_ptr<LostCallbackOnce> on_lost;
  LinkProbe probe;
  bool broken = false;
};

// A message: the frame's header, then the block. UCX reads both until the send completes.
struct UcxLinks::SendRecord {
  UcxLinks* links = nullptr;
  uint64_t number = 0;
  uint64_t outbound = 0;
  uint64_t send_id = 0;
  bool probe = false;
  uint8_t header[kFrameHeaderBytes] = {};
  ucp_dt_iov_t parts[2] = {};
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
